"""Mem0, where it is installed: memories become blocks, offline, without a language model."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from cp_ray.errors import InvalidRequest
from cp_ray.memory.mem0 import MemoryRetriever, open_memory
from tests.shells.http_support import HTTP, PAGE, Bench, running
from tests.shells.test_tenants import cached, over_simulated

os.environ["MEM0_TELEMETRY"] = "False"  # it is read when Mem0 is imported
pytest.importorskip("mem0", reason="extra `memory` is not installed")
pytest.importorskip("faiss", reason="extra `memory` is not installed")
ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("CP_RAY_DATA", ROOT.parent / "shared" / "data"))
LOCOMO = DATA / "samples" / "locomo_3conv_CC-BY-NC"


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> MemoryRetriever:
    return MemoryRetriever(open_memory(tmp_path_factory.mktemp("mem0")))


def test_memories_are_found_by_their_words_and_only_by_their_user(
    retriever: MemoryRetriever,
) -> None:
    retriever.remember("ann", ["Ann went sailing in May.", "Ann has a cat named Tom."])
    retriever.remember("ben", ["Ben went sailing in June."])
    found = retriever.search("ann", "who went sailing", 2)
    assert found[0]["text"] == "Ann went sailing in May."
    assert [one["text"] for one in retriever.search("ben", "sailing", 5)] == [
        "Ben went sailing in June."
    ]
    with pytest.raises(InvalidRequest):
        retriever.search("ann", "x", 0)


def test_tenants_with_the_same_memories_share_none_of_them(retriever: MemoryRetriever) -> None:
    """Same texts and questions; each tenant's application has user names of its own."""
    texts = [f"Memory {n}: " + " ".join(f"m{n}w{word}" for word in range(60)) for n in range(3)]
    asked: dict[str, list[int]] = {}
    with running(over_simulated()) as bench:
        for tenant in ("acme", "bolt"):
            retriever.remember(f"{tenant}/ann", texts)
            found = retriever.search(f"{tenant}/ann", "m1w1 m1w2", 3)
            documents: list[dict[str, Any]] = [dict(one) for one in found]
            assert sorted(one["text"] for one in documents) == texts
            key = f"key-of-{tenant}"
            asked[tenant] = [cached(bench, key, documents), cached(bench, key, documents)]
        blocks = [set(step.context) for step in bench.dispatcher.steps if step is not None]
    assert blocks[0] == blocks[1] and blocks[2] == blocks[3]
    assert not blocks[0] & blocks[2], "no block of both"
    for first, second in asked.values():
        assert first <= PAGE, "at most its own template"
        assert second > 100


@pytest.mark.skipif(not LOCOMO.exists(), reason="no samples: set CP_RAY_DATA to their folder")
def test_questions_of_one_user_share_their_memories(retriever: MemoryRetriever) -> None:
    with gzip.open(LOCOMO / "blocks.jsonl.gz", "rt") as lines:
        memories = [json.loads(line)["text"] for line in lines][:60]
    with gzip.open(LOCOMO / "requests.jsonl.gz", "rt") as lines:
        questions = [json.loads(line)["question"] for line in lines][:12]
    retriever.remember("conv-26", memories)
    found = [retriever.search("conv-26", question, 20) for question in questions]
    cached = {}
    for reuse in ("plain", "full"):
        cached[reuse] = 0
        with running(Bench(reuse=reuse)) as bench:
            for question, documents in zip(questions, found, strict=True):
                body = {
                    "model": "sim",
                    "messages": [{"role": "user", "content": question}],
                    "documents": documents,
                }
                usage = HTTP.post(f"{bench.url}/v1/chat/completions", json=body).json()["usage"]
                cached[reuse] += usage["prompt_tokens_details"]["cached_tokens"]
    assert cached["full"] > 2 * cached["plain"]
