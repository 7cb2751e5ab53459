"""How long a prompt waits for room, beyond the prefill before it."""

from __future__ import annotations

import pytest

from cp_ray.core.fleet_load import FleetLoad
from cp_ray.core.types import ReplicaId, ReplicaInfo, RequestId

INFO = ReplicaInfo(ReplicaId("a"), 16, 100_000)
INFOS = {INFO.replica: INFO}


def reserve(load: FleetLoad, name: str, new: int, now: float) -> float:
    """Send a prompt; the estimated time to its first token."""
    offer = load.options([INFO], [0], new, now)[0]
    return load.reserve(RequestId(name), offer, 0, new, now=now, replicas=1).ttft_s


@pytest.mark.parametrize("slower", [1.0, 2.5])
def test_prefill_beside_an_answer_is_no_part_of_it(slower: float) -> None:
    load = FleetLoad()
    reserve(load, "long answer", 10_000, 0.0)
    load.first_token(RequestId("long answer"), INFOS, 1.0)
    reserve(load, "beside", 40_000, 2.0)  # four seconds by the prior
    load.first_token(RequestId("beside"), INFOS, 2.0 + 4.0 * slower)
    load.ended(RequestId("long answer"), 3.0 + 4.0 * slower)
    assert load.room.answer_s == pytest.approx(2.0 + 4.0 * (slower - 1.0))
    load.check()


def test_an_answer_that_nothing_was_prefilled_beside_counts_whole() -> None:
    load = FleetLoad()
    reserve(load, "alone", 10_000, 0.0)
    load.first_token(RequestId("alone"), INFOS, 1.0)
    load.ended(RequestId("alone"), 6.0)
    load.ended(RequestId("alone"), 9.0)
    assert load.room.answer_s == 5.0


def test_a_prompt_waits_for_the_prefill_before_it_and_then_for_room() -> None:
    load = FleetLoad()
    load.room.answered(8.0)
    assert reserve(load, "first", 60_000, 0.0) == pytest.approx(6.0)
    assert reserve(load, "second", 40_000, 0.0) == pytest.approx(6.0 + 4.0), "both fit"
    # All of the cache is taken: a quarter of it is free after a quarter of an answer.
    assert reserve(load, "third", 25_000, 0.0) == pytest.approx(6.0 + 4.0 + 8.0 / 4 + 2.5)
