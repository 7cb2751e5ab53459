"""The holder of a conversation dies at each of its turns: what is sent elsewhere, token by token.

The promise: a prompt does not depend on the replica, so the prompt after a kill is the one that
would have been sent without it. If the record is lost too, it is the full text, no references.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from cp_ray.core.prompt import body, make_block
from cp_ray.core.types import ReplicaId, ReplicaInfo
from tests.references import HEADING, assert_resolves
from tests.shells.http_support import (
    HTTP,
    PAGE,
    Bench,
    LocalPlanner,
    MemoryStore,
    TapeEngine,
    running,
)

TURNS = 10
SHARED = " ".join(f"boiler{n}" for n in range(40))


def documents(turn: int) -> list[dict[str, str]]:
    """Two of earlier turns, one new, one that shares a passage with the others of its kind."""
    numbers = [turn, max(turn - 1, 0), max(turn - 3, 0)]
    plain = [{"text": f"fact {n} " + f"is{n} so{n} " * 20} for n in dict.fromkeys(numbers)]
    return [*plain, {"text": f"{SHARED} turn {turn} only"}]


class Fleet:
    """Three replicas, of which any can die; a dead one's place is taken by another name."""

    def __init__(self) -> None:
        self.names = [ReplicaId(f"r{n}") for n in range(3)]
        self.planner = LocalPlanner(self.names)
        self.store = MemoryStore()
        self.bench = Bench(
            store=self.store,
            planner=self.planner,
            engines={name: TapeEngine(100_000) for name in self.names},
        )
        self.bench.engine.info = TapeEngine(100_000).info

    def kill(self, name: ReplicaId) -> None:
        del self.bench.dispatcher.engines[name]
        new = ReplicaId(f"r{len(self.names)}")
        self.names.append(new)
        self.bench.dispatcher.engines[new] = TapeEngine(100_000)
        live = list(self.bench.dispatcher.engines)
        self.planner.index.set_replicas([ReplicaInfo(one, PAGE, 1 << 20) for one in live])

    def talk(self, name: str, kill_at: int | None = None, *, lose: bool = False) -> list[Any]:
        """(prompt, rendered messages, explanation) of each turn."""
        messages: list[dict[str, str]] = [{"role": "system", "content": "Be brief."}]
        told = []
        holder = ReplicaId("")
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"question {turn}?"})
            body = {
                "model": "sim",
                "messages": messages,
                "documents": documents(turn),
                "conversation": name,
            }
            if turn == kill_at:
                self.kill(holder)
                if lose:
                    self.store.records.clear()
            plan = HTTP.post(f"{self.bench.url}/v1/context/plan", json=body).json()
            answer = HTTP.post(
                f"{self.bench.url}/v1/chat/completions",
                json=body,
                headers={"x-cp-ray-explain": "1"},
            ).json()
            assert turn != kill_at or answer["cp_ray"]["replica"] != holder
            holder = answer["cp_ray"]["replica"]
            told.append(
                (tuple(self.bench.dispatcher.sent[-1].tokens), plan["messages"], answer["cp_ray"])
            )
            messages.append(answer["choices"][0]["message"])
        return told


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    with running(fleet.bench):
        yield fleet


def assert_stands_alone(messages: list[dict[str, str]], turn: int) -> None:
    text = "\n".join(message["content"] for message in messages)
    headings = HEADING.findall(text)
    assert_resolves(text)
    assert len(set(headings)) == len(headings), "nothing is sent twice"
    for document in documents(turn):
        assert document["text"][-12:] in text


def test_the_prompt_after_a_kill_is_the_prompt_without_it(fleet: Fleet) -> None:
    control = fleet.talk("control")
    for turn, (_, messages, explained) in enumerate(control):
        assert_stands_alone(messages, turn)
        assert len(explained["repeated"]) == min(turn, 2)
    for kill_at in range(1, TURNS):
        told = fleet.talk(f"killed at {kill_at}", kill_at)
        assert [prompt for prompt, _, _ in told] == [prompt for prompt, _, _ in control]
        assert [messages for _, messages, _ in told] == [messages for _, messages, _ in control]


@pytest.mark.parametrize("kill_at", [1, 4, TURNS - 1])
def test_with_the_record_lost_too_it_is_the_full_text(fleet: Fleet, kill_at: int) -> None:
    told = fleet.talk(f"lost at {kill_at}", kill_at, lose=True)
    prompt, _, explained = told[kill_at]
    assert explained["repeated"] == []
    ranked = [make_block("default", None, one["text"]) for one in documents(kill_at)]
    named = {f"documents.{n}": block for n, block in enumerate(ranked)}
    user = (*body([named[name] for name in explained["order"]], ranked), f"question {kill_at}?")
    pieces: list[tuple[str, bool]] = []
    for turn in range(kill_at):
        pieces += message_pieces("user", f"question {turn}?")
        pieces += message_pieces("assistant", "one two three")
    pieces = [*message_pieces("system", "Be brief."), *pieces, *message_pieces("user", *user)]
    pieces.append(("<|im_start|>assistant\n", True))
    encode = fleet.bench.tokenizer.encode
    expected = [token for text, template in pieces for token in encode(text, template=template)]
    assert list(prompt) == expected
    if kill_at < TURNS - 1:
        assert told[-1][2]["repeated"], "a new record began"


def message_pieces(role: str, *texts: str) -> list[tuple[str, bool]]:
    opening = (f"<|im_start|>{role}\n", True)
    return [opening, *((text, False) for text in texts), ("<|im_end|>\n", True)]
