"""Histories over HTTP with a real Valkey: branches, edits, tools, and texts in messages."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cp_ray.store.embedded import EmbeddedServer
from tests.shells.conversation_support import A, B, C, Chat, LoopStore, count
from tests.shells.http_support import HTTP, Bench, running


@pytest.fixture
def bench(valkey: EmbeddedServer) -> Iterator[Bench]:
    with running(Bench(store=LoopStore(valkey.url))) as it:
        yield it


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


def test_the_last_turn_asked_again_does_not_refer_to_itself(bench: Bench) -> None:
    chat = Chat(bench, "again")
    chat.ask("first?", A)
    chat.ask("second?", B)
    del chat.messages[3:]
    again = chat.ask("second?", B, A)
    assert again["cp_ray"]["repeated"] == ["aa"]
    assert count(bench, chat.prompt, B["text"]) == 1
