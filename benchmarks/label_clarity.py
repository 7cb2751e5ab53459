"""Does a model find a block by its name? Labels of four syllables, of two words, and one word.

    python -m benchmarks.label_clarity [--trials N]

Eight passages of samples/mtrag_20conv, 40 words each, with headings; then an annotation that names
one of them, the name again as a heading, and a line end. Of the eight passages, whose first word
does SmolLM2 (135M, greedy) hold for most likely? Chance is 12.5%. `margin`: logarithm of the right
one's probability among the eight, mean; 0 is certainty, -2.08 is chance. No accuracy of answers:
this model is too small to have one.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import random
from collections.abc import Callable
from typing import Any

from benchmarks.data import folder
from cp_ray.core.annotation import label_of, location_annotation, short_names
from cp_ray.workers.models import resolve_model

PASSAGES, WORDS = 8, 40


def syllables(content: bytes) -> str:
    """Labels as they were before decision 0028: four times a consonant and a vowel."""
    number = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())
    letters = []
    for alphabet in ("bdfgklmnprstvz", "aeiou") * 4:
        number, index = divmod(number, len(alphabet))
        letters.append(alphabet[index])
    return "".join(letters)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40)
    trials = parser.parse_args().trials
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = resolve_model("smollm2").path
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with gzip.open(folder() / "samples/mtrag_20conv/blocks.jsonl.gz", "rt") as lines:
        texts = [" ".join(json.loads(line)["text"].split()[:WORDS]) for line in lines]
    first: dict[str, int] = {text: tokenizer(text).input_ids[0] for text in texts if text}
    kinds: dict[str, tuple[Callable[[bytes], str], bool]] = {
        "four syllables": (syllables, False),
        "two words": (label_of, False),
        "one word of two": (label_of, True),
    }
    print(f"{'name':<16} {'found':>6} {'margin':>7}   of {trials} trials")
    for kind, (label, short) in kinds.items():
        chosen = random.Random(5)
        found, margin = 0, 0.0
        for _ in range(trials):
            passages = distinct(chosen, first)
            labels = [label(text.encode()) for text in passages]
            names = short_names(labels, labels) if short else labels
            place = chosen.randrange(PASSAGES)
            blocks = "".join(
                f"[Doc {one}]\n{text}\n\n" for one, text in zip(labels, passages, strict=True)
            )
            prompt = f"{blocks}{location_annotation([names[place]])}[Doc {names[place]}]\n"
            with torch.inference_mode():
                ids = tokenizer(prompt, return_tensors="pt")
                logits: Any = model(**ids, logits_to_keep=1).logits[0, -1]
            among = torch.log_softmax(logits[[first[text] for text in passages]], dim=0)
            found += int(among.argmax()) == place
            margin += float(among[place])
        print(
            f"{kind:<16} {found / trials:>6.1%} {margin / trials:>7.2f}   chance {-math.log(8):.2f}"
        )


def distinct(chosen: random.Random, first: dict[str, int]) -> list[str]:
    """Passages that begin with different tokens, in random order."""
    texts = list(first)
    picked: dict[int, str] = {}
    while len(picked) < PASSAGES:
        text = chosen.choice(texts)
        picked.setdefault(first[text], text)
    return list(picked.values())


if __name__ == "__main__":
    main()
