"""Every metric, once. Ray's exporter shows them as `ray_<name>` (counters: `ray_<name>_total`).

All carry the tag `app`, the name of the Serve application. A Router writes what it saw of its
requests, the index actor what it knows of the fleet; who writes which is in `source`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
PLAN_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
PREFIX = "ray_"


class Spec(msgspec.Struct, frozen=True):
    """One metric. tags: beside `app`. buckets: of a histogram, upper bounds."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    source: Literal["router", "index"]
    help: str
    tags: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def exported(self) -> str:
        """Its name on a scraped page; a histogram has `_bucket`, `_sum` and `_count` of it."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


REQUESTS = Spec(
    "cp_ray_requests",
    "counter",
    "router",
    "Requests that ended. outcome: ok, failed, left; reason: holder, load, spill, passthrough",
    ("outcome", "reason"),
)
PROMPT_TOKENS = Spec(
    "cp_ray_prompt_tokens", "counter", "router", "Prompt tokens of answered requests"
)
CACHED_TOKENS = Spec(
    "cp_ray_cached_tokens", "counter", "router", "Prompt tokens the engine found cached: saved"
)
PREDICTED_TOKENS = Spec(
    "cp_ray_predicted_tokens", "counter", "router", "Prompt tokens the plan said would be cached"
)
REPEATED_BLOCKS = Spec(
    "cp_ray_deduplicated_blocks",
    "counter",
    "router",
    "Blocks that were not sent again, because their conversation holds them",
)
OUTPUT_TOKENS = Spec("cp_ray_output_tokens", "counter", "router", "Tokens generated")
TTFT = Spec(
    "cp_ray_ttft_seconds",
    "histogram",
    "router",
    "Time to first token, from arrival at the router",
    ("reason",),
    SECONDS,
)
ESTIMATED_TTFT = Spec(
    "cp_ray_estimated_ttft_seconds",
    "histogram",
    "router",
    "Time to first token as the plan estimated it",
    (),
    SECONDS,
)
PLAN_TIME = Spec(
    "cp_ray_plan_seconds",
    "histogram",
    "router",
    "From arrival to a plan: assembly, window and index",
    (),
    PLAN_SECONDS,
)
ISSUE_TIME = Spec(
    "cp_ray_issue_seconds",
    "histogram",
    "router",
    "From the body read to the engine call issued: what is added before an engine can begin",
    (),
    PLAN_SECONDS,
)
QUEUED = Spec(
    "cp_ray_waiting_requests", "gauge", "router", "Requests of one Router without a first token"
)
INDEX_TIME = Spec(
    "cp_ray_index_plan_seconds",
    "histogram",
    "index",
    "Time the index took for one window of requests",
    (),
    PLAN_SECONDS,
)
LOST_TOKENS = Spec(
    "cp_ray_lost_tokens",
    "counter",
    "index",
    "Prompt tokens that had to be computed, by the cause: see cp_ray/core/loss.py",
    ("cause",),
)
ACCOUNTED_TOKENS = Spec(
    "cp_ray_accounted_tokens",
    "counter",
    "index",
    "Prompt tokens of the requests that lost_tokens accounts for",
)
BEYOND_BELIEF = Spec(
    "cp_ray_beyond_belief_tokens",
    "counter",
    "index",
    "Tokens an engine found cached beyond what the index believed",
)
REPLICAS = Spec(
    "cp_ray_replicas",
    "gauge",
    "index",
    "Live engine replicas by trust: trusted, suspect, quarantined, resyncing",
    ("trust",),
)
REPLICA_WAITING = Spec(
    "cp_ray_replica_waiting_tokens",
    "gauge",
    "index",
    "Prompt tokens planned on a replica and not yet prefilled",
    ("engine",),
)
REPLICA_RUNNING = Spec(
    "cp_ray_replica_running_requests", "gauge", "index", "Requests on a replica", ("engine",)
)
REPLICA_FILL = Spec(
    "cp_ray_replica_cache_fill",
    "gauge",
    "index",
    "Share of a replica's cache that holds prompts the index knows, 0 to 1",
    ("engine",),
)
REPORT_LAG = Spec(
    "cp_ray_report_lag_seconds",
    "gauge",
    "index",
    "Age of the newest eviction report when it was applied",
)
REDIS_UP = Spec("cp_ray_redis_up", "gauge", "index", "1 while the index reads reports")
RECORDS = Spec("cp_ray_index_records", "gauge", "index", "Requests the index remembers")
HEADS = Spec("cp_ray_index_heads", "gauge", "index", "Context trees in the index")
RESERVED = Spec("cp_ray_reserved_requests", "gauge", "index", "Requests that hold load")
EVENTS = Spec(
    "cp_ray_index_events",
    "counter",
    "index",
    "What the index counted: spilled, evictions, reports_gap, replicas_quarantined, ...",
    ("event",),
)

ALL = tuple(value for value in tuple(globals().values()) if isinstance(value, Spec))


class Metrics:
    """The metrics of one application in this process; made in Ray on first use."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._made: dict[str, Any] = {}

    def add(self, spec: Spec, amount: float, **tags: str) -> None:
        """Count up; nothing and less is left out."""
        if amount > 0:
            self._of(spec).inc(amount, tags=tags)

    def set(self, spec: Spec, value: float, **tags: str) -> None:
        """Set a gauge."""
        self._of(spec).set(value, tags=tags)

    def observe(self, spec: Spec, value: float, **tags: str) -> None:
        """Put a value into a histogram."""
        self._of(spec).observe(value, tags=tags)

    def _of(self, spec: Spec) -> Any:
        made = self._made.get(spec.name)
        if made is None:
            from ray.util import metrics

            keys = ("app", *spec.tags)
            if spec.kind == "histogram":
                made = metrics.Histogram(
                    spec.name, spec.help, boundaries=list(spec.buckets), tag_keys=keys
                )
            else:
                kind = metrics.Counter if spec.kind == "counter" else metrics.Gauge
                made = kind(spec.name, spec.help, tag_keys=keys)
            made.set_default_tags({"app": self._app})
            self._made[spec.name] = made
        return made
