"""Send the workloads and keep one record of every request.

RAG is a closed loop of users: each takes the next conversation, asks its turns strictly in
order with the whole history, and then takes another. Chain-of-Agents asks all its questions
at once; the agents of one question follow each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import msgspec
import openai

from cp_ray.agents.chain_of_agents import AgentFailed, Call, chain_of_agents
from cp_ray.agents.chat import Answer, ChatFailed, chat
from cp_ray.demo.workloads import Chain, Dialogue

RAG_SYSTEM = (
    "You answer questions about a documentation. Use only the documents given, and be brief."
)
RAG_TOKENS = 8
UNIT_TOKENS = 12
ANSWER_TOKENS = 16


class Record(msgspec.Struct, frozen=True):
    """One request: the answer, or why there is none."""

    name: str
    answer: Answer | None
    error: str | None = None


Seen = Callable[[Record], None]
"""Hears of every request as it ends (a progress bar)."""


class Ask(Protocol):
    """How one chat is sent: `chat`, or something around it that sends again."""

    def __call__(
        self,
        client: openai.AsyncOpenAI,
        *,
        model: str,
        messages: Sequence[dict[str, str]],
        max_tokens: int,
        documents: Sequence[object],
        conversation: str | None,
    ) -> Awaitable[Answer]:
        """Raises ChatFailed."""


async def warm_up(client: openai.AsyncOpenAI, model: str, replicas: int) -> None:
    """Open connections and load code paths in every process, in every arm alike; not measured.

    The texts occur in no workload, so no cache gets warm. Raises ChatFailed.
    """
    await asyncio.gather(
        *(
            chat(
                client,
                model=model,
                messages=[{"role": "user", "content": f"{number}?"}],
                max_tokens=2,
                documents=[{"text": f"Call number {number}."}],
            )
            for number in range(3 * replicas)
        )
    )


async def run_rag(
    client: openai.AsyncOpenAI,
    model: str,
    dialogues: Iterable[Dialogue],
    *,
    users: int,
    seen: Seen,
    # mypy does not match chat's wider types (Mapping, further optional arguments) to Ask's.
    ask: Ask = chat,  # type: ignore[assignment]
) -> list[Record]:
    """Ask everything; a request that fails fails the rest of its conversation, nothing else."""
    waiting = iter(dialogues)
    records: list[Record] = []

    def keep(record: Record) -> None:
        records.append(record)
        seen(record)

    async def user() -> None:
        # All users draw from one iterator: nothing awaits while one of them does.
        for dialogue in waiting:
            await _converse(client, model, dialogue, ask, keep)

    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(user())
    return records


async def _converse(
    client: openai.AsyncOpenAI, model: str, dialogue: Dialogue, ask: Ask, keep: Seen
) -> None:
    history = [{"role": "system", "content": RAG_SYSTEM}]
    broken: str | None = None
    for number, turn in enumerate(dialogue.turns, start=1):
        name = f"{dialogue.id}/{number}"
        if broken is not None:
            keep(Record(name, None, f"not sent: {broken}"))
            continue
        history.append({"role": "user", "content": turn.question})
        try:
            answer = await ask(
                client,
                model=model,
                messages=history,
                max_tokens=RAG_TOKENS,
                documents=turn.documents,
                conversation=dialogue.id if len(dialogue.turns) > 1 else None,
            )
        except ChatFailed as error:
            broken = f"turn {number} failed"
            keep(Record(name, None, error.message))
            continue
        history.append({"role": "assistant", "content": answer.text})
        keep(Record(name, answer))


async def run_chain(
    client: openai.AsyncOpenAI, model: str, chain: Chain, *, seen: Seen
) -> list[Record]:
    """Ask all questions at once; agents that a failure left without a call count as failed."""
    records: list[Record] = []
    agents = [f"worker-{i}" for i in range(1, len(chain.parts) + 1)] + ["manager"]

    async def one(number: int, question: str) -> None:
        def keep(record: Record) -> None:
            records.append(record)
            seen(record)

        def called(call: Call) -> None:
            keep(Record(f"q{number}/{call.agent}", call.answer))

        try:
            await chain_of_agents(
                client,
                model,
                question,
                chain.parts,
                rank=chain.ranker(),
                called=called,
                unit_tokens=UNIT_TOKENS,
                answer_tokens=ANSWER_TOKENS,
            )
        except AgentFailed as error:
            for agent in agents[agents.index(error.agent) :]:
                keep(Record(f"q{number}/{agent}", None, error.message))

    async with asyncio.TaskGroup() as group:
        for number, question in enumerate(chain.questions):
            group.create_task(one(number, question))
    return records
