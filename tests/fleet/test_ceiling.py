"""The ceiling of a closed loop: no policy passes it, and where nothing is lost it is reached."""

from __future__ import annotations

import random

import pytest

from cp_ray.core.types import BlockId, RequestId
from cp_ray.errors import ConfigError
from cp_ray.replay.fleet.bench import play_row
from cp_ray.replay.fleet.ceiling import chains_ceiling
from cp_ray.replay.fleet.cell import Cell, Hardware, Model, play
from cp_ray.replay.fleet.job import Job
from cp_ray.replay.fleet.report import table
from cp_ray.replay.fleet.workload import Workload, repeated, without_overlap
from cp_ray.replay.trace import TraceRequest


def chain(name: str, blocks: list[str], answer: int) -> list[Job]:
    """A call for each block, one after the other; a block's name says its size."""
    jobs: list[Job] = []
    for link, block in enumerate(blocks):
        size = 160 * len(block)
        request = TraceRequest(RequestId(f"{name}/{link}"), name, (BlockId(block),), (size,), 48)
        after = jobs[-1].request.request_id if jobs else None
        jobs.append(Job(request, answer, (("worker", 80),), after=after))
    return jobs


def workload(seed: int, answer: int, blocks: str = "abcdefgh", chains: int = 60) -> Workload:
    chosen = random.Random(seed)
    known = [*blocks, *(2 * block for block in blocks)]
    jobs = [
        job for n in range(chains) for job in chain(f"c{n}", chosen.choices(known, k=4), answer)
    ]
    return Workload("chains", tuple(jobs))


@pytest.mark.parametrize("model", ["batching", "serial"])
@pytest.mark.parametrize("answer", [1, 9, 60])
@pytest.mark.parametrize("clients", [1.0, 4.0])
def test_no_policy_passes_it(model: Model, answer: int, clients: float) -> None:
    work = workload(answer, answer)
    for tokens in (1024, 1 << 20):
        hardware = Hardware(3, tokens, model)
        most = chains_ceiling(work, hardware, round(3 * clients))
        for policy in ("least_loaded", "lmetric", "cp_ray"):
            out = play(work, Cell(hardware, policy, "none", "closed", clients, 1))
            assert out.chains_per_s <= most * (1 + 1e-9), policy


def test_a_trace_three_times_over_shares_blocks_and_nothing_else() -> None:
    work = workload(2, 9, chains=20)
    thrice = repeated(work, 3)
    ids = [job.request.request_id for job in thrice.jobs]
    assert len(set(ids)) == len(ids) == 3 * len(work.jobs)
    assert [job.request.context for job in thrice.jobs] == 3 * [
        job.request.context for job in work.jobs
    ]
    assert all(job.after is None or job.after in ids for job in thrice.jobs)
    assert len({job.request.conversation for job in thrice.jobs}) == 60
    hardware = Hardware(3, 1 << 20, "batching")
    once, more = (
        play(w, Cell(hardware, "cp_ray", "none", "closed", 4.0, 1)) for w in (work, thrice)
    )
    assert more.requests == 3 * once.requests
    assert more.block_hits > once.block_hits
    apart = [block for job in without_overlap(thrice).jobs for block in job.request.context]
    assert len(set(apart)) == len(apart)


def test_one_replica_that_answers_one_chain_at_a_time_nearly_reaches_it() -> None:
    work, hardware = workload(1, 40, blocks="a", chains=20), Hardware(1, 1 << 20, "batching")
    out = play(work, Cell(hardware, "least_loaded", "none", "closed", 1.0, 1))
    assert 0.97 < out.chains_per_s / chains_ceiling(work, hardware, 1) <= 1


def test_dearer_answers_and_fewer_chains_lower_it() -> None:
    work = workload(3, 40)
    ceilings = [
        chains_ceiling(work, Hardware(4, 1 << 20, "batching", decode), clients)
        for decode, clients in ((0.0, 40), (0.0004, 40), (0.004, 40), (0.004, 4))
    ]
    assert ceilings == sorted(ceilings, reverse=True) and len(set(ceilings)) == 4


def test_requests_with_several_followers_are_refused() -> None:
    first, second = chain("c", ["a", "b"], 3)
    other = TraceRequest(RequestId("c/other"), "c", (), (), 16)
    jobs = (first, second, Job(other, 1, after=first.request.request_id))
    with pytest.raises(ConfigError, match="several followers"):
        chains_ceiling(Workload("tree", jobs), Hardware(2, 4096, "batching"), 2)


@pytest.mark.parametrize(
    ("model", "answers"), [("batching", "0.4 ms an answer"), ("serial", "at 50 tokens/s")]
)
def test_the_table_of_a_closed_loop_says_what_answers_cost(model: Model, answers: str) -> None:
    work = workload(5, 40, chains=4)
    cell = Cell(Hardware(2, 4096, model), "cp_ray", "ours", "closed", 2.0, 1)
    said = table([play_row(work, cell, 2.0, None)]).splitlines()
    assert all(part in said[0] for part in ("4 chains", answers, "answers of 40 tokens"))
    assert "no policy passes" in said[4]
