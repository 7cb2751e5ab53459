"""What users report of routers that follow engine events; each fault as a whole kind.

Numbers are those of the list the project keeps of such reports.
"""

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cp_ray.core.types import Eviction, RequestId
from cp_ray.workers.cache_events import CacheEvent
from cp_ray.workers.kv_events import decode_batch
from cp_ray.workers.residency import Residency
from tests.reports.followed import PAGE, Followed, followed, prompt, removed, stored
from tests.shells.event_publisher import packed

if importlib.util.find_spec("zmq") is None:
    pytest.skip("pyzmq is missing", allow_module_level=True)


def run(test: Callable[[Followed], Awaitable[None]], kept: int = 100) -> None:
    async def main() -> None:
        async with followed(kept) as subject:
            await test(subject)

    asyncio.run(main())


def apply(residency: Residency, *events: dict[str, object]) -> list[Eviction]:
    return residency.apply(decode_batch(packed(*events)))


def held(residency: Residency, names: str) -> int:
    return residency.held_tokens(residency.path(prompt(names))) // PAGE


NEW = [stored("x"), stored("y", after="x"), stored("w", after="xy"), stored("z")]


@pytest.mark.parametrize("lost", [0, 1, 3], ids=lambda lost: f"{lost} of the new engine's lost")
def test_1_a_restarted_engine_keeps_none_of_its_old_blocks(lost: int) -> None:
    async def test(subject: Followed) -> None:
        await subject.publish(stored("ab"))
        await subject.publish(stored("c", after="ab"))
        await subject.until(lambda: subject.held("abc") == 3)
        subject.publisher.restart()
        for number, event in enumerate(NEW):
            await subject.publish(event, lose=number < lost)
        await subject.until(lambda: subject.held("z") == 1)
        assert subject.held("abc") == 0
        assert subject.held("xyw") == 3
        assert (subject.epochs, subject.holes) == (1, 0)

    run(test)


def test_1_a_restart_is_seen_though_the_new_engine_has_sent_more_than_the_old_one() -> None:
    async def test(subject: Followed) -> None:
        await subject.publish(stored("a"))
        await subject.until(lambda: subject.held("a") == 1)
        subject.publisher.restart()
        for name in "xyz":
            await subject.publish(stored(name))
        await subject.until(lambda: subject.held("z") == 1)
        assert subject.held("a") == 0

    run(test)


def test_2_a_reset_that_comes_with_the_next_step_is_one_epoch_and_keeps_what_follows() -> None:
    async def test(subject: Followed) -> None:
        await subject.publish(stored("ab"))
        await subject.publish({"type": "AllBlocksCleared"}, stored("c"))
        await subject.until(lambda: subject.held("c") == 1)
        assert subject.held("ab") == 0
        assert subject.epochs == 1

    run(test)


BATCHES = [
    [stored("x")],
    [stored("ab")],
    [stored("c", after="ab")],
    [removed("x")],
    [removed("abc"), stored("d", after="ab")],
    [stored("e", after="abd")],
    [stored("x")],
]


@pytest.mark.parametrize("lose", [(2, 3, 4), (0,), (3,), (0, 1, 2, 3, 4, 5), (1, 4)], ids=str)
def test_3_a_gap_that_is_replayed_ends_as_if_nothing_was_lost(lose: tuple[int, ...]) -> None:
    async def test(subject: Followed) -> None:
        for number, events in enumerate(BATCHES):
            await subject.publish(*events, lose=number in lose)
        await subject.until(lambda: subject.held("x") == 1 and subject.held("abde") == 4)
        assert subject.held("abc") == 2
        assert (subject.holes, subject.residency.doubts) == (0, 0)
        subject.residency.check()

    run(test)


def test_3_old_batches_that_come_late_neither_raise_nor_delete_anything() -> None:
    async def test(subject: Followed) -> None:
        for number, events in enumerate(BATCHES):
            await subject.publish(*events, lose=number in (2, 3, 4))
        await subject.until(lambda: subject.held("x") == 1)
        for late in (3, 0, 2, 4):
            await subject.publisher.send(late)
        await subject.publish(stored("f"))
        await subject.until(lambda: subject.held("f") == 1)
        assert (subject.held("x"), subject.held("abde"), subject.held("abc")) == (1, 4, 2)
        assert (subject.epochs, subject.holes) == (0, 0)

    run(test)


def test_3_a_gap_too_old_to_be_replayed_forgets_everything() -> None:
    async def test(subject: Followed) -> None:
        for number, events in enumerate(BATCHES):
            await subject.publish(*events, lose=number in (1, 2, 3))
        await subject.until(lambda: subject.holes == 1)
        await subject.publish(stored("f"))
        await subject.until(lambda: subject.held("f") == 1)
        assert subject.held("abde") == 0, "forgotten, though held: that costs one prefill"

    run(test, kept=3)


def test_11_a_view_that_is_wrong_is_told_apart_from_one_that_is_right() -> None:
    """Whatever makes the tokens differ, the audit of the answer shows it."""
    residency = Residency(PAGE)
    apply(residency, stored("abc"))
    right, wrong = residency.path(prompt("abx")), residency.path(prompt("abcde"))
    apply(residency, stored("x", after="ab"))
    assert residency.held_when_scheduled(right, 2 * PAGE) == 2 * PAGE
    apply(residency, stored("bcde", after="a"))  # the engine had lost b and c unsaid
    assert residency.held_when_scheduled(wrong, PAGE) == 3 * PAGE


@pytest.mark.parametrize(
    ("extra", "other"),
    [
        ({"lora_name": "one"}, {"lora_name": "two"}),
        ({"lora_id": 1}, {"lora_id": 2}),
        ({"lora_id": 0}, {"lora_id": 1}),
        ({"lora_id": 1, "lora_name": "one"}, {"lora_id": 1, "lora_name": "two"}),
        ({"extra_keys": [["one"], []]}, {"extra_keys": [["two"], []]}),
    ],
    ids=["names", "numbers", "number 0", "names before numbers", "salts"],
)
def test_14_adapters_and_salts_hit_only_themselves(
    extra: dict[str, Any], other: dict[str, Any]
) -> None:
    residency = Residency(PAGE)
    apply(residency, stored("ab", **extra))
    assert held(residency, "ab") == 0
    apply(residency, stored("ab"))
    before = residency.blocks
    assert held(residency, "ab") == 2
    apply(residency, stored("ab", **other))
    assert residency.blocks == before + 2, "three disjoint entries"
    assert not apply(residency, removed("ab", "a", **extra), removed("ab", "a", **other))
    assert held(residency, "ab") == 2, "each loses only its own"


def test_14_an_adapter_that_loses_its_blocks_costs_the_base_model_nothing() -> None:
    residency = Residency(PAGE)
    apply(residency, stored("ab"), stored("ab", lora_name="one"))
    residency.register(RequestId("base"), residency.path(prompt("ab")))
    assert apply(residency, removed("ab", "a", lora_name="one")) == []
    assert held(residency, "ab") == 2
    residency.check()


def test_15_a_block_is_lost_with_its_last_copy_and_not_before() -> None:
    residency = Residency(PAGE)
    residency.register(RequestId("r"), residency.path(prompt("x")))
    seen = []
    for event in (stored("x"), stored("x"), removed("x"), removed("x")):
        lost = apply(residency, event)
        residency.check()
        seen.append((held(residency, "x"), [eviction.tokens_left for eviction in lost]))
    assert seen == [(1, []), (1, []), (1, []), (0, [0])]
    assert residency.doubts == 0
    assert apply(residency, removed("x")) == []
    assert residency.doubts == 1, "a copy that was never stored: others were not heard"


def test_15_an_engine_that_reports_only_the_last_copy_is_found_out_by_its_own_size() -> None:
    residency = Residency(PAGE, capacity=4)
    for _ in range(3):
        apply(residency, stored("x"), stored("x"), removed("x"))
    assert residency.doubts == 0
    apply(residency, stored("yz"))
    assert residency.doubts == 1


@pytest.mark.parametrize("medium", ["CPU", "STORAGE", "DISK"])
def test_25_a_copy_outside_the_engines_memory_is_neither_hit_nor_ghost(medium: str) -> None:
    residency = Residency(PAGE)
    apply(residency, stored("ab"))
    residency.register(RequestId("r"), residency.path(prompt("ab")))
    apply(residency, stored("ab", medium=medium))
    lost = apply(residency, removed("ab"))
    assert lost == [Eviction(RequestId("r"), PAGE)], "lost, whatever is kept elsewhere"
    assert held(residency, "ab") == 1
    apply(residency, removed("a", "ab", medium=medium))
    assert held(residency, "ab") == 1
    assert residency.doubts == 0
    residency.check()


def test_25_a_block_that_exists_only_elsewhere_is_no_hit() -> None:
    residency = Residency(PAGE)
    events: list[CacheEvent] = decode_batch(packed(stored("ab", medium="CPU")))
    assert events == []
    residency.apply(events)
    assert held(residency, "ab") == 0
