"""Sharing in flight: siblings with one cold prefix, dispatched in several orders.

vLLM registers a block when it is allocated, so siblings in the same step can share it; an engine
that registers a prefix when its prefill is done makes them all pay, unless one leads.
"""

from __future__ import annotations

import statistics
from datetime import UTC, datetime

import msgspec

from benchmarks.gpu.engine_run import EngineRun, Gate, Measured, Progress
from benchmarks.gpu.results import InFlightResult
from benchmarks.gpu.workload import Prompt
from cp_ray.core.prefill_curve import PrefillCurve
from cp_ray.core.types import RequestId
from cp_ray.errors import ConfigError

ANSWER_TOKENS = 4
"""So that decode steps and prefills mix, as they do in serving."""
REPEATS = 3


class Trial(msgspec.Struct, frozen=True):
    """What is sent, and in which order.

    order: "together": all at once, family by family; "leader first": followers when the leader's
    first token is there; "a step later": followers one engine step behind it; "in turn": all at
    once, one of each family in turn. prefixes_held: room of the cache, in prefixes with a tail;
    None = all there is.
    """

    order: str
    siblings: int
    families: int
    prefix_tokens: int
    tail_tokens: int
    prefixes_held: int | None = None

    @property
    def cache_tokens(self) -> int | None:
        """The room in tokens."""
        if self.prefixes_held is None:
            return None
        return self.prefixes_held * (self.prefix_tokens + self.tail_tokens)

    @property
    def new_tokens(self) -> int:
        """Tokens to compute if each prefix is computed once."""
        return self.families * (self.prefix_tokens + self.siblings * self.tail_tokens)

    def seconds(self, curve: PrefillCurve) -> float:
        """Estimated time of all repeats: each prefix computed twice, its tails in one step."""
        tails = curve.seconds(self.prefix_tokens, self.siblings * self.tail_tokens)
        return REPEATS * self.families * (2 * curve.seconds(0, self.prefix_tokens) + tails)


def trials(prefix_tokens: int, tail_tokens: int) -> list[Trial]:
    """8 and 64 siblings of one family, and 8 families of 8 with room for all or for three."""
    alone = [
        Trial(order, siblings, 1, prefix_tokens, tail_tokens)
        for siblings in (8, 64)
        for order in ("together", "leader first", "a step later")
    ]
    many = [
        Trial(order, 8, 8, prefix_tokens, tail_tokens, room)
        for room in (None, 3)
        for order in ("together", "in turn", "leader first")
    ]
    return alone + many


def run_trial(engine: EngineRun, trial: Trial) -> InFlightResult:
    """All repeats of one trial, each on an emptied cache and with tokens of its own."""
    shares, makespans, ttfts = [], [], []
    for repeat in range(REPEATS):
        engine.empty(trial.cache_tokens)
        prompts, leader_of = _prompts(trial, repeat)
        records = engine.run(
            prompts, len(prompts), answer_tokens=ANSWER_TOKENS, gate=_gate(trial.order, leader_of)
        )
        shares.append(_share(trial, records, engine.facts.block_size))
        makespans.append(max(one.first_s for one in records))
        # From the start of the run: a follower that is held waits as well.
        ttfts.append(statistics.fmean(one.first_s for one in records))
    return InFlightResult(
        order=trial.order,
        siblings=trial.siblings,
        families=trial.families,
        prefix_tokens=trial.prefix_tokens,
        tail_tokens=trial.tail_tokens,
        cache_tokens=trial.cache_tokens,
        cached_share=tuple(shares),
        makespan_s=tuple(makespans),
        ttft_mean_s=tuple(ttfts),
        facts=engine.facts,
        date=datetime.now(UTC).date().isoformat(),
    )


def _prompts(trial: Trial, repeat: int) -> tuple[list[Prompt], dict[RequestId, RequestId]]:
    pairs = [(f, s) for f in range(trial.families) for s in range(trial.siblings)]
    if trial.order == "in turn":
        pairs.sort(key=lambda pair: pair[1])
    prompts, leader_of = [], {}
    for family, sibling in pairs:
        name = RequestId(f"{repeat}.{family}.{sibling}")
        prefix = (("prefix", trial.order, repeat, family), trial.prefix_tokens)
        prompts.append(Prompt(name, (prefix, (("tail", trial.order, name), trial.tail_tokens))))
        leader_of[name] = RequestId(f"{repeat}.{family}.0")
    return prompts, leader_of


def _gate(order: str, leader_of: dict[RequestId, RequestId]) -> Gate | None:
    def leader_is_done(prompt: Prompt, progress: Progress) -> bool:
        leader = leader_of[prompt.request_id]
        return leader == prompt.request_id or leader in progress.first

    def leader_went(prompt: Prompt, progress: Progress) -> bool:
        leader = leader_of[prompt.request_id]
        sent = progress.sent.get(leader)
        return leader == prompt.request_id or (sent is not None and sent < progress.step)

    if order in ("together", "in turn"):
        return None
    if order == "leader first":
        return leader_is_done
    if order == "a step later":
        return leader_went
    raise ConfigError(f"no such order of dispatch: {order!r}")


def _share(trial: Trial, records: list[Measured], block_size: int) -> float:
    whole = trial.prefix_tokens // block_size * block_size
    possible = trial.families * (trial.siblings - 1) * whole
    return sum(one.cached for one in records) / possible
