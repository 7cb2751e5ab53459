"""The engine replica under real Ray Serve, with the simulated engine and a real Redis."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("ray")

from ray import serve
from ray.exceptions import RayTaskError

from cp_ray.config import AppConfig
from cp_ray.core.packed import packed
from cp_ray.core.types import (
    Dump,
    DumpRequest,
    EvictionReport,
    ReplicaId,
    ReplicaMessage,
    RequestId,
)
from cp_ray.errors import InvalidRequest
from cp_ray.store import wire
from cp_ray.store.client import START, Store
from cp_ray.store.embedded_actor import redis_url
from cp_ray.workers.engine import Delivery, EngineInfo, EngineRequest, Sampling
from cp_ray.workers.replica import EngineReplica

pytestmark = pytest.mark.ray
APP = "replica_test"


@pytest.fixture(scope="module")
def config():
    return AppConfig(
        engine="simulated",
        model="tiny",
        cache_tokens=1024,
        max_model_len=1024,
        decode_tokens_per_s=200,
        prefill_tokens_per_s=1e6,
    )


@pytest.fixture(scope="module")
def handle(serve_url, config):
    deployment = serve.deployment(EngineReplica).options(
        name="Engine", ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=16
    )
    yield serve.run(deployment.bind(config.to_json()), name=APP, route_prefix=None)
    serve.delete(APP)


def ask(handle: Any, name: str, prompt: range, max_tokens: int = 2) -> Any:
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    request = EngineRequest(RequestId(name), packed(prompt), sampling)
    return handle.options(stream=True).generate.remote(wire.encode(request), cp_plan={})


def deliveries(handle: Any, name: str, prompt: range, max_tokens: int = 2) -> list[Delivery]:
    return [wire.decode(data, Delivery) for data in ask(handle, name, prompt, max_tokens)]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.05)


def test_the_first_token_goes_out_at_once_and_the_rest_travel_together(handle):
    got = deliveries(handle, "whole", range(40), max_tokens=60)
    assert len(got[0].chunks) == 1
    assert len(got) < 25, "60 tokens in 0.3 s are at most 16 batches of 20 ms, and the first"
    chunks = [chunk for delivery in got for chunk in delivery.chunks]
    assert chunks[-1].completion_tokens == 60
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["length"]
    assert "".join(chunk.text for chunk in chunks) == "[simulated]" + " token" * 59
    assert len({delivery.replica for delivery in got}) == 1


def test_it_tells_of_itself(handle):
    info = wire.decode(handle.info.remote().result(), EngineInfo)
    assert (info.engine, info.simulated, info.page_size) == ("simulated", True, 16)


def test_a_refusal_survives_the_way_through_ray(handle):
    with pytest.raises(RayTaskError) as caught:
        deliveries(handle, "long", range(2000))
    assert isinstance(caught.value.cause, InvalidRequest)
    assert caught.value.cause.code == "context_length_exceeded"
    assert caught.value.cause.status == 400


def test_a_cancelled_stream_frees_the_engine(handle):
    streams = [ask(handle, f"cut{number}", range(number, 500 + number), 500) for number in range(2)]
    for stream in streams:
        next(iter(stream))
    for stream in streams:
        stream.cancel()
    # Only an engine without those two has room for this one.
    started = time.monotonic()
    assert deliveries(handle, "after", range(5000, 6000))
    assert time.monotonic() - started < 2.0, "500 tokens take 2.5 s: nobody waited for them"


def with_store(config: AppConfig, call: Callable[[Store], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        store = await Store.connect(await redis_url(config, APP), APP)
        try:
            return await call(store)
        finally:
            await store.close()

    return asyncio.run(run())


def messages(config: AppConfig) -> list[ReplicaMessage]:
    heard = with_store(config, lambda store: store.read_reports(START, 100))
    return [wire.decode(payload, ReplicaMessage) for _, payload in heard]


def test_evictions_and_a_reset_arrive_in_redis_numbered(handle, config):
    def reports() -> list[EvictionReport]:
        return [message for message in messages(config) if isinstance(message, EvictionReport)]

    [replica] = {delivery.replica for delivery in deliveries(handle, "victim", range(100, 300))}
    for number in range(6):
        deliveries(handle, f"filler{number}", range(1000 * number, 1000 * number + 400))
    until(
        lambda: any(
            e.request_id == "victim" and e.tokens_left == 0 for r in reports() for e in r.evicted
        )
    )
    handle.reset_cache.remote().result()
    until(lambda: reports()[-1].epoch == 1)
    heard = reports()
    assert {report.replica for report in heard} == {replica}
    for epoch in (0, 1):
        numbers = [report.seq for report in heard if report.epoch == epoch]
        assert numbers == list(range(len(numbers)))
    assert heard[-1].evicted == ()


def test_a_dump_request_is_answered_with_all_it_holds_or_with_a_new_epoch(handle, config):
    [replica] = {delivery.replica for delivery in deliveries(handle, "kept", range(9000, 9100))}

    def ask_for(request: DumpRequest) -> None:
        with_store(config, lambda store: store.append_dump_request(wire.encode(request)))

    def dumps() -> list[Dump]:
        return [message for message in messages(config) if isinstance(message, Dump)]

    ask_for(DumpRequest(ReplicaId("another")))
    ask_for(DumpRequest(replica))
    until(lambda: bool(dumps()))
    [dump] = dumps()
    assert dump.replica == replica
    assert dump.held[RequestId("kept")] == 96
    before = messages(config)[-1].epoch
    ask_for(DumpRequest(replica, rebuild=True))
    until(lambda: messages(config)[-1].epoch == before + 1)
    assert len(dumps()) == 1
