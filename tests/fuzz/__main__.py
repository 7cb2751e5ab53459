"""`make fuzz`: random inputs for every target; counts them, and keeps those that fail.

An input that fails is written into tests/fuzz/corpus/TARGET, where the tests run it from then on.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
import traceback

from tests.fuzz.targets import TARGETS, Target


def main() -> int:
    """Exit 1 when anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="one target")
    args = parser.parse_args()
    chosen = [target for target in TARGETS if args.only in ("", target.name)]
    parts = sum(target.share for target in chosen)
    failures = total = 0
    for target in chosen:
        count = -(-args.inputs * target.share // parts)  # upward: all together are no fewer
        began = time.monotonic()
        failed = fuzz(target, count, args.seed)
        seconds = time.monotonic() - began
        print(f"{target.name}: {count} inputs, {failed} failures, {seconds:.0f} s", flush=True)
        failures += failed
        total += count
    print(f"{total} inputs, {failures} failures (seed {args.seed})")
    return 1 if failures else 0


def fuzz(target: Target, count: int, seed: int) -> int:
    """Run so many inputs; returns how many failed."""
    rng = random.Random(f"{target.name}/{seed}")
    failed = 0
    for _ in range(count):
        data = target.make(rng)
        try:
            target.run(data)
        except Exception:  # noqa: BLE001 - whatever it is, the input is worth keeping
            failed += 1
            if failed <= 10:
                traceback.print_exc()
                keep(target, data)
    return failed


def keep(target: Target, data: bytes) -> None:
    """Write an input into the corpus."""
    folder = target.corpus_folder()
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(data).hexdigest()[:12]
    (folder / name).write_bytes(data)
    print(f"kept: {folder / name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
