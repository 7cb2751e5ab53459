"""The policy on Serve's own values, and the settings that ask for it."""

from __future__ import annotations

from typing import Any

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.config import AutoscalingContext

from cp_ray.autoscaling import TtftPolicy, demand, replica_count
from cp_ray.config import AppConfig, parse_settings
from cp_ray.core.autoscale import Demand, Goal, needed
from cp_ray.core.packed import packed
from cp_ray.core.types import RequestId
from cp_ray.errors import ConfigError
from cp_ray.workers.asked import PLANNED, PREFILL, REQUESTS, TTFT, AskedRates
from cp_ray.workers.engine import EngineRequest, Sampling

ENGINE = DeploymentID(name="Engine", app_name="app")


def context(replicas: int, metrics: dict[str, list[float]], **more: Any) -> AutoscalingContext:
    ids = [ReplicaID(f"r{number}", ENGINE) for number in range(replicas)]
    values: dict[str, Any] = {
        "deployment_id": ENGINE,
        "deployment_name": "Engine",
        "app_name": "app",
        "current_num_replicas": replicas,
        "target_num_replicas": replicas,
        "running_replicas": ids,
        "total_num_requests": 4.0,
        "total_queued_requests": 0.0,
        "aggregated_metrics": {
            name: dict(zip(ids, each, strict=True)) for name, each in metrics.items()
        },
        "raw_metrics": None,
        "capacity_adjusted_min_replicas": 1,
        "capacity_adjusted_max_replicas": 8,
        "policy_state": {},
        "last_scale_up_time": None,
        "last_scale_down_time": None,
        "current_time": 100.0,
        "config": None,
    }
    return AutoscalingContext(**values | more)


def test_demand_is_summed_over_replicas_and_divided_by_requests() -> None:
    figures = {REQUESTS: [6.0, 2.0], PLANNED: [3.0, 1.0], PREFILL: [0.9, 0.3], TTFT: [6.0, 2.0]}
    seen = demand(context(2, figures))
    assert seen == Demand(8.0, 1.2 / 4.0, 2.0, 4.0, 0.0), "those without a plan are like the others"


def test_without_reports_or_plans_the_fleet_stays_while_something_runs() -> None:
    goal = Goal(1.0, 1, 8, 32)
    for figures in ({}, {REQUESTS: [9.0, 9.0], PLANNED: [0.0, 0.0]}):
        seen = demand(context(2, figures))
        assert seen == Demand(ongoing=4.0)
        assert needed(seen, 2, goal) == 2


def test_a_slow_fleet_grows_once_what_is_measured_is_its_own() -> None:
    policy = TtftPolicy(1.0, 32, 30.0)
    slow = {REQUESTS: [4.0] * 2, PLANNED: [4.0] * 2, PREFILL: [0.9] * 2, TTFT: [20.0] * 2}
    assert policy(context(2, slow, current_time=100.0))[0] == 2
    assert policy(context(2, slow, current_time=129.0))[0] == 2
    grown, state = policy(context(2, slow, current_time=130.0))
    assert 2 < grown <= 4
    assert state == {}
    wide = {name: values * 2 for name, values in slow.items()}
    assert policy(context(4, wide, current_time=140.0))[0] == 4, "these are the two's figures"


def test_a_replica_tells_rates_of_what_was_planned_since_it_was_last_asked() -> None:
    asked = AskedRates(10.0)

    def request(**more: Any) -> EngineRequest:
        return EngineRequest(RequestId("q"), packed([1]), Sampling(), **more)

    asked.count(request(estimated_ttft_s=3.0, estimated_prefill_s=1.0))
    asked.count(request(estimated_ttft_s=1.0, estimated_prefill_s=1.0))
    asked.count(request())
    asked.count(request(ahead=True))
    assert asked.rates(12.0) == {REQUESTS: 1.5, PLANNED: 1.0, PREFILL: 1.0, TTFT: 2.0}
    assert set(asked.rates(14.0).values()) == {0.0}


def test_a_fixed_number_of_replicas_knows_no_autoscaling() -> None:
    assert replica_count(AppConfig(engine="simulated", replicas=3)) == {"num_replicas": 3}
    same = AppConfig(engine="simulated", replicas=3, max_replicas=3)
    assert replica_count(same) == {"num_replicas": 3}


def test_settings_reach_serves_configuration() -> None:
    settings = "engine=simulated replicas=2 max_replicas=6 target_ttft_s=0.5 scale_up_after_s=6"
    config = parse_settings([*settings.split(), "scale_down_after_s=60"])
    scaling = replica_count(config)["autoscaling_config"]
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 6)
    assert (scaling.look_back_period_s, scaling.upscale_delay_s) == (6.0, 0.0)
    assert (scaling.metrics_interval_s, scaling.downscale_delay_s) == (2.0, 60.0)
    policy = scaling.policy.get_policy()(**scaling.policy.policy_kwargs)
    assert policy(context(1, {}))[0] == 1, "it can be pickled, and runs"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["replicas=4", "max_replicas=2"], "max_replicas=2 is less than replicas=4"),
        (["max_replicas=4", "reuse=plain"], "reuse=plain makes none"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_settings(["engine=simulated", *settings])
