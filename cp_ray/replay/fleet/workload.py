"""Workloads of `bench fleet`: a trace's requests as jobs, with what each kind needs beside blocks.

A trace folder whose lines name agents (`depends_on`, `carry_tokens`) becomes chains of calls; one
whose conversations have several turns becomes conversations; Mooncake's files are read as they are.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cp_ray.core.types import BlockId, RequestId
from cp_ray.errors import ConfigError
from cp_ray.replay.fleet.job import Job
from cp_ray.replay.ids import mooncake_runs
from cp_ray.replay.trace import (
    TraceRequest,
    block_lengths,
    numbered_lines,
    read_trace,
    trace_file,
)

OUTPUT_TOKENS = 64
"""Where the trace does not say."""
READING_S = 10.0
"""Pause between an answer and the conversation's next turn."""
INSTRUCTION = {"manager": 70}
WORKER_INSTRUCTION = 90
"""Tokens of the agents' instructions, by the trace's notes."""


class Workload(msgspec.Struct, frozen=True):
    """jobs: those without `after` arrive by themselves. stamps: the trace's own times, seconds.

    warming: of the requests, those that come first and only fill the caches: nothing of them is
    counted.
    """

    name: str
    jobs: tuple[Job, ...]
    stamps: tuple[float, ...] = ()
    warming: int = 0

    def prompt_tokens(self) -> float:
        """Mean tokens of a prompt, earlier turns left out."""
        return sum(
            sum(job.request.block_tokens) + job.request.question_tokens for job in self.jobs
        ) / len(self.jobs)


class _AgentLine(msgspec.Struct):
    request_id: str
    session: str
    agent: str
    context: list[int | str]
    carry_tokens: int
    question_tokens: int
    output_tokens: int
    depends_on: str | None


def read_workload(path: Path, requests: int | None = None) -> Workload:
    """Read a trace. requests: only the first. Raises ConfigError where it cannot be read."""
    if path.name.endswith(".runs.jsonl.gz"):
        return _mooncake(path, requests)
    if _names_agents(trace_file(path)):
        return _agents(path, requests)
    trace = read_trace(path, requests=requests)
    last: dict[str, RequestId] = {}
    jobs = []
    for request in trace.requests:
        before = last.get(request.conversation) if request.conversation else None
        last[request.conversation] = request.request_id
        jobs.append(
            Job(
                request,
                request.answer_tokens or OUTPUT_TOKENS,
                after=before,
                pause_s=READING_S if before else 0.0,
                remembers=before is not None,
            )
        )
    return Workload(trace.name, tuple(jobs))


def fitting(workload: Workload, cache_tokens: int) -> Workload:
    """Without the chains of which a prompt, with its answer, is larger than a replica's cache.

    An engine refuses such a request whatever the policy.
    """
    size: dict[RequestId, int] = {}
    refused: set[RequestId] = set()
    for job in workload.jobs:
        request = job.request
        tokens = sum(request.block_tokens) + request.question_tokens + job.output_tokens
        tokens += sum(length for _, length in job.head)
        if job.after is not None and job.remembers:
            tokens += size.get(job.after, 0)
        size[request.request_id] = tokens
        if tokens > cache_tokens or job.after in refused:
            refused.add(request.request_id)
    # A refused turn ends its conversation there: what came before it was served.
    kept = tuple(job for job in workload.jobs if job.request.request_id not in refused)
    warming = sum(
        job.request.request_id not in refused for job in workload.jobs[: workload.warming]
    )
    return msgspec.structs.replace(workload, jobs=kept, warming=warming)


def without_overlap(workload: Workload) -> Workload:
    """The same sizes with blocks that no two requests share."""
    jobs = []
    for job in workload.jobs:
        request = job.request
        own = tuple(BlockId(f"{request.request_id}:{block}") for block in request.context)
        jobs.append(
            msgspec.structs.replace(job, request=msgspec.structs.replace(request, context=own))
        )
    name = f"{workload.name}_no_overlap"
    return msgspec.structs.replace(workload, name=name, jobs=tuple(jobs))


def without_answers(workload: Workload) -> Workload:
    """The same prompts, each answered by one token: prefill alone."""
    jobs = tuple(msgspec.structs.replace(job, output_tokens=1) for job in workload.jobs)
    name = f"{workload.name}_no_answers"
    return msgspec.structs.replace(workload, name=name, jobs=jobs)


def repeated(workload: Workload, times: int, warming: int = 0) -> Workload:
    """The trace so many times over, one after the other: the same blocks, in requests of their own.

    For closed loops with many clients, which a short trace only fills and drains. Without stamps.
    warming: the first times, which are not counted.
    """
    jobs: list[Job] = []
    for n in range(times):
        for job in workload.jobs:
            request = msgspec.structs.replace(
                job.request,
                request_id=RequestId(f"{job.request.request_id}:{n}"),
                conversation=job.request.conversation and f"{job.request.conversation}:{n}",
            )
            after = None if job.after is None else RequestId(f"{job.after}:{n}")
            jobs.append(msgspec.structs.replace(job, request=request, after=after))
    name = f"{workload.name}_x{times}" + ("_warm" if warming else "")
    return Workload(name, tuple(jobs), warming=warming * len(workload.jobs))


def _names_agents(file: Path) -> bool:
    _, first = next(iter(numbered_lines(file)))
    return '"depends_on"' in first


def _agents(path: Path, requests: int | None) -> Workload:
    """Chain-of-Agents: each call is a prompt of its own, and waits for the one before it."""
    folder = path if path.is_dir() else path.parent
    own = (folder / "blocks.tsv.gz").exists() or (folder / "blocks.tsv").exists()
    blocks = block_lengths(folder if own else folder.parent / folder.name.removeprefix("coa_"))
    jobs: list[Job] = []
    for number, text in numbered_lines(trace_file(path)):
        if len(jobs) == requests:
            break
        try:
            line = msgspec.json.decode(text, type=_AgentLine)
            context = tuple(BlockId(str(block)) for block in line.context)
            sizes = tuple(blocks[block] for block in context)
        except (msgspec.MsgspecError, KeyError) as error:
            raise ConfigError(f"{path}, line {number}: {error}", param="trace") from error
        role = line.agent.rstrip("0123456789")
        instruction = ((role, INSTRUCTION.get(role, WORKER_INSTRUCTION)),)
        request = TraceRequest(
            RequestId(line.request_id),
            line.session,
            context,
            sizes,
            line.carry_tokens + line.question_tokens,
        )
        after = RequestId(line.depends_on) if line.depends_on is not None else None
        jobs.append(Job(request, max(line.output_tokens, 1), instruction, after))
    return Workload(folder.name, tuple(jobs))


def _mooncake(file: Path, requests: int | None) -> Workload:
    """Prefix hashes: nothing can be moved. A request's last block ends with its question."""
    rows = mooncake_runs(file, None)
    sizes = [tokens for tokens, _ in rows.blocks]
    jobs = []
    for line in rows.lines[:requests]:
        context = tuple(BlockId(str(block)) for block in line.context)
        request = TraceRequest(
            RequestId(str(line.request_id)),
            "",
            context,
            tuple(sizes[block] for block in line.context),
            question_tokens=1,
            movable=False,
        )
        jobs.append(Job(request, max(line.output_tokens, 1)))
    stamps = tuple((line.arrival_ms or 0) / 1000 for line in rows.lines)
    return Workload(file.name.split(".")[0].removesuffix("_trace"), tuple(jobs), stamps)
