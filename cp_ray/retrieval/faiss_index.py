"""Dense retrieval over FAISS: from a question to the `documents` of one request, best first.

FAISS is an extra: pip install 'cp-ray[faiss]'. The embedder is yours: any function from texts to
rows of numbers (`hashed_words` where there is none).
"""

from __future__ import annotations

from collections.abc import Sequence

from cp_ray.errors import ConfigError, InvalidRequest
from cp_ray.retrieval.bm25 import Document
from cp_ray.retrieval.embedding import Embed, normalized


class FaissRetriever:
    """Ranks a fixed list of documents by cosine; the exact search of `IndexFlatIP`."""

    def __init__(self, documents: Sequence[Document], embed: Embed) -> None:
        """Embed and index `documents`; raises ConfigError without FAISS, documents or their ids."""
        try:
            import faiss
        except ImportError as error:
            raise ConfigError(
                "FaissRetriever needs FAISS: pip install 'cp-ray[faiss]'", param="retrieval"
            ) from error
        if not documents:
            raise ConfigError("documents: none to index")
        if len({document["id"] for document in documents}) != len(documents):
            raise ConfigError("documents: every id must be unique")
        self._documents = tuple(documents)
        self._embed = embed
        texts = [f"{document.get('title', '')}\n{document['text']}" for document in documents]
        rows = normalized(embed(texts))
        self._index = faiss.IndexFlatIP(rows.shape[1])
        self._index.add(rows)

    def search(self, question: str, k: int) -> list[Document]:
        """Return the `k` nearest documents, best first, or all where there are fewer."""
        if k < 1:
            raise InvalidRequest(f"k must be at least 1, not {k}", param="k")
        _, places = self._index.search(normalized(self._embed([question])), k)
        return [self._documents[place] for place in places[0] if place >= 0]
