"""Rivals' own code in the simulator: what every adapter must do, with whatever is installed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from benchmarks.rivals.block_events import BLOCK, Blocks, Holdings, block_hashes
from benchmarks.rivals.known import KNOWN
from benchmarks.rivals.prompts import CHARACTERS, text_of, token_ids, token_list
from benchmarks.rivals.rival import Rival, SideBySide
from cp_ray.core.pages import Piece
from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import BlockId, Eviction, RequestId
from cp_ray.replay.fleet.arrivals import poisson
from cp_ray.replay.fleet.batching import BatchingReplica
from cp_ray.replay.fleet.clock import StepCost
from cp_ray.replay.fleet.job import Job, Live
from cp_ray.replay.fleet.policies.dynamo import Dynamo
from cp_ray.replay.fleet.registry import RIVALS, Fleet
from cp_ray.replay.fleet.router import OneByOne
from cp_ray.replay.fleet.simulation import Simulation
from cp_ray.replay.fleet.view import FleetView
from cp_ray.replay.trace import TraceRequest

REPLICAS = 4
CAPACITY = 4096
FLEET = Fleet(REPLICAS, 16, CAPACITY, 1)


def jobs(count: int = 60) -> list[Job]:
    """Lists of three of twelve blocks, the popular ones first and most often."""
    choice = random.Random(5)
    made = []
    for number in range(count):
        ranks = sorted({min(int(choice.expovariate(0.3)), 11) for _ in range(3)})
        context = tuple(BlockId(f"block {rank}") for rank in ranks)
        sizes = tuple(250 + 20 * rank for rank in ranks)
        made.append(Job(TraceRequest(RequestId(f"r{number}"), "", context, sizes, 40), 8))
    return made


def play(rival: Rival, copy: OneByOne | None) -> tuple[SideBySide, list[PrefixCache], list[Live]]:
    """All of them, several under way at a time; caches that evict."""
    caches = [PrefixCache(CAPACITY, 16) for _ in range(REPLICAS)]
    router = SideBySide(rival, copy, REPLICAS)
    replicas = [BatchingReplica(cache, StepCost(), step_tokens=512) for cache in caches]
    simulation = Simulation(replicas, router, FleetView(caches, CAPACITY))
    played = jobs()
    simulation.open_loop(played, poisson(len(played), 40.0, 1))
    return router, caches, simulation.done


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.ray) if name == "ray" else name for name in KNOWN]
)
def name(request: pytest.FixtureRequest) -> str:
    if not KNOWN[request.param].installed:
        pytest.skip(f"{KNOWN[request.param].package} is not installed (the extra `bench`)")
    if request.param == "ray":
        request.getfixturevalue("ray_instance")
    return str(request.param)


def test_a_rival_places_every_request_and_our_copy_agrees(name: str) -> None:
    rival = KNOWN[name].make(REPLICAS, KNOWN[name].encode)
    policy = KNOWN[name].copy
    copy = RIVALS[policy](FLEET) if policy else None
    assert isinstance(copy, OneByOne | None)
    try:
        router, _, done = play(rival, copy)
    finally:
        rival.close()
    assert sorted(live.request_id for live in done) == sorted(
        job.request.request_id for job in jobs()
    )
    assert sum(router.sent) == len(done) == router.tally.asked
    assert {live.replica for live in done} <= set(range(REPLICAS))
    # Dynamo hears of a prompt's blocks when it is prefilled, the copy when it is admitted.
    assert not copy or router.tally.same + router.tally.tied >= 0.9 * router.tally.asked


@pytest.fixture
def dynamo() -> Iterator[Rival]:
    if not KNOWN["dynamo"].installed:
        pytest.skip("ai-dynamo-runtime is not installed (the extra `bench`)")
    rival = KNOWN["dynamo"].make(REPLICAS, token_list)
    yield rival
    rival.close()


class WhatItHears(Dynamo):
    """Our copy with the service's own overlaps in place of the simulator's perfect view."""

    def __init__(self, rival: Rival) -> None:
        super().__init__(1, REPLICAS)
        self._rival = rival
        self._held: list[int] = []
        self._missing: dict[RequestId, int] = {}
        self._waiting = [0] * REPLICAS

    def place(self, live: Live, view: FleetView, now: float, /) -> int:
        tokens = token_list(live.pieces)
        self._held = [self._rival.held(tokens, at) for at in range(REPLICAS)]  # type: ignore[attr-defined]
        heard = _Heard(self._held, self._waiting)
        return super().place(live, heard, now)  # type: ignore[arg-type]

    def placed(self, live: Live, /) -> None:
        super().placed(live)
        missing = live.prompt_tokens - self._held[live.replica]
        self._missing[live.request_id] = missing
        self._waiting[live.replica] += missing

    def first_token(self, live: Live, now: float) -> None:
        self._waiting[live.replica] -= self._missing.pop(live.request_id)


class _Heard:
    def __init__(self, held: list[int], waiting: list[int]) -> None:
        self._held = held
        self.prefill_tokens = waiting
        self.replicas = REPLICAS

    def held(self, pieces: Sequence[Piece]) -> list[int]:
        return self._held


def test_given_what_dynamo_hears_our_copy_chooses_as_it_does(dynamo: Rival) -> None:
    router, _, _ = play(dynamo, WhatItHears(dynamo))
    assert router.tally.same + router.tally.tied == router.tally.asked == 60


def test_dynamo_is_told_exactly_what_the_caches_hold(dynamo: Rival) -> None:
    _, caches, done = play(dynamo, None)
    for live in done:
        for at, cache in enumerate(caches):
            told = dynamo.held(token_list(live.pieces), at)  # type: ignore[attr-defined]
            assert cache.lookup(live.pieces) <= told <= live.prompt_tokens
            assert told == cache.lookup(live.pieces) or told == live.prompt_tokens // BLOCK * BLOCK


class Mirror:
    """Round robin; keeps books of blocks as the event sockets do."""

    def __init__(self) -> None:
        self.books = [Holdings() for _ in range(REPLICAS)]
        self.there: list[set[int]] = [set() for _ in range(REPLICAS)]
        self._next = 0

    def choose(self, live: Live, view: FleetView) -> int:
        self._next += 1
        return self._next % REPLICAS

    def first_token(self, live: Live) -> None:
        blocks = block_hashes(token_ids(live.pieces))
        known, held = self.books[live.replica].stored(live.request_id, blocks)
        assert all(block in self.there[live.replica] for block in blocks[:known])
        self.there[live.replica].update(blocks[known:held])

    def ended(self, live: Live) -> None:
        pass

    def evicted(self, replica: int, evictions: Sequence[Eviction]) -> None:
        for eviction in evictions:
            gone = self.books[replica].shrunk(eviction.request_id, eviction.tokens_left // BLOCK)
            self.there[replica].difference_update(gone)

    def close(self) -> None:
        pass


def test_the_books_of_blocks_say_what_the_caches_hold() -> None:
    mirror = Mirror()
    _, caches, done = play(mirror, None)
    lost = 0
    for live in done:
        blocks = block_hashes(token_ids(live.pieces))
        for at, cache in enumerate(caches):
            leading = _leading(blocks, mirror.there[at])
            most = cache.lay_out(live.pieces).most_cached
            assert min(leading, most) * BLOCK == cache.lookup(live.pieces)
        lost += _leading(blocks, mirror.there[live.replica]) < len(blocks)
    assert lost, "nothing was evicted: the caches are too large for this test"


def _leading(blocks: Blocks, there: set[int]) -> int:
    return next((at for at, block in enumerate(blocks) if block not in there), len(blocks))


def test_equal_pieces_have_equal_content_and_others_do_not() -> None:
    one: list[Piece] = [("a", 33), ("b", 20)]
    other: list[Piece] = [("a", 33), ("c", 20)]
    assert len(text_of(one)) == 53 * CHARACTERS
    assert len(token_ids(one)) == len(token_list(one)) == 53
    assert text_of(one)[: 33 * CHARACTERS] == text_of(other)[: 33 * CHARACTERS]
    assert text_of(one) != text_of(other)
    assert block_hashes(token_ids(one))[:2] == block_hashes(token_ids(other))[:2]
    assert block_hashes(token_ids(one))[2] != block_hashes(token_ids(other))[2]
