"""Multi-turn de-duplication over HTTP with a real Valkey: what a record may and may not do."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cp_ray.core.types import RequestId
from cp_ray.errors import EngineError
from cp_ray.router.conversation import Conversations, Turn
from cp_ray.store.client import Store
from cp_ray.store.embedded import EmbeddedServer
from tests.shells.http_support import HTTP, Bench, MemoryStore, running

A, B, C = ({"id": name, "text": f"{name} says {name * 3} " * 12} for name in ("aa", "bb", "cc"))
SYSTEM = {"role": "system", "content": "Be brief."}


class LoopStore:
    """A Store that connects on the loop that uses it first."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: Store | None = None

    async def _connected(self) -> Store:
        self._store = self._store or await Store.connect(self._url, "test")
        return self._store

    async def get_records(self, keys: Sequence[str], ttl_s: int) -> list[bytes | None]:
        return await (await self._connected()).get_records(keys, ttl_s)

    async def put_records(self, values: Mapping[str, bytes], ttl_s: int) -> None:
        await (await self._connected()).put_records(values, ttl_s)


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(Path(tmp_path_factory.mktemp("valkey")))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def bench(valkey: EmbeddedServer) -> Iterator[Bench]:
    with running(Bench(store=LoopStore(valkey.url))) as it:
        yield it


class Chat:
    """A client that keeps its own history, as clients do: its texts, without documents."""

    def __init__(self, bench: Bench, name: str, system: dict[str, str] = SYSTEM) -> None:
        self.bench = bench
        self.name = name
        self.messages: list[dict[str, str]] = [system]

    def ask(self, question: str, *documents: Any, **headers: str) -> dict[str, Any]:
        self.messages.append({"role": "user", "content": question})
        body = {
            "model": "sim",
            "messages": self.messages,
            "documents": documents,
            "conversation": self.name,
        }
        response = HTTP.post(
            f"{self.bench.url}/v1/chat/completions",
            json=body,
            headers={"x-cp-ray-explain": "1", **headers},
        )
        answer: dict[str, Any] = response.json()
        if response.status_code == 200:
            self.messages.append(answer["choices"][0]["message"])
        return answer

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.bench.dispatcher.sent[-1].prompt


def count(bench: Bench, prompt: tuple[int, ...], text: str) -> int:
    """How often the tokens of `text` stand in the prompt."""
    part = tuple(bench.tokenizer.encode(text))
    return sum(prompt[i : i + len(part)] == part for i in range(len(prompt)))


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


def test_the_last_turn_asked_again_does_not_refer_to_itself(bench: Bench) -> None:
    chat = Chat(bench, "again")
    chat.ask("first?", A)
    chat.ask("second?", B)
    del chat.messages[3:]
    again = chat.ask("second?", B, A)
    assert again["cp_ray"]["repeated"] == ["aa"]
    assert count(bench, chat.prompt, B["text"]) == 1


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
        assert bench.service.conversations.failures == 1


def test_a_record_over_its_size_is_not_kept() -> None:
    store = MemoryStore()
    conversations = Conversations(store, 60, max_bytes=1000)
    turn = Turn(RequestId("r"), ("x" * 600,), (), ())

    async def save_both() -> None:
        await conversations.save("t", "c", "link 1", turn)
        await conversations.save("t", "c", "link 2", turn, earlier_bytes=turn.size)
        assert await conversations.load("t", "c", ["link 1", "link 2"]) == (turn,)

    asyncio.run(save_both())


def test_branches_of_a_conversation_stand_side_by_side(bench: Bench) -> None:
    chat = Chat(bench, "branches")
    chat.ask("first?", A)
    root = list(chat.messages)
    assert chat.ask("left?", B)["cp_ray"]["repeated"] == []
    left, chat.messages = chat.messages, root
    assert chat.ask("right?", B)["cp_ray"]["repeated"] == [], "the left branch is not its past"
    assert chat.ask("right again?", A, B)["cp_ray"]["repeated"] == ["aa", "bb"]
    chat.messages = left
    assert chat.ask("left again?", A, B)["cp_ray"]["repeated"] == ["aa", "bb"]
    assert count(bench, chat.prompt, B["text"]) == 1


def test_an_edit_keeps_the_turns_before_it(bench: Bench) -> None:
    chat = Chat(bench, "edit")
    for question, document in (("first?", A), ("second?", B), ("third?", C)):
        chat.ask(question, document)
    chat.messages[3] = {"role": "user", "content": "second, edited?"}
    answer = chat.ask("fourth?", A, B, C)
    assert answer["cp_ray"]["repeated"] == ["aa"]
    assert [count(bench, chat.prompt, d["text"]) for d in (A, B, C)] == [1, 1, 1]
    assert chat.ask("fifth?", A, B, C)["cp_ray"]["repeated"] == ["aa", "bb", "cc"]


def test_the_same_first_question_shares_nothing_between_users(bench: Bench) -> None:
    ann, ben = Chat(bench, "ann"), Chat(bench, "ben")
    ann.ask("first?", A)
    assert ben.ask("first?", B)["cp_ray"]["repeated"] == []
    assert ben.ask("second?", A)["cp_ray"]["repeated"] == []
    assert ann.ask("second?", B)["cp_ray"]["repeated"] == []
    assert count(bench, ann.prompt, A["text"]) == 1
    assert count(bench, ann.prompt, B["text"]) == 1


def test_a_tool_loop_keeps_the_documents_that_its_first_call_brought(bench: Bench) -> None:
    chat = Chat(bench, "tools")
    chat.ask("what?", A, B)
    opening = chat.prompt
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat.messages[-1:] = [{"role": "assistant", "content": "", "tool_calls": [call]}]  # type: ignore[dict-item]
    chat.messages.append({"role": "tool", "tool_call_id": "1", "content": "42"})
    for documents in ([], [A, B], [C]):
        answer = HTTP.post(
            f"{bench.url}/v1/chat/completions",
            json={
                "model": "sim",
                "messages": chat.messages,
                "documents": documents,
                "conversation": chat.name,
            },
            headers={"x-cp-ray-explain": "1"},
        ).json()
        assert answer["cp_ray"]["repeated"] == []
        assert count(bench, chat.prompt, A["text"]) == count(bench, chat.prompt, B["text"]) == 1
        blocks = opening.index(bench.tokenizer.encode("what")[0])
        assert chat.prompt[:blocks] == opening[:blocks]
    assert count(bench, chat.prompt, C["text"]) == 1
    chat.messages.append({"role": "assistant", "content": "done"})
    assert chat.ask("next?", A, B, C)["cp_ray"]["repeated"] == ["aa", "bb", "cc"]


def test_a_passage_that_an_earlier_turn_holds_becomes_a_pointer(bench: Bench) -> None:
    passage = " ".join(f"word{n}" for n in range(80))
    first, second = {"text": f"Alpha. {passage}"}, {"text": f"{passage} Omega."}
    chat = Chat(bench, "partial")
    chat.ask("first?", first, second)
    inside = passage.removeprefix("word0")
    assert count(bench, chat.prompt, inside) == 2, "the first turn's blocks are shared as they are"
    chat = Chat(bench, "partial 2")
    chat.ask("first?", first)
    answer = chat.ask("second?", second)
    assert answer["cp_ray"]["repeated"] == []
    assert count(bench, chat.prompt, inside) == 1
    assert count(bench, chat.prompt, '"word0 word1 word2" to "') == 1
    assert chat.ask("third?", second)["cp_ray"]["repeated"] == ["documents.0"]


def test_documents_in_messages_are_lifted_when_asked_for(bench: Bench) -> None:
    chat = Chat(bench, "lifted")
    text = f"<document source='a'>{A['text']}</document> what?"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = json.dumps([{"id": 1, "text": A["text"]}, {"id": 2, "text": B["text"]}])
    body = {
        "model": "sim",
        "conversation": "lifted",
        "messages": [{"role": "user", "content": text}],
    }

    def post(**more: Any) -> dict[str, Any]:
        headers = {"x-cp-ray-explain": "1"}
        url = f"{bench.url}/v1/chat/completions"
        answer: dict[str, Any] = HTTP.post(url, json={**body, **more}, headers=headers).json()
        return answer

    assert post(conversation="off")["cp_ray"]["order"] == []
    assert count(bench, chat.prompt, text) == 1, "off: bytes untouched"
    assert len(post(lift_documents=True)["cp_ray"]["order"]) == 1
    messages = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": result},
    ]
    answer = post(messages=messages, lift_documents=True)
    assert len(answer["cp_ray"]["order"]) == 2
    messages += [{"role": "assistant", "content": "a"}, {"role": "user", "content": "and?"}]
    answer = post(messages=messages, lift_documents=True, documents=[A])
    assert answer["cp_ray"]["repeated"] == ["aa"]
    assert count(bench, chat.prompt, A["text"]) == count(bench, chat.prompt, B["text"]) == 1
