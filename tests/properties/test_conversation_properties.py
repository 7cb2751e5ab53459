"""A client that edits, branches, fails and loses records: every prompt stands on its own."""

import asyncio
from array import array
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cp_ray.core import annotation
from cp_ray.core.annotation import label_of
from cp_ray.core.prompt import content_of
from cp_ray.core.types import RequestId
from cp_ray.errors import StoreUnavailable
from cp_ray.router.api import ChatRequest
from cp_ray.router.assembly import Assembler, Finished, Limits, Prepared
from cp_ray.router.auth import Tenant
from cp_ray.router.conversation import Conversations
from cp_ray.router.tokenizer import Piece, WordTokenizer
from tests.references import HEADING, assert_resolves, documents_of, names_in
from tests.shells.http_support import MemoryStore

FILLER = "Shipping takes two days and returns are free of charge within thirty days of the order. "
USERS = (("acme", "c1"), ("acme", "c2"), ("bolt", "c1"))
"""Two users of one tenant, and one of another who chose the same name for his conversation."""


def document(user: int, number: int) -> str:
    """Some share a long passage with others, and every one has words of its own and its user."""
    own = " ".join(f"user{user}doc{number}word{n}" for n in range(30))
    return f"{own}\n{FILLER * 3}{own[:50]}" if number % 2 else own


class Client(RuleBasedStateMachine):
    """Three users ask the same questions of one router with one store."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        limits = Limits(partial_overlap_tokens=10)
        self.assembler = Assembler(WordTokenizer(), "m", limits)
        self.conversations = Conversations(self.store, 60, 1 << 20)
        self.history: list[list[dict[str, Any]]] = [[] for _ in USERS]
        self.last: list[tuple[int, array[int]] | None] = [None] * len(USERS)
        self.count = 0

    @initialize(system=st.sampled_from(["", "Be brief."]))
    def begin(self, system: str) -> None:
        for history in self.history:
            history.append({"role": "system", "content": system})

    @rule(
        user=st.integers(0, 2),
        question=st.sampled_from(["why?", "how?", ""]),
        chosen=st.lists(st.integers(0, 5), unique=True, max_size=4),
        shuffle=st.randoms(),
        fails=st.booleans(),
        tool=st.booleans(),
    )
    def ask(
        self, user: int, question: str, chosen: list[int], shuffle: Any, fails: bool, tool: bool
    ) -> None:
        messages = self.history[user]
        messages.append({"role": "user", "content": question})
        texts = [document(user, number) for number in chosen]
        if not self._send(user, texts, shuffle, fails=fails) or fails:
            messages.pop()
            return
        if tool:
            call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": "1", "content": "42"})
            self._send(user, texts if shuffle.random() < 0.5 else [], shuffle, fails=False)
        self.count += 1
        messages.append({"role": "assistant", "content": f"answer {self.count}"})

    @rule(user=st.integers(0, 2), data=st.data(), role=st.sampled_from(["user", "assistant"]))
    def edit(self, user: int, data: st.DataObject, role: str) -> None:
        at = [i for i, message in enumerate(self.history[user]) if message["role"] == role]
        if at:
            place = data.draw(st.sampled_from(at))
            edited = {**self.history[user][place], "content": f"edited {self.count}"}
            self.history[user][place] = edited
            self.last[user] = None

    @rule(user=st.integers(0, 2), turns=st.integers(0, 3))
    def branch(self, user: int, turns: int) -> None:
        at = [i for i, message in enumerate(self.history[user]) if message["role"] == "user"]
        if turns < len(at):
            del self.history[user][at[turns] :]
            self.last[user] = None

    @precondition(lambda self: self.store.records)
    @rule(data=st.data())
    def lose_a_record(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.store.records)))
        del self.store.records[key]
        self.last = [None] * len(USERS)

    @rule(down=st.booleans())
    def redis_goes_or_comes_back(self, down: bool) -> None:
        self.store.fault = StoreUnavailable("down") if down else None
        self.last = [None] * len(USERS)

    def _send(self, user: int, texts: list[str], shuffle: Any, *, fails: bool) -> bool:
        tenant, conversation = USERS[user]
        request = ChatRequest.model_validate(
            {
                "model": "m",
                "messages": self.history[user],
                "documents": texts,
                "conversation": conversation,
            }
        )
        self.count += 1
        prepared, finished = asyncio.run(self._run(request, tenant, shuffle, fails))
        prompt = "".join(piece.text for piece in prepared.head)
        prompt += "".join(finished.user) + "".join(piece.text for piece in prepared.tail)
        message = [Piece(text) for text in finished.user]
        anew = WordTokenizer().tokens([*prepared.head, *message, *prepared.tail])
        assert finished.prompt == anew, "tokens that are kept are those of the texts sent"
        self._stands_alone(user, texts, prompt)
        if texts or self.history[user][-1]["role"] == "user":
            turns = prepared.earlier
            sent = [piece for turn in turns for piece in turn.pieces[: len(turn.context)]]
            count = len(finished.context)
            blocks, behind = finished.user[:count], finished.user[count:]
            ranking = next((piece for piece in behind if names_in(piece)), "")
            found = documents_of(sent, blocks, ranking)
            assert [text for _, text in found] == texts, "references give the documents back"
        self._extends(user, prepared, finished, fails)
        return True

    async def _run(
        self, request: ChatRequest, tenant: str, shuffle: Any, fails: bool
    ) -> tuple[Prepared, Finished]:
        conversation = request.conversation or ""
        links = self.assembler.links(request)
        turns = await self.conversations.load(tenant, conversation, links)
        request_id = RequestId(str(self.count))
        prepared = self.assembler.prepare(request, Tenant(tenant), request_id, turns=turns)
        order = list(prepared.plan.context)
        if prepared.plan.movable:
            shuffle.shuffle(order)
        finished = self.assembler.finish(prepared, tuple(order))
        kept = prepared.kept
        assert kept is not None
        if not fails:
            await self.conversations.save(
                tenant,
                conversation,
                kept.link,
                finished.turn(request_id, kept),
                plain=kept.plain,
                earlier_bytes=kept.earlier_bytes,
            )
        return prepared, finished

    def _stands_alone(self, user: int, texts: list[str], prompt: str) -> None:
        assert_resolves(prompt)
        headings = set(HEADING.findall(prompt))
        for text in texts:
            assert label_of(content_of(None, text)) in headings, "a document was lost"
            assert text[:40] in prompt, "its own words stand somewhere"
        for other in range(len(USERS)):
            if other != user:
                assert f"user{other}doc" not in prompt, "another user's document"

    def _extends(self, user: int, prepared: Prepared, finished: Finished, fails: bool) -> None:
        """A client that only goes on finds its last prompt in front of this one."""
        before = self.last[user]
        now = len(self.history[user])
        if before is not None and before[0] < now and prepared.kept is not None:
            assert finished.prompt[: len(before[1])] == before[1]
        if not fails and self.store.fault is None:
            self.last[user] = (now, finished.prompt)


class ClientOfFewWords(Client):
    """Labels made of four words: names are rarely short, and labels often not one block's."""

    def __init__(self) -> None:
        super().__init__()
        self._words = pytest.MonkeyPatch()
        self._words.setattr(annotation, "WORDS", ("oak", "river", "lamp", "salt"))

    def teardown(self) -> None:
        self._words.undo()


for machine in (Client, ClientOfFewWords):
    machine.TestCase.settings = settings(
        max_examples=40,
        stateful_step_count=12,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
TestClient = Client.TestCase
TestClientOfFewWords = ClientOfFewWords.TestCase
