"""`cp-ray bench reuse`: which share of a trace's block tokens one cache gives back, by policy.

Exact by tokens (pages of one), no time: windows of `in_flight` requests are admitted together,
then end together. Where the cache cannot hold a whole window, its first requests end earlier.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import msgspec
from tqdm import tqdm

from cp_ray.core.pages import Piece
from cp_ray.core.prefix_cache import PrefixCache, Sharing
from cp_ray.errors import ConfigError
from cp_ray.replay.policies import Policy, Sent, make_policy
from cp_ray.replay.trace import Trace, TraceRequest, read_trace


class ReuseOptions(msgspec.Struct, frozen=True):
    """What to replay.

    cache_tokens: None = without limit. in_flight: requests of one window. k: blocks of each
    context, None = all. requests: only the first of the trace, None = all.
    """

    trace: Path
    policies: tuple[str, ...] = ("none", "frequency", "paper")
    cache_tokens: int | None = None
    in_flight: int = 1
    in_flight_sharing: Sharing = "step"
    k: int | None = None
    requests: int | None = None


class ReuseRow(msgspec.Struct, frozen=True):
    """One policy's result. hit_ratio and ceiling: shares of all block tokens.

    plan_us: the policy's own CPU time per request (its window's, or the whole trace's, divided).
    """

    policy: str
    trace: str
    requests: int
    cache_tokens: int | None
    in_flight: int
    hit_ratio: float
    ceiling: float
    plan_us_p50: float
    plan_us_p99: float


def bench_reuse(options: ReuseOptions) -> list[ReuseRow]:
    """Replay the trace once for each policy. Raises ConfigError naming the option to mend."""
    for name in ("cache_tokens", "in_flight", "k", "requests"):
        value = getattr(options, name)
        if value is not None and value < 1:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag}: {value} is less than 1", param=name)
    policies = [(name, make_policy(name, options.cache_tokens)) for name in options.policies]
    trace = read_trace(options.trace, k=options.k, requests=options.requests)
    ceiling = trace.ceiling()
    return [_replay(trace, name, policy, options, ceiling) for name, policy in policies]


def _replay(
    trace: Trace, name: str, policy: Policy, options: ReuseOptions, ceiling: float
) -> ReuseRow:
    cache = PrefixCache(
        options.cache_tokens,
        page_size=1,
        sharing=options.in_flight_sharing,
        record_limit=len(trace.requests),
    )
    started = time.thread_time()
    requests = policy.arrange(trace.requests)
    arranged_us = (time.thread_time() - started) * 1e6 / len(requests)
    plan_us: list[float] = []
    hit = 0
    with tqdm(total=len(requests), desc=f"{name} on {trace.name}", disable=None) as progress:
        for first in range(0, len(requests), options.in_flight):
            window = requests[first : first + options.in_flight]
            started = time.thread_time()
            sent = policy.plan(window)
            per_request = (time.thread_time() - started) * 1e6 / len(window)
            plan_us += [arranged_us + per_request] * len(window)
            hit += _run_window(cache, policy, sent)
            progress.update(len(window))
    plan_us.sort()
    total = sum(sum(request.block_tokens) for request in requests)
    return ReuseRow(
        policy=name,
        trace=trace.name,
        requests=len(requests),
        cache_tokens=options.cache_tokens,
        in_flight=options.in_flight,
        hit_ratio=hit / total if total else 0.0,
        ceiling=ceiling,
        plan_us_p50=plan_us[len(plan_us) // 2],
        plan_us_p99=plan_us[len(plan_us) * 99 // 100],
    )


class _InFlight(msgspec.Struct, frozen=True):
    sent: Sent
    cached: int


def _run_window(cache: PrefixCache, policy: Policy, window: list[Sent]) -> int:
    """Block tokens of the window's requests that the cache held."""
    running: deque[_InFlight] = deque()

    def finish_oldest() -> None:
        done = running.popleft()
        cache.prefilled(done.sent.request.request_id)
        cache.release(done.sent.request.request_id)
        policy.settled(done.sent, done.cached)

    hit = 0
    for sent in window:
        request = sent.request
        block_tokens = sum(request.block_tokens)
        if not cache.fits(block_tokens + request.question_tokens):
            raise ConfigError(
                f"--cache-tokens: request {request.request_id} alone has "
                f"{block_tokens + request.question_tokens} tokens; give the cache more",
                param="cache_tokens",
            )
        while (cached := cache.admit(request.request_id, _pieces(request, sent))) is None:
            finish_oldest()
        running.append(_InFlight(sent, cached))
        hit += min(cached, block_tokens)
    while running:
        finish_oldest()
    evictions = cache.take_evictions()
    if evictions:
        policy.evicted(evictions)
    return hit


def _pieces(request: TraceRequest, sent: Sent) -> list[Piece]:
    """The blocks as sent, then a question that no other request has."""
    lengths = dict(zip(request.context, request.block_tokens, strict=True))
    pieces: list[Piece] = [(block, lengths[block]) for block in sent.context]
    return [*pieces, (("question", request.request_id), request.question_tokens)]
