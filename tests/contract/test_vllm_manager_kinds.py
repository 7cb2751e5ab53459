"""vLLM's own cache manager with adapters, and with layers of several kinds: what it publishes."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("vllm")

from cp_ray.core.types import RequestId
from cp_ray.workers.kv_events import decode_batch
from cp_ray.workers.residency import Residency
from tests.contract.vllm_manager import VllmManager

pytestmark = pytest.mark.vllm
PAGE, PAGES = 4, 60


def documents(source: random.Random) -> list[tuple[int, ...]]:
    return [tuple(source.randrange(1000) for _ in range(n)) for n in (3, 4, 8, 9, 12, 17) * 3]


def test_adapters_hit_only_themselves_in_the_engine_and_in_our_view() -> None:
    from vllm.lora.request import LoRARequest

    source = random.Random(5)
    engine, residency = VllmManager(PAGE, PAGES, events=True), Residency(PAGE, PAGES)
    texts = documents(source)
    adapters = [None, LoRARequest("one", 1, "/one"), LoRARequest("two", 2, "/two")]
    hits = 0
    for number in range(500):
        prompt = sum(source.sample(texts, source.randint(1, 3)), ())
        adapter = source.choice([None, *adapters])
        name = f"r{number}"
        predicted = residency.held_tokens(residency.path(prompt))
        cached = engine.admit(name, prompt, lora=adapter)
        assert cached is not None
        if adapter is None:
            assert cached == predicted, number
            hits += cached > 0
            residency.register(RequestId(name), residency.path(prompt))
        engine.release(name)
        residency.apply(decode_batch(engine.step() or EMPTY))
    assert hits > 20
    assert residency.doubts == 0
    residency.check()


EMPTY = bytes([0x93, 0xCB, 0, 0, 0, 0, 0, 0, 0, 0, 0x90, 0xC0])  # a batch without events


@pytest.mark.parametrize("window_page", [PAGE, 2 * PAGE], ids=["one block size", "two"])
def test_windowed_layers_neither_raise_an_alarm_nor_promise_what_full_attention_lost(
    window_page: int,
) -> None:
    source = random.Random(6)
    engine = VllmManager(PAGE, PAGES, events=True, window=3 * PAGE, window_page=window_page)
    residency = Residency(PAGE, PAGES, groups=engine.full_groups())
    texts = documents(source)
    within = requests = 0
    for number in range(400):
        prompt = sum(source.sample(texts, source.randint(1, 3)), ())
        name = f"r{number}"
        predicted = residency.held_tokens(residency.path(prompt))
        cached = engine.admit(name, prompt)
        if cached is None:
            continue
        assert cached <= predicted, "a windowed layer can only shorten a hit"
        requests += 1
        within += predicted - cached <= PAGE
        engine.release(name)
        residency.apply(decode_batch(engine.step() or EMPTY))
    assert requests > 300
    assert within > 0.8 * requests
    assert residency.doubts == 0
    residency.check()
