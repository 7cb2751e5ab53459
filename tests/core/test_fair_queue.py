"""Fair queue: bounds between tenants, whatever they ask; nobody starves, nothing is lost."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cp_ray.core.fair_queue import FairQueue, Ticket

TENANTS = ("a", "b", "c")


class Queueing(RuleBasedStateMachine):
    """Against plain sets of who waits and a count of who is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue(2, 4)
        self.next = 0
        self.waiting: dict[Ticket, str] = {}
        self.under_way = 0

    @rule(tenant=st.sampled_from(TENANTS), cost=st.integers(1, 9))
    def enter(self, tenant: str, cost: int) -> None:
        ticket = Ticket(self.next)
        self.next += 1
        entered = self.queue.enter(ticket, tenant, cost)
        assert entered.goes == (self.under_way < 2)
        if entered.goes:
            self.under_way += 1
            return
        lengths = Counter((*self.waiting.values(), tenant))
        self.waiting[ticket] = tenant
        assert (entered.refused is not None) == (len(self.waiting) > 4)
        if entered.refused is not None:
            refused = self.waiting.pop(entered.refused)
            assert lengths[refused] == max(lengths.values()), "the longest line loses its last"
            assert all(left < entered.refused for left, of in self.waiting.items() if of == refused)

    @precondition(lambda self: self.under_way)
    @rule()
    def leave(self) -> None:
        ticket = self.queue.leave()
        self.under_way -= 1
        assert (ticket is None) == (not self.waiting)
        if ticket is not None:
            tenant = self.waiting.pop(ticket)
            assert all(ticket < left for left, of in self.waiting.items() if of == tenant)
            self.under_way += 1

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        self.queue.withdraw(ticket, self.waiting.pop(ticket))

    @invariant()
    def agrees(self) -> None:
        self.queue.check()
        assert (self.queue.under_way, self.queue.waiting) == (self.under_way, len(self.waiting))


TestQueueing = Queueing.TestCase
TestQueueing.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.integers(0, 1 << 30), st.integers(2, 5), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_two_tenants_that_wait_get_the_same_but_for_one_request_of_each(
    seed: int, tenants: int, places: int
) -> None:
    source = random.Random(seed)
    queue = FairQueue(places, 10_000)
    owner: dict[Ticket, tuple[int, float]] = {}
    for number in range(tenants * 60):
        ticket, tenant = Ticket(number), source.randrange(tenants)
        owner[ticket] = (tenant, float(source.randint(1, 50)))
        if queue.enter(ticket, f"{tenant}", owner[ticket][1]).goes:
            del owner[ticket]
    got = dict.fromkeys(range(tenants), 0.0)
    left = Counter(tenant for tenant, _ in owner.values())
    while all(left.values()):
        following = queue.leave()
        assert following is not None
        tenant, cost = owner.pop(following)
        got[tenant] += cost
        left[tenant] -= 1
        # The first of all were let through at once, unequally: a place each.
        assert max(got.values()) - min(got.values()) <= (2 + places) * 50


@given(st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_a_newcomer_lets_one_request_of_each_other_tenant_go_first(seed: int) -> None:
    source = random.Random(seed)
    queue = FairQueue(1, 10_000)
    owner: dict[Ticket, str] = {}
    for number in range(1, source.randint(2, 200)):
        owner[Ticket(number)] = source.choice(TENANTS)
        queue.enter(Ticket(number), owner[Ticket(number)], source.randint(1, 9))
        if source.random() < 0.3:
            queue.leave()
    queue.enter(Ticket(0), "new", source.randint(1, 9))
    before: Counter[str] = Counter()
    while queue.under_way and queue.waiting and (ticket := queue.leave()) != Ticket(0):
        assert ticket is not None
        before[owner[ticket]] += 1
    assert max(before.values(), default=0) <= 1


def test_a_flood_cannot_push_out_those_who_ask_little() -> None:
    queue = FairQueue(1, 10)
    for number in range(50):
        queue.enter(Ticket(number), "flood", 1)
    entered = queue.enter(Ticket(99), "small", 1)
    assert not entered.goes
    assert entered.refused == Ticket(10), "the last of the flood that waits"
    assert queue.leave() == Ticket(99)


def test_one_that_is_refused_at_once_leaves_no_line_behind() -> None:
    queue = FairQueue(1, 1)
    queue.enter(Ticket(0), "a", 1)
    queue.enter(Ticket(1), "a", 1)
    assert queue.enter(Ticket(2), "b", 1).refused == Ticket(2)
    queue.check()


@pytest.mark.parametrize("places", [1, 3])
def test_an_empty_queue_remembers_nobody(places: int) -> None:
    queue = FairQueue(places, 5)
    for number in range(5):
        queue.enter(Ticket(number), f"t{number}", 10 * number + 1)
    while queue.under_way:
        queue.leave()
    assert not queue._lines
