"""The two workloads, as values: what is asked, with which documents, in which order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from cp_ray.demo.corpus import Block, folder_corpus, python_corpus, topic_document
from cp_ray.demo.questions import Conversation, python_questions, read_questions
from cp_ray.errors import ConfigError
from cp_ray.retrieval.bm25 import Bm25Retriever, Document, ranker_of_parts
from cp_ray.retrieval.chunking import split_evenly

TOP_K = 8
WORKERS = 5
BLOCKS_PER_WORKER = 6
CHAIN_QUESTIONS = 5


class Turn(msgspec.Struct, frozen=True):
    """One question of a conversation and the documents retrieved for it, best first."""

    question: str
    documents: tuple[Document, ...]


class Dialogue(msgspec.Struct, frozen=True):
    """A conversation ready to be sent: its turns go out strictly in order."""

    id: str
    turns: tuple[Turn, ...]


class Chain(msgspec.Struct, frozen=True):
    """Chain-of-Agents over one document. parts: blocks of each worker, in reading order."""

    source: str
    parts: tuple[tuple[Document, ...], ...]
    questions: tuple[str, ...]

    def ranker(self) -> Callable[[int, str], Sequence[Document]]:
        """Rank a part's blocks by their relevance to the question."""
        return ranker_of_parts(self.parts)


class Workloads(msgspec.Struct, frozen=True):
    """All that is asked of one arm; equal for every arm."""

    dialogues: tuple[Dialogue, ...]
    chain: Chain

    @property
    def rag_requests(self) -> int:
        """Requests of the RAG workload."""
        return sum(len(dialogue.turns) for dialogue in self.dialogues)

    @property
    def chain_requests(self) -> int:
        """Requests of Chain-of-Agents: every worker and the manager, for each question."""
        return len(self.chain.questions) * (len(self.chain.parts) + 1)

    def shortened(self) -> Workloads:
        """A quarter of the conversations and two chain questions, for a quick look."""
        quarter = self.dialogues[: max(2, len(self.dialogues) // 4)]
        chain = msgspec.structs.replace(self.chain, questions=self.chain.questions[:2])
        return Workloads(quarter, chain)


def python_workloads(seed: int) -> Workloads:
    """Our questions about the corpus that every Python ships."""
    asked = python_questions()
    document = topic_document(asked.chain.topic)
    chain = chain_over(document, asked.chain.questions)
    return Workloads(dialogues(asked.conversations, python_corpus(), seed), chain)


def own_workloads(documents: Path, questions: Path, seed: int) -> Workloads:
    """The user's folder of text and file of questions; the longest text is the chain's document.

    Raises ConfigError for what cannot be read or is too little.
    """
    blocks = folder_corpus(documents)
    conversations = read_questions(questions)
    longest = max({b.source for b in blocks}, key=lambda s: (sum(b.source == s for b in blocks), s))
    chain = chain_over(
        [block for block in blocks if block.source == longest],
        [turns[0] for turns in conversations[:CHAIN_QUESTIONS]],
    )
    return Workloads(dialogues(conversations, blocks, seed), chain)


def dialogues(
    conversations: Sequence[Conversation], blocks: Sequence[Block], seed: int
) -> tuple[Dialogue, ...]:
    """Retrieve for each turn; conversations in random order, as independent users come.

    A follow-up says little alone: the last two user turns together are the query.
    """
    retriever = Bm25Retriever([block.document() for block in blocks])
    ready = [
        Dialogue(
            f"c{number}",
            tuple(
                Turn(question, tuple(retriever.search(_query(turns, i), TOP_K)))
                for i, question in enumerate(turns)
            ),
        )
        for number, turns in enumerate(conversations)
    ]
    random.Random(seed).shuffle(ready)
    return tuple(ready)


def chain_over(document: Sequence[Block], questions: Sequence[str]) -> Chain:
    """Split the first blocks of a document evenly among the workers; one that is short, too."""
    if len(document) < WORKERS:
        raise ConfigError(
            f"--documents: the longest text has {len(document)} blocks; Chain-of-Agents needs "
            f"one of at least {WORKERS} (about {WORKERS * 50} words)"
        )
    read = [block.document() for block in document[: WORKERS * BLOCKS_PER_WORKER]]
    parts = tuple(tuple(part) for part in split_evenly(read, WORKERS))
    return Chain(document[0].source, parts, tuple(questions))


def _query(turns: Conversation, position: int) -> str:
    return " ".join(turns[max(0, position - 1) : position + 1])
