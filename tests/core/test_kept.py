"""What comes back after a restart: the same records, doubted until the dump, never more."""

from __future__ import annotations

import pytest

from cp_ray.core.index import ContextIndex
from cp_ray.core.kept import Batch, Kept, Packer, Recaller, kept, pack, recall
from cp_ray.core.types import (
    BlockId,
    Dump,
    DumpRequest,
    Eviction,
    EvictionReport,
    HeadId,
    PlanRequest,
    ReplicaId,
    ReplicaInfo,
    RequestId,
    Settled,
    Step,
)
from cp_ray.errors import WireError
from cp_ray.store import wire

A, B = ReplicaId("a"), ReplicaId("b")
INFOS = [ReplicaInfo(A, 1, 10_000), ReplicaInfo(B, 1, 10_000)]


def request(name: str, *blocks: str) -> PlanRequest:
    context = tuple(BlockId(block) for block in blocks)
    lengths = tuple(10 * len(block) for block in blocks)
    return PlanRequest(RequestId(name), HeadId("h"), 5, context, lengths, 3)


def index_with(*requests: PlanRequest) -> ContextIndex:
    index = ContextIndex()
    index.set_replicas(INFOS)
    for one in requests:
        index.plan([one], 0.0)
        index.hear(Settled(one.request_id, 0, ok=True), 0.0)
    return index


def all_kept(index: ContextIndex) -> list[Kept]:
    return [entry for name in index.memory.records if (entry := kept(index, name)) is not None]


def restarted(index: ContextIndex) -> ContextIndex:
    new = ContextIndex()
    new.set_replicas(INFOS)
    message = wire.encode(pack(all_kept(index)))
    recall(new, wire.decode(message, Batch))
    new.check()
    return new


def probe(index: ContextIndex, *blocks: str) -> Step:
    (step,) = index.plan([request("probe", *blocks)], 0.0)
    index.hear(Settled(RequestId("probe"), 0, ok=False), 0.0)
    return step


def confirm(index: ContextIndex, held: dict[str, int] | None = None) -> None:
    """Answer all dump requests: everything recorded is held, or what `held` says."""
    for asked in index.dump_requests(0.0):
        names = {n: r.tokens_left for n, r in index.memory.records.items()}
        told = {RequestId(name): left for name, left in (held or names).items()}
        index.apply(Dump(asked.replica, 4, 17, told))


def test_what_was_kept_predicts_as_before_once_the_dump_has_confirmed_it() -> None:
    index = index_with(request("1", "x", "yy", "zzz"), request("2", "x", "w"), request("3", "q"))
    new = restarted(index)
    assert all_kept(new) == all_kept(index)
    confirm(new)
    for blocks in (("x", "yy", "zzz"), ("yy", "x", "new"), ("w", "x"), ("q",)):
        assert probe(new, *blocks) == probe(index, *blocks)


def test_nothing_is_believed_before_the_dump() -> None:
    new = restarted(index_with(request("1", "x", "yy")))
    assert probe(new, "x", "yy").reused_tokens == 0
    assert {asked.rebuild for asked in new.dump_requests(0.0)} == {False}


def test_what_the_dump_does_not_list_is_gone_and_the_rest_is_shortened() -> None:
    index = index_with(request("1", "x", "yy"), request("2", "q", "rr"))
    new = restarted(index)
    confirm(new, {"1": 17})
    assert probe(new, "x", "yy").reused_tokens == 15
    assert probe(new, "q", "rr").reused_tokens <= 5, "at most the head, which request 1 holds"
    new.check()


def test_a_replica_that_never_dumps_is_forgotten() -> None:
    new = restarted(index_with(request("1", "x")))
    new.dump_requests(0.0)
    new.dump_requests(100.0)
    assert not new.memory.records


def test_what_has_not_ended_or_failed_is_not_kept() -> None:
    index = index_with()
    index.plan([request("running", "x"), request("failed", "y")], 0.0)
    index.hear(Settled(RequestId("failed"), 0, ok=False), 0.0)
    assert all_kept(index) == []


def test_an_evicted_tail_stays_evicted() -> None:
    index = index_with(request("1", "x", "yy", "zzz"))
    replica = index.memory.records[RequestId("1")].replica
    index.apply(EvictionReport(replica, 0, 0, (Eviction(RequestId("1"), 20),)))
    (entry,) = all_kept(index)
    assert (entry.context, entry.block_tokens, entry.tokens_left) == (("x",), (10,), 20)
    assert all_kept(restarted(index)) == [entry]


def test_a_replica_that_left_meanwhile_is_not_recalled() -> None:
    index = index_with(request("1", "x"))
    new = ContextIndex()
    new.set_replicas([ReplicaInfo(ReplicaId("other"), 1, 10_000)])
    assert recall(new, pack(all_kept(index))) == 0
    assert new.dump_requests(0.0) == ()


def test_repeated_messages_change_nothing() -> None:
    index = index_with(request("1", "x"), request("2", "y"))
    new = restarted(index)
    assert recall(new, pack(all_kept(index))) == 0
    new.check()


def test_beyond_its_capacity_the_oldest_goes() -> None:
    entries = all_kept(index_with(*(request(str(n), f"b{n}") for n in range(5))))
    new = ContextIndex(max_records=2)
    new.set_replicas(INFOS)
    recall(new, pack(entries))
    assert list(new.memory.records) == ["3", "4"]
    new.check()


def test_a_dump_that_was_asked_for_before_all_came_back_is_not_the_last_word() -> None:
    entries = all_kept(index_with(request("1", "x"), request("2", "x", "y")))
    new = ContextIndex()
    new.set_replicas(INFOS)
    recall(new, pack(entries[:1]))
    (asked,) = new.dump_requests(0.0)
    new.apply(Dump(asked.replica, 0, 3, {RequestId("1"): 18}))
    recall(new, pack(entries[1:]))
    assert probe(new, "x", "y").reused_tokens == 0
    assert new.dump_requests(0.0) == (DumpRequest(asked.replica),)


def test_rows_that_cannot_be_are_left_out() -> None:
    whole = pack(all_kept(index_with(request("1", "x", "yy"))))
    encoded = wire.encode(whole)
    for find, put in (
        (b"\x00\x05", b"\x09\x05"),  # a head that is not in the table
        (b"\x92\x00\x01", b"\x92\x00\x00"),  # a block twice
        (b"\x92\x00\x01", b"\x92\x00\x07"),  # a block that is not in the table
        (b"\x26", b"\x22"),  # fewer tokens left than its blocks have
    ):
        broken = encoded.replace(find, put)
        assert broken != encoded
        new = ContextIndex()
        new.set_replicas(INFOS)
        assert recall(new, wire.decode(broken, Batch)) == 0
        assert recall(new, whole) == 1
        new.check()


def test_messages_of_a_snapshot_name_a_block_once_and_come_back_together() -> None:
    index = index_with(request("1", "x", "yy"), request("2", "x", "z"), request("3", "z"))
    packer = Packer()
    first, second, third = (packer.pack([entry]) for entry in all_kept(index))
    assert [block for block, _ in second.blocks] == ["z"]
    assert third.blocks == []
    new = ContextIndex()
    new.set_replicas(INFOS)
    recaller = Recaller(new)
    assert [recaller.recall(batch) for batch in (first, second, third)] == [1, 1, 1]
    new.check()
    for name in ("1", "2", "3"):
        assert kept(new, RequestId(name)) == kept(index, RequestId(name))


def test_without_a_message_the_later_ones_of_its_snapshot_cannot_be_read() -> None:
    entries = all_kept(index_with(request("1", "x"), request("2", "yy"), request("3", "z")))
    packer = Packer()
    first, _, third = (packer.pack([entry]) for entry in entries)
    new = ContextIndex()
    new.set_replicas(INFOS)
    recaller = Recaller(new)
    assert recaller.recall(first) == 1
    with pytest.raises(WireError, match="missing"):
        recaller.recall(third)
    assert recaller.recall(pack(entries[1:])) == 2, "one that stands alone is understood"
    new.check()


def test_the_table_of_a_snapshot_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cp_ray.core.kept.TABLE", 2)
    entries = all_kept(index_with(*(request(str(n), f"b{n}", "x") for n in range(5))))
    packer = Packer()
    batches = [packer.pack([entry]) for entry in entries]
    assert max(batch.before for batch in batches) <= 2
    new = ContextIndex()
    new.set_replicas(INFOS)
    recaller = Recaller(new)
    assert sum(recaller.recall(batch) for batch in batches) == 5


def test_a_place_counted_from_the_end_makes_the_message_unreadable() -> None:
    encoded = wire.encode(pack(all_kept(index_with(request("1", "x", "yy")))))
    broken = encoded.replace(b"\x92\x00\x01", b"\x92\x00\xff")
    assert broken != encoded
    with pytest.raises(WireError):
        wire.decode(broken, Batch)


def test_a_block_of_two_lengths_comes_back_with_the_right_ones() -> None:
    index = index_with(request("1", "x", "yy"))
    other = PlanRequest(RequestId("2"), HeadId("g"), 5, (BlockId("x"),), (77,), 3)
    index.plan([other], 0.0)
    index.hear(Settled(RequestId("2"), 0, ok=True), 0.0)
    assert all_kept(restarted(index)) == all_kept(index)
