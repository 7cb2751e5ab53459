"""Sharing out the cost of every arc among the contexts: each such sharing bounds all orders.

If the shares of an arc add up to at most its cost, no tree costs less than the sum over contexts
of the cheapest way from the empty set to the context at its own shares: the tree has a way for
every context and pays each arc once. The best sharing is the dual of the multicommodity flow
relaxation, here solved as a game: one side shares out costs, the other sends every context its
way; both by regret matching plus (Tammelin 2014, with quadratic weights), which needs no step
size. The average of the shares approaches the best sharing, that of the ways the relaxed tree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.bound.lattice import Lattice
from cp_ray.core.forest import Int32, Int64, compiled

Float = npt.NDArray[np.float64]


class Game(NamedTuple):
    """Both sides' state, of each local arc.

    by_arc: the local arcs of arc a are by_arc[start[a] : start[a + 1]]. now: shares at present.
    share_regret: in by_arc's order. share, flow: averages so far; `share` is the bound.
    played: rounds so far, and the sum of their weights.
    """

    start: Int64
    by_arc: Int32
    now: Float
    share_regret: Float
    flow_regret: Float
    share: Float
    flow: Float
    played: Float


def new_game(lattice: Lattice) -> Game:
    """Costs shared equally."""
    count = np.bincount(lattice.arc, minlength=len(lattice.cost))
    zero = np.zeros(len(lattice.arc))
    return Game(
        np.concatenate(([0], np.cumsum(count))),
        np.argsort(lattice.arc, kind="stable").astype(np.int32),
        (lattice.cost / np.maximum(count, 1))[lattice.arc],
        zero,
        zero.copy(),
        zero.copy(),
        zero.copy(),
        np.zeros(2),
    )


@compiled
def cheapest(lattice: Lattice, share: Float, way: Float) -> float:
    """Sum over contexts of the cheapest way at the shares: a bound on every tree's cost.

    way: shape (most sets of a context + 1,), scratch.
    """
    total = 0.0
    for context in range(len(lattice.node_start) - 1):
        first = lattice.node_start[context]
        nodes = lattice.node_start[context + 1] - first
        way[0] = 0.0
        for local in range(1, nodes):
            best = np.inf
            for at in range(lattice.arc_start[first + local], lattice.arc_start[first + local + 1]):
                best = min(best, way[lattice.local_tail[at]] + share[at])
            way[local] = best
        total += way[nodes - 1]
    return total


@compiled
def _send(lattice: Lattice, game: Game, flow: Float, reach: Float) -> None:
    """Every context's flow as its regrets say, backwards from the context."""
    for context in range(len(lattice.node_start) - 1):
        first = lattice.node_start[context]
        nodes = lattice.node_start[context + 1] - first
        reach[:nodes] = 0.0
        reach[nodes - 1] = 1.0
        for local in range(nodes - 1, 0, -1):
            begin, end = lattice.arc_start[first + local], lattice.arc_start[first + local + 1]
            total = 0.0
            for at in range(begin, end):
                total += game.flow_regret[at]
            for at in range(begin, end):
                odds = game.flow_regret[at] / total if total > 0 else 1.0 / (end - begin)
                flow[at] = reach[local] * odds
                reach[lattice.local_tail[at]] += flow[at]


@compiled
def _share_out(lattice: Lattice, game: Game, flow: Float) -> None:
    """Regrets of the sharing side against the flow, and its next shares."""
    for arc in range(len(lattice.cost)):
        begin, end = game.start[arc], game.start[arc + 1]
        if end - begin == 1:
            continue
        value = 0.0
        for at in range(begin, end):
            value += game.now[game.by_arc[at]] * flow[game.by_arc[at]]
        value /= lattice.cost[arc]
        total = 0.0
        for at in range(begin, end):
            regret = max(0.0, game.share_regret[at] + flow[game.by_arc[at]] - value)
            game.share_regret[at] = regret
            total += regret
        for at in range(begin, end):
            odds = game.share_regret[at] / total if total > 0 else 1.0 / (end - begin)
            game.now[game.by_arc[at]] = odds * lattice.cost[arc]


@compiled
def _regret_ways(lattice: Lattice, game: Game, way: Float) -> None:
    """Regrets of the sending side against the shares."""
    for context in range(len(lattice.node_start) - 1):
        first = lattice.node_start[context]
        nodes = lattice.node_start[context + 1] - first
        way[0] = 0.0
        for local in range(1, nodes):
            begin, end = lattice.arc_start[first + local], lattice.arc_start[first + local + 1]
            total = 0.0
            for at in range(begin, end):
                total += game.flow_regret[at]
            value = 0.0
            for at in range(begin, end):
                odds = game.flow_regret[at] / total if total > 0 else 1.0 / (end - begin)
                value += odds * (way[lattice.local_tail[at]] + game.now[at])
            way[local] = value
            for at in range(begin, end):
                cost = way[lattice.local_tail[at]] + game.now[at]
                game.flow_regret[at] = max(0.0, game.flow_regret[at] + value - cost)


@compiled
def play(lattice: Lattice, game: Game, rounds: int, power: float) -> None:
    """So many rounds more."""
    most = np.max(np.diff(lattice.node_start))
    scratch = np.empty(most)
    flow = np.empty(len(lattice.arc))
    for _ in range(rounds):
        game.played[0] += 1
        weight = game.played[0] ** power
        game.played[1] += weight
        _send(lattice, game, flow, scratch)
        _share_out(lattice, game, flow)
        _regret_ways(lattice, game, scratch)
        part = weight / game.played[1]
        for at in range(len(flow)):
            game.flow[at] += part * (flow[at] - game.flow[at])
            game.share[at] += part * (game.now[at] - game.share[at])
