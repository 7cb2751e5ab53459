"""The context tree against a naive model: a dict of request -> (context, holder)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cp_ray.core.search import best_per_holder, exact_search, fixed_search, greedy_search
from cp_ray.core.tree import ContextTree
from cp_ray.core.types import BlockId, Context, RequestId

BLOCKS = [BlockId(str(number)) for number in range(7)]
contexts = st.lists(st.sampled_from(BLOCKS), unique=True, max_size=5).map(tuple)
holders = st.integers(1, 3)


def longest(stored: Context, wanted: set[BlockId]) -> int:
    length = 0
    while length < len(stored) and stored[length] in wanted:
        length += 1
    return length


class TreeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = ContextTree()
        self.model: dict[RequestId, tuple[Context, int]] = {}
        self.branches: dict[RequestId, int] = {}
        self.count = 0

    def _pick(self, data: st.DataObject) -> RequestId:
        return data.draw(st.sampled_from(sorted(self.model)))

    @rule(context=contexts, holder=holders)
    def insert(self, context: Context, holder: int) -> None:
        self.count += 1
        name = RequestId(f"r{self.count}")
        node = self.tree.insert(name, context, holder)
        self.model[name] = (context, holder)
        self.branches[name] = node.search_path[0] if context else -1

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = self._pick(data)
        self.tree.remove(name)
        del self.model[name]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), length=st.integers(0, 5))
    def truncate(self, data: st.DataObject, length: int) -> None:
        name = self._pick(data)
        context, holder = self.model[name]
        self.tree.truncate(name, length)
        self.model[name] = (context[:length], holder)
        if not context[:length]:
            self.branches[name] = -1

    @precondition(lambda self: self.model)
    @rule(data=st.data(), holder=holders)
    def move(self, data: st.DataObject, holder: int) -> None:
        name = self._pick(data)
        self.tree.move(name, holder)
        self.model[name] = (self.model[name][0], holder)

    @rule(context=contexts, weights=st.lists(st.integers(1, 9), min_size=7, max_size=7))
    def searches_agree_with_the_model(self, context: Context, weights: list[int]) -> None:
        size = dict(zip(BLOCKS, weights, strict=True))
        tokens = {block: size[block] for block in context}
        root = self.tree.root
        exact = best_per_holder(exact_search(root, context, tokens), 0b1110)
        fixed = best_per_holder(fixed_search(root, context, tokens), 0b1110)
        for holder in (1, 2, 3):
            its = 1 << holder
            mine = [stored for stored, bit in self.model.values() if bit == holder]
            best = max(
                (sum(size[b] for b in s[: longest(s, set(context))]) for s in mine), default=0
            )
            assert (exact[its].tokens if its in exact else 0) == best
            if its in exact:
                assert set(exact[its].prefix) <= set(context)
            as_given = max(
                (sum(1 for _ in range(len(s)) if s[: _ + 1] == context[: _ + 1]) for s in mine),
                default=0,
            )
            assert (fixed[its].length if its in fixed else 0) == as_given
        greedy = greedy_search(root, context, tokens, 0.001)
        if greedy:
            assert set(greedy[-1].prefix) <= set(context)
            assert greedy[-1].tokens <= max(c.tokens for c in exact_search(root, context, tokens))

    @invariant()
    def sound(self) -> None:
        self.tree.check()
        stored = {
            name: (node.context, node.requests[name]) for name, node in self.tree.node_of.items()
        }
        assert stored == self.model

    @invariant()
    def a_living_requests_branch_never_changes(self) -> None:
        for name, node in self.tree.node_of.items():
            path = node.search_path
            assert (path[0] if path else -1) == self.branches[name]


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
