"""A record says how many tokens the first blocks have, and how many blocks are left."""

from __future__ import annotations

from cp_ray.core.record import Record, record_of
from cp_ray.core.types import BlockId, HeadId, PlanRequest, ReplicaId, RequestId

IDS = tuple(BlockId(name) for name in "abc")
TOKENS = dict(zip(IDS, (7, 100_000, 5), strict=True))


def record(*names: str) -> Record:
    context = tuple(BlockId(name) for name in names)
    lengths = tuple(TOKENS[block] for block in context)
    request = PlanRequest(RequestId("r"), HeadId("h"), 20, context, lengths, 3)
    return record_of(request, context, TOKENS, ReplicaId("a"), 0)


def test_tokens_of_the_first_blocks_add_up() -> None:
    one = record("b", "a", "c")
    assert one.blocks == 3
    assert [one.tokens_of(count) for count in range(4)] == [0, 100_000, 100_007, 100_012]
    assert one.block_tokens(2) == (100_000, 7)
    assert one.tokens_left == 20 + 100_012 + 3


def test_only_whole_blocks_are_left() -> None:
    one = record("a", "b")
    for left, blocks in ((19, -1), (20, 0), (26, 0), (27, 1), (100_026, 1), (100_027, 2)):
        one.tokens_left = left
        assert one.blocks_left() == blocks


def test_a_request_without_blocks_has_its_head_only() -> None:
    one = record()
    assert (one.blocks, one.blocks_left(), one.tokens_of(0)) == (0, 0, 0)
