"""Named actors of one application: made once per cluster, gone with the application.

They are detached, so that no ingress replica takes them along when it ends; each therefore ends
itself when its Serve application is gone.
"""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from typing import Any

import ray
from ray import serve
from ray.exceptions import ActorDiedError, RayError

NAMESPACE = "cp_ray"
GONE_AFTER_S = 4.0
_PERIOD_S = 2.0  # each question costs Serve's controller a list of all replicas
_HEAD = "node:__internal_head__"
_log = logging.getLogger("ray.serve")


def index_prefix(app: str) -> str:
    """How the names of the application's index actors begin; the settings' digest follows."""
    return f"cp_index:{app}:"


def redis_name(app: str) -> str:
    """Name of the actor that owns the application's embedded Redis."""
    return f"cp_redis:{app}"


def obtain(cls: type, name: str, *args: Any) -> Any:
    """Handle of the actor `name`, made from `cls(*args)` if there is none. Blocks: use a thread.

    It restarts for ever, empty; a call that is in flight then fails and is not repeated. It runs
    on the head host, where a cluster has one, because GPU hosts come and go, and never in the
    placement group of whoever needs it first: a tensor parallel replica's has no room for it, and
    takes it along when it goes.
    """
    head = {_HEAD: 0.001} if _HEAD in ray.cluster_resources() else {}
    return (
        _remote(cls)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            resources=head,
            scheduling_strategy="DEFAULT",
            max_restarts=-1,
            max_task_retries=0,
        )
        .remote(*args)
    )


@cache
def _remote(cls: type) -> Any:
    """Made once: Ray keeps every class that it makes of `cls`, 13 KB of a small one, for ever."""
    return ray.remote(cls)


def names_with(prefix: str) -> list[str]:
    """Names of our living actors that begin with `prefix`. Blocks: use a thread."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    return [
        actor["name"]
        for actor in actors
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(prefix)
    ]


async def application_gone(app: str) -> None:
    """Return once Serve has had no application `app` for GONE_AFTER_S."""
    absent_s = 0.0
    while absent_s < GONE_AFTER_S:
        await asyncio.sleep(_PERIOD_S)
        absent_s = 0.0 if await _exists(app) else absent_s + _PERIOD_S


def end(me: Any, why: str) -> None:
    """End the calling actor for good; `me` is its own handle.

    Not exit_actor: it works only inside a method call, and the caller is a background task.
    """
    _log.info("%s ends: %s.", me, why)
    ray.kill(me, no_restart=True)


async def _exists(app: str) -> bool:
    try:
        return app in (await asyncio.to_thread(serve.status)).applications
    except ActorDiedError:  # Serve's controller is gone for good
        return False
    except RayError:  # it is restarting, or cannot be reached: no reason to end
        return True
