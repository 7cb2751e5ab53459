"""Offline mode on files, end to end without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cp_ray.batch import plan_batch
from cp_ray.core.index import ContextIndex
from cp_ray.core.offline import OfflineOrders
from cp_ray.core.types import HeadId, PlanRequest, ReplicaId, ReplicaInfo, RequestId
from cp_ray.errors import ConfigError
from cp_ray.router.api import Document
from cp_ray.router.assembly import blocks_of
from cp_ray.router.auth import DEFAULT, Tenant


def body(*documents: str) -> str:
    message = {"role": "user", "content": "q"}
    return json.dumps({"model": "m", "messages": [message], "documents": list(documents)})


def test_the_file_comes_back_ordered_and_grouped_with_every_document(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    given = [("b", "a", "c"), ("x", "y"), ("b", "f", "a"), ("y", "x", "z"), ("d", "a", "o")]
    source.write_text("\n".join(body(*documents) for documents in given))
    planned = [tuple(b["documents"]) for b in plan_batch(source)]
    assert sorted(map(sorted, planned)) == sorted(map(sorted, given))
    first_blocks = [documents[0] for documents in planned]
    assert first_blocks in (["a", "a", "a", "x", "x"], ["a", "a", "a", "y", "y"])
    assert planned[0][:2] == planned[1][:2], "contexts that share two blocks are neighbours"


def test_an_offline_index_orders_online_requests_alike(tmp_path: Path) -> None:
    source, file = tmp_path / "in.jsonl", tmp_path / "index"
    source.write_text("\n".join([body("b", "a", "c"), body("b", "f", "a")]))
    first = plan_batch(source, file)[0]["documents"]
    index = ContextIndex(offline=OfflineOrders.load(file.read_bytes()))
    index.set_replicas([ReplicaInfo(ReplicaId("r"), 16, 1000)])
    asked = tuple(Document(text=text) for text in reversed(first))
    blocks, _ = blocks_of(asked, Tenant(DEFAULT))
    ids = tuple(block.id for block in blocks)
    request = PlanRequest(RequestId("q"), HeadId("h"), 5, ids, (9,) * len(ids), 1)
    (step,) = index.plan([request], 0.0)
    assert step.context == tuple(reversed(ids))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no request"),
        ("{", "line 1"),
        (body("a") + "\n" + json.dumps({"model": "m", "messages": []}), "line 2"),
        (json.dumps({"model": "m", "prompt": "p", "documents": [7]}), "documents"),
    ],
)
def test_a_bad_file_names_the_line_and_the_fault(tmp_path: Path, text: str, says: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(text)
    with pytest.raises(ConfigError, match=says):
        plan_batch(source)


def test_a_file_that_is_no_index_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigError, match="run-batch --plan-only"):
        OfflineOrders.load(b"hello")
