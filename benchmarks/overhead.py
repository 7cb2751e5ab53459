"""What cp_ray costs where there is nothing to reuse: `make bench-overhead`.

One real vLLM replica on CPU. Pairs of requests whose documents nobody ever sent before, one with
everything on, one with the header `x-cp-ray-reuse: plain`; which goes first alternates. Both
have the same number of tokens, so the difference of their TTFT is what planning costs.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path

import httpx
from scipy.stats import t as student
from tqdm import tqdm

from cp_ray.config import AppConfig
from cp_ray.demo.arms import running
from cp_ray.workers.models import resolve_model

WORDS = ["time", "people", "water", "house", "world", "school", "state", "family", "country"]
WORDS += ["problem", "hand", "part", "place", "case", "week", "company", "system", "question"]
WORDS += ["work", "night", "point", "home", "room", "area", "money", "story", "fact", "month"]
DOCUMENTS, WORDS_PER_DOCUMENT = 10, 80


def main() -> int:
    """Print the ratio and its upper 95% bound; exit 1 when the bound is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--limit", type=float, default=1.03)
    parser.add_argument("--engine", choices=("vllm", "simulated"), default="vllm")
    parser.add_argument("--json", type=Path, default=Path("out/overhead.json"))
    args = parser.parse_args()
    if args.engine == "vllm":
        resolve_model("smollm2")
    config = AppConfig(engine=args.engine, max_model_len=2048)
    with running("overhead", config, Path("out")) as app, httpx.Client(timeout=300) as client:
        rng = random.Random(0)
        for reuse in ("plain", "full", "plain", "full"):
            _ttft(client, app.url, reuse, rng)
        plain, full = [], []
        for pair in tqdm(range(args.pairs), unit="pair"):
            order = ("plain", "full") if pair % 2 else ("full", "plain")
            taken = {reuse: _ttft(client, app.url, reuse, rng) for reuse in order}
            plain.append(taken["plain"])
            full.append(taken["full"])
    result = _compare(plain, full)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0 if result["upper_95"] <= args.limit else 1


def _compare(plain: list[float], full: list[float]) -> dict[str, float]:
    """Ratio of mean TTFTs, and its one-sided upper 95% bound from the paired differences."""
    extra = [b - a for a, b in zip(plain, full, strict=True)]
    mean, base = statistics.fmean(extra), statistics.fmean(plain)
    error = statistics.stdev(extra) / math.sqrt(len(extra))
    upper = mean + float(student.ppf(0.95, len(extra) - 1)) * error
    return {
        "pairs": len(extra),
        "plain_ttft_mean_s": base,
        "full_ttft_mean_s": statistics.fmean(full),
        "added_ms_mean": mean * 1000,
        "added_ms_median": statistics.median(extra) * 1000,
        "ratio": 1 + mean / base,
        "upper_95": 1 + upper / base,
    }


def _ttft(client: httpx.Client, url: str, reuse: str, rng: random.Random) -> float:
    documents = [" ".join(rng.choices(WORDS, k=WORDS_PER_DOCUMENT)) for _ in range(DOCUMENTS)]
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Which document is about time?"}],
        "documents": documents,
        "max_tokens": 1,
        "temperature": 0,
        "stream": True,
    }
    started = time.perf_counter()
    headers = {"x-cp-ray-reuse": reuse}
    with client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if '"content":' in line and '"content":""' not in line:
                return time.perf_counter() - started
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
