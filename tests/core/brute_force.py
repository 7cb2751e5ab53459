"""The least total TTFT of one window, by trying everything: replicas, sequences, block orders.

A replica serves its requests one after the other at one second a token; what a request leaves can
be found by the next, up to the first block that differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from cp_ray.core.types import Context, PlanRequest

Held = frozenset[Context]
"""Every prefix that a replica has."""


def prefixes(context: Context) -> Held:
    return frozenset(context[:end] for end in range(1, len(context) + 1))


def found(context: Context, held: Held) -> int:
    length = 0
    while length < len(context) and context[: length + 1] in held:
        length += 1
    return length


def least_total(window: Sequence[PlanRequest], held: Sequence[Held]) -> float:
    """Over all partitions of the window among replicas, each at its own best."""
    best_of = {one: best_by_subset(window, one) for one in set(held)}
    everything = (1 << len(window)) - 1
    least = {0: 0.0}
    for one in held:
        best = best_of[one]
        after: dict[int, float] = {}
        for done, cost in least.items():
            rest = everything & ~done
            subset = rest
            while True:
                total = cost + best[subset]
                if total < after.get(done | subset, float("inf")):
                    after[done | subset] = total
                if not subset:
                    break
                subset = (subset - 1) & rest
        least = after
    return least[everything]


def best_by_subset(window: Sequence[PlanRequest], held: Held) -> dict[int, float]:
    """For every subset of the window the least sum of TTFTs when one replica serves it.

    Two ways to have served the same requests and to hold the same prefixes: the one that is later
    and has waited longer is dropped.
    """
    options = []
    for request in window:
        lengths = dict(zip(request.context, request.block_tokens, strict=True))
        options.append(
            [(order, prefixes(order), lengths) for order in permutations(request.context)]
        )
    best: dict[int, float] = {}
    layer: dict[tuple[int, Held], list[tuple[float, float]]] = {(0, held): [(0.0, 0.0)]}
    while layer:
        following: dict[tuple[int, Held], list[tuple[float, float]]] = {}
        for (done, known), ways in layer.items():
            best[done] = min(best.get(done, float("inf")), *(total for _, total in ways))
            for number, request in enumerate(window):
                if done >> number & 1:
                    continue
                for order, own, lengths in options[number]:
                    new = request.tail_tokens + sum(
                        lengths[block] for block in order[found(order, known) :]
                    )
                    key = (done | 1 << number, known | own)
                    pareto = following.setdefault(key, [])
                    for clock, total in ways:
                        way = (clock + new, total + clock + new)
                        if not any(c <= way[0] and t <= way[1] for c, t in pareto):
                            pareto[:] = [(c, t) for c, t in pareto if c < way[0] or t < way[1]] + [
                                way
                            ]
        layer = following
    return best


def total_of(steps: Sequence[tuple[PlanRequest, Context, int]], held: Sequence[Held]) -> float:
    """The sum of TTFTs of a plan. steps: request, order, replica; in the order of sending."""
    clock = [0.0] * len(held)
    known = list(held)
    total = 0.0
    for request, context, at in steps:
        lengths = dict(zip(request.context, request.block_tokens, strict=True))
        missing = context[found(context, known[at]) :]
        clock[at] += request.tail_tokens + sum(lengths[block] for block in missing)
        known[at] |= prefixes(context)
        total += clock[at]
    return total
