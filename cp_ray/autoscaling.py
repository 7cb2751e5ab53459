"""Ray Serve's autoscaling of the engine deployment, by the plans' estimates.

The policy runs in Serve's controller a few times a second, on what the replicas last reported:
it waits for nothing. Serve pickles this module by value, and takes the rest of cp_ray from where
the controller runs: the head host needs cp_ray installed.
"""

from __future__ import annotations

import warnings
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from cp_ray.config import AppConfig
from cp_ray.core.autoscale import Demand, Fleet, Goal, decide
from cp_ray.workers import asked

_REPORTS = 3
"""Of every replica, in the time that a mean is over."""
_SLOWEST_REPORT_S = 10.0


class TtftPolicy:
    """One for the engine deployment; Serve keeps the instance."""

    def __init__(self, target_ttft_s: float, slots: int, settle_s: float) -> None:
        self._target_ttft_s = target_ttft_s
        self._slots = slots
        self._settle_s = settle_s
        self._running = 0
        self._since = 0.0

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Replicas that there should be; Serve waits `downscale_delay_s` before it takes any."""
        now, running = float(context.current_time or 0.0), int(context.current_num_replicas)
        if running != self._running:
            self._running, self._since = running, now
        goal = Goal(
            self._target_ttft_s,
            int(context.capacity_adjusted_min_replicas),
            int(context.capacity_adjusted_max_replicas),
            self._slots,
        )
        fleet = Fleet(running, int(context.target_num_replicas), self._since)
        return decide(demand(context), fleet, goal, now, self._settle_s), {}


def demand(context: AutoscalingContext) -> Demand:
    """Of the whole fleet, from Serve's means of what its replicas and handles reported."""
    means = context.aggregated_metrics or {}
    names = (asked.REQUESTS, asked.PLANNED, asked.PREFILL, asked.TTFT)
    per_s, planned, prefill, ttft = (sum(means.get(name, {}).values()) for name in names)
    ongoing, queued = float(context.total_num_requests), float(context.total_queued_requests or 0)
    if planned <= 0:  # nothing is asked; or the index is down, and nothing is known
        return Demand(ongoing=ongoing, queued=queued)
    return Demand(per_s, prefill / planned, ttft / planned, ongoing, queued)


def replica_count(config: AppConfig) -> dict[str, Any]:
    """Serve options: a fixed number of engine replicas, or how it follows the load."""
    if not config.scales:
        return {"num_replicas": config.replicas}
    policy = AutoscalingPolicy(
        policy_function=f"{__name__}:TtftPolicy",
        policy_kwargs={
            "target_ttft_s": config.target_ttft_s,
            "slots": config.max_ongoing_requests,
            "settle_s": config.scale_up_after_s,
        },
    )
    with warnings.catch_warnings():
        # Serve would rather have the period of reports from the environment of every host.
        warnings.simplefilter("ignore", DeprecationWarning)
        scaling = AutoscalingConfig(
            min_replicas=config.replicas,
            max_replicas=config.most_replicas,
            look_back_period_s=config.scale_up_after_s,
            metrics_interval_s=min(config.scale_up_after_s / _REPORTS, _SLOWEST_REPORT_S),
            upscale_delay_s=0.0,  # what is measured is a mean already
            downscale_delay_s=config.scale_down_after_s,
            policy=policy,
        )
    return {"autoscaling_config": scaling}
