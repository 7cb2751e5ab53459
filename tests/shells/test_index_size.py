"""`index_records` bounds what the index remembers, whatever comes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cp_ray.config import AppConfig
from cp_ray.core.types import ReplicaId, ReplicaInfo
from cp_ray.index_actor.actor import new_index
from tests.paper.worked_examples import context, request


def test_past_the_setting_the_oldest_request_is_forgotten() -> None:
    index = new_index(AppConfig(engine="simulated", index_records=5))
    index.set_replicas([ReplicaInfo(ReplicaId("r0"), 16, 100_000)])
    for number in range(50):
        index.plan([request(f"q{number}", context(number, number + 1))], float(number))
        index.check()
    assert list(index.records) == [f"q{number}" for number in range(45, 50)]
    assert len(index.memory.trees) == 1


def test_an_index_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="index_records"):
        AppConfig(engine="simulated", index_records=0)
