"""Offline mode on files, end to end without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cp_ray.batch import plan_batch, send_batch, write_plan
from cp_ray.core.index import ContextIndex
from cp_ray.core.offline import OfflineOrders
from cp_ray.core.types import HeadId, PlanRequest, ReplicaId, ReplicaInfo, RequestId
from cp_ray.errors import ConfigError
from cp_ray.router.api import Document
from cp_ray.router.auth import DEFAULT, Tenant
from cp_ray.router.placing import blocks_of


def body(*documents: str) -> str:
    message = {"role": "user", "content": "q"}
    return json.dumps({"model": "m", "messages": [message], "documents": list(documents)})


def test_the_file_comes_back_grouped_with_every_line_as_it_was(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given = [("b", "a", "c"), ("x", "y"), ("b", "f", "a"), ("y", "x", "z"), ("d", "a", "o")]
    lines = [body(*documents) for documents in given]
    source.write_text("\n".join(lines))
    planned = plan_batch(source)
    assert write_plan(planned, output) == 0
    assert sorted(output.read_text().splitlines()) == sorted(lines)
    groups = ["a" in item.body["documents"] for item in planned]
    assert groups == sorted(groups, key=groups.index), "what shares nothing is not mixed"
    names = [item.id for item in planned]
    assert abs(names.index("line-1") - names.index("line-3")) == 1, "they share two blocks"


def test_an_offline_index_orders_online_requests_alike(tmp_path: Path) -> None:
    source, file = tmp_path / "in.jsonl", tmp_path / "index"
    source.write_text("\n".join([body("b", "a", "c"), body("b", "f", "a")]))
    plan_batch(source, file)
    index = ContextIndex(offline=OfflineOrders.load(file.read_bytes()))
    index.set_replicas([ReplicaInfo(ReplicaId("r"), 16, 1000)])
    orders = []
    for number, texts in enumerate((("c", "a", "b"), ("a", "b", "f"))):
        blocks, _ = blocks_of([Document(text=text) for text in texts], Tenant(DEFAULT))
        named = {block.id: text for block, text in zip(blocks, texts, strict=True)}
        request = PlanRequest(
            RequestId(str(number)), HeadId(str(number)), 5, tuple(named), (9,) * 3, 1
        )
        (step,) = index.plan([request], 0.0)
        orders.append([named[block] for block in step.context])
    assert orders[0][:2] == orders[1][:2], "both begin as the file's clustering has them"
    assert set(orders[0][:2]) == {"a", "b"}


def test_the_openai_batch_format_keeps_its_ids(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"custom_id": "mine", "body": json.loads(body("a"))}))
    assert [item.id for item in plan_batch(source)] == ["mine"]


def test_an_output_that_cannot_be_written_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(body("a"))
    missing = tmp_path / "no" / "out.jsonl"
    with pytest.raises(ConfigError, match="cannot be written"):
        send_batch(plan_batch(source), missing, "http://127.0.0.1:1", 1, "none")


def test_a_server_that_is_not_there_fails_each_line_and_keeps_its_id(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(body("a") + "\n" + body("b"))
    assert send_batch(plan_batch(source), output, "http://127.0.0.1:1", 2, "none") == 1
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert {answer["custom_id"] for answer in answers} == {"line-1", "line-2"}
    assert all("127.0.0.1:1" in answer["error"]["message"] for answer in answers)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no request"),
        ("{", "line 1"),
        (body("a") + "\n" + json.dumps({"model": "m", "messages": []}), "line-2"),
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
