from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.budget import Budget, Fixed, Task, place_of, schedule
from benchmarks.gpu.cells import AGENDAS, Cell
from benchmarks.gpu.driver import ON_GPU, budget_of, budget_text
from benchmarks.gpu.prepare import prepare
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.tasks import assumed_capacity, name_of
from benchmarks.gpu.workload import Kit
from tests.gpu_harness.support import make_trace

FIXED = Fixed(machine_s=10, unpack_s=0, start_s=5, reserve_s=5)


def cell(policy: str, seconds: float, worth: int = 1, shape: str = "4b") -> Task:
    one = Cell(shape, policy, 1, None, 9)
    return Task("cell", shape, name_of(one), worth, seconds, one)


def taken(budget: Budget) -> list[str]:
    return [line.task.name for line in budget.lines if line.ends_s is not None]


def test_what_is_worth_most_goes_first_and_the_rest_waits():
    tasks = [cell("none", 20, worth=2), Task("curve", "4b", "4b/curve", 1, 10)]
    assert taken(schedule(tasks, FIXED, 50)) == ["4b/curve", "4b/uncapped/C1/none/9"]
    assert taken(schedule(tasks, FIXED, 49)) == ["4b/curve"]


def test_a_smaller_task_fills_what_a_larger_one_left():
    tasks = [Task("curve", "4b", "large", 1, 99), Task("curve", "4b", "small", 2, 10)]
    assert taken(schedule(tasks, FIXED, 60)) == ["small"]


def test_a_policy_is_not_run_without_the_one_to_compare_with():
    tasks = [cell("none", 90), cell("online", 10)]
    assert taken(schedule(tasks, FIXED, 60)) == []
    assert taken(schedule(tasks, FIXED, 60, done=[tasks[0].name])) == [tasks[1].name]


def test_what_an_earlier_slot_measured_costs_nothing():
    tasks = [cell("none", 20), cell("online", 20)]
    budget = schedule(tasks, FIXED, 100, done=[task.name for task in tasks])
    assert budget.lines == ()
    assert budget.left_s == 85


def test_every_shape_pays_its_start_once():
    tasks = [cell("none", 10), cell("online", 10), cell("none", 10, shape="32b")]
    budget = schedule(tasks, FIXED, 100)
    assert [line.ends_s for line in budget.lines] == [25, 35, 50]
    assert budget.seconds("4b", FIXED) == 25
    assert budget.seconds("32b", FIXED) == 15


@given(
    st.lists(st.tuples(st.sampled_from(["4b", "32b"]), st.integers(1, 99), st.floats(1, 200))),
    st.floats(0, 900),
)
def test_a_plan_never_exceeds_its_slot(wanted, slot):
    tasks = [
        Task("curve", shape, f"{shape}/{number}", worth, seconds)
        for number, (shape, worth, seconds) in enumerate(wanted)
    ]
    budget = schedule(tasks, FIXED, slot)
    running = [task for shape in ("4b", "32b") for task in budget.taken(shape)]
    used = sum(task.seconds for task in running)
    used += FIXED.start_s * len({task.shape for task in running})
    assert not running or used + FIXED.once_s <= slot + 1e-6
    assert all(line.ends_s is None or line.ends_s <= slot for line in budget.lines)


def test_a_quarter_of_an_hour_holds_the_headline(tmp_path):
    requests = max(AGENDAS[shape].requests for shape in ON_GPU)
    trace = make_trace(tmp_path / "trace", requests, 300, 15, (300, 1000))
    prepare(trace, tmp_path / "kit", [AGENDAS[shape].requests for shape in ON_GPU], 1, None)
    budget = budget_of(Kit(tmp_path / "kit"), tmp_path, ON_GPU, Fixed(), 900)
    fits = taken(budget)
    for policy in ("none", "offline", "online", "paper_offline"):
        assert f"32b/uncapped/C16/{policy}/72" in fits
        assert f"4b/400k/C16/{policy}/320" in fits
    assert "4b/in flight" in fits
    assert budget.left_s >= 0
    assert "next slot" in budget_text(budget)


def test_a_place_is_shape_cache_and_concurrency():
    assert place_of("32b/100k/C16/plan:a.jsonl.gz/72") == "32b/100k/C16"


def test_shapes_are_those_of_the_published_models():
    small, large = SHAPES["4b"], SHAPES["32b"]
    assert abs(small.weight_bytes / 2 - 4.02e9) < 0.01e9
    assert abs(large.weight_bytes / 2 - 32.8e9) < 0.1e9
    assert small.cache_bytes_per_token == 147_456
    assert large.cache_bytes_per_token == 262_144
    assert 750_000 < assumed_capacity(small) < 900_000
    assert 220_000 < assumed_capacity(large) < 290_000


def test_the_assumed_curve_counts_two_flop_for_each_weight():
    curve = SHAPES["32b"].curve_at(1e12, 0.0)
    assert abs(curve.seconds(0, 1) - 0.062) < 0.002
    # Attention of 100,000 tokens to as many: four FLOP per head, dimension and pair.
    pairs = curve.seconds(100_000, 100_000) - curve.seconds(0, 100_000)
    assert abs(pairs - 4 * 64 * 64 * 128 * 1e10 / 1e12) < 1
