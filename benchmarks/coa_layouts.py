"""Two layouts of a worker's prompt in Chain-of-Agents, over simulated replicas: cache hits only.

    python -m benchmarks.coa_layouts [--questions N] [--replicas N] [--cache-tokens N]

Trace coa_multihoprag: 15 workers and a manager a question, one block a worker. `common`: the
instruction is the same for all workers, then the block, then the unit of the worker before and the
question. `role`: each worker's instruction is its own and comes first. 32 chains run at a time, a
call of each goes out together. Hits are of block tokens; `busiest`: tokens computed on the busiest
replica over the mean. There is no time here: what waiting costs is measured by the fleet's replay.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

from benchmarks.data import folder
from cp_ray.core.index import ContextIndex
from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import (
    BlockId,
    EvictionReport,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
)

PAGE, CHAINS, INSTRUCTION = 16, 32, 90
Call = dict[str, Any]
Choose = Callable[[Call, list[int]], int]
"""(call, calls of this round on each replica) -> replica."""


def calls(questions: int) -> tuple[list[list[Call]], dict[int, int]]:
    """Chains in order, and tokens of blocks."""
    chains: dict[str, list[Call]] = {}
    with gzip.open(folder() / "coa_multihoprag/trace.jsonl.gz", "rt") as lines:
        for line in lines:
            call = json.loads(line)
            if str(call["session"]) not in chains and len(chains) == questions:
                break
            chains.setdefault(str(call["session"]), []).append(call)
    tokens = {}
    with gzip.open(folder() / "multihoprag/blocks.tsv.gz", "rt") as lines:
        next(lines)
        for line in lines:
            block, count, *_ = line.split("\t")
            tokens[int(block)] = int(count)
    return list(chains.values()), tokens


def rounds(chains: list[list[Call]]) -> Iterator[list[Call]]:
    """One call of each chain that is under way."""
    waiting = deque(deque(chain) for chain in chains)
    running: list[deque[Call]] = []
    while waiting or running:
        while waiting and len(running) < CHAINS:
            running.append(waiting.popleft())
        yield [chain.popleft() for chain in running]
        running = [chain for chain in running if chain]


class Fleet:
    """Caches, and what was found and computed in each."""

    def __init__(self, replicas: int, cache_tokens: int, layout: str, tokens: dict[int, int]):
        self.caches = [PrefixCache(cache_tokens, PAGE) for _ in range(replicas)]
        self.computed = [0] * replicas
        self.found = self.asked = 0
        self._layout = layout
        self._tokens = tokens

    def head(self, call: Call) -> str:
        if not call["context"]:
            return "manager"
        return f"worker {call['agent']}" if self._layout == "role" else "worker"

    def blocks(self, call: Call) -> list[tuple[int, int]]:
        return [(block, self._tokens[block]) for block in call["context"]]

    def send(self, call: Call, replica: int) -> int:
        """Tokens found cached."""
        blocks = self.blocks(call)
        rest = call.get("carry_tokens", 0) + call["question_tokens"]
        pieces = [(self.head(call), INSTRUCTION), *blocks, (("rest", call["request_id"]), rest)]
        name = RequestId(str(call["request_id"]))
        cached = self.caches[replica].admit(name, pieces)
        assert cached is not None
        self.caches[replica].prefilled(name)
        self.caches[replica].release(name)
        block_tokens = sum(length for _, length in blocks)
        self.asked += block_tokens
        self.found += max(0, min(cached - INSTRUCTION, block_tokens))
        self.computed[replica] += INSTRUCTION + block_tokens + rest - cached
        return cached


def by_rule(fleet: Fleet, chains: list[list[Call]], choose: Choose) -> None:
    for together in rounds(chains):
        load = [0] * len(fleet.caches)
        for call in together:
            replica = choose(call, load)
            load[replica] += 1
            fleet.send(call, replica)


def by_index(fleet: Fleet, chains: list[list[Call]]) -> None:
    index = ContextIndex()
    names = [ReplicaId(str(number)) for number in range(len(fleet.caches))]
    capacity = 1 << 30
    index.set_replicas([ReplicaInfo(name, PAGE, capacity) for name in names])
    reports = [0] * len(names)
    for number, together in enumerate(rounds(chains)):
        planned = []
        for call in together:
            blocks = fleet.blocks(call)
            planned.append(
                PlanRequest(
                    RequestId(str(call["request_id"])),
                    HeadId(fleet.head(call)),
                    INSTRUCTION,
                    tuple(BlockId(str(block)) for block, _ in blocks),
                    tuple(length for _, length in blocks),
                    call.get("carry_tokens", 0) + call["question_tokens"],
                )
            )
        for call, step in zip(together, index.plan(planned, float(number)), strict=True):
            cached = fleet.send(call, names.index(step.replica or names[0]))
            index.hear(FirstToken(step.request_id), float(number))
            index.hear(Settled(step.request_id, cached, ok=True), float(number))
        for place, cache in enumerate(fleet.caches):
            evicted = tuple(cache.take_evictions())
            if evicted:
                index.apply(EvictionReport(names[place], 0, reports[place], evicted))
                reports[place] += 1


def least_loaded(_: Call, load: list[int]) -> int:
    return load.index(min(load))


def session(call: Call, load: list[int]) -> int:
    return crc32(str(call["session"]).encode()) % len(load)


def hashed(call: Call, load: list[int]) -> int:
    return crc32(str(call["context"]).encode()) % len(load)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--cache-tokens", type=int, default=50_000)
    arguments = parser.parse_args()
    chains, tokens = calls(arguments.questions)
    print(f"{len(chains)} questions, {sum(map(len, chains))} calls, {arguments.replicas} replicas")
    print(f"{'policy':<16} {'layout':<8} {'hit ratio':>9} {'busiest':>8}")
    rules: dict[str, Choose] = {
        "least_loaded": least_loaded,
        "session affinity": session,
        "block hashed": hashed,
    }
    for policy in (*rules, "cp_ray"):
        for layout in ("common", "role"):
            fleet = Fleet(arguments.replicas, arguments.cache_tokens, layout, tokens)
            if policy == "cp_ray":
                by_index(fleet, chains)
            else:
                by_rule(fleet, chains, rules[policy])
            busiest = max(fleet.computed) * len(fleet.computed) / sum(fleet.computed)
            hit = fleet.found / fleet.asked
            print(f"{policy:<16} {layout:<8} {hit:>9.4f} {busiest:>7.2f}x", flush=True)


if __name__ == "__main__":
    main()
