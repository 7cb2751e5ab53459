"""What reading a body takes, beside what the body is: its limit is what bounds memory."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from cp_ray.errors import InvalidRequest
from cp_ray.router.limits import MOST_NESTED, MOST_OF_KEY, read_json

SIZE = 200_000


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"k" * SIZE: [1] * (SIZE // 3)}, id="a long key, many elements"),
        pytest.param({"k" * SIZE: [""] * (SIZE // 4)}, id="a long key, many strings"),
        pytest.param({"k" * 1000 + str(n): {"a": "b"} for n in range(SIZE // 1000)}, id="keys"),
    ],
)
def test_it_takes_a_few_times_the_body(value: object) -> None:
    body = json.dumps(value).encode()
    tracemalloc.start()
    try:
        read_json(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * len(body)


def nested(levels: int, inmost: str = '"text"') -> str:
    return '{"a": ' + "[" * (levels - 1) + inmost + "]" * (levels - 1) + "}"


def test_levels_are_bounded_and_a_fault_says_where() -> None:
    read_json(nested(MOST_NESTED))
    for inmost in ('"text"', "1", ""):
        with pytest.raises(InvalidRequest, match="nested too deep"):
            read_json(nested(MOST_NESTED + 1, inmost))
    for value, where in (
        ({"a": [{"b": "x\0"}]}, "a.0.b"),
        ({"a": {"b\0": 1}}, "a"),
        ({"a\0": 1}, "body"),
        ({"a": [1, {"b": []}, "\ud800"]}, "a.2"),
        ({"k" * 5000: "\0"}, "k" * MOST_OF_KEY),
    ):
        with pytest.raises(InvalidRequest) as caught:
            read_json(json.dumps(value))
        assert caught.value.param == where
