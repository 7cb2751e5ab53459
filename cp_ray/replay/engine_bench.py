"""`cp-ray bench engine`: a trace through a real engine in this process, and what the index knew.

The index hears exactly what it hears in serving, without Redis between. Closed loop: the next
request is planned when one of `concurrency` ends. Every block has tokens of its own, drawn from
its id, so that equal blocks are equal to the engine and no text is needed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec
from tqdm import tqdm

from cp_ray.config import AppConfig
from cp_ray.core.index import ContextIndex
from cp_ray.core.packed import packed
from cp_ray.core.types import (
    BlockId,
    Context,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaInfo,
    RequestId,
    Settled,
)
from cp_ray.errors import ConfigError
from cp_ray.replay.engine_ear import REPLICA, Ear
from cp_ray.replay.trace import TraceRequest, read_trace
from cp_ray.workers.engine import Chunk, Engine, EngineInfo, EngineRequest, Sampling
from cp_ray.workers.replica import make_engine

ANSWER_TOKENS = 4
LONGEST_ABORT_S = 0.1
_HEAD = HeadId("bench")
_LOWEST_ID, _HIGHEST_ID = 100, 40_000
_SEARCH: dict[str, Literal["exact", "paper"]] = {
    "none": "exact",
    "paper": "paper",
    "online": "exact",
}
"""Policies: `none` leaves the order as it came, the others put a known prefix first."""


class EngineBenchOptions(msgspec.Struct, frozen=True):
    """What to run. length_scale: factor on every block's tokens. abort_share: 0 to 1.

    requests: more than the trace has begin it again, with other questions.
    """

    engine: str
    trace: Path
    policies: tuple[str, ...] = ("none", "online")
    requests: int = 200
    concurrency: int = 1
    cache_tokens: int = 8192
    length_scale: float = 1.0
    abort_share: float = 0.0
    model: str = "tiny"
    seed: int = 0


class EngineRow(msgspec.Struct, frozen=True):
    """One policy's result; every share is of requests, but the hit ratio, which is of tokens.

    predicted_within_one_block: the replica's view when the engine scheduled the request, against
    what the engine found, of those `audited`; exactly: to the token. planned_within_one_block: the
    index's when it planned. evictions: reports that a request lost usable tokens; evicted_blocks:
    engine blocks in them, one of two requests twice. quarantines, new_epochs: false alarms, where
    the engine was not tampered with. prefill_tok_s: prompt tokens served a second.
    """

    policy: str
    requests: int
    aborted: int
    hit_ratio: float
    predicted_within_one_block: float
    predicted_exactly: float
    planned_within_one_block: float
    audited: int
    evictions: int
    evicted_blocks: int
    quarantines: int
    new_epochs: int
    ttft_mean_s: float
    prefill_tok_s: float


def bench_engine(options: EngineBenchOptions) -> list[EngineRow]:
    """Start the engine once, run the trace once for each policy on an empty cache.

    Raises ConfigError naming the option to mend.
    """
    for name in ("requests", "concurrency", "cache_tokens"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')}: less than 1", param=name)
    if not 0 <= options.abort_share <= 1:
        raise ConfigError("--abort-share: a share lies between 0 and 1", param="abort_share")
    if options.length_scale <= 0:
        raise ConfigError("--length-scale: must be above 0", param="length_scale")
    unknown = [name for name in options.policies if name not in _SEARCH]
    if unknown:
        raise ConfigError(
            f"--policy: {unknown[0]!r} is not one of {', '.join(_SEARCH)}", param="policy"
        )
    trace = read_trace(options.trace, requests=options.requests)
    return asyncio.run(_run(options, _as_many(trace.requests, options.requests)))


async def _run(options: EngineBenchOptions, requests: tuple[TraceRequest, ...]) -> list[EngineRow]:
    config = AppConfig.model_validate(
        {
            "engine": options.engine,
            "model": options.model,
            "cache_tokens": options.cache_tokens,
            "max_ongoing_requests": max(options.concurrency, 1),
        }
    )
    engine = make_engine(config)
    ear = Ear()
    info = await engine.start(ear)
    rows = []
    try:
        for policy in options.policies:
            await engine.reset_cache()
            rows.append(await _Run(options, policy, engine, info, ear).row(requests))
    finally:
        await engine.close()
    return rows


class _Run:
    """One policy's run."""

    def __init__(
        self, options: EngineBenchOptions, policy: str, engine: Engine, info: EngineInfo, ear: Ear
    ) -> None:
        self._options, self._policy = options, policy
        self._engine, self._ear = engine, ear
        self._index = ContextIndex(search=_SEARCH[policy])
        self._index.set_replicas([ReplicaInfo(REPLICA, info.page_size, info.capacity_tokens)])
        ear.follow(self._index)
        self._page = info.page_size
        self._longest = min(info.max_model_len - ANSWER_TOKENS, info.capacity_tokens)
        self._random = random.Random(options.seed)
        self._ttft: list[float] = []
        self._prompt = self._cached = self._aborted = self._exact = 0

    async def row(self, requests: tuple[TraceRequest, ...]) -> EngineRow:
        waiting = deque(requests)
        began = time.monotonic()
        with tqdm(total=len(requests), desc=self._policy, disable=None) as progress:

            async def work() -> None:
                while waiting:
                    await self._one(waiting.popleft())
                    progress.update()

            await asyncio.gather(*(work() for _ in range(self._options.concurrency)))
        seconds = time.monotonic() - began
        counters = self._index.counters()
        audited, settled = counters.get("audited", 0), counters.get("settled", 0)
        return EngineRow(
            policy=self._policy,
            requests=len(requests),
            aborted=self._aborted,
            hit_ratio=self._cached / max(self._prompt, 1),
            predicted_within_one_block=1 - counters.get("audit_mismatches", 0) / max(audited, 1),
            predicted_exactly=self._exact / max(audited, 1),
            planned_within_one_block=counters.get("planned_within_one_block", 0) / max(settled, 1),
            audited=audited,
            evictions=self._ear.evictions,
            evicted_blocks=self._ear.evicted_tokens // self._page,
            quarantines=counters.get("replicas_quarantined", 0),
            new_epochs=self._ear.epochs,
            ttft_mean_s=sum(self._ttft) / max(len(self._ttft), 1),
            prefill_tok_s=self._prompt / seconds,
        )

    async def _one(self, request: TraceRequest) -> None:
        scaled = _scaled(request, self._options.length_scale)
        name = RequestId(f"{self._policy}/{request.request_id}")
        plan = PlanRequest(
            request_id=name,
            head=_HEAD,
            head_tokens=0,
            context=request.context,
            block_tokens=tuple(scaled[block] for block in request.context),
            tail_tokens=max(1, round(request.question_tokens * self._options.length_scale)),
            movable=self._policy != "none",
        )
        [step] = self._index.plan([plan], time.monotonic())
        prompt = _prompt(plan, step.context, scaled)
        if len(prompt) > self._longest:
            raise ConfigError(
                f"--length-scale: request {request.request_id} has {len(prompt)} tokens, the "
                f"engine takes {self._longest}: scale down, or give it more --cache-tokens",
                param="length_scale",
            )
        self._ear.sent(name, len(prompt) // self._page * self._page)
        aborts = self._random.random() < self._options.abort_share
        patience_s = self._random.uniform(0, LONGEST_ABORT_S) if aborts else None
        last = await self._answer(name, prompt, patience_s)
        if last is None:
            self._aborted += 1
            self._index.hear(Settled(name, 0, ok=False), time.monotonic())
        else:
            self._prompt += len(prompt)
            self._cached += last.cached_tokens
            self._exact += last.held_tokens == last.cached_tokens
            settled = Settled(name, last.cached_tokens, True, last.held_tokens)
            self._index.hear(settled, time.monotonic())
        await self._resync()

    async def _answer(
        self, name: RequestId, prompt: tuple[int, ...], patience_s: float | None
    ) -> Chunk | None:
        """The last chunk; None when patience ended before."""
        sampling = Sampling(max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True)
        began = time.monotonic()
        last = None
        try:
            async with (
                asyncio.timeout(patience_s),
                aclosing(
                    self._engine.generate(EngineRequest(name, packed(prompt), sampling))
                ) as chunks,
            ):
                async for chunk in chunks:
                    if last is None:
                        self._ttft.append(time.monotonic() - began)
                        self._index.hear(FirstToken(name), time.monotonic())
                    last = chunk
        except TimeoutError:
            return None
        return last

    async def _resync(self) -> None:
        for asked in self._index.dump_requests(time.monotonic()):
            if asked.rebuild:
                await self._engine.reset_cache()
            else:
                self._ear.dump(self._engine.held())


def _as_many(requests: tuple[TraceRequest, ...], count: int) -> tuple[TraceRequest, ...]:
    """The first `count` of the requests over and over; each pass has names of its own."""
    passes = -(-count // len(requests))
    again = (
        request
        if number == 0
        else msgspec.structs.replace(request, request_id=f"{request.request_id}#{number}")
        for number in range(passes)
        for request in requests
    )
    return tuple(islice(again, count))


def _scaled(request: TraceRequest, factor: float) -> dict[BlockId, int]:
    return {
        block: max(1, round(tokens * factor))
        for block, tokens in zip(request.context, request.block_tokens, strict=True)
    }


def _prompt(plan: PlanRequest, context: Context, length: dict[BlockId, int]) -> tuple[int, ...]:
    """The blocks as planned, then a question that no other request has."""
    pieces = [(f"block {block}", length[block]) for block in context]
    tokens: list[int] = []
    for seed, count in [*pieces, (f"question {plan.request_id}", plan.tail_tokens)]:
        source = random.Random(seed)
        tokens += (source.randrange(_LOWEST_ID, _HIGHEST_ID) for _ in range(count))
    return tuple(tokens)
