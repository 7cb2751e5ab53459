"""`cp-ray trace stats`: how much a trace repeats (paper section 3, figure 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.types import BlockId
from cp_ray.replay.playback import Playback
from cp_ray.replay.policies import AsTheyCame, Frequency, Policy
from cp_ray.replay.report import draw
from cp_ray.replay.trace import Trace

TOP = 0.2
CURVE = 50
"""Points of the curve of accesses."""


class TraceStats(msgspec.Struct, frozen=True):
    """Shares are of one; tokens are of blocks, questions apart.

    top20_share_of_accesses: accesses to the 20% most accessed blocks, of all accesses: the paper's
    figure 3. top20_share_of_requests: requests with such a block. turn_overlap: mean share of a
    turn's blocks that an earlier turn of its conversation had, over all turns, and over those that
    have an earlier one. seen_before: block tokens in blocks of any earlier request, which no order
    can exceed. prefix_hit: what a cache without limit gives back, one request at a time, as they
    came and by falling frequency. curve: share of accesses on the first i / 50 of the blocks.
    """

    trace: str
    requests: int
    conversations: int
    distinct_contexts: int
    distinct_sets: int
    k_min: int
    k_max: int
    distinct_blocks: int
    mean_accesses: float
    mean_block_tokens: float
    mean_context_tokens: float
    mean_question_tokens: float
    top20_share_of_accesses: float
    top20_share_of_requests: float
    turn_overlap: float
    turn_overlap_later: float
    seen_before: float
    prefix_hit: float
    prefix_hit_frequency: float
    curve: tuple[float, ...]


def trace_stats(trace: Trace) -> TraceStats:
    """Count; two replays are the slow part."""
    requests = trace.requests
    accesses = Counter(block for request in requests for block in request.context)
    total = max(accesses.total(), 1)
    ranked = sorted(accesses, key=lambda block: -accesses[block])
    top = set(ranked[: round(len(ranked) * TOP)])
    tokens = sum(sum(request.block_tokens) for request in requests)
    overlap, later = _turn_overlap(trace)
    return TraceStats(
        trace=trace.name,
        requests=len(requests),
        conversations=len({request.conversation or request.request_id for request in requests}),
        distinct_contexts=len({request.context for request in requests}),
        distinct_sets=len({frozenset(request.context) for request in requests}),
        k_min=min(len(request.context) for request in requests),
        k_max=max(len(request.context) for request in requests),
        distinct_blocks=len(accesses),
        mean_accesses=accesses.total() / max(len(accesses), 1),
        mean_block_tokens=tokens / total,
        mean_context_tokens=tokens / len(requests),
        mean_question_tokens=sum(request.question_tokens for request in requests) / len(requests),
        top20_share_of_accesses=sum(accesses[block] for block in top) / total,
        top20_share_of_requests=sum(1 for r in requests if top.intersection(r.context))
        / len(requests),
        turn_overlap=overlap,
        turn_overlap_later=later,
        seen_before=trace.ceiling(),
        prefix_hit=_prefix_hit(trace, AsTheyCame()),
        prefix_hit_frequency=_prefix_hit(trace, Frequency()),
        curve=tuple(
            sum(accesses[block] for block in ranked[: round(len(ranked) * point / CURVE)]) / total
            for point in range(CURVE + 1)
        ),
    )


def as_table(stats: Sequence[TraceStats]) -> str:
    """A line for each figure, a column for each trace."""
    wide = [max(14, len(one.trace)) for one in stats]
    lines = []
    for name in TraceStats.__struct_fields__[:-1]:
        cells = [f"{_shown(getattr(one, name)):>{w}}" for one, w in zip(stats, wide, strict=True)]
        lines.append(f"{name.replace('_', ' '):<24} {'  '.join(cells)}")
    return "\n".join(lines)


def plot_stats(stats: Sequence[TraceStats], file: Path) -> None:
    """Share of accesses over share of blocks, the most accessed first (paper figure 3)."""

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        for one in stats:
            at = [point / CURVE for point in range(len(one.curve))]
            label = f"{one.trace}: {one.top20_share_of_accesses:.1%} on the top 20%"
            axes.plot(at, one.curve, label=label)
        axes.axvline(TOP, linestyle="--", color="grey")
        axes.set_xlabel("share of blocks, the most accessed first")
        axes.set_ylabel("share of accesses")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.legend(fontsize="small", loc="lower right")

    draw(file, paint, (6, 4))


def _turn_overlap(trace: Trace) -> tuple[float, float]:
    seen: dict[str, set[BlockId]] = {}
    shares: list[float] = []
    later: list[float] = []
    for request in trace.requests:
        if not request.context:
            continue
        known = seen.get(request.conversation)
        blocks = set(request.context)
        share = len(blocks & known) / len(blocks) if known is not None else 0.0
        shares.append(share)
        if request.conversation:
            if known is not None:
                later.append(share)
            seen.setdefault(request.conversation, set()).update(blocks)
    return sum(shares) / max(len(shares), 1), sum(later) / max(len(later), 1)


def _prefix_hit(trace: Trace, policy: Policy) -> float:
    playback = Playback(
        policy, PrefixCache(None, 1, record_limit=len(trace.requests)), leaders=False
    )
    playback.play(policy.arrange(trace.requests), 1, conversations=False, title=trace.name)
    asked = sum(one.asked for one in playback.played)
    return sum(one.cached for one in playback.played) / asked if asked else 0.0


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
