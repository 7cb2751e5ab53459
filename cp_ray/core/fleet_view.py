"""The fleet as the index sees it: replicas, and branches with where they live.

A look at all of a full index takes a fifth of a second, in which no plan could be made: the sweep
goes in small steps, and what changes meanwhile is seen or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from cp_ray.core.index import ContextIndex
from cp_ray.core.node import ContextNode
from cp_ray.core.record import Record
from cp_ray.core.tree import ContextTree
from cp_ray.core.types import HeadId, ReplicaId

STEP_NODES = 400
"""Nodes a step looks at: about a millisecond."""


class ReplicaView(msgspec.Struct, frozen=True):
    """One live replica. Tokens of prompt; trust: trusted, suspect, quarantined or resyncing.

    waiting_tokens: planned and not yet prefilled. held_tokens: distinct tokens the index believes
    cached, None before the first sweep. assigned: requests ever planned there.
    """

    replica: ReplicaId
    trust: str
    running: int
    waiting_tokens: int
    held_tokens: int | None
    capacity_tokens: int
    assigned: int


class BranchView(msgspec.Struct, frozen=True):
    """One branch: requests the index knows of it, their distinct tokens, and who holds any."""

    branch: str
    requests: int
    tokens: int
    passed: int
    replicas: tuple[ReplicaId, ...]


class Sweep(msgspec.Struct, frozen=True):
    """What one look at all trees found. branches: the busiest, most requests first."""

    held_tokens: dict[ReplicaId, int]
    branches: tuple[BranchView, ...]
    nodes: int


def replicas_of(index: ContextIndex, held: dict[ReplicaId, int] | None) -> list[ReplicaView]:
    """All live replicas, by name. held: of the last sweep."""
    views = []
    for replica, info in sorted(index.replicas.live.items()):
        trust = index.trust.of(replica).value
        if not index.replicas.believed(replica) and trust == "trusted":
            trust = "resyncing"
        views.append(
            ReplicaView(
                replica,
                trust,
                index.load.ledger.running(replica),
                index.load.ledger.prefill_tokens(replica),
                None if held is None else held.get(replica, 0),
                info.capacity_tokens,
                index.load.assigned(replica),
            )
        )
    return views


def sweep(index: ContextIndex, most_branches: int = 64) -> Iterator[Sweep | None]:
    """Look at all trees. Yields None after every few nodes, and at last what was found."""
    held: Counter[ReplicaId] = Counter()
    branches: list[BranchView] = []
    nodes = 0
    for head, tree in list(index.trees.items()):
        for child in list(tree.root.children.values()):
            found: list[ContextNode] = []
            stack = [child]
            while stack:
                node = stack.pop()
                found.append(node)
                stack.extend(node.children.values())
                if len(found) % STEP_NODES == 0:
                    yield None
            nodes += len(found)
            branch = _branch(index, head, child, found, held)
            if branch.requests:
                branches.append(branch)
            if len(branches) > 2 * most_branches:
                branches = _busiest(branches, most_branches)
            if nodes % STEP_NODES < len(found):
                yield None
        _add_head(index, tree, held)
    yield Sweep(dict(held), tuple(_busiest(branches, most_branches)), nodes)


def _branch(
    index: ContextIndex,
    head: HeadId,
    first: ContextNode,
    found: list[ContextNode],
    held: Counter[ReplicaId],
) -> BranchView:
    """Add up a branch's nodes, leaves first: an edge's length is known by any record below it."""
    below: dict[int, Record] = {}
    live = {index.replicas.bit(replica): replica for replica in index.replicas.live}
    requests = tokens = 0
    for node in reversed(found):
        known = below.get(id(node))
        for request in node.requests:
            requests += 1
            known = known or index.records.get(request)
        if known is None or node.parent is None:
            continue
        below.setdefault(id(node.parent), known)
        depth = node.depth
        if depth > known.blocks:
            continue  # it was shrunk since
        above = node.parent.depth
        length = known.tokens_of(depth) - known.tokens_of(above)
        if node.holders:
            tokens += length
        for bit, replica in live.items():
            if node.holders >> bit & 1:
                held[replica] += length
    holders = tuple(sorted(name for bit, name in live.items() if first.holders >> bit & 1))
    return BranchView(f"{head}/{first.slot}", requests, tokens, first.frequency, holders)


def _add_head(index: ContextIndex, tree: ContextTree, held: Counter[ReplicaId]) -> None:
    some = next(iter(tree.node_of), None)
    record = index.records.get(some) if some is not None else None
    if record is None:
        return
    for replica in index.replicas.live:
        if tree.root.holders >> index.replicas.bit(replica) & 1:
            held[replica] += record.head_tokens


def _busiest(branches: list[BranchView], most: int) -> list[BranchView]:
    return sorted(branches, key=lambda branch: (-branch.requests, branch.branch))[:most]
