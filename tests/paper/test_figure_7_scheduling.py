"""Paper figure 7: C6, C3, C7, C8 is run as C6, C8, C3, C7."""

from cp_ray.core.scheduling import schedule
from cp_ray.core.types import Context, RequestId, Step
from tests.paper.test_figure_5_index import figure_5
from tests.paper.worked_examples import C7, HEAD, context


def step(name: str, blocks: Context, path: tuple[int, ...]) -> Step:
    branch = f"{HEAD}/{path[0]}" if path else ""
    return Step(RequestId(name), blocks, None, branch, path, 0, "load")


def test_the_schedule_is_the_figures() -> None:
    tree = figure_5()
    arrivals: list[Step] = []
    for name, blocks in (
        ("C6", context(1, 2, 4)),
        ("C3", context(1, 4, 0)),
        ("C7", C7),
        ("C8", context(1, 2, 9)),
    ):
        node = tree.node_of.get(RequestId(name)) or tree.insert(RequestId(name), blocks, 1)
        arrivals.append(step(name, blocks, node.search_path))
    groups = schedule(arrivals)
    assert [s.request_id for group in groups for s in group] == ["C6", "C8", "C3", "C7"]


def test_with_room_for_one_context_the_schedule_keeps_what_arrival_order_loses() -> None:
    def hits(order: list[Context]) -> int:
        cached: Context = ()
        total = 0
        for blocks in order:
            same = 0
            while same < min(len(blocks), len(cached)) and blocks[same] == cached[same]:
                same += 1
            total += same
            cached = blocks
        return total

    c6, c3, c8 = context(1, 2, 4), context(1, 4, 0), context(1, 2, 9)
    assert hits([c6, c3, C7, c8]) == 1
    assert hits([c6, c8, c3, C7]) == 3


def test_strangers_without_a_branch_do_not_form_the_largest_group() -> None:
    lone = [step(f"x{i}", (), ()) for i in range(5)]
    pair = [step("a", context(1), (0,)), step("b", context(1, 2), (0, 0))]
    groups = schedule([*lone, *pair])
    assert [s.request_id for s in groups[0]] == ["b", "a"]
    assert [len(group) for group in groups] == [2, 1, 1, 1, 1, 1]
