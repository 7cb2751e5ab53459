"""Joint choice for a window: which request next, where, and in which order of blocks.

One after the other in order of arrival is 16% from the best on small windows: the first ones do
not know what would serve those behind them. So the window is laid out in advance: again and again
the request and replica that add least to all waits (a short prompt before a long one, a sibling
behind its leader), each with those blocks first that its followers have, too. A small window is
then mended: a request moves to where the sum of all times falls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from cp_ray.core.types import BlockId, Context, HeadId

CHUNK = 16
"""Requests laid out together; a larger window is cut, in order of arrival. Work grows as its square."""
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
) -> list[Place]:
    """The window in order of sending.

    waits[r]: seconds there now. price: of a second of prefill, by the shortest wait.
    """
    lines = _greedy(prompts, waits, own_s, price)
    if len(prompts) <= MENDED:
        lines = _mend(lines, prompts, waits, own_s, price(min(waits)))
    places = []
    for r, line in enumerate(lines):
        for at, i in enumerate(line):
            behind = tuple(j for j in line[at + 1 :] if prompts[j].head == prompts[i].head)
            places.append((at, Place(i, r, behind)))
    return [place for _, place in sorted(places, key=lambda pair: pair[0])]


def _greedy(
    prompts: Sequence[Prompt],
    waits: Sequence[float],
    own_s: OwnSeconds,
    price: Callable[[float], float],
) -> list[list[int]]:
    """For each replica the requests it gets, in order."""
    left = list(range(len(prompts)))
    clock = list(waits)
    lines: list[list[int]] = [[] for _ in waits]
    best = [list(prompt.held) for prompt in prompts]
    own = [[own_s(i, r, best[i][r]) for r in range(len(waits))] for i in left]
    while left:
        at_price = price(min(clock))
        _, i, r = min(
            (clock[r] + own[i][r] * at_price, i, r) for i in left for r in range(len(clock))
        )
        left.remove(i)
        lines[r].append(i)
        clock[r] += own[i][r]
        for j in left:
            common = _common_tokens(prompts[i], prompts[j])
            if common > best[j][r]:
                best[j][r] = common
                own[j][r] = own_s(j, r, common)
    return lines


def _mend(
    lines: list[list[int]],
    prompts: Sequence[Prompt],
    waits: Sequence[float],
    own_s: OwnSeconds,
    price: float,
) -> list[list[int]]:
    """Move single requests while the sum of all times falls; a local optimum."""
    costs = [_cost(line, r, prompts, waits[r], own_s, price) for r, line in enumerate(lines)]
    better = True
    while better:
        better = False
        for i in range(len(prompts)):
            source = next(r for r, line in enumerate(lines) if i in line)
            without = [j for j in lines[source] if j != i]
            alone = _cost(without, source, prompts, waits[source], own_s, price)
            best = sum(costs) - 1e-9
            found: tuple[int, list[int], float] | None = None
            for r, line in enumerate(lines):
                base = without if r == source else line
                others = sum(costs) - costs[source] - (0.0 if r == source else costs[r])
                others += 0.0 if r == source else alone
                for at in range(len(base) + 1):
                    tried = [*base[:at], i, *base[at:]]
                    cost = _cost(tried, r, prompts, waits[r], own_s, price)
                    if others + cost < best:
                        best, found = others + cost, (r, tried, cost)
            if found is not None:
                r, tried, cost = found
                lines[source], costs[source] = without, alone
                lines[r], costs[r] = tried, cost
                better = True
    return lines


def _cost(
    line: Sequence[int],
    r: int,
    prompts: Sequence[Prompt],
    wait_s: float,
    own_s: OwnSeconds,
    price: float,
) -> float:
    """Sum of the times to first token of a replica's line, and the price of its prefill."""
    clock, total = wait_s, 0.0
    orders: list[tuple[HeadId, Context]] = []
    for at, i in enumerate(line):
        prompt = prompts[i]
        held = prompt.held[r]
        prefix = prompt.prefix[r]
        for head, order in orders:
            if head == prompt.head and (run := prompt.run(order)) > held:
                held = run
                prefix = order
        own = own_s(i, r, held)
        clock += own
        total += clock + own * (price - 1.0)
        if prompt.fixed:
            orders.append((prompt.head, tuple(prompt.tokens)))
        elif at + 1 < len(line):
            leading = prefix if prefix in prompt.prefix else _leading(prefix, prompt.tokens)
            behind = [
                tuple(prompts[j].tokens) for j in line[at + 1 :] if prompts[j].head == prompt.head
            ]
            orders.append(
                (prompt.head, shared_first(tuple(prompt.tokens), leading, behind, prompt.tokens))
            )
    return total


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
