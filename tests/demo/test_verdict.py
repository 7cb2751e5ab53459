from cp_ray.agents.chat import Answer
from cp_ray.demo.kills import Kill
from cp_ray.demo.measure import Record
from cp_ray.demo.verdict import Attempt, judge

OK = Record("c1/1", Answer("text", 0.1, 0.2, 10, 0, 2))
REPLICA = Kill("replica", 7, at_s=5.0, recovered_s=3.0, orphans=0)


def attempt(**changes: object) -> Attempt:
    values: dict[str, object] = {
        "streamed": True, "from_s": 4.0, "to_s": 6.0, "started": True, "error": "broken",
    }  # fmt: skip
    return Attempt(**(values | changes))  # type: ignore[arg-type]


def test_a_stream_that_had_started_may_be_cut_by_the_death_of_a_replica() -> None:
    verdict = judge([OK], [attempt(), attempt(from_s=6, error=None)], [REPLICA])
    assert (verdict.answered, verdict.cut, verdict.faults) == (1, 1, ())


def test_a_stream_cut_while_no_replica_died_is_a_fault() -> None:
    early = [attempt(from_s=1.0, to_s=4.9)]
    assert len(judge([OK], early, [REPLICA]).faults) == 1
    redis = Kill("redis", 7, at_s=5.0, recovered_s=1.0, orphans=0)
    assert len(judge([OK], [attempt()], [redis]).faults) == 1


def test_what_has_not_started_must_not_fail() -> None:
    (fault,) = judge([OK], [attempt(started=False)], [REPLICA]).faults
    assert "before its first token" in fault


def test_what_is_not_streamed_must_not_fail() -> None:
    (fault,) = judge([OK], [attempt(streamed=False)], [REPLICA]).faults
    assert "a answer" not in fault
    assert "answer failed" in fault


def test_an_unanswered_or_doubly_answered_request_is_a_fault() -> None:
    lost = Record("c2/1", None, "gave up")
    assert judge([OK, lost], [], []).faults == ("c2/1 was never answered: gave up",)
    assert judge([OK, OK], [], []).faults == ("a request was answered more than once",)


def test_what_does_not_come_back_or_leaves_processes_is_a_fault() -> None:
    gone = Kill("index", 8, at_s=1.0, recovered_s=None, orphans=0)
    messy = Kill("replica", 9, at_s=1.0, recovered_s=2.0, orphans=1)
    assert judge([OK], [], [gone, messy]).faults == (
        "index (pid 8) did not come back",
        "replica (pid 9) left 1 processes behind",
    )


def test_no_request_at_all_is_a_fault() -> None:
    assert judge([], [], []).faults == ("no request was sent",)
