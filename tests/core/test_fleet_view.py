"""What the fleet page shows is what the caches hold."""

from __future__ import annotations

from cp_ray.core.fleet_view import Sweep, replicas_of, sweep
from cp_ray.core.story import BUCKET_S, Story, StoryBook, quantile
from cp_ray.core.types import HeadId, PlanRequest, ReplicaId, RequestId
from tests.core.small_fleet import PAGE, SmallFleet


def swept(fleet: SmallFleet) -> Sweep:
    *steps, last = sweep(fleet.index)
    assert not any(steps)
    assert last is not None
    return last


def test_held_tokens_are_those_of_the_caches_but_for_questions_and_pages() -> None:
    fleet = SmallFleet(3, 4000)
    for number in range(60):
        fleet.ask([f"{number % 7}{b}" for b in "abc"], head=f"h{number % 2}")
    found = swept(fleet)
    for name, cache in fleet.caches.items():
        believed = found.held_tokens.get(name, 0)
        assert believed <= cache.used_tokens
        assert believed > 0.6 * cache.used_tokens - 100 * PAGE


def test_a_branch_says_where_it_lives() -> None:
    fleet = SmallFleet(2, None)
    for _ in range(3):
        fleet.ask(("a", "b"))
    fleet.divert = fleet.names[1]
    fleet.ask(("x", "y", "z"))
    branches = {branch.requests: branch for branch in swept(fleet).branches}
    assert branches[3].tokens == 2 * 160
    assert branches[1].tokens == 3 * 160
    assert branches[1].replicas == (fleet.names[1],)


def test_the_sweep_goes_in_small_steps() -> None:
    fleet = SmallFleet(1, None)
    fleet.check_every = 10_000
    for number in range(1500):
        fleet.ask((f"a{number}", "b"))
    steps = list(sweep(fleet.index))
    assert len(steps) > 3
    assert steps[-1] is not None
    assert steps[-1].nodes >= 1500


def test_a_replica_in_doubt_is_shown_as_such() -> None:
    fleet = SmallFleet(2, None)
    fleet.ask(("a",))
    fleet.index.replicas.distrust(fleet.names[0])
    trust = {view.replica: view.trust for view in replicas_of(fleet.index, None)}
    assert trust == {fleet.names[0]: "resyncing", fleet.names[1]: "trusted"}


def story(number: int, at: float, *, outcome: str = "ok", ttft: float = 1.0) -> Story:
    plan = PlanRequest(RequestId(f"s{number}"), HeadId("h"), 50, (), (), 50)
    return Story(
        plan.request_id,
        "default",
        at,
        plan,
        None,
        ReplicaId("r0"),
        "load",
        outcome,  # type: ignore[arg-type]
        0,
        0.001,
        ttft,
        0.0,
        25,
        4,
        100,
    )


def test_stories_add_up_in_time_and_are_bounded() -> None:
    book = StoryBook(kept=10)
    for number in range(100):
        book.add(story(number, 1000 + number / 10, ttft=number / 100))
    moments = book.moments()
    assert [moment.requests for moment in moments] == [50, 50]
    assert [moment.hit_ratio for moment in moments] == [0.25, 0.25]
    assert moments[1].ttft_p50_s == 0.75
    assert book.moments(since=1000 + BUCKET_S) == moments[1:]
    assert [s.request_id for s in book.last(2)] == ["s99", "s98"]
    assert book.get(RequestId("s1")) is None


def test_a_failed_request_counts_no_tokens_and_a_late_one_its_own_time() -> None:
    book = StoryBook()
    book.add(story(1, 1000.0))
    book.add(story(2, 1010.0, outcome="failed"))
    book.add(story(3, 1001.0))
    assert [(m.requests, m.failed, m.hit_ratio) for m in book.moments()] == [
        (2, 0, 0.25),
        (1, 1, None),
    ]


def test_quantiles_of_few_values() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.99) == 3.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
