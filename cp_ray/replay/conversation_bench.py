"""`cp-ray bench conversations`: tokens of context blocks that turns need not compute again.

Reuse is said as a factor: block tokens that clients sent over block tokens computed, references in
place of blocks among the latter. Beside it stand ceilings, computed from the trace. `within`: only
the blocks that the own conversation has not had are computed. `anywhere`: only those that nobody
has had. `reachable`: what caches of prefixes could reach of that. Behind earlier turns a prompt is
of one conversation alone, so other conversations' blocks help the first turn only; and a prompt
shares its prefix with one earlier prompt, so at most the tokens that two have in common. Every
request chooses its partner anew, which no one order allows: the bound is loose without histories
(`history=False`: memories, whose every question is a prompt of its own).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cp_ray.core.types import BlockId
from cp_ray.errors import ConfigError
from cp_ray.replay.playback import Playback
from cp_ray.replay.registry import make_cache, make_policy
from cp_ray.replay.trace import Trace, TraceRequest, read_trace


class ConversationOptions(msgspec.Struct, frozen=True):
    """What to replay. side_by_side: conversations under way. cache_tokens: None = no limit."""

    trace: Path
    policies: tuple[str, ...] = ("none", "online")
    side_by_side: int = 8
    cache_tokens: int | None = None
    history: bool = True
    k: int | None = None


class Ceilings(msgspec.Struct, frozen=True):
    """Shares of block tokens that need not be computed, at the very best; see above."""

    within: float
    anywhere: float
    reachable: float


class ConversationRow(msgspec.Struct, frozen=True):
    """One policy's result.

    reuse: block tokens sent over those computed. saved: share of block tokens not computed.
    Each ceiling as a factor, and which share of its saved tokens was saved; None where it is no
    ceiling of this replay. turn_tokens: computed per turn, question and last answer included.
    plain_tokens: of a prompt in full, history and all.
    """

    policy: str
    trace: str
    turns: int
    history: bool
    side_by_side: int
    cache_tokens: int | None
    reuse: float
    saved: float
    within: float
    of_within: float | None
    anywhere: float
    of_anywhere: float
    reachable: float
    of_reachable: float
    turn_tokens: float
    plain_tokens: float


def bench_conversations(options: ConversationOptions) -> list[ConversationRow]:
    """Replay the trace once for each policy. Raises ConfigError naming the option to mend."""
    if options.side_by_side < 1:
        raise ConfigError(f"--side-by-side: {options.side_by_side} is less than 1")
    trace = read_trace(options.trace, k=options.k)
    ceilings = ceilings_of(trace.requests, history=options.history)
    return [_row(name, trace, ceilings, options) for name in options.policies]


def ceilings_of(requests: Sequence[TraceRequest], *, history: bool) -> Ceilings:
    """Of the trace in its order."""
    seen: set[BlockId] = set()
    of: dict[str, set[BlockId]] = {}
    total = within = anywhere = 0
    for request in requests:
        own = of.setdefault(request.conversation or request.request_id, set())
        for block, tokens in zip(request.context, request.block_tokens, strict=True):
            total += tokens
            within += tokens if block in own else 0
            anywhere += tokens if block in seen else 0
        own.update(request.context)
        seen.update(request.context)
    total = max(total, 1)
    reachable = _shared_with_one(requests, history=history) + (within if history else 0)
    return Ceilings(within / total, anywhere / total, reachable / total)


def _shared_with_one(requests: Sequence[TraceRequest], *, history: bool) -> int:
    """For each request the most tokens it has in common with one earlier request.

    history: only of first turns, with first turns.
    """
    holders: dict[BlockId, list[int]] = {}
    begun: set[str] = set()
    bound = 0
    for place, request in enumerate(requests):
        if history and request.conversation in begun:
            continue
        begun.update([request.conversation] if request.conversation else [])
        common: dict[int, int] = {}
        for block, tokens in zip(request.context, request.block_tokens, strict=True):
            earlier = holders.setdefault(block, [])
            for other in earlier:
                common[other] = common.get(other, 0) + tokens
            earlier.append(place)
        bound += max(common.values(), default=0)
    return bound


def _row(
    name: str, trace: Trace, ceilings: Ceilings, options: ConversationOptions
) -> ConversationRow:
    policy = make_policy(name, options.cache_tokens)
    cache = make_cache(name, options.cache_tokens, "step", len(trace.requests))
    playback = Playback(policy, cache, leaders=False)
    arranged = list(trace.requests) if options.history else policy.arrange(trace.requests)
    together = options.side_by_side if options.history else 1
    playback.play(arranged, together, options.history, f"{name} on {trace.name}")
    prefilled = {one.request_id: one.prefilled for one in playback.played}
    blocks = computed = plain = 0
    before: dict[str, tuple[int, int]] = {}
    for request in trace.requests:
        history, answer = before.get(request.conversation, (0, 0)) if options.history else (0, 0)
        tokens = sum(request.block_tokens)
        blocks += tokens
        # The question is new by nature, and the last answer is computed with this turn.
        computed += prefilled[request.request_id] - request.question_tokens - answer
        plain += history + tokens + request.question_tokens
        if request.conversation:
            length = history + tokens + request.question_tokens + request.answer_tokens
            before[request.conversation] = length, request.answer_tokens
    turns = len(trace.requests)
    saved = 1 - computed / max(blocks, 1)
    within = ceilings.within if options.history else None
    return ConversationRow(
        policy=name,
        trace=trace.name,
        turns=turns,
        history=options.history,
        side_by_side=together,
        cache_tokens=options.cache_tokens,
        reuse=1 / (1 - saved),
        saved=saved,
        within=1 / (1 - ceilings.within),
        of_within=saved / within if within else None,
        anywhere=1 / (1 - ceilings.anywhere),
        of_anywhere=saved / ceilings.anywhere if ceilings.anywhere else 0.0,
        reachable=1 / (1 - ceilings.reachable),
        of_reachable=saved / ceilings.reachable if ceilings.reachable else 0.0,
        turn_tokens=sum(prefilled.values()) / turns,
        plain_tokens=plain / turns,
    )


def table_of(rows: Sequence[ConversationRow]) -> str:
    """One line a row under one of headings."""
    lines = [
        f"{'policy':<14} {'reuse':>6} {'within':>7} {'of it':>6} {'anywhere':>8} {'of it':>6} "
        f"{'reachable':>9} {'of it':>6} {'computed':>9} {'in full':>8}   trace, turns, "
        "side by side, cache tokens"
    ]
    for row in rows:
        cache = "inf" if row.cache_tokens is None else str(row.cache_tokens)
        lines.append(
            f"{row.policy:<14} {row.reuse:>5.2f}x {row.within:>6.2f}x {_share(row.of_within)} "
            f"{row.anywhere:>7.2f}x {_share(row.of_anywhere)} {row.reachable:>8.2f}x "
            f"{_share(row.of_reachable)} {row.turn_tokens:>9.0f} {row.plain_tokens:>8.0f}   "
            f"{row.trace}, {row.turns}, {row.side_by_side if row.history else 'no history'}, "
            f"{cache}"
        )
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return f"{'-':>6}" if value is None else f"{value:>6.1%}"
