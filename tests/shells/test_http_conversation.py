"""Multi-turn de-duplication over HTTP with a real Valkey: what a record may and may not do."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cp_ray.core.types import RequestId
from cp_ray.errors import EngineError
from cp_ray.router.conversation import Conversations, Turn
from cp_ray.store.embedded import EmbeddedServer
from tests.shells.conversation_support import A, B, C, Chat, LoopStore, count
from tests.shells.http_support import Bench, MemoryStore, running


@pytest.fixture
def bench(valkey: EmbeddedServer) -> Iterator[Bench]:
    with running(Bench(store=LoopStore(valkey.url))) as it:
        yield it


def test_a_later_turn_refers_to_the_blocks_of_an_earlier_one(bench: Bench) -> None:
    chat = Chat(bench, "refers")
    chat.ask("first?", A, B)
    first = chat.prompt
    second = chat.ask("second?", B, C)
    assert second["cp_ray"]["repeated"] == ["bb"]
    assert second["cp_ray"]["order"] == ["bb", "cc"]
    for document in (A, B, C):
        assert count(bench, chat.prompt, document["text"]) == 1
    assert count(bench, chat.prompt, "Please refer to [") == 1
    assert chat.prompt[: len(first)] == first
    assert second["cp_ray"]["cached_tokens"] >= len(first) // 4 * 4
    third = chat.ask("third?", C, A)
    assert third["cp_ray"]["repeated"] == ["cc", "aa"]
    assert count(bench, chat.prompt, "Please refer to [") == 2, "one for both"


def test_the_index_learns_which_request_the_head_extends(bench: Bench) -> None:
    chat = Chat(bench, "predecessor")
    chat.ask("first?", A, B)
    second = chat.ask("second?", C)
    assert second["cp_ray"]["reason"] == "holder"
    assert second["cp_ray"]["predicted_cached_tokens"] > 0
    assert second["cp_ray"]["predicted_cached_tokens"] <= second["cp_ray"]["cached_tokens"]


def test_routing_only_keeps_history_and_text_in_full(bench: Bench) -> None:
    chat = Chat(bench, "route")
    chat.ask("first?", A, B)
    second = chat.ask("second?", B, C, **{"x-cp-ray-reuse": "route"})
    assert second["cp_ray"]["repeated"] == []
    assert count(bench, chat.prompt, B["text"]) == 2


@pytest.mark.parametrize("change", ["system", "history", "name", "shorter"])
def test_what_does_not_match_the_record_is_sent_in_full(bench: Bench, change: str) -> None:
    chat = Chat(bench, f"mismatch {change}")
    chat.ask("first?", A, B)
    if change == "system":
        chat.messages[0] = {"role": "system", "content": "Be long."}
    elif change == "history":
        chat.messages[1] = {"role": "user", "content": "edited?"}
    elif change == "name":
        chat.name = "another"
    else:
        del chat.messages[1:]
    second = chat.ask("second?", B, C)
    assert second["cp_ray"]["repeated"] == []
    assert count(bench, chat.prompt, B["text"]) == 1
    assert count(bench, chat.prompt, "Please refer to [") == 0
    third = chat.ask("third?", B)
    assert third["cp_ray"]["repeated"] == ["bb"], "a fresh record began"


def test_an_answer_that_failed_leaves_no_record(bench: Bench) -> None:
    chat = Chat(bench, "failed")
    bench.engine.fault = (1, EngineError("broke"))
    assert "error" in chat.ask("first?", A)
    bench.engine.fault = None
    assert chat.ask("second?", A)["cp_ray"]["repeated"] == []


def test_tenants_do_not_share_conversations(valkey: EmbeddedServer) -> None:
    keys = {"acme": "k1", "bob": "k2"}
    with running(Bench(store=LoopStore(valkey.url), api_keys=keys)) as bench:
        acme, bob = Chat(bench, "shared"), Chat(bench, "shared")
        acme.ask("first?", A, authorization="Bearer k1")
        bob.messages = [*acme.messages]
        answer = bob.ask("second?", A, authorization="Bearer k2")
        assert answer["cp_ray"]["repeated"] == []
        answer = acme.ask("second?", A, authorization="Bearer k1")
        assert answer["cp_ray"]["repeated"] == ["aa"]


def test_a_record_expires(valkey: EmbeddedServer) -> None:
    with running(Bench(store=LoopStore(valkey.url), conversation_ttl_s=1)) as bench:
        chat = Chat(bench, "expires")
        chat.ask("first?", A)
        asyncio.run(asyncio.sleep(1.2))
        assert chat.ask("second?", A)["cp_ray"]["repeated"] == []


def test_without_redis_every_turn_is_answered_in_full(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    with running(Bench(store=LoopStore(server.start()))) as bench:
        chat = Chat(bench, "down")
        chat.ask("first?", A)
        server.stop()
        assert chat.ask("second?", A)["cp_ray"]["repeated"] == []
        server.start()
        chat.ask("third?", A)
        assert chat.ask("fourth?", A)["cp_ray"]["repeated"] == ["aa"]
    server.stop()


def test_a_record_that_cannot_be_read_counts_as_none() -> None:
    store = MemoryStore()
    with running(Bench(store=store)) as bench:
        chat = Chat(bench, "corrupt")
        chat.ask("first?", A)
        (key,) = (key for key in store.records if key.startswith("turn:"))
        store.records[key] = b"\x07not ours"
        assert chat.ask("second?", A)["cp_ray"]["repeated"] == []
        assert bench.service.planning.conversations.failures == 1


def test_a_record_over_its_size_is_not_kept() -> None:
    store = MemoryStore()
    conversations = Conversations(store, 60, max_bytes=1000)
    turn = Turn(RequestId("r"), ("x" * 600,), (), ())

    async def save_both() -> None:
        await conversations.save("t", "c", "link 1", turn)
        await conversations.save("t", "c", "link 2", turn, earlier_bytes=turn.size)
        assert await conversations.load("t", "c", ["link 1", "link 2"]) == (turn,)

    asyncio.run(save_both())
