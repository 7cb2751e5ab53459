"""BM25 retrieval over `bm25s`: from a question to the `documents` of one request, best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict

import bm25s
import numpy as np

from cp_ray.errors import ConfigError, InvalidRequest


class Document(TypedDict):
    """One entry of `documents` in a chat completion: the context block before it is rendered."""

    id: str
    text: str
    title: NotRequired[str]


class Bm25Retriever:
    """Ranks a fixed list of documents; title and text both count.

    Equal scores keep the order of the list, so the same question always gets the same documents.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        """Index `documents`; raises ConfigError when there is no word to index or an id repeats."""
        ids = [document["id"] for document in documents]
        if len(set(ids)) != len(ids):
            raise ConfigError("documents: every id must be unique")
        self._documents = tuple(documents)
        words = _words(
            [f"{document.get('title', '')} {document['text']}" for document in documents]
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


def _words(texts: list[str]) -> list[list[str]]:
    """Lower-case words of two letters and more, without English stop words."""
    words: list[list[str]] = bm25s.tokenize(texts, return_ids=False, show_progress=False)
    return words
