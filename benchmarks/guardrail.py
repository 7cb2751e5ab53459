"""The guardrail on simulated scores: how soon a loss is stopped, how often none is.

    python -m benchmarks.guardrail [--runs N]

Scores are right or wrong, 60% right without reordering. `share` of requests go without; `pairs`
scores both answers of one request, of which a tenth differ.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

from cp_ray.core.guardrail import Guardrail, Rule

RIGHT, DIFFER = 0.6, 0.1
Run = Callable[[random.Random, Rule, float, int], int | None]


def by_share(chosen: random.Random, rule: Rule, loss: float, most: int) -> int | None:
    """Requests until stopped; None = not within `most`."""
    guard = Guardrail(rule)
    for number in range(1, most + 1):
        canary = chosen.random() < rule.share
        right = RIGHT if canary else RIGHT - loss
        guard.observe(float(chosen.random() < right), canary=canary)
        if guard.stopped:
            return number
    return None


def by_pairs(chosen: random.Random, rule: Rule, loss: float, most: int) -> int | None:
    """The same in pairs: worse in (DIFFER + loss) / 2 of them, better in (DIFFER - loss) / 2."""
    guard = Guardrail(rule)
    for number in range(1, most + 1):
        drawn = chosen.random()
        if drawn < (DIFFER + loss) / 2:
            guard.observe_pair(1.0, 0.0)
        elif drawn < DIFFER:
            guard.observe_pair(0.0, 1.0)
        else:
            both = float(chosen.random() < RIGHT)
            guard.observe_pair(both, both)
        if guard.stopped:
            return number
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    arguments = parser.parse_args()
    print(f"{'test':<12} {'bound':>5} {'loss':>5} {'most':>6} {'stopped':>8} {'p50':>6} {'p95':>6}")
    cases: list[tuple[str, Run, Rule, float, int]] = []
    for bound in (0.0, 0.01):
        rule = Rule(share=0.2, bound=bound)
        cases += [
            ("share 0.2", by_share, rule, bound, 20_000),
            ("pairs", by_pairs, rule, bound, 5_000),
        ]
        cases += [
            ("share 0.2", by_share, rule, 0.03, 60_000),
            ("pairs", by_pairs, rule, 0.03, 10_000),
        ]
    cases.append(("share 0.5", by_share, Rule(share=0.5), 0.03, 40_000))
    for name, run, rule, loss, most in cases:
        ends = [run(random.Random(seed), rule, loss, most) for seed in range(arguments.runs)]
        stopped = sorted(end for end in ends if end is not None)
        ranked = stopped + [most + 1] * (len(ends) - len(stopped))
        median, late = ranked[len(ranked) // 2], ranked[len(ranked) * 95 // 100]
        shown = [str(at) if at <= most else "-" for at in (median, late)]
        print(
            f"{name:<12} {rule.bound:>5} {loss:>5} {most:>6} {len(stopped) / len(ends):>8.3f} "
            f"{shown[0]:>6} {shown[1]:>6}",
            flush=True,
        )


if __name__ == "__main__":
    main()
