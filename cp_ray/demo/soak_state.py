"""What the soak asks of the running application: how full things are, and what is left."""

from __future__ import annotations

import asyncio
from typing import Any

from cp_ray.config import AppConfig
from cp_ray.errors import EngineUnavailable

Fills = dict[str, tuple[int, int]]
"""Of what traffic fills: entries there now, and the most there can be by the settings."""


async def fills(app: str) -> Fills:
    """Of index, Routers, engines and Redis."""
    from ray import serve

    found: Fills = {}
    index = await _index(app)
    found |= {f"index: {name}": tuple(each) for name, each in (await index.fills.remote()).items()}
    for deployment in ("Router", "Engine"):
        handle = serve.get_deployment_handle(deployment, app)
        for number, answer in enumerate(await handle.broadcast("fills").results_async()):
            found |= {f"{deployment} {number}: {name}": tuple(v) for name, v in answer.items()}
    return found


async def index_state(app: str) -> dict[str, Any]:
    """What the index says of itself."""
    state: dict[str, Any] = await (await _index(app)).state.remote()
    return state


async def redis_keys(app: str) -> int:
    """Keys of the application, expired ones left out."""
    from cp_ray.store.client import Store
    from cp_ray.store.embedded_actor import redis_url

    store = await Store.connect(await redis_url(AppConfig(engine="simulated"), app), app)
    try:
        return await store.count_keys()
    finally:
        await store.close()


async def _index(app: str) -> Any:
    import ray

    from cp_ray.named_actor import NAMESPACE, index_prefix, names_with

    names = await asyncio.to_thread(names_with, index_prefix(app))
    if not names:
        raise EngineUnavailable("the index actor is gone: nothing can be said of its ledger")
    return ray.get_actor(names[0], NAMESPACE)
