"""What references and rankings cost, in prompts as the router renders them.

    python -m benchmarks.reference_cost [--tokenizer FOLDER]

Conversations of samples/locomo_3conv and samples/mtrag_20conv, real texts, turn by turn through the
router's assembly, tokens of SmolLM2. `blocks`: tokens of the blocks that clients send, headings
included. `computed`: of blocks and annotations that stand in the prompt of their own turn. `new`:
of blocks that the conversation has not had, which no reference replaces. `bits`: what a list of
names has to tell at least, the logarithm of the ways to choose and rank so many of those that
stand; a reference for each block cannot cost less than its share. The last lines are prompts of 15
blocks without a conversation: what their headings and their ranking cost.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.data import folder
from cp_ray.core.prompt import make_block, ranking_of
from cp_ray.core.types import RequestId
from cp_ray.router.api import ChatRequest
from cp_ray.router.assembly import Assembler
from cp_ray.router.auth import Tenant
from cp_ray.router.conversation import Turn
from cp_ray.router.tokenizer import HuggingFaceTokenizer, PromptTokenizer
from cp_ray.workers.models import resolve_model

SAMPLES = ("locomo_3conv_CC-BY-NC", "mtrag_20conv")
TENANT = Tenant("default")


def conversations(sample: str) -> Iterator[list[tuple[str, list[str]]]]:
    """(question, documents) of each turn."""
    data = folder() / "samples" / sample
    with gzip.open(data / "blocks.jsonl.gz", "rt") as lines:
        texts = {block["block_id"]: block["text"] for block in map(json.loads, lines)}
    turns: dict[str, list[tuple[str, list[str]]]] = {}
    with gzip.open(data / "requests.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            documents = list(dict.fromkeys(texts[block] for block in line["context"]))
            turns.setdefault(line["session"], []).append((line["question"], documents))
    yield from turns.values()


def talk(tokenizer: PromptTokenizer, turns: list[tuple[str, list[str]]]) -> dict[str, float]:
    """Totals of one conversation."""
    assembler = Assembler(tokenizer, "m")
    sent: tuple[Turn, ...] = ()
    messages: list[dict[str, str]] = []
    total = dict.fromkeys(("turns", "blocks", "computed", "new", "named", "bits"), 0.0)
    had: set[str] = set()
    for number, (question, documents) in enumerate(turns):
        messages.append({"role": "user", "content": question})
        body: dict[str, Any] = {"model": "m", "messages": messages, "documents": documents}
        request = ChatRequest.model_validate({**body, "conversation": "c"})
        name = RequestId(str(number))
        prepared = assembler.prepare(request, TENANT, name, turns=sent)
        finished = assembler.finish(prepared, prepared.plan.context)
        assert prepared.kept is not None
        sent = (*sent, finished.turn(name, prepared.kept))
        messages.append({"role": "assistant", "content": "I see."})
        lengths = {t: len(tokenizer.encode(make_block("r", None, t).text)) for t in documents}
        again = [text for text in documents if text in had]
        total["turns"] += 1
        total["blocks"] += sum(lengths.values())
        total["new"] += sum(lengths[text] for text in documents if text not in had)
        total["computed"] += sum(prepared.plan.block_tokens)
        total["named"] += len(again)
        total["bits"] += sum(math.log2(len(had) - place) for place in range(len(again)))
        had.update(documents)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, help="a folder with tokenizer.json")
    path = parser.parse_args().tokenizer or resolve_model("tiny", progress=False).path
    tokenizer = HuggingFaceTokenizer(str(path))
    print(
        f"{'a turn':<22} {'blocks':>7} {'computed':>9} {'new':>6} {'repeated':>9} {'bits':>6} "
        f"{'reuse':>7} {'ceiling':>8} {'of it':>7}"
    )
    for sample in SAMPLES:
        parts = [talk(tokenizer, turns) for turns in conversations(sample)]
        total = {key: sum(part[key] for part in parts) for key in parts[0]}
        a_turn = {key: value / total["turns"] for key, value in total.items()}
        saved = 1 - total["computed"] / total["blocks"]
        ceiling = 1 - total["new"] / total["blocks"]
        print(
            f"{sample.partition('_')[0]:<22} {a_turn['blocks']:>7.0f} {a_turn['computed']:>9.1f} "
            f"{a_turn['new']:>6.1f} {a_turn['named']:>9.1f} {a_turn['bits']:>6.0f} "
            f"{1 / (1 - saved):>6.2f}x {1 / (1 - ceiling):>7.2f}x {saved / ceiling:>7.1%}"
        )
    for sample in SAMPLES:
        prompts = headings = rankings = 0
        for turns in conversations(sample):
            for _, documents in turns:
                blocks = [make_block("r", None, text) for text in documents[:15]]
                if len(blocks) == 15:
                    prompts += 1
                    texts = [block.text.partition("\n")[0] + "\n" for block in blocks]
                    headings += sum(len(tokenizer.encode(text)) for text in texts)
                    rankings += len(tokenizer.encode(ranking_of(blocks)))
        if prompts:
            print(
                f"{sample.partition('_')[0]}, {prompts} prompts of 15 blocks: headings "
                f"{headings / prompts:.1f} tokens, ranking {rankings / prompts:.1f}"
            )


if __name__ == "__main__":
    main()
