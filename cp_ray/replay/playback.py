"""One replay: requests through one policy into one cache, window by window, counting tokens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
from tqdm import tqdm

from cp_ray.core.types import RequestId
from cp_ray.errors import ConfigError
from cp_ray.replay.conversations import SideBySide, pieces_of
from cp_ray.replay.leaders import hold_followers
from cp_ray.replay.policies import Policy, Sent
from cp_ray.replay.tiers import Cache
from cp_ray.replay.trace import TraceRequest

TIMED = 5
"""Plan time is taken of one window in so many: reading a thread's clock can cost a millisecond."""


class Played(msgspec.Struct, frozen=True):
    """What became of one request, in tokens. asked: those that could be cached at best.

    Without conversations these are its blocks', with them the whole prompt's.
    """

    request_id: RequestId
    asked: int
    cached: int
    prefilled: int


class Playback:
    """Plays one trace. leaders: hold followers until their leader's prefill is done."""

    def __init__(self, policy: Policy, cache: Cache, *, leaders: bool) -> None:
        self._policy = policy
        self._cache = cache
        self._leaders = leaders and policy.plans
        self._running: deque[tuple[Sent, int]] = deque()
        self.played: list[Played] = []
        self.plan_us: list[float] = []
        self.windows = 0
        self.rounds = 0

    def play(
        self, requests: Sequence[TraceRequest], in_flight: int, conversations: bool, title: str
    ) -> None:
        """Windows of `in_flight` requests, or of one turn each of so many conversations."""
        with tqdm(total=len(requests), desc=title, disable=None, delay=1) as progress:
            if conversations:
                beside = SideBySide(requests, in_flight)
                while turns := deque(beside.next_window()):
                    taken = self._policy.take(turns, len(turns), self._held)
                    self._window(taken, beside.answered)
                    progress.update(len(taken))
                return
            waiting = deque(requests)
            while waiting:
                taken = self._policy.take(waiting, in_flight, self._held)
                self._window(taken, lambda _: None)
                progress.update(len(taken))

    def _window(self, window: Sequence[TraceRequest], answered: Callable[[Sent], None]) -> None:
        planned = self._plan(window)
        if self._leaders:
            planned = hold_followers(planned, lambda sent: self._cache.lookup(pieces_of(sent)))
        self.windows += 1
        pending = list(planned)
        cold = {sent.request.request_id for sent in planned}
        while pending:
            pending = self._round(pending, cold)
        while self._running:
            self._finish_oldest()
        for sent in planned:
            answered(sent)
        evictions = self._cache.take_evictions()
        if evictions:
            self._policy.evicted(evictions)

    def _round(self, pending: list[Sent], cold: set[RequestId]) -> list[Sent]:
        """Prefill together what has no cold leader, in order, while there is room; the rest.

        cold: requests of the window whose prefill is not done.
        """
        left: list[Sent] = []
        together: list[Sent] = []
        for place, sent in enumerate(pending):
            if sent.after in cold:
                left.append(sent)
            elif self._admit(sent):
                together.append(sent)
            else:
                left += pending[place:]
                break
        if not together:
            self._finish_oldest()
            return left
        self.rounds += 1
        for sent in together:
            self._cache.prefilled(sent.request.request_id)
            cold.discard(sent.request.request_id)
        return left

    def _admit(self, sent: Sent) -> bool:
        request = sent.request
        pieces = pieces_of(sent)
        prompt = sum(length for _, length in pieces)
        if not self._cache.fits(prompt):
            raise ConfigError(
                f"--cache-tokens: request {request.request_id} alone has {prompt} tokens; "
                "give the cache more",
                param="cache_tokens",
            )
        cached = self._cache.admit(request.request_id, pieces)
        if cached is None:
            return False
        self._running.append((sent, cached))
        blocks = prompt if request.history else sum(request.block_tokens)
        self.played.append(Played(request.request_id, blocks, min(cached, blocks), prompt - cached))
        return True

    def _plan(self, window: Sequence[TraceRequest]) -> list[Sent]:
        if self.windows % TIMED:
            return self._policy.plan(window)
        started = time.thread_time()
        planned = self._policy.plan(window)
        self.plan_us.append((time.thread_time() - started) * 1e6 / len(window))
        return planned

    def _finish_oldest(self) -> None:
        sent, cached = self._running.popleft()
        self._cache.prefilled(sent.request.request_id)
        self._cache.release(sent.request.request_id)
        self._policy.settled(sent, cached)

    def _held(self, request: TraceRequest) -> int:
        return self._cache.lookup(pieces_of(Sent(request, request.context)))
