"""The shipped 32-GPU files on an emulated cluster: 5 GPU hosts and a head, of one machine.

Hosts are Ray's own raylets with fake GPUs; engines are simulated. `make cluster-test` runs it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from cp_ray.agents.chain_of_agents import AgentFailed, chain_of_agents
from cp_ray.config import AppConfig
from cp_ray.demo.own_serve import own_cluster, start_serve
from cp_ray.deployment import app
from cp_ray.serve_config import check_cluster_file
from tests.e2e.support import index_state, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(540)]
ROOT = Path(__file__).parents[2]
NAME = "cp"
HOSTS, REPLICAS = map(int, os.environ.get("CP_RAY_CLUSTER", "5x16").split("x"))
"""GPU hosts and replicas; fewer where a machine is too small or too busy: CP_RAY_CLUSTER=3x4."""
RANKS = 2
GPUS = 8 if REPLICAS == 16 else 2 * RANKS
CHAINS = 12
WORKERS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with own_cluster(HOSTS, 8, gpus=GPUS, root=ROOT, namespace="cp_ray_tests") as made:
        yield made


@pytest.fixture(scope="module")
def base(cluster: Any) -> Iterator[str]:
    """The application of cluster/serve/tp2-16.yaml, simulated."""
    from ray import serve

    (shipped,) = yaml.safe_load((ROOT / "cluster/serve/tp2-16.yaml").read_text())["applications"]
    local = {"engine": "simulated", "model": "sim", "redis_url": None, "ingress_replicas": 1}
    speed = {"prefill_tokens_per_s": 4000, "decode_tokens_per_s": 200, "cpus_per_replica": 0.1}
    quick = {"health_check_period_s": 2, "health_check_timeout_s": 60}
    assert (shipped["args"]["replicas"], shipped["args"]["tensor_parallel_size"]) == (16, RANKS)
    config = AppConfig.model_validate(
        shipped["args"] | local | speed | quick | {"replicas": REPLICAS}
    )
    url = start_serve()
    serve.run(app(config), name=NAME, route_prefix="/")
    until(lambda: httpx.get(f"{url}/readyz", timeout=60).status_code == 200, 120)
    until(lambda: len(index_state(NAME)["replicas"]) == REPLICAS, 120)
    yield url
    serve.shutdown()


def gpu_hosts_of_replicas() -> Counter[str]:
    """Reserved GPUs of every host, by Ray's own account."""
    from ray.util import placement_group_table

    found: Counter[str] = Counter()
    for group in placement_group_table().values():
        if group["state"] == "CREATED":
            hosts = set(group["bundles_to_node_id"].values())
            assert len(hosts) == 1, "both ranks of a replica are on one host"
            found[hosts.pop()] += sum(int(b.get("GPU", 0)) for b in group["bundles"].values())
    return found


def hosts_of(deployment: str) -> set[str]:
    """Hosts on which replicas of a deployment live, by Ray's own account."""
    import ray._private.state as ray_state

    prefix = f"SERVE_REPLICA::{NAME}#{deployment}#"
    return {
        actor["Address"]["NodeID"]
        for actor in ray_state.actors().values()
        if actor["Name"].startswith(prefix) and actor["State"] == "ALIVE"
    }


async def chains(url: str, salt: str, lost: list[str]) -> list[int]:
    """Cached tokens of many chains at once; an answer that was cut is asked for again."""

    async def one(api: openai.AsyncOpenAI, number: int) -> int:
        parts = [
            [
                {"id": f"{salt}-{number % 3}-{w}-{b}", "text": f"{salt} {number % 3} {w} {b} " * 40}
                for b in range(3)
            ]
            for w in range(WORKERS)
        ]
        for _ in range(4):
            try:
                chain = await chain_of_agents(
                    api, "sim", f"question {number}?", parts, unit_tokens=8, answer_tokens=8
                )
                return sum(call.answer.cached_tokens for call in chain.calls)
            except AgentFailed as error:
                lost.append(error.message)
        raise AssertionError(f"chain {number} was never answered: {lost[-1]}")

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=120) as api:
        return list(await asyncio.gather(*(one(api, number) for number in range(CHAINS))))


async def whole_answers(url: str, until_: float) -> tuple[int, list[str]]:
    """Requests that are not streamed, one after the other by several clients: all must succeed."""
    answered, faults = 0, []

    async def client(http: httpx.AsyncClient, number: int) -> None:
        nonlocal answered
        count = 0
        while time.monotonic() < until_:
            count += 1
            body = {
                "model": "sim",
                "max_tokens": 4,
                "messages": [{"role": "user", "content": f"{number} {count}?"}],
                "documents": [f"whole {number % 4} {b} " * 40 for b in range(3)],
            }
            answer = await http.post(f"{url}/v1/chat/completions", json=body)
            if answer.status_code == 200:
                answered += 1
            else:
                faults.append(answer.text)

    async with httpx.AsyncClient(timeout=120) as http:
        await asyncio.gather(*(client(http, number) for number in range(6)))
    return answered, faults


def test_the_shipped_local_file_states_hosts_for_all_replicas() -> None:
    assert check_cluster_file(ROOT / "cluster/local.yaml") == 32


def test_sixteen_replicas_of_two_gpus_spread_over_the_hosts(base: str) -> None:
    reserved = gpu_hosts_of_replicas()
    assert sum(reserved.values()) == REPLICAS * RANKS
    assert len(reserved) >= REPLICAS * RANKS / GPUS
    assert max(reserved.values()) <= GPUS


def test_chains_of_agents_are_answered_across_hosts_and_reuse_their_parts(base: str) -> None:
    lost: list[str] = []
    first = asyncio.run(chains(base, "reuse", lost))
    again = asyncio.run(chains(base, "reuse", lost))
    assert lost == []
    assert sum(again) > sum(first), "the second round finds what the first prefilled"
    data = httpx.get(f"{base}/fleet/data", timeout=30).json()
    used = {row["replica"] for row in data["recent"]}
    assert len(used) > REPLICAS / 4, "agents work on many replicas"
    assert data["unexplained_share"] <= 0.01


def test_a_killed_host_costs_no_answer_and_its_replicas_come_back(base: str, cluster: Any) -> None:
    reserved = gpu_hosts_of_replicas()
    apart = hosts_of("Router")  # its death breaks connections, by design: docs/operations.md
    busy = max(
        (node for node in cluster.worker_nodes if node.node_id not in apart),
        key=lambda node: reserved[node.node_id],
    )
    assert reserved[busy.node_id] >= RANKS
    before = set(index_state(NAME)["replicas"])
    lost: list[str] = []

    async def with_a_death() -> tuple[int, list[str], list[int]]:
        async def kill() -> None:
            await asyncio.sleep(3)
            await asyncio.to_thread(cluster.remove_node, busy, allow_graceful=False)

        end = time.monotonic() + 30
        (answered, faults), cached, _ = await asyncio.gather(
            whole_answers(base, end), chains(base, "death", lost), kill()
        )
        return answered, faults, cached

    answered, faults, cached = asyncio.run(with_a_death())
    assert faults == [], "whole answers survive the death of a host"
    assert answered > 50
    assert len(cached) == CHAINS
    assert len(lost) <= CHAINS, "only streams that were cut were asked for again"
    until(lambda: len(set(index_state(NAME)["replicas"]) - before) >= 1, 120)
    until(lambda: len(index_state(NAME)["replicas"]) == REPLICAS, 120)
    assert busy.node_id not in gpu_hosts_of_replicas()
