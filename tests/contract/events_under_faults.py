"""Requests through an engine's own cache manager, its events by a faulty way into a residency.

    python -m tests.contract.events_under_faults [REQUESTS] [SEED]     without a fault
    python -m tests.contract.events_under_faults 2500 --lose 0.01      how soon losses are found

The engine is that of the environment: vLLM's KVCacheManager, or SGLang's radix cache. The residency
is asked and audited as its adapter does it; doubt drops the cache as there.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable

import msgspec

from cp_ray.core.types import Eviction, RequestId
from cp_ray.workers.cache_events import CacheEvent, Cleared, Removed, Stored
from cp_ray.workers.eviction_order import EvictionOrder
from cp_ray.workers.kv_events import decode_batch
from cp_ray.workers.residency import Path, Residency
from tests.contract import real_engine
from tests.contract.lossy import Loser
from tests.contract.sglang_tree import SglangTree
from tests.contract.vllm_manager import VllmManager

PAGE, PAGES = 4, 120
Kinds = tuple[type[Stored] | type[Removed], ...]


class Tally(msgspec.Struct):
    """audited, mismatches: of answers. doubts: times the residency contradicted itself.

    evictions: of requests.
    """

    requests: int = 0
    cached_tokens: int = 0
    audited: int = 0
    mismatches: int = 0
    doubts: int = 0
    evictions: int = 0


def manager() -> VllmManager | SglangTree:
    """The cache of the engine that is installed."""
    if real_engine.NAME == "sglang":
        return SglangTree(PAGE, PAGES)
    return VllmManager(PAGE, PAGES, events=True)


class Drive:
    """in_flight: requests that run together. spoil: what becomes of each event."""

    def __init__(
        self, seed: int, in_flight: int, spoil: Callable[[CacheEvent], list[CacheEvent]]
    ) -> None:
        self.rng = random.Random(seed)
        self.in_flight = in_flight
        self.spoil = spoil
        self.engine = manager()
        vllm = real_engine.NAME != "sglang"
        order = EvictionOrder() if vllm else None
        self.residency = Residency(PAGE, PAGES, copies=vllm, order=order)
        self.now = 0
        self.tally = Tally()
        self.documents = [
            tuple(self.rng.randrange(1000) for _ in range(self.rng.choice((7, 12, 16, 21))))
            for _ in range(24)
        ]
        self.running: dict[str, tuple[Path, int]] = {}

    def run(self, requests: int) -> Tally:
        for _ in range(requests):
            self.one()
        while self.running:
            self.end_one()
        self.residency.check()
        return self.tally

    def one(self) -> None:
        name = f"r{self.tally.requests}"
        self.tally.requests += 1
        context = self.rng.sample(range(len(self.documents)), self.rng.randint(1, 5))
        prompt = sum((self.documents[number] for number in context), ())
        if self.rng.random() < 0.7:
            prompt += tuple(self.rng.randrange(1000) for _ in range(self.rng.randint(1, 9)))
        self.submitted(name, context, prompt)
        path = self.residency.path(prompt)
        self.residency.sent(RequestId(name), path)
        while (cached := self.engine.admit(name, prompt)) is None:
            self.end_one()
        self.running[name] = (path, cached)
        self.tally.cached_tokens += cached
        if self.rng.random() < 0.8:
            self.step()
        while len(self.running) >= self.in_flight:
            self.end_one()

    def end_one(self) -> None:
        self.step()
        if not self.running:
            return  # the cache was dropped, and all with it
        name = self.rng.choice(list(self.running))
        path, cached = self.running.pop(name)
        held = self.residency.held_when_scheduled(path, cached)
        if held is not None:
            self.tally.audited += 1
            self.tally.mismatches += abs(held - cached) > PAGE
        self.residency.register(RequestId(name), path)
        self.engine.release(name)
        self.now += 1
        self.residency.ended(RequestId(name), (), whole=True, at=self.now)
        self.ended(name, cached, held)

    def submitted(self, name: str, context: list[int], prompt: tuple[int, ...]) -> None:
        """For those who plan: a request comes. context: numbers of its documents."""

    def ended(self, name: str, cached: int, held: int | None) -> None:
        """For those who plan: it has ended; held None: not audited."""

    def lost(self, evictions: list[Eviction]) -> None:
        """For those who report."""

    def began_anew(self) -> None:
        """For those who report."""

    def step(self) -> None:
        payload = self.engine.step()
        if payload is None:
            return
        events = [kept for event in decode_batch(payload) for kept in self.spoil(event)]
        doubts = self.residency.doubts
        self.now += 1
        evictions = self.residency.apply(events, self.now)
        self.tally.evictions += len(evictions)
        self.lost(evictions)
        if self.residency.doubts > doubts:
            self.tally.doubts += 1
            self.drop_cache()

    def drop_cache(self) -> None:
        """As the adapter does it with `reset_running_requests`."""
        while self.running:
            name = next(iter(self.running))
            _, cached = self.running.pop(name)
            self.engine.release(name)
            self.residency.ended(RequestId(name), (), whole=False, at=self.now)
            self.ended(name, cached, None)
        assert self.engine.reset()
        self.engine.step()
        self.residency.apply([Cleared()])
        self.began_anew()


class Lossy(Drive):
    """Loses this share of the events of these kinds.

    waits: requests from each loss until the cache was dropped; lost_at: of those not found yet.
    """

    def __init__(
        self,
        seed: int,
        in_flight: int,
        kinds: tuple[type[Stored] | type[Removed], ...],
        share: float,
    ) -> None:
        self.lost_at: list[int] = []
        self.waits: list[int] = []
        self.loser = Loser(share, kinds, seed)
        super().__init__(seed, in_flight, self.lose)

    def lose(self, event: CacheEvent) -> list[CacheEvent]:
        kept = self.loser(event)
        if not kept:
            self.lost_at.append(self.tally.requests)
        return kept

    def began_anew(self) -> None:
        self.waits += [self.tally.requests - lost for lost in self.lost_at]
        self.lost_at = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requests", nargs="?", type=int, default=300_000)
    parser.add_argument("seed", nargs="?", type=int, default=1)
    parser.add_argument("--lose", type=float, default=0.0, help="share of the events")
    args = parser.parse_args()
    began = time.monotonic()
    if not args.lose:
        tally = Drive(args.seed, 8, lambda event: [event]).run(args.requests)
        sys.stdout.write(f"{real_engine.version()}: {tally}, {time.monotonic() - began:.0f} s\n")
        return
    for in_flight in (1, 8):
        for kinds in ((Stored,), (Removed,), (Stored, Removed)):
            lossy = Lossy(args.seed, in_flight, kinds, args.lose)
            tally = lossy.run(args.requests)
            waits = sorted(lossy.waits)
            median, ninety, most = waits[len(waits) // 2], waits[9 * len(waits) // 10], waits[-1]
            names = " and ".join(kind.__name__ for kind in kinds)
            sys.stdout.write(
                f"{real_engine.version()}, {in_flight} in flight, {names}: {lossy.loser.lost} "
                f"lost, found after {median} requests (median), {ninety} (p90), "
                f"{most} at most; {tally.mismatches} predicted wrong\n"
            )


if __name__ == "__main__":
    main()
