"""Policies of others: LPM scheduling, chunks in two tiers, the paper's and the authors' plans."""

import json
from collections import deque
from pathlib import Path

import pytest

from cp_ray.core.types import BlockId, RequestId
from cp_ray.errors import ConfigError
from cp_ray.replay.lpm import QUEUE, RadixLpm
from cp_ray.replay.registry import has_arm, make_policy
from cp_ray.replay.reuse import ReuseOptions, bench_reuse
from cp_ray.replay.tiers import CHUNK_TOKENS, TieredCache
from cp_ray.replay.trace import TraceRequest
from tests.replay.test_reuse import DATA, needs_data


def request(name: str, *blocks: str, tokens: int = 100) -> TraceRequest:
    context = tuple(BlockId(block) for block in blocks)
    return TraceRequest(RequestId(name), "", context, (tokens,) * len(blocks), 1)


def test_lpm_takes_what_the_cache_holds_most_of_then_what_came_first():
    waiting = deque([request("a", "x"), request("b", "y"), request("c", "z")])
    held = {"a": 0, "b": 100, "c": 40}
    taken = RadixLpm().take(waiting, 2, lambda r: held[r.request_id])
    assert [r.request_id for r in taken] == ["b", "c"]
    assert [r.request_id for r in waiting] == ["a"]


def test_lpm_lets_a_cold_sibling_step_back():
    waiting = deque([request("a", "x", "p"), request("b", "x", "q"), request("c", "y")])
    taken = RadixLpm().take(waiting, 2, lambda _: 0)
    assert [r.request_id for r in taken] == ["a", "c"]
    assert [r.request_id for r in RadixLpm().take(waiting, 2, lambda _: 100)] == ["b"]


def test_lpm_looks_no_further_than_its_queue():
    waiting = deque(request(str(n), f"b{n}") for n in range(QUEUE + 1))
    taken = RadixLpm().take(waiting, 1, lambda r: 100 if r.request_id == str(QUEUE) else 0)
    assert [r.request_id for r in taken] == ["0"]
    assert [r.request_id for r in waiting] == [str(n) for n in range(1, QUEUE + 1)]


def run(cache: TieredCache, name: str, *lengths: int) -> int | None:
    pieces = [(f"{name[0]}{n}", length) for n, length in enumerate(lengths)]
    cached = cache.admit(RequestId(name), pieces)
    cache.prefilled(RequestId(name))
    cache.release(RequestId(name))
    return cached


def test_the_second_tier_gives_back_whole_chunks_of_what_the_first_has_lost():
    cache = TieredCache(4000, "step", 10)  # 1,000 and 3,000 tokens
    assert run(cache, "a1", 600) == 0
    assert run(cache, "b1", 900) == 0  # the first tier drops most of a
    assert run(cache, "a2", 600) == 600 // CHUNK_TOKENS * CHUNK_TOKENS


def test_the_tiers_together_are_the_stated_cache():
    cache = TieredCache(4000, "step", 10)
    assert cache.fits(1000)
    assert not cache.fits(1001)
    for name in ("a1", "b1", "c1", "d1", "e1"):
        run(cache, name, 900)
    assert run(cache, "a2", 900) == 0


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    contexts = [[0, 1, 2], [3, 4, 5], [2, 1, 0], [5, 4, 3]]
    lines = [{"request_id": n, "context": c, "question_tokens": 1} for n, c in enumerate(contexts)]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    blocks = "".join(f"{block}\t10\n" for block in range(6))
    (tmp_path / "blocks.tsv").write_text("block_id\ttokens\n" + blocks)
    return tmp_path


def plan(folder: Path, *lines: tuple[int, list[int]]) -> str:
    file = folder / "plan.jsonl"
    file.write_text("".join(json.dumps({"request_id": r, "context": c}) + "\n" for r, c in lines))
    return f"plan:{file}"


GOOD = [(0, [0, 1, 2]), (2, [0, 1, 2]), (1, [3, 4, 5]), (3, [3, 4, 5])]


def test_a_plan_is_followed_in_its_own_sequence(toy: Path):
    name = plan(toy, *GOOD)
    arms = (name, f"{name}-schedule", f"{name}-order")
    rows = bench_reuse(ReuseOptions(toy, policies=arms, cache_tokens=31))
    assert [row.hit_ratio for row in rows] == [pytest.approx(0.5), 0, 0]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (GOOD[:3], "does not plan 1 requests of the trace, among them 3"),
        ([*GOOD, GOOD[0]], "line 5: request 0 is planned twice"),
        ([(0, [0, 1, 3])], "line 1: request 0 .*other blocks"),
    ],
)
def test_a_plan_that_is_not_of_the_trace_is_refused(
    toy: Path, lines: list[tuple[int, list[int]]], message: str
):
    with pytest.raises(ConfigError, match=message):
        bench_reuse(ReuseOptions(toy, policies=(plan(toy, *lines),)))


@needs_data
def test_the_paper_as_printed_comes_to_the_authors_own_plan():
    folder = DATA / "multihoprag"
    policies = ("paper_offline", f"plan:{folder / 'authors_plan.jsonl.gz'}")
    ours, theirs = bench_reuse(ReuseOptions(folder, policies=policies))
    assert theirs.hit_ratio == pytest.approx(0.669, abs=0.0005)
    assert ours.hit_ratio == pytest.approx(theirs.hit_ratio, abs=0.005)


def test_limits_are_arms_of_the_policies_that_order() -> None:
    assert has_arm("online", "top2")
    assert has_arm("offline", "move3")
    assert not has_arm("none", "top2")
    make_policy("online-top1-move4", None)
    for wrong in ("paper-top1", "online-top1-top2", "online-order-top1"):
        with pytest.raises(ConfigError, match="--policy"):
            make_policy(wrong, None)
