"""How near the offline construction comes to the best order there is, on small instances.

    python -m benchmarks.optimum [INSTANCES] [TRACE]

Exact by dynamic programming over subsets, hence at most about 12 contexts: random families, or
neighbours in the offline order of a trace, which are the hard part of it. Prints the share of the
optimum: mean and worst, of merging alone and with local search.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Mapping

from benchmarks.reuse_table import DATA
from cp_ray.core.merging import FAST, THOROUGH, merge
from cp_ray.core.types import BlockId, Context
from cp_ray.replay.trace import read_trace

SIZES = {BlockId(f"b{n}"): 10 + 7 * (n % 5) for n in range(40)}
"""Tokens of each block."""


def best_of_all(contexts: list[Context], sizes: Mapping[BlockId, int] = SIZES) -> int:
    """The most any order reuses: partitions of every subset, by dynamic programming.

    Over distinct sets: gain(S) of a tree over S is its best split into two trees plus the
    weight all of S share.
    """

    def weight(blocks: frozenset[BlockId]) -> int:
        return sum(sizes[block] for block in blocks)

    sets = [frozenset(context) for context in dict.fromkeys(map(frozenset, contexts))]
    repeated = sum(weight(frozenset(context)) for context in contexts) - sum(map(weight, sets))

    @functools.cache
    def gain(members: int) -> int:
        if members & (members - 1) == 0:
            return 0
        common = frozenset.intersection(*(s for i, s in enumerate(sets) if members >> i & 1))
        lowest = members & -members
        part, best = (members - 1) & members, 0
        while part:
            if part & lowest:
                best = max(best, gain(part) + gain(members ^ part))
            part = (part - 1) & members
        return best + weight(common)

    return repeated + (gain((1 << len(sets)) - 1) if sets else 0)


def families(seed: int, count: int = 10) -> list[Context]:
    """Contexts of a few overlapping topics, the hard case for greedy merging."""
    rng = random.Random(seed)
    blocks = sorted(SIZES)
    topics = [rng.sample(blocks, 9) for _ in range(3)]
    return [
        tuple(dict.fromkeys(rng.sample(rng.choice(topics), 5) + rng.sample(blocks, 2)))
        for _ in range(count)
    ]


def neighbours(trace: str, count: int) -> tuple[list[list[Context]], dict[BlockId, int]]:
    """Runs of 10 requests spread over the offline order of a trace, and its block sizes."""
    requests = read_trace(DATA / trace).requests
    sizes: dict[BlockId, int] = {}
    for request in requests:
        sizes.update(zip(request.context, request.block_tokens, strict=True))
    contexts = [request.context for request in requests]
    sequence = merge(contexts, sizes).sequence
    step = max(10, (len(sequence) - 10) // count)
    firsts = range(0, len(sequence) - 10, step)
    return [[contexts[at] for at in sequence[first : first + 10]] for first in firsts], sizes


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    sizes: Mapping[BlockId, int] = SIZES
    instances = [families(seed) for seed in range(count)]
    if len(sys.argv) > 2:
        instances, sizes = neighbours(sys.argv[2], count)
    best = [best_of_all(contexts, sizes) for contexts in instances]
    print(f"{len(instances)} instances; share of the optimum: mean, worst")
    for moves in (FAST, 60, THOROUGH):
        shares = [
            merge(contexts, sizes, moves).reused_tokens / most if most else 1.0
            for contexts, most in zip(instances, best, strict=True)
        ]
        mean = sum(shares) / len(shares)
        print(f"{moves:>4} moves per context: {mean:.4f}, {min(shares):.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
