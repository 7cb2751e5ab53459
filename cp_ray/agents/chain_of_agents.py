"""Chain-of-Agents: workers read the parts of a long document in turn, a manager answers.

Each worker gets its part, the communication unit of the worker before it and the question, and
writes the next communication unit (Zhang et al., 2024; the agents of paper 7.2).

What is read by many questions stands first: all workers share one system prompt, the part is
sent as context blocks, and unit and question come after them. So a worker's blocks are reused
from question to question, wherever they were read, and in whatever order they were ranked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import openai

from cp_ray.agents.chat import Answer, ChatFailed, chat
from cp_ray.errors import ConfigError, CpRayError

Document = Mapping[str, Any]
Part = Sequence[Document]
"""The documents that one worker reads, in reading order."""
Ranker = Callable[[int, str], Sequence[Document]]
"""(number of the part, question) -> that part's documents, best first."""

TRIES = 3
"""How often an agent is asked whose answer does not come: it starts anew, its chain goes on."""
WORKER_SYSTEM = (
    "You read one part of a long document. Write short notes that help to answer the question, "
    "from the documents given and from the notes of the reader before you."
)
MANAGER_SYSTEM = "You answer a question from the notes of readers of a long document. Be brief."


class Prompt(msgspec.Struct, frozen=True):
    """What one agent is asked. user: the text that follows the blocks."""

    agent: str
    system: str
    user: str
    documents: tuple[Document, ...] = ()

    @property
    def messages(self) -> list[dict[str, str]]:
        """As the API takes them; the blocks go before the user's text."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": self.user},
        ]


class Call(msgspec.Struct, frozen=True):
    """One agent's answer: a communication unit, or the manager's. tries: 1 = the first came."""

    agent: str
    answer: Answer
    tries: int = 1


class Progress(msgspec.Struct, frozen=True):
    """Something an agent did. kind: "asked", "text" (a part of its answer), "failed", "answered".

    text: the part, the fault, or the whole answer. number: of the agent in its chain, from 1.
    """

    question: str
    agent: str
    number: int
    kind: str
    text: str = ""


class ChainAnswer(msgspec.Struct, frozen=True):
    """answer: the manager's. calls: every worker's in order, then the manager's."""

    question: str
    answer: str
    calls: tuple[Call, ...]

    @property
    def units(self) -> tuple[str, ...]:
        """Communication units in the order of the workers."""
        return tuple(call.answer.text for call in self.calls[:-1])


class AgentFailed(CpRayError):
    """One agent of the chain got no answer; the question stays open."""

    def __init__(self, agent: str, question: str, cause: ChatFailed) -> None:
        super().__init__(f"{agent} failed on {question!r}: {cause.message}")
        self.agent = agent
        self.question = question
        self.cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the fields when the error crosses a process."""
        return AgentFailed, (self.agent, self.question, self.cause)


def worker_prompt(number: int, documents: Sequence[Document], unit: str, question: str) -> Prompt:
    """Ask worker `number`, counted from 1. unit: of the worker before; empty for the first."""
    before = f"Notes of the reader before you: {unit.strip()}\n\n" if unit.strip() else ""
    return Prompt(
        agent=f"worker-{number}",
        system=WORKER_SYSTEM,
        user=f"{before}Question: {question}\n\nWrite your notes.",
        documents=tuple(documents),
    )


def manager_prompt(units: Sequence[str], question: str) -> Prompt:
    """Ask the manager, who sees no document, only the units in the order of the workers."""
    notes = "\n".join(f"Reader {i}: {unit.strip()}" for i, unit in enumerate(units, start=1))
    return Prompt("manager", MANAGER_SYSTEM, f"{notes}\n\nQuestion: {question}\n\nAnswer.")


async def chain_of_agents(
    client: openai.AsyncOpenAI,
    model: str,
    question: str,
    parts: Sequence[Part],
    *,
    rank: Ranker | None = None,
    called: Callable[[Call], None] = lambda _: None,
    progress: Callable[[Progress], None] | None = None,
    tries: int = TRIES,
    unit_tokens: int = 200,
    answer_tokens: int = 200,
) -> ChainAnswer:
    """Answer `question` from all `parts`, one worker each, in order.

    rank: orders a part's documents by relevance; default: as they stand. called: hears of
    every agent's answer as it comes, progress of all that happens. tries: for each agent; a
    failed one is asked again, with what the others wrote. Raises AgentFailed that names the
    agent, ConfigError when there is nothing to read.
    """
    if not parts or not all(parts):
        raise ConfigError("parts: Chain-of-Agents needs at least one part, and none empty")
    calls: list[Call] = []

    def tell(prompt: Prompt, kind: str, text: str = "") -> None:
        if progress is not None:
            progress(Progress(question, prompt.agent, len(calls) + 1, kind, text))

    async def attempt(prompt: Prompt, max_tokens: int) -> Answer:
        tell(prompt, "asked")
        return await chat(
            client,
            model=model,
            messages=prompt.messages,
            max_tokens=max_tokens,
            documents=prompt.documents,
            agent=prompt.agent,
            heard=(lambda text: tell(prompt, "text", text)) if progress else None,
        )

    async def ask(prompt: Prompt, max_tokens: int) -> str:
        for number in range(1, tries + 1):
            try:
                answer = await attempt(prompt, max_tokens)
                break
            except ChatFailed as error:
                tell(prompt, "failed", error.message)
                if number == tries or not error.may_pass:
                    raise AgentFailed(prompt.agent, question, error) from error
                await asyncio.sleep(0.1 * 2**number)
        tell(prompt, "answered", answer.text)
        calls.append(Call(prompt.agent, answer, number))
        called(calls[-1])
        return answer.text

    units: list[str] = []
    for number, part in enumerate(parts, start=1):
        documents = rank(number - 1, question) if rank else part
        unit = units[-1] if units else ""
        units.append(await ask(worker_prompt(number, documents, unit, question), unit_tokens))
    answer = await ask(manager_prompt(units, question), answer_tokens)
    return ChainAnswer(question, answer, tuple(calls))
