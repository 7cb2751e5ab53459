import pytest

from benchmarks.gpu.cells import POLICIES
from benchmarks.gpu.prepare import main
from benchmarks.gpu.workload import UNCACHED, Kit, Prompt, Workload, predict, token_ids
from cp_ray.core.types import RequestId
from cp_ray.errors import ConfigError
from cp_ray.replay.reuse import ReuseOptions, bench_reuse
from cp_ray.replay.trace import block_lengths
from tests.gpu_harness.support import make_kit, make_trace


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return make_kit(tmp_path_factory.mktemp("kit"))


def workload(
    kit: Kit, policy: str, concurrency: int = 4, capacity: int = 4000, page: int = 32
) -> Workload:
    return kit.workload(
        policy, requests=16, concurrency=concurrency, capacity_tokens=capacity, page_size=page
    )


@pytest.mark.parametrize("policy", ["none", "offline", "online", "paper_offline"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_workload_has_the_hit_ratio_of_bench_reuse(kit, policy, concurrency):
    [row] = bench_reuse(
        ReuseOptions(kit.folder, (policy,), cache_tokens=4000, in_flight=concurrency)
    )
    assert workload(kit, policy, concurrency).reuse_hit == row.hit_ratio


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_sends_every_request_with_its_own_blocks(kit, policy):
    retrieved = {
        one.request_id: sorted(one.pieces, key=repr) for one in workload(kit, "none").prompts
    }
    sent = {one.request_id: sorted(one.pieces, key=repr) for one in workload(kit, policy).prompts}
    assert sent == retrieved


@pytest.mark.parametrize("policy", POLICIES)
def test_a_workload_made_twice_is_the_same(kit, policy):
    assert workload(kit, policy) == workload(kit, policy)


def test_our_orders_reuse_more_than_the_retrieved_one(kit):
    hits = {policy: workload(kit, policy).reuse_hit for policy in POLICIES}
    assert hits["offline"] > hits["online"] > hits["none"]


def test_with_pages_of_one_token_the_engine_counts_what_bench_reuse_counts(kit):
    for policy in POLICIES:
        made = workload(kit, policy, concurrency=1, page=1)
        assert sum(made.predicted) / made.block_tokens == pytest.approx(made.reuse_hit)


def test_uncached_is_the_retrieved_order_of_which_nothing_is_found(kit):
    made = workload(kit, UNCACHED)
    assert [one.request_id for one in made.prompts] == [str(n) for n in range(16)]
    assert made.computed == made.tokens


def test_a_plan_made_ahead_is_used_and_is_the_policys_own(kit, monkeypatch):
    made = workload(kit, "offline")
    monkeypatch.setattr(
        "benchmarks.gpu.workload.make_policy", lambda *_: pytest.fail("the kit has a plan")
    )
    assert workload(kit, "offline") == made
    monkeypatch.undo()
    monkeypatch.setattr(type(kit), "plan_of", lambda *_: None)
    assert workload(kit, "offline") == made


def test_equal_blocks_have_equal_tokens_and_others_have_not():
    ids = token_ids((("a", 50), ("b", 50), ("a", 30)), 1000)
    assert ids[:30] == ids[100:]
    assert ids[:50] != ids[50:100]
    assert min(ids) >= 100
    assert max(ids) < 1000


def test_a_long_piece_begins_like_a_short_one_of_the_same_key():
    assert token_ids((("a", 9000),), 5000)[:4000] == token_ids((("a", 4000),), 5000)


def test_tokens_do_not_change_between_versions_of_anything():
    assert token_ids((("a", 4),), 151_936) == [120_728, 9_769, 78_446, 29_323]


def test_a_prompt_that_does_not_fit_is_named():
    with pytest.raises(ConfigError, match="request 7 has 90 tokens"):
        predict([Prompt(RequestId("7"), (("a", 90),))], 64, 32)


def test_the_folder_to_carry_is_refused_when_it_is_too_large(tmp_path, capsys):
    trace = make_trace(tmp_path / "trace")
    engine = tmp_path / "engine"
    engine.mkdir()
    (engine / "vllm.tar.xz").write_bytes(b"0" * (65 << 20))
    out = tmp_path / "kit"
    asked = ["--trace", str(trace), "--out", str(out), "--shapes", "tiny", "--vllm", str(engine)]
    assert main(asked) == 2
    assert "64" in capsys.readouterr().err
    (engine / "vllm.tar.xz").write_bytes(b"0" * 1000)
    assert main(asked) == 0
    assert (out / "vllm.tar.xz").stat().st_size == 1000
    assert "bash benchmarks/gpu/on_device.sh" in capsys.readouterr().out


def test_blocks_are_scaled_together(tmp_path):
    trace = make_trace(tmp_path / "trace")
    out = tmp_path / "kit"
    main(["--trace", str(trace), "--out", str(out), "--shapes", "tiny", "--scale", "0.5"])
    before, after = block_lengths(trace), block_lengths(out)
    assert after == {block: round(before[block] * 0.5) for block in after}
