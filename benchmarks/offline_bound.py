"""The most that any offline order can reuse, and the best order found on the way to that.

    python -m benchmarks.offline_bound --trace DATA/mtrag [--rounds 400] [--certificate FILE]
        [--regions SECONDS] [--exact SECONDS]

One cache without limit, requests one at a time: `bench reuse --policy offline --in-flight 1`.
The bound is a sharing of all costs (benchmarks/bound/shares.py), checked in whole numbers by
other code than found it (benchmarks/bound/check.py); the orders are replayed. With --regions
integer programs hang the contexts of one region after the other anew; with --exact one program
looks for the optimum itself: seconds for mtrag, hopeless for the others.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from benchmarks.bound.check import certified, whole
from benchmarks.bound.lattice import Lattice, build_lattice
from benchmarks.bound.regions import Limits, improve
from benchmarks.bound.repair import repaired
from benchmarks.bound.shares import new_game, play
from benchmarks.bound.tree import BIAS, Tree, cost_of, forest_of, grow, tree_of, used_by
from cp_ray.core.anneal_kernels import Cooling, anneal
from cp_ray.core.forest import Forest, Int64
from cp_ray.core.merging import THOROUGH, Leaves, depth_first, leaves_of, merge
from cp_ray.core.types import BlockId, Context
from cp_ray.errors import ConfigError
from cp_ray.replay.trace import read_trace

HOT, COLD, TRIES = 0.1, 0.01, 8
"""As `merge` anneals, but for a cooler start: the tree it starts from is nearly the best."""
STEP = 10
"""Rounds between two looks at the clock."""
REGION = Limits(60, 10.0)


def replayed(
    ordered: Sequence[Context], sequence: Sequence[int], tokens: Mapping[BlockId, int]
) -> int:
    """Tokens found when these contexts are sent in this sequence into a cache without limit."""
    root: dict[BlockId, dict] = {}  # type: ignore[type-arg]
    reused = 0
    for position in sequence:
        node = root
        for block in ordered[position]:
            if block in node:
                reused += tokens[block]
            node = node.setdefault(block, {})
    return reused


def relaxed(
    lattice: Lattice, rounds: int, certificate: Path | None
) -> tuple[Int64, npt.NDArray[np.float64]]:
    """Shares in whole units and the relaxed tree's flow, of every local arc.

    certificate: a file to read them from, or to write where it is not there yet. It is not
    trusted: shares count only as far as `certified` finds them good.
    """
    if certificate and certificate.exists():
        with np.load(certificate) as kept:
            share, flow = kept["share"], kept["flow"]
        if len(share) != len(lattice.arc) or len(flow) != len(lattice.arc):
            raise ConfigError(
                f"{certificate} holds {len(share)} shares, this trace has {len(lattice.arc)}: "
                "it is of another trace",
                param="certificate",
            )
        return share, flow
    game = new_game(lattice)
    for _ in tqdm(range(0, rounds, STEP), unit_scale=STEP, unit="round", disable=None):
        play(lattice, game, STEP, 2.0)
    share, flow = whole(game.share), game.flow
    if certificate:
        np.savez_compressed(certificate, share=share, flow=flow)
    return share, flow


class Problem:
    """A trace's distinct contexts, their lattice, and how its whole is counted."""

    def __init__(self, contexts: Sequence[Context], tokens: Mapping[BlockId, int]) -> None:
        self.contexts = contexts
        self.tokens = tokens
        self.leaves: Leaves = leaves_of(contexts, tokens)
        self.rows, self.sizes = self.leaves.rows, self.leaves.sizes
        self.lattice: Lattice = build_lattice(self.rows, self.sizes, self.leaves.tokens)
        inside = self.rows >= 0
        self.each: Int64 = np.where(inside, self.leaves.tokens[self.rows], 0).sum(axis=1)
        self.total = sum(tokens[block] for context in contexts for block in context)

    def share_of(self, computed: float) -> float:
        """The hit ratio when so many tokens are computed."""
        return 1 - computed / self.total

    def reused(self, forest: Forest) -> int:
        """By replaying the orders that the forest makes."""
        ordered, sequence = depth_first(forest, self.leaves, self.contexts)
        return replayed(ordered, sequence, self.tokens)

    def forest(self, tree: Tree) -> Forest:
        return forest_of(self.lattice, tree, self.rows, self.sizes, self.leaves.tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--moves", type=int, default=THOROUGH, help="of annealing, per context")
    parser.add_argument(
        "--certificate", type=Path, help=".npz: checked where it is there, else written"
    )
    parser.add_argument("--regions", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--exact", type=float, default=0.0, metavar="SECONDS")
    args = parser.parse_args()
    requests = read_trace(args.trace).requests
    tokens: dict[BlockId, int] = {}
    for request in requests:
        tokens.update(request.lengths)
    contexts = [request.context for request in requests]
    begun = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - begun:7.1f} s  {text}", flush=True)

    problem = Problem(contexts, tokens)
    lattice = problem.lattice
    say(
        f"{len(contexts)} requests, {len(problem.rows)} distinct sets; "
        f"{len(lattice.weight)} places to branch, {len(lattice.cost)} arcs, "
        f"{len(lattice.arc)} shares"
    )
    share, flow = relaxed(lattice, args.rounds, args.certificate)
    bound = certified(problem.rows, problem.sizes, problem.leaves.tokens, lattice, share)
    say(f"no order passes: {problem.share_of(bound):.5f} (checked)")
    used = used_by(lattice, flow)
    least = problem.share_of(float(used @ lattice.cost))
    say(f"the best bound of this kind is at least: {least:.5f}")
    order = np.random.default_rng(0).permutation(len(problem.rows))
    tree = grow(lattice, lattice.cost * (1 - BIAS * used), order)
    forest = problem.forest(tree)
    say(f"tree along the relaxed one: {problem.reused(forest) / problem.total:.5f}")
    mean = float(problem.leaves.tokens.mean())
    cooling = Cooling(args.moves * len(order), HOT * mean, COLD * mean, TRIES, 0)
    anneal(forest, len(order), problem.leaves.tokens, cooling, np.zeros(1, np.int64))
    say(f"the same annealed: {problem.reused(forest) / problem.total:.5f}")
    merged = merge(contexts, tokens, THOROUGH)
    shipped = replayed(merged.contexts, merged.sequence, tokens)
    say(f"offline as shipped: {shipped / problem.total:.5f}")
    if args.regions:
        tree = tree_of(lattice, forest)
        pair = (problem.rows, problem.leaves.tokens)
        until, looked_at = time.perf_counter() + args.regions, 0
        for better in improve(lattice, tree, used, pair, REGION):
            tree = better
            looked_at += 1
            if time.perf_counter() > until:
                break
        forest = problem.forest(tree)
        say(f"after {looked_at} regions: {problem.reused(forest) / problem.total:.5f}")
    if args.exact:
        everything = np.ones(len(lattice.cost), bool)
        best, least = repaired(lattice, tree, np.arange(len(order)), everything, args.exact)
        say(
            f"integer program: {problem.reused(problem.forest(best)) / problem.total:.5f} found, "
            f"no order passes {problem.share_of(least):.5f} (by the solver's word)"
        )
        assert cost_of(lattice, best, problem.each) <= cost_of(lattice, tree, problem.each)
    return 0


if __name__ == "__main__":
    sys.exit(main())
