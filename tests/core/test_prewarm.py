"""What a joining replica prefills: what is asked most, in what bound, shared out how."""

from __future__ import annotations

from collections import Counter

from cp_ray.core.prewarm import MIN_USES, SHARE, WarmPrefix, warm_prefixes
from cp_ray.core.types import BlockId, HeadId, PlanRequest, ReplicaId, ReplicaInfo, RequestId
from tests.core.small_fleet import PAGE, SmallFleet

HEAD, BLOCK = 32, 160


def joining(*names: str, capacity: int = 1 << 20) -> list[ReplicaInfo]:
    return [ReplicaInfo(ReplicaId(name), PAGE, capacity) for name in names]


def asked(**uses: int) -> SmallFleet:
    """A fleet of one that was asked each context (one letter a block) so many times."""
    fleet = SmallFleet(1, None)
    for context, count in uses.items():
        for _ in range(count):
            fleet.ask(context, BLOCK, movable=False)
    return fleet


def told(warm: list[WarmPrefix]) -> list[tuple[str, int]]:
    return [("".join(one.context), one.uses) for one in warm]


def test_what_is_asked_most_comes_first_and_after_what_it_extends() -> None:
    fleet = asked(abc=3, abd=4, xy=5, z=MIN_USES - 1)
    warm = warm_prefixes(fleet.index.memory, joining("new"), 2)
    assert told(warm[ReplicaId("new")]) == [("ab", 7), ("xy", 5), ("abd", 4), ("abc", 3)]
    (first, *_) = warm[ReplicaId("new")]
    assert (first.head, first.head_tokens, first.block_tokens) == ("h", HEAD, (BLOCK, BLOCK))


def test_only_a_share_of_the_cache_is_warmed_and_nothing_without_its_parent() -> None:
    fleet = asked(abc=3, abd=4, xy=5)
    room = HEAD + 2 * BLOCK + BLOCK  # "ab", then one block more, for which "xy" is too long
    capacity = int(room / SHARE)
    (warm,) = warm_prefixes(fleet.index.memory, joining("new", capacity=capacity), 2).values()
    assert told(warm) == [("ab", 7), ("abd", 4)]
    tight = int((HEAD + BLOCK) / SHARE)
    (warm,) = warm_prefixes(fleet.index.memory, joining("new", capacity=tight), 2).values()
    assert warm == []


def test_small_branches_go_to_one_each_and_a_busy_one_to_several() -> None:
    fleet = asked(abc=40, d=3, e=3, f=3, g=3)
    warm = warm_prefixes(fleet.index.memory, joining("n1", "n2", "n3", "n4"), 8)
    copies = Counter(name for one in warm.values() for name, _ in told(one))
    assert copies["abc"] == 4
    assert {copies[name] for name in "defg"} == {1}
    assert max(len(one) for one in warm.values()) <= 2


def test_a_tenants_head_stays_its_own() -> None:
    fleet = SmallFleet(1, None)
    for head in ("acme", "bolt"):
        for _ in range(4):
            fleet.ask("ab", BLOCK, head=head)
    (warm,) = warm_prefixes(fleet.index.memory, joining("new"), 2).values()
    assert [one.head for one in warm] == ["acme", "bolt"]


def test_without_joining_replicas_or_traffic_there_is_nothing_to_do() -> None:
    assert warm_prefixes(asked(abc=9).index.memory, [], 2) == {}
    assert warm_prefixes(SmallFleet(1, None).index.memory, joining("n"), 2) == {"n": []}


def test_a_warmed_prefix_is_planned_as_a_request_and_found_by_the_next() -> None:
    fleet = SmallFleet(2, None)
    index = fleet.index
    old, new = index.replicas.live.values()
    index.set_replicas([old])
    for _ in range(4):
        fleet.ask("ab", BLOCK)
    index.set_replicas([old, new])
    for number, one in enumerate(warm_prefixes(index.memory, [new], 2)[new.replica]):
        name = RequestId(f"warm-{number}")
        fleet.divert = new.replica
        fleet.send(
            PlanRequest(name, one.head, one.head_tokens, one.context, one.block_tokens, 1, False)
        )
    fleet.divert = None
    assert fleet.caches[new.replica].held() == {"warm-0": (HEAD + 2 * BLOCK) // PAGE * PAGE}
    asked_next = PlanRequest(
        RequestId("q"), HeadId("h"), HEAD, (BlockId("a"), BlockId("b")), (BLOCK, BLOCK), 9
    )
    (held,) = index.reuse.held(index.reuse.wanted(asked_next), [new])
    assert held.tokens == HEAD + 2 * BLOCK
    index.check()
