"""Does reordering cost answers? A sequential test that may be looked at after every request.

A canary share of the requests of a route, chosen by chance, is served without reordering; scores
of both kinds are compared as they come. The route's reordering is stopped when the loss is proven
larger than a bound. The test is anytime-valid: however often it is looked at, and whatever the
traffic, a route whose loss is within the bound is stopped with probability at most alpha.

Why. Let s in [0, 1] be a score, A = 1 for a canary request (probability p), g any number known
before the request (here the mean score so far), and

    X = (A / p - (1 - A) / (1 - p)) * (s - g) - bound.

E[X | past] = (mean score without reordering) - (mean with) - bound, whatever g is, because the
first factor has mean zero and A is independent of everything else. Under the null hypothesis that
is at most 0, so for any fixed w in [0, 1 / -min X] the wealth  W = product of (1 + w X)  is a
nonnegative supermartingale that begins at 1, and so is the mean of several such W (here over a
grid of w): an e-process. By Ville's inequality it reaches 1 / alpha with probability at most
alpha. Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting".

Where both kinds of answer to one request can be scored, X = (score without) - (score with) - bound
is used in the same way and needs far fewer requests, because most pairs are equal.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from cp_ray.errors import ConfigError, InvariantError

_WEIGHTS = tuple(0.5**power for power in range(1, 9))
"""Of the largest allowed bet: small losses need small bets, and which is best is not known."""


class Rule(msgspec.Struct, frozen=True):
    """share: of requests served without reordering. bound: loss of mean score that is accepted.

    alpha: probability, at most, of stopping a route whose loss is within the bound.
    """

    share: float
    bound: float = 0.0
    alpha: float = 0.01


class Arm(msgspec.Struct):
    """Scores of one kind."""

    count: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        """Zero before the first."""
        return self.total / self.count if self.count else 0.0


class Wealth:
    """The e-process. low: the least value that an observation can have, below zero."""

    def __init__(self, low: float, alpha: float) -> None:
        if low >= 0:
            raise ConfigError(f"bets need something to lose: the least value is {low}")
        self._bets = tuple(weight / -low for weight in _WEIGHTS)
        self._each = [1.0] * len(self._bets)
        self._low = low
        self._goal = 1 / alpha
        self.highest = 1.0

    def add(self, value: float) -> None:
        """One observation, whose mean is at most 0 under the null hypothesis."""
        if value < self._low * (1 + 1e-9):
            raise InvariantError(f"observation {value} is below {self._low}")
        if self.proven:
            return  # it stays so, and wealth need not grow without end
        self._each = [
            each * (1 + bet * value) for each, bet in zip(self._each, self._bets, strict=True)
        ]
        self.highest = max(self.highest, self.now)

    @property
    def now(self) -> float:
        """The mean wealth: an e-value."""
        return sum(self._each) / len(self._each)

    @property
    def proven(self) -> bool:
        """Whether it has ever reached 1 / alpha."""
        return self.highest >= self._goal


class Guardrail:
    """One route. `observe` scores as they come; `stopped` stays true."""

    def __init__(self, rule: Rule) -> None:
        """Raises ConfigError for a share, bound or alpha that cannot be tested."""
        if not 0 < rule.share < 1 or not 0 <= rule.bound < 1 or not 0 < rule.alpha < 1:
            raise ConfigError(
                f"guardrail: share {rule.share}, bound {rule.bound}, alpha {rule.alpha}: "
                "share and alpha must lie between 0 and 1, the bound from 0 to below 1"
            )
        self.rule = rule
        self.canary = Arm()
        self.reordered = Arm()
        largest = max(1 / rule.share, 1 / (1 - rule.share))
        self._chance = Wealth(-largest - rule.bound, rule.alpha / 2)
        self._pairs = Wealth(-1 - rule.bound, rule.alpha / 2)

    def observe(self, score: float, *, canary: bool) -> None:
        """The score of one request, in [0, 1]."""
        _check(score)
        count, total = self.canary.count, self.canary.total
        count, total = count + self.reordered.count, total + self.reordered.total
        expected = (total + 0.5) / (count + 1)
        share = self.rule.share
        factor = 1 / share if canary else -1 / (1 - share)
        self._chance.add(factor * (score - expected) - self.rule.bound)
        arm = self.canary if canary else self.reordered
        arm.count += 1
        arm.total += score

    def observe_pair(self, without: float, reordered: float) -> None:
        """Scores of two answers to one request, each in [0, 1]."""
        _check(without)
        _check(reordered)
        self._pairs.add(without - reordered - self.rule.bound)
        for arm, score in ((self.canary, without), (self.reordered, reordered)):
            arm.count += 1
            arm.total += score

    @property
    def stopped(self) -> bool:
        """Whether the loss is proven to pass the bound. Each of both tests has half of alpha."""
        return self._chance.proven or self._pairs.proven

    @property
    def evidence(self) -> float:
        """The larger e-value of both tests."""
        return max(self._chance.now, self._pairs.now)

    def audit(self, route: str) -> str:
        """One line that says what was seen and what follows."""
        rule, state = self.rule, "OFF" if self.stopped else "on"
        return (
            f"guardrail route={route} reordering={state} "
            f"without={self.canary.mean:.4f}/{self.canary.count} "
            f"reordered={self.reordered.mean:.4f}/{self.reordered.count} "
            f"loss={self.canary.mean - self.reordered.mean:.4f} bound={rule.bound} "
            f"evidence={self.evidence:.4g} goal={2 / rule.alpha:.4g} alpha={rule.alpha}"
        )


def is_canary(request_id: str, share: float) -> bool:
    """By a digest of the id, which is drawn at random: every process comes to the same answer."""
    digest = int.from_bytes(blake2b(f"canary\0{request_id}".encode(), digest_size=8).digest())
    return digest < share * (1 << 64)


def _check(score: float) -> None:
    if not 0 <= score <= 1:
        raise ConfigError(f"score: {score} is not between 0 and 1")
