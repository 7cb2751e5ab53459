"""What one tenant learns of another's prompts by the clock: `make bench-timing`.

One real vLLM replica on CPU, the whole application in front of it. In each of `--pairs` rounds the
victim sends a private prompt that nobody sent before; then the attacker sends the very same
prompt, with the victim's name as salt in its own body, and another one of the same length that
nobody ever sent, in random order. If the first is answered sooner, the attacker knows what the
victim asked. The figure is the area under the ROC curve of "sooner means sent before": 0.5 is a
coin. Public prompts of tenants that share them are the control: there it must be far from 0.5,
or the clock is too coarse to show anything.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
from scipy.stats import rankdata
from tqdm import tqdm

from benchmarks.overhead import WORDS
from cp_ray.config import AppConfig
from cp_ray.demo.arms import running
from cp_ray.workers.models import resolve_model

KEYS = {"victim": "key-of-the-victim", "attacker": "key-of-the-attacker"}
DOCUMENTS, WORDS_PER_DOCUMENT = 4, 60
MOST_AUC = 0.58
LEAST_CONTROL = 0.9


class Taken(msgspec.Struct, frozen=True):
    """One answer: seconds to its first token, prompt tokens that the engine found."""

    ttft_s: float
    cached: int


class Arm(msgspec.Struct, frozen=True):
    """Attacker's answers to what the victim had sent, and to what nobody had; same rounds."""

    sent: list[Taken]
    unsent: list[Taken]

    def figures(self) -> dict[str, Any]:
        """AUC with the upper end of its two-sided 95% interval (DeLong), and what was found."""
        auc, error = roc([t.ttft_s for t in self.unsent], [t.ttft_s for t in self.sent])
        sooner = [u.ttft_s > s.ttft_s for s, u in zip(self.sent, self.unsent, strict=True)]
        return {
            "pairs": len(sooner),
            "auc": round(auc, 4),
            "auc_upper_95": round(auc + 1.96 * error, 4),
            "sooner_within_its_round": round(statistics.fmean(sooner), 4),
            "sent_ttft_median_ms": round(1000 * statistics.median(t.ttft_s for t in self.sent), 1),
            "unsent_ttft_median_ms": round(
                1000 * statistics.median(t.ttft_s for t in self.unsent), 1
            ),
            "most_cached_tokens": max(t.cached for t in self.sent),
            "least_cached_tokens": min(t.cached for t in self.sent),
        }


def roc(high: Sequence[float], low: Sequence[float]) -> tuple[float, float]:
    """AUC of "a value of `high` is above one of `low`", and its standard error (DeLong, 1988)."""
    n, m = len(high), len(low)
    together = rankdata([*high, *low])
    above = (together[:n] - rankdata(high)) / m  # of `low`, the share below each of `high`
    below = 1 - (together[n:] - rankdata(low)) / n
    auc = float(above.mean())
    return auc, math.sqrt(above.var(ddof=1) / n + below.var(ddof=1) / m)


class Clients:
    """Both tenants, and prompts that nobody sent before."""

    def __init__(self, url: str, http: httpx.Client, rng: random.Random, *, public: bool) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._http = http
        self._rng = rng
        self._public = public

    def fresh(self) -> list[str]:
        """Documents of always the same number of tokens."""
        choices = self._rng.choices
        return [" ".join(choices(WORDS, k=WORDS_PER_DOCUMENT)) for _ in range(DOCUMENTS)]

    def ask(self, tenant: str, documents: list[str]) -> Taken:
        """One streamed request of one token."""
        body = {
            "model": "smollm2",
            "messages": [{"role": "user", "content": "Which document is about time?"}],
            "documents": [{"text": text, "public": self._public} for text in documents],
            "max_tokens": 1,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": "victim",
        }
        headers = {"authorization": f"Bearer {KEYS[tenant]}"}
        began, first, cached = time.perf_counter(), 0.0, 0
        with self._http.stream("POST", self._url, json=body, headers=headers) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                if not first and '"content":' in line and '"content":""' not in line:
                    first = time.perf_counter() - began
                usage = json.loads(line.removeprefix("data: ")).get("usage")
                if usage:
                    cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Taken(first or time.perf_counter() - began, cached)

    def round(self) -> tuple[Taken, Taken]:
        """What the victim had sent, and what nobody had."""
        sent, unsent = self.fresh(), self.fresh()
        self.ask("victim", sent)
        if self._rng.random() < 0.5:
            taken = self.ask("attacker", sent)
            return taken, self.ask("attacker", unsent)
        taken = self.ask("attacker", unsent)
        return self.ask("attacker", sent), taken


def main() -> int:
    """Print both arms; exit 1 when the private one leaks, or the control shows nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--control-pairs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("out/timing.json"))
    args = parser.parse_args()
    resolve_model("smollm2")
    config = AppConfig.model_validate(
        {
            "engine": "vllm",
            "max_model_len": 1024,
            "api_keys": KEYS,
            "share_public": ("victim", "attacker"),
        }
    )
    with running("timing", config, Path("out")) as app, httpx.Client(timeout=300) as http:
        arms = {}
        for name, public, pairs in (
            ("private", False, args.pairs),
            ("public", True, args.control_pairs),
        ):
            clients = Clients(app.url, http, random.Random(f"{args.seed} {name}"), public=public)
            clients.round()  # warms up
            rounds = [clients.round() for _ in tqdm(range(pairs), desc=name, unit="pair")]
            arms[name] = Arm([sent for sent, _ in rounds], [unsent for _, unsent in rounds])
    result: dict[str, Any] = {name: arm.figures() for name, arm in arms.items()}
    result["load_average"] = round(os.getloadavg()[0], 1)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    private, public = result["private"], result["public"]
    hidden = private["auc_upper_95"] <= MOST_AUC
    shared = public["auc"] >= LEAST_CONTROL and public["least_cached_tokens"] > 0
    return 0 if hidden and shared else 1


if __name__ == "__main__":
    sys.exit(main())
