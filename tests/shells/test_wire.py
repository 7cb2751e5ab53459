"""The wire format, checked against a second implementation of msgpack."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cp_ray.core.packed import packed
from cp_ray.core.types import (
    BlockId,
    Dump,
    DumpRequest,
    Eviction,
    EvictionReport,
    Feedback,
    FirstToken,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    ReplicaMessage,
    RequestId,
    Routed,
    Settled,
    Step,
)
from cp_ray.errors import WireError
from cp_ray.store.wire import VERSION, decode, encode
from cp_ray.workers.engine import Chunk, EngineInfo, EngineRequest, Sampling

A, B = BlockId("a"), BlockId("b")
R, Q = ReplicaId("r1"), RequestId("q1")

MESSAGES: list[tuple[Any, Any, Any]] = [
    (
        PlanRequest(Q, HeadId("h"), 7, (A, B), (10, 20), 3),
        PlanRequest,
        ["q1", "h", 7, ["a", "b"], [10, 20], 3, True, None, None, [], None],
    ),
    (
        Step(Q, (B, A), R, "h/0", (0, 1), 16, "holder"),
        Step,
        ["q1", ["b", "a"], "r1", "h/0", [0, 1], 16, "holder", 0.0, 0.0],
    ),
    (ReplicaInfo(R, 16, 4096, 8192), ReplicaInfo, ["r1", 16, 4096, 8192]),
    (
        EvictionReport(R, 2, 5, (Eviction(Q, 32), Eviction(RequestId("q2"), 0))),
        ReplicaMessage,
        ["evicted", "r1", 2, 5, [["q1", 32], ["q2", 0]]],
    ),
    (Dump(R, 2, 6, {Q: 32}), ReplicaMessage, ["dump", "r1", 2, 6, {"q1": 32}]),
    (DumpRequest(R, rebuild=True), DumpRequest, ["dump_request", "r1", True]),
    (Routed(Q, R), Feedback, ["routed", "q1", "r1"]),
    (FirstToken(Q), Feedback, ["first_token", "q1"]),
    (Settled(Q, 48, ok=True), Feedback, ["settled", "q1", 48, True, None]),
    (
        [Routed(Q, R), FirstToken(Q)],
        list[Feedback],
        [["routed", "q1", "r1"], ["first_token", "q1"]],
    ),
    (Chunk("hi", 1, 9, 4, "stop"), Chunk, ["hi", 1, 9, 4, "stop", None]),
    (
        EngineRequest(Q, packed([1, 2, 3]), Sampling(max_tokens=5)),
        EngineRequest,
        {
            "request_id": "q1",
            "prompt": packed([1, 2, 3]),
            "sampling": {"max_tokens": 5},
            "cache_salt": None,
            "traceparent": None,
            "estimated_ttft_s": 0.0,
            "estimated_prefill_s": 0.0,
            "ahead": False,
        },
    ),
    (
        EngineInfo("simulated", "m", 16, 4096, 2048, simulated=True, step_tokens=512),
        EngineInfo,
        {
            "engine": "simulated",
            "model": "m",
            "page_size": 16,
            "capacity_tokens": 4096,
            "step_tokens": 512,
            "max_model_len": 2048,
            "simulated": True,
            "timing": "",
        },
    ),
]
IDS = [type(message).__name__ for message, _, _ in MESSAGES]


@pytest.mark.parametrize(("message", "type_", "plain"), MESSAGES, ids=IDS)
def test_a_message_comes_back_equal(message: Any, type_: Any, plain: Any) -> None:
    assert decode(encode(message), type_) == message


@pytest.mark.parametrize(("message", "type_", "plain"), MESSAGES, ids=IDS)
def test_any_msgpack_reader_reads_a_message(message: Any, type_: Any, plain: Any) -> None:
    data = encode(message)
    assert data[0] == VERSION
    assert msgpack.unpackb(data[1:]) == plain


@pytest.mark.parametrize(("message", "type_", "plain"), MESSAGES, ids=IDS)
def test_a_message_of_any_msgpack_writer_is_read(message: Any, type_: Any, plain: Any) -> None:
    assert decode(bytes([VERSION]) + msgpack.packb(plain), type_) == message


@pytest.mark.parametrize(("message", "type_", "plain"), MESSAGES, ids=IDS)
def test_every_truncation_is_a_wire_error(message: Any, type_: Any, plain: Any) -> None:
    data = encode(message)
    for end in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:end], type_)


def test_another_version_is_a_wire_error_that_names_both() -> None:
    data = encode(ReplicaInfo(R, 16, 4096))
    with pytest.raises(WireError, match="version 9, this process reads 1"):
        decode(b"\x09" + data[1:], ReplicaInfo)


def test_another_message_type_is_a_wire_error() -> None:
    with pytest.raises(WireError):
        decode(encode(Routed(Q, R)), EvictionReport)


def test_trailing_bytes_are_a_wire_error() -> None:
    with pytest.raises(WireError):
        decode(encode(ReplicaInfo(R, 16, 4096)) + b"\x00", ReplicaInfo)


@given(st.binary(max_size=200), st.booleans())
def test_noise_never_raises_anything_else(noise: bytes, versioned: bool) -> None:
    data = bytes([VERSION]) + noise if versioned else noise
    for type_ in (EvictionReport, Feedback, EngineRequest, list[Step]):
        try:
            decode(data, type_)
        except WireError:
            continue
