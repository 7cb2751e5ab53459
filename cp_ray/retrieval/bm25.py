"""BM25 retrieval over `bm25s`: from a question to the `documents` of one request, best first."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NotRequired, TypedDict

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN

from cp_ray.errors import ConfigError, InvalidRequest

_ASKING = frozenset(
    re.findall(
        r"\w+",
        "about can could did do does don happen happens have how i me my should so to use using "
        "want was we were what when where which why work works would you your",
    )
)
_STOP_WORDS = sorted({*STOPWORDS_EN, *_ASKING})
"""English stop words, and the words with which people ask: they say nothing of the subject."""


class Document(TypedDict):
    """One entry of `documents` in a chat completion: the context block before it is rendered."""

    id: str
    text: str
    title: NotRequired[str]


class Bm25Retriever:
    """Ranks a fixed list of documents; a word of the title counts as two of the text.

    Equal scores keep the order of the list, so the same question always gets the same documents.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        """Index `documents`; raises ConfigError when there is no word to index or an id repeats."""
        ids = [document["id"] for document in documents]
        if len(set(ids)) != len(ids):
            raise ConfigError("documents: every id must be unique")
        self._documents = tuple(documents)
        words = _words(
            [f"{_title(document)} {_title(document)} {document['text']}" for document in documents]
        )
        if not any(words):
            raise ConfigError("documents: no text to index; give at least one document with words")
        self._index = bm25s.BM25()
        self._index.index(words, show_progress=False)

    def search(self, question: str, k: int) -> list[Document]:
        """Return at most `k` documents that share a word with the question, best first."""
        if k < 1:
            raise InvalidRequest(f"k must be at least 1, not {k}", param="k")
        known = [word for word in _words([question])[0] if word in self._index.vocab_dict]
        if not known:
            return []
        scores = self._index.get_scores(known)
        best = np.argsort(-scores, kind="stable")[:k]
        return [self._documents[i] for i in best if scores[i] > 0]

    def rank(self, question: str) -> list[Document]:
        """All documents, best first; those that share no word follow in the list's order."""
        found = self.search(question, len(self._documents))
        ids = {document["id"] for document in found}
        return found + [d for d in self._documents if d["id"] not in ids]


def ranker_of_parts(
    parts: Sequence[Sequence[Document]],
) -> Callable[[int, str], list[Document]]:
    """(number of a part, question) -> that part's documents, best first."""
    retrievers = [Bm25Retriever(part) for part in parts]
    return lambda part, question: retrievers[part].rank(question)


def _title(document: Document) -> str:
    return document.get("title", "")


def _words(texts: list[str]) -> list[list[str]]:
    """Lower-case words of two letters and more in the singular, without stop words."""
    split: list[list[str]] = bm25s.tokenize(
        texts, stopwords=_STOP_WORDS, return_ids=False, show_progress=False
    )
    return [[_singular(word) for word in words] for words in split]


def _singular(word: str) -> str:
    """Harman's S-stemmer (1991): "keys" finds "key", "queries" finds "query"."""
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is", "__")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1]
