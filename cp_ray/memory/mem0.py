"""Mem0: memories of a user as the `documents` of one request, best first.

Mem0 is an extra: pip install 'cp-ray[memory]'. A memory's text is its block, so a memory that two
questions find is the same block in both, whatever its rank and score. `open_memory` needs no
network: FAISS in a folder, an embedder of yours, nothing that a language model infers
(`remember`). With `llm_url` Mem0 uses an OpenAI endpoint, ours for instance, to extract memories;
that takes a capable model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from cp_ray.errors import ConfigError, InvalidRequest
from cp_ray.retrieval.bm25 import Document
from cp_ray.retrieval.embedding import Embed, hashed_words


class Memory(Protocol):
    """What is used of `mem0.Memory`, version 2."""

    def add(self, messages: Any, *, user_id: str, infer: bool) -> Any:
        """Keep texts, or with `infer` what a model makes of them."""

    def search(
        self, query: str, *, top_k: int, filters: dict[str, str], threshold: float
    ) -> dict[str, Any]:
        """`{"results": [{"id", "memory", "score"}]}`, best first."""


class MemoryRetriever:
    """Memories of one user at a time; users never see each other's."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def remember(self, user: str, texts: Sequence[str]) -> None:
        """Keep texts word for word; no model is asked."""
        for text in texts:
            self._memory.add([{"role": "user", "content": text}], user_id=user, infer=False)

    def search(self, user: str, question: str, k: int) -> list[Document]:
        """Return at most `k` memories of the user, best first."""
        if k < 1:
            raise InvalidRequest(f"k must be at least 1, not {k}", param="k")
        answer = self._memory.search(question, top_k=k, filters={"user_id": user}, threshold=0.0)
        return [Document(id=one["id"], text=one["memory"]) for one in answer["results"]]


def open_memory(
    folder: Path,
    embed: Embed = hashed_words,
    *,
    llm_url: str | None = None,
    llm_model: str = "smollm2",
) -> Memory:
    """A Mem0 memory in a folder. Raises ConfigError without Mem0 or FAISS."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MEM0_TELEMETRY", "False")
    os.environ.setdefault("MEM0_DIR", str(folder))
    try:
        import faiss  # noqa: F401 - Mem0 looks for it late, and says less
        import mem0
        from mem0.embeddings.base import EmbeddingBase
    except ImportError as error:
        raise ConfigError(
            f"open_memory needs Mem0 and FAISS: pip install 'cp-ray[memory]' ({error})",
            param="memory",
        ) from error

    class Embedder(EmbeddingBase):
        def embed(self, text: str, memory_action: str | None = None) -> list[float]:  # noqa: ARG002 - Mem0's
            rows: list[list[float]] = embed([text]).tolist()
            return rows[0]

    url = f"{(llm_url or 'http://127.0.0.1:8000').rstrip('/')}/v1"
    openai = {"api_key": "none", "openai_base_url": url, "model": llm_model}
    (dimensions,) = embed(["one"]).shape[1:]
    config = {
        "vector_store": {
            "provider": "faiss",
            "config": {
                "path": str(folder / "vectors"),
                "collection_name": "memories",
                "embedding_model_dims": dimensions,
                "distance_strategy": "cosine",
            },
        },
        "llm": {"provider": "openai", "config": openai},
        # A placeholder that asks nobody: Mem0 takes no embedder but by name, so it is put in below.
        "embedder": {"provider": "openai", "config": {"api_key": "none"}},
        "history_db_path": str(folder / "history.db"),
    }
    memory: Any = mem0.Memory.from_config(config)
    memory.embedding_model = Embedder()
    return memory
