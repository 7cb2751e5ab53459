"""Composition root: one Serve application out of a router ingress and an engine deployment.

No postponed annotations here: `serve run` reads the type of `app`'s parameter to check its
key=value arguments.
"""

import os
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import LoggingConfig

from cp_ray.autoscaling import replica_count
from cp_ray.config import AppConfig
from cp_ray.errors import ConfigError
from cp_ray.index_actor.actor import ENGINE, new_index
from cp_ray.prerequisites import refuse_early
from cp_ray.router.auth import Authenticator
from cp_ray.router.direct import DirectRouter
from cp_ray.router.direct_replica import DirectReplica
from cp_ray.router.direct_settings import check_direct
from cp_ray.router.ingress import Router
from cp_ray.router.request_router import PlainReplicaRouter, PlannedReplicaRouter
from cp_ray.tracing import check_tracing
from cp_ray.workers import sglang_args, vllm_args
from cp_ray.workers.replica import EngineReplica

ROUTER_CPUS = 0.1
DRAIN_S = 120.0
"""A replica that is told to stop ends its answers first, at most this long."""


def app(args: AppConfig) -> Application:
    """Build the application; `serve run cp_ray.app key=value ...` ends here.

    Raises ConfigError when settings do not go together.
    """
    if args.index is not None:
        new_index(args)  # the actor could only die of a bad file, again and again
    _refuse_early(args)
    config_json = args.to_json()
    direct = args.data_plane == "direct"
    engine = serve.deployment(DirectReplica if direct else EngineReplica).options(
        name=ENGINE,
        **replica_count(args),
        # Direct replicas let in who has to wait: they are fair about who goes next, Serve is not.
        max_ongoing_requests=args.max_ongoing_requests + (args.max_queued_requests + 1) * direct,
        max_queued_requests=args.max_queued_requests,
        health_check_period_s=args.health_check_period_s,
        health_check_timeout_s=args.health_check_timeout_s,
        graceful_shutdown_timeout_s=DRAIN_S,
        # One line a generation is the ingress' business; errors still come.
        logging_config=LoggingConfig(enable_access_log=False),
        **engine_resources(args),
        request_router_config=_request_router(args),
    )
    in_flight = args.most_replicas * args.max_ongoing_requests
    router = serve.deployment(DirectRouter if direct else Router).options(
        name="Router",
        num_replicas=args.ingress_replicas,
        # The engine's queue answers 503 when it is full; the ingress must never be the limit.
        max_ongoing_requests=2 * (in_flight + args.max_queued_requests),
        health_check_period_s=args.health_check_period_s,
        graceful_shutdown_timeout_s=DRAIN_S,
        ray_actor_options={"num_cpus": ROUTER_CPUS},
    )
    engines: Application = engine.bind(config_json)
    asked: Application = router.bind(config_json, engines)
    return engines._with_ingress_request_router(asked) if direct else asked


def _refuse_early(args: AppConfig) -> None:
    """Say here, in one line, what would else end in the log of a replica."""
    Authenticator(args)
    check_tracing(args)
    if args.data_plane == "direct":
        check_direct(os.environ, keys=bool(args.api_keys))
    if args.engine == "vllm":
        vllm_args.REFUSED.check(args.engine_kwargs)
    elif args.engine == "sglang":
        sglang_args.REFUSED.check(args.engine_kwargs)
    refuse_early(args, only_host=ray.is_initialized() and len(ray.nodes()) == 1)


def engine_resources(args: AppConfig) -> dict[str, Any]:
    """Serve options for one engine replica's CPUs, GPUs and environment.

    With tensor parallelism in vLLM the replica itself takes no GPU: the engine's own workers take
    the bundles of its placement group, all on one host unless `across_hosts`. SGLang's are
    processes of the replica.
    """
    ranks = args.tensor_parallel_size
    actor: dict[str, Any] = {"num_cpus": args.cpus_per_replica, "num_gpus": args.gpus_per_replica}
    if args.engine_python is not None:
        actor["runtime_env"] = {"py_executable": args.engine_python}
    if ranks == 1:
        return {"ray_actor_options": actor}
    if args.gpus_per_replica % ranks or not args.gpus_per_replica:
        raise ConfigError(
            f"gpus_per_replica={args.gpus_per_replica:g} cannot be shared by "
            f"tensor_parallel_size={ranks}: set gpus_per_replica to {ranks}",
            param="gpus_per_replica",
        )
    if args.engine == "sglang":
        return {"ray_actor_options": actor}
    rank = {"GPU": args.gpus_per_replica / ranks}
    return {
        "ray_actor_options": actor | {"num_gpus": 0},
        "placement_group_bundles": [
            rank | {"CPU": args.cpus_per_replica},
            *[rank] * (ranks - 1),
        ],
        "placement_group_strategy": "PACK" if args.across_hosts else "STRICT_PACK",
    }


def _request_router(args: AppConfig) -> RequestRouterConfig:
    if args.reuse == "plain":
        return RequestRouterConfig(request_router_class=PlainReplicaRouter)
    return RequestRouterConfig(
        request_router_class=PlannedReplicaRouter, initial_backoff_s=0.01, max_backoff_s=0.1
    )


def __getattr__(name: str) -> Any:
    # `serve build cp_ray.deployment:default` wants an application, not a builder.
    if name == "default":
        return app(AppConfig())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
