"""`cp-ray bench reuse`: which share of a trace's block tokens one cache gives back, by policy.

Exact by tokens (pages of one), no time: windows of `in_flight` requests are admitted together,
then end together. Where the cache cannot hold a whole window, the rest of it waits, as in an
engine's queue, until its first requests have ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cp_ray.core.prefix_cache import Sharing
from cp_ray.errors import ConfigError
from cp_ray.replay.playback import Playback, Played
from cp_ray.replay.policies import Policy
from cp_ray.replay.registry import make_cache, make_policy
from cp_ray.replay.trace import Trace, TraceRequest, read_trace

POINTS = 50
"""Points of a series."""


class ReuseOptions(msgspec.Struct, frozen=True):
    """What to replay.

    cache_tokens: None = without limit. in_flight: requests of one window. k: blocks of each
    context, None = all. requests: only the first of the trace, None = all. conversations: replay
    so many of the trace's conversations side by side, each turn behind the earlier ones; this is
    then the number in flight. series: report the hit ratio over time as well.
    """

    trace: Path
    policies: tuple[str, ...] = ("none", "frequency", "paper")
    cache_tokens: int | None = None
    in_flight: int = 1
    in_flight_sharing: Sharing = "step"
    k: int | None = None
    requests: int | None = None
    conversations: int | None = None
    series: bool = False


class Point(msgspec.Struct, frozen=True):
    """After so many requests. hit_ratio: of those since the point before."""

    requests: int
    hit_ratio: float
    cached_tokens: int


class ReuseRow(msgspec.Struct, frozen=True):
    """One policy's result. hit_ratio and ceiling: shares of all block tokens.

    first_half, second_half: hit ratios of the requests that arrived in that half of the trace.
    prefill_tokens: computed per request, questions included. rounds: prefills one after the other
    per window; more than one where followers waited for a leader, or requests for room. plan_us:
    the policy's own CPU time per request (of one window in five, or the whole trace's, divided).
    With conversations, hits are shares of whole prompts, earlier turns included, and there is no
    ceiling.
    """

    policy: str
    trace: str
    requests: int
    k: int | None
    cache_tokens: int | None
    in_flight: int
    in_flight_sharing: Sharing
    conversations: int | None
    hit_ratio: float
    first_half: float
    second_half: float
    ceiling: float | None
    prefill_tokens: float
    rounds: float
    plan_us_p50: float
    plan_us_p99: float
    series: tuple[Point, ...] = ()


class _Arranged(msgspec.Struct, frozen=True):
    requests: list[TraceRequest]
    us_each: float


class Bench:
    """Replays cells of a table; traces and offline arrangements are made once for all cells."""

    def __init__(self) -> None:
        self._traces: dict[tuple[Path, int | None, int | None], Trace] = {}
        self._arranged: dict[tuple[str, ReuseOptions], _Arranged] = {}

    def run(self, options: ReuseOptions) -> list[ReuseRow]:
        """One row for each policy. Raises ConfigError naming the option to mend."""
        for name in ("cache_tokens", "in_flight", "k", "requests", "conversations"):
            value = getattr(options, name)
            if value is not None and value < 1:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag}: {value} is less than 1", param=name)
        policies = [(name, make_policy(name, options.cache_tokens)) for name in options.policies]
        key = (options.trace, options.k, options.requests)
        if key not in self._traces:
            self._traces[key] = read_trace(options.trace, k=options.k, requests=options.requests)
        trace = self._traces[key]
        return [self._row(name, policy, trace, options) for name, policy in policies]

    def _row(self, name: str, policy: Policy, trace: Trace, options: ReuseOptions) -> ReuseRow:
        cache = make_cache(
            name, options.cache_tokens, options.in_flight_sharing, len(trace.requests)
        )
        leaders = options.in_flight_sharing == "finished"
        playback = Playback(policy, cache, leaders=leaders)
        arranged = self._arrange(name, policy, trace, options)
        requests = arranged.requests
        if options.conversations:
            # A turn follows the one before: an offline plan gives the contexts, not the sequence.
            by_id = {request.request_id: request for request in requests}
            requests = [by_id[request.request_id] for request in trace.requests]
        playback.play(
            requests,
            options.conversations or options.in_flight,
            options.conversations is not None,
            f"{name} on {trace.name}",
        )
        played = playback.played
        plan_us = sorted(each + arranged.us_each for each in playback.plan_us)
        arrived = {request.request_id: n for n, request in enumerate(trace.requests)}
        middle = len(played) // 2
        return ReuseRow(
            policy=name,
            trace=trace.name,
            requests=len(played),
            k=options.k,
            cache_tokens=options.cache_tokens,
            in_flight=options.conversations or options.in_flight,
            in_flight_sharing=options.in_flight_sharing,
            conversations=options.conversations,
            hit_ratio=_share(played),
            first_half=_share([one for one in played if arrived[one.request_id] < middle]),
            second_half=_share([one for one in played if arrived[one.request_id] >= middle]),
            ceiling=None if options.conversations else trace.ceiling(),
            prefill_tokens=sum(one.prefilled for one in played) / len(played),
            rounds=playback.rounds / playback.windows,
            plan_us_p50=plan_us[len(plan_us) // 2],
            plan_us_p99=plan_us[len(plan_us) * 99 // 100],
            series=_series(played) if options.series else (),
        )

    def _arrange(self, name: str, policy: Policy, trace: Trace, options: ReuseOptions) -> _Arranged:
        """Made once: it does not depend on what is in flight, nor on the sharing."""
        kept = ReuseOptions(
            options.trace,
            cache_tokens=options.cache_tokens if policy.by_capacity else None,
            k=options.k,
            requests=options.requests,
        )
        key = (name, kept)
        if key not in self._arranged:
            started = time.thread_time()
            requests = policy.arrange(trace.requests)
            us_each = (time.thread_time() - started) * 1e6 / len(requests)
            self._arranged[key] = _Arranged(requests, us_each)
        return self._arranged[key]


def bench_reuse(options: ReuseOptions) -> list[ReuseRow]:
    """Replay the trace once for each policy. Raises ConfigError naming the option to mend."""
    return Bench().run(options)


def _share(played: Sequence[Played]) -> float:
    asked = sum(one.asked for one in played)
    return sum(one.cached for one in played) / asked if asked else 0.0


def _series(played: Sequence[Played]) -> tuple[Point, ...]:
    """At most POINTS, evenly spaced by requests sent."""
    points = []
    cached = begin = 0
    for number in range(1, POINTS + 1):
        end = len(played) * number // POINTS
        if end == begin:
            continue
        part = played[begin:end]
        cached += sum(one.cached for one in part)
        points.append(Point(end, _share(part), cached))
        begin = end
    return tuple(points)
