"""Joint choice for a window: which request next, where, and in which order of blocks.

One after the other in order of arrival is 16% from the best on small windows: the first ones do
not know what would serve those behind them. So the window is laid out in advance: again and again
the request and replica that add least to all waits (a short prompt before a long one, a sibling
behind its leader), each with those blocks first that its followers have, too. A small window is
then mended: a request moves to where the sum of all times falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from cp_ray.core.last_step import ALONE, LastStep
from cp_ray.core.placement import FIRST_CLAIM
from cp_ray.core.types import BlockId, Context, HeadId

CHUNK = 16
"""Requests laid out together; a larger window is cut. The work grows as its square."""
MENDED = 6
"""Requests of a window that is mended: it takes some (requests x requests x replicas) layouts."""


class Prompt(msgspec.Struct, frozen=True):
    """One request of a window. total: tokens of its prompt. fixed: its blocks may not be moved.

    prefix[r], held[r]: blocks that it would begin with on replica r because they are there, and
    the tokens of the prompt that are there, head included.
    """

    head: HeadId
    head_tokens: int
    tokens: Mapping[BlockId, int]
    total: int
    fixed: bool
    prefix: Sequence[Context]
    held: Sequence[int]

    def run(self, order: Context) -> int:
        """Tokens of the leading blocks of `order` that this prompt can begin with, and its head."""
        tokens = self.head_tokens
        mine = iter(self.tokens)
        for block in order:
            size = self.tokens.get(block)
            if size is None or (self.fixed and next(mine) != block):
                break
            tokens += size
        return tokens


class Place(msgspec.Struct, frozen=True):
    """request, replica: their numbers. followers: requests of the same head behind it there."""

    request: int
    replica: int
    followers: tuple[int, ...]


OwnSeconds = Callable[[int, int, int], float]
"""Prefill of request i on replica r when so many leading tokens of it are held there."""


def lay_out(
    prompts: Sequence[Prompt],
    waits: Sequence[float],
    own_s: OwnSeconds,
    price: Callable[[float], float],
    beside: Sequence[float] | None = None,
    *,
    surcharge: Sequence[float] | None = None,
    steps: Sequence[LastStep] | None = None,
) -> list[Place]:
    """The window in order of sending.

    waits[r]: seconds there now. price: of a second of prefill, by the shortest wait.
    beside[r]: added for each request there, for the answers that run there; surcharge[r]: added to
    the price there, for those that will come behind the window. None = nothing. steps[r]: the step
    that ends the line there; None = engines share no steps.
    """
    nothing = [0.0] * len(waits)
    there = _There(waits, beside or nothing, surcharge or nothing, steps or [ALONE] * len(waits))
    lines = _greedy(prompts, there, own_s, price)
    if len(prompts) <= MENDED:
        lines = _mend(lines, _Costs(prompts, there, own_s, price(min(waits))))
    places = []
    for r, line in enumerate(lines):
        for at, i in enumerate(line):
            behind = tuple(j for j in line[at + 1 :] if prompts[j].head == prompts[i].head)
            places.append((at, Place(i, r, behind)))
    return [place for _, place in sorted(places, key=lambda pair: pair[0])]


class _There(msgspec.Struct, frozen=True):
    """What each replica is before the window. Fields as the arguments of `lay_out`."""

    waits: Sequence[float]
    beside: Sequence[float]
    surcharge: Sequence[float]
    steps: Sequence[LastStep]


def _greedy(
    prompts: Sequence[Prompt], there: _There, own_s: OwnSeconds, price: Callable[[float], float]
) -> list[list[int]]:
    """For each replica the requests it gets, in order."""
    waits, beside, surcharge = there.waits, there.beside, there.surcharge
    left = list(range(len(prompts)))
    clock, steps = list(waits), list(there.steps)
    lines: list[list[int]] = [[] for _ in waits]
    best = [list(prompt.held) for prompt in prompts]
    own = [[own_s(i, r, best[i][r]) for r in range(len(waits))] for i in left]
    while left:
        at_price = price(min(clock))
        least, i, r = math.inf, left[0], 0
        for candidate in left:
            for at, own_there in enumerate(own[candidate]):
                cost = clock[at] + own_there * (at_price + surcharge[at]) + beside[at]
                if steps[at].ends:
                    new = prompts[candidate].total - best[candidate][at]
                    cost += FIRST_CLAIM * own_there * steps[at].late_share(new)
                if cost < least:
                    least, i, r = cost, candidate, at
        left.remove(i)
        lines[r].append(i)
        clock[r] += own[i][r]
        steps[r] = steps[r].joined(prompts[i].total - best[i][r])
        for j in left:
            common = _common_tokens(prompts[i], prompts[j])
            if common > best[j][r]:
                best[j][r] = common
                own[j][r] = own_s(j, r, common)
    return lines


class _Costs(msgspec.Struct, frozen=True):
    """What a line of requests costs on a replica. Fields as the arguments of `lay_out`."""

    prompts: Sequence[Prompt]
    there: _There
    own_s: OwnSeconds
    price: float

    def of(self, line: Sequence[int], r: int) -> float:
        """Sum of the times to first token, the price of the prefill, and what is added."""
        clock, total = self.there.waits[r], len(line) * self.there.beside[r]
        beyond = self.price - 1.0 + self.there.surcharge[r]
        step = self.there.steps[r]
        orders: list[tuple[HeadId, Context]] = []
        for at, i in enumerate(line):
            prompt = self.prompts[i]
            held, prefix = prompt.held[r], prompt.prefix[r]
            for head, order in orders:
                if head == prompt.head and (run := prompt.run(order)) > held:
                    held, prefix = run, _leading(order, prompt.tokens)
            own = self.own_s(i, r, held)
            clock += own
            total += clock + own * (beyond + FIRST_CLAIM * step.late_share(prompt.total - held))
            step = step.joined(prompt.total - held)
            if at + 1 < len(line):
                behind = [self.prompts[j] for j in line[at + 1 :]]
                orders.append((prompt.head, self._order(prompt, prefix, behind)))
        return total

    def _order(self, prompt: Prompt, prefix: Context, behind: Sequence[Prompt]) -> Context:
        context = tuple(prompt.tokens)
        if prompt.fixed:
            return context
        followers = [tuple(other.tokens) for other in behind if other.head == prompt.head]
        return shared_first(context, prefix, followers, prompt.tokens)


def _mend(lines: list[list[int]], costs: _Costs) -> list[list[int]]:
    """Move single requests while the sum of all times falls; a local optimum."""
    cost = [costs.of(line, r) for r, line in enumerate(lines)]
    better = True
    while better:
        better = False
        for i in range(len(costs.prompts)):
            source = next(r for r, line in enumerate(lines) if i in line)
            without = [j for j in lines[source] if j != i]
            alone = costs.of(without, source)
            least = sum(cost) - 1e-9
            found: tuple[int, list[int]] | None = None
            for r, line in enumerate(lines):
                base = without if r == source else line
                others = sum(cost) - cost[r] + (0.0 if r == source else alone - cost[source])
                for at in range(len(base) + 1):
                    tried = [*base[:at], i, *base[at:]]
                    total = others + costs.of(tried, r)
                    if total < least:
                        least, found = total, (r, tried)
            if found is not None:
                lines[source], cost[source] = without, alone
                lines[found[0]] = found[1]
                cost[found[0]] = costs.of(found[1], found[0])
                better = True
    return lines


def shared_first(
    context: Context,
    prefix: Context,
    followers: Sequence[Context],
    tokens: Mapping[BlockId, int],
) -> Context:
    """`prefix`, extended by blocks that followers have, those first that save most tokens.

    Only followers count that have all of the blocks before. The rest of the context is left out.
    """
    placed = list(prefix)
    sets = [one for one in map(frozenset, followers) if one.issuperset(prefix)]
    taken = set(prefix)
    rest = [block for block in context if block not in taken]
    while sets and rest:
        value, place = max(
            (tokens[block] * sum(block in one for one in sets), -at)
            for at, block in enumerate(rest)
        )
        if not value:
            break
        block = rest.pop(-place)
        placed.append(block)
        sets = [one for one in sets if block in one]
    return tuple(placed)


def _leading(order: Context, tokens: Mapping[BlockId, int]) -> Context:
    end = 0
    while end < len(order) and order[end] in tokens:
        end += 1
    return order[:end]


def _common_tokens(one: Prompt, other: Prompt) -> int:
    """Leading tokens that the second can find of the first, were both ordered for it."""
    if one.head != other.head:
        return 0
    if one.fixed or other.fixed:
        return other.run(tuple(one.tokens))
    common = other.head_tokens
    for block, size in other.tokens.items():
        if block in one.tokens:
            common += size
    return common
