"""Named actors of an application, obtained from where engine replicas live: a placement group."""

from __future__ import annotations

import gc
import sys

import pytest
import ray
from ray import cloudpickle
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cp_ray.named_actor import NAMESPACE, obtain

pytestmark = pytest.mark.ray
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Shared:
    """What the whole application needs."""

    def answer(self) -> str:
        return "here"


class Rank:
    """A tensor parallel replica: its children are captured in its placement group, as Serve's."""

    def first_needs_it(self) -> str:
        return str(ray.get(obtain(Shared, "shared").answer.remote()))


def test_a_replica_with_a_placement_group_can_be_the_first_to_need_it_and_go(
    ray_instance: None,
) -> None:
    group = placement_group([{"CPU": 0.1}, {"CPU": 0.1}], strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=60)
    inside = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    rank = ray.remote(Rank).options(num_cpus=0.1, scheduling_strategy=inside).remote()
    try:
        assert ray.get(rank.first_needs_it.remote(), timeout=60) == "here"
        remove_placement_group(group)
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(rank.first_needs_it.remote(), timeout=60)
        shared = ray.get_actor("shared", NAMESPACE)
        assert ray.get(shared.answer.remote(), timeout=60) == "here"
    finally:
        ray.kill(ray.get_actor("shared", NAMESPACE))


def test_finding_it_again_and_again_leaves_nothing_behind(ray_instance: None) -> None:
    """A client looks for it after every fault, every two seconds while it is down."""

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    try:
        for _ in range(2):  # the first one makes it
            ray.get(obtain(Shared, "found often").answer.remote(), timeout=60)
        before = objects()
        for _ in range(50):
            obtain(Shared, "found often")
        assert objects() - before < 50
    finally:
        ray.kill(ray.get_actor("found often", NAMESPACE))
