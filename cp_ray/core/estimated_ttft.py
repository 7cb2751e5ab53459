"""Estimated seconds of prefill, learnt while serving: one curve for the fleet, a speed each.

What is observed is a run: consecutive first tokens of one replica, since it had nothing to prefill
or since the run before. Single prompts would mislead: an engine that batches may have computed most
of a prompt in the step that ended the one before it. The curve t(cached, new) is linear in its
coefficients, so the sums of a run fit it as well as single prefills would. Each run is divided by
its replica's speed, and a replica's speed follows what its runs took against the curve. There is
nothing to set.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import deque
from typing import TYPE_CHECKING, Final, final

from cp_ray.core.own_times import Alone
from cp_ray.core.prefill_curve import PrefillCurve
from cp_ray.core.types import ReplicaId
from cp_ray.errors import InvariantError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

PRIOR = PrefillCurve(base_s=0.0, per_new_s=1e-4, per_new_squared_s=0.0, per_pair_s=0.0)
"""Until the first fit. Placement compares waits with prefills: the unit falls out."""
ENOUGH: Final = 8
"""Runs of the first fit; it is repeated at each doubling, then every REFIT."""
REFIT: Final = 64
RUNS: Final = 256
RUN_PROMPTS: Final = 6
"""Prompts after which a run ends though the replica is still busy, at the engine's next step."""
SAME_STEP: Final = 0.5
"""First tokens of one step are heard nearly at once: within this share of a run's mean gap."""
FAR_TOO_FAST = 1 / 16
"""A run is not believed that took less than this share of the usual, by the curve of before and
by the prompt."""
SPEED_MEMORY: Final = 24
"""Prompts over which a replica's speed is averaged."""
OUTLIER: Final = 1.6
"""Runs that took this much longer than a first fit waited for something else (room, mostly)."""
_RIVALS_OF_NEW = (0, 3, 2)
"""Columns of a fit that are left out, in this order, until new tokens have a cost of their own."""
SPREAD: Final = 512
"""Requests over which the p90 is taken."""


COLUMNS: Final = 5
"""Of a run as a row: prompts, new tokens, pairs, answers beside it, seconds."""


@final
class _Run:
    """Sums over the prompts of a run. pairs: of each new token with the tokens before it.

    answering: requests that shared its steps, each getting a token of its answer.
    spoiled: part of its time was no prefill.
    """

    __slots__ = ("answering", "new", "pairs", "prompts", "seconds", "spoiled")

    def __init__(self) -> None:
        self.prompts = 0
        self.answering = 0
        self.new = 0
        self.pairs = 0.0
        self.seconds = 0.0
        self.spoiled = False

    def over(self, gap_s: float) -> bool:
        """Whether the next first token, so long after the last one, belongs to another run.

        One that ended within a step would leave the step's other prompts to a run of no time.
        """
        return self.prompts >= RUN_PROMPTS and gap_s > SAME_STEP * self.seconds / self.prompts

    def row(self) -> tuple[float, ...]:
        """By COLUMNS."""
        return self.prompts, self.new, self.pairs, self.answering, self.seconds

    def expected_s(self, curve: PrefillCurve, per_answer_s: float) -> float:
        return (
            curve.base_s * self.prompts
            + per_answer_s * self.answering
            + curve.per_new_s * self.new
            + curve.per_pair_s * self.pairs
        )


class PrefillTimes:
    """Owner of the curve, the speeds, and how far estimates were from what came."""

    def __init__(self) -> None:
        self.curve = PRIOR
        self.alone = Alone(PRIOR)
        self.per_answer_s = 0.0
        self.fitted = False
        self._runs = array("d")  # rows of COLUMNS, and whose each is
        self._run_of: deque[ReplicaId] = deque(maxlen=RUNS)
        self._open: dict[ReplicaId, _Run] = {}
        self._next_fit = ENOUGH
        self._log_slowness: dict[ReplicaId, float] = {}
        self._slowness: dict[ReplicaId, float] = {}  # the same, not as logarithms
        self._seen: dict[ReplicaId, int] = {}
        self._ratios: deque[float] = deque()
        self._ranked: list[float] = []  # the same, sorted
        self._p90 = 1.0
        self._judged = 0

    def seconds(self, replica: ReplicaId, cached: int, new: int, answering: int = 0) -> float:
        """Prefill of `new` tokens behind `cached` ones on this replica, beside so many answers."""
        return self.beside(replica, self.alone.seconds(cached, new), answering)

    def beside(self, replica: ReplicaId, alone_s: float, answering: int) -> float:
        """What takes `alone_s` on the fleet's curve, on this replica beside so many answers."""
        return (alone_s + self.per_answer_s * answering) * self.slowness(replica)

    def slowness(self, replica: ReplicaId) -> float:
        """Seconds there for one second of the fleet's curve."""
        return self._slowness.get(replica, 1.0)

    def observe(
        self,
        replica: ReplicaId,
        cached: int,
        new: int,
        seconds: float,
        *,
        answering: int = 0,
        idle: bool,
    ) -> None:
        """A prompt's first token came so long after the replica could begin with it.

        answering: other requests there past their first token. idle: nothing is left to prefill.
        """
        run = self._open.get(replica)
        if run is None or run.over(seconds):
            self._close(replica)
            run = self._open[replica] = _Run()
        run.prompts += 1
        run.answering += answering
        run.new += new
        run.pairs += new * (cached + new / 2)
        run.seconds += seconds
        if idle:
            self._close(replica)

    def skip(self, replica: ReplicaId, seconds: float, *, idle: bool) -> None:
        """As `observe`, of one that waited for more than prefill: its run tells nothing."""
        self.observe(replica, 0, 0, seconds, idle=False)
        self._open[replica].spoiled = True
        if idle:
            self._close(replica)

    def judge(self, estimated_s: float, actual_s: float) -> bool:
        """Compare a TTFT with its estimate; whether the p90 of before covered it."""
        covered = actual_s <= estimated_s * self._p90
        ranked = self._ranked
        if len(ranked) == SPREAD:
            del ranked[bisect_left(ranked, self._ratios.popleft())]
        ratio = actual_s / max(estimated_s, 1e-6)
        self._ratios.append(ratio)
        insort(ranked, ratio)
        self._judged += 1
        if self._judged % 16 == 0:
            self._p90 = ranked[min(len(ranked) * 9 // 10, len(ranked) - 1)]
        return covered

    def p90_s(self, estimated_s: float) -> float:
        """What nine in ten requests of this estimate stay below, by the last ones."""
        return estimated_s * self._p90

    def forget(self, replica: ReplicaId) -> None:
        """The replica is gone; another of its name may be on another machine."""
        for table in (self._log_slowness, self._slowness, self._seen, self._open):
            table.pop(replica, None)

    def _close(self, replica: ReplicaId) -> None:
        """The replica's run is over."""
        run = self._open.pop(replica, None)
        if run is not None and run.new > 0 and run.seconds > 0 and not run.spoiled:
            self._learn(replica, run)

    def _learn(self, replica: ReplicaId, run: _Run) -> None:
        """Speed first: mean of log ratios by prompts; one odd run moves it by a bounded step."""
        expected = run.expected_s(self.curve, self.per_answer_s)
        if self.fitted and expected > 0:
            mean = self._log_slowness.get(replica, 0.0)
            seen = min(self._seen.get(replica, 1) + run.prompts, SPEED_MEMORY)
            step = math.log(run.seconds / expected) - mean
            step = max(-1.0, min(1.0, step)) * min(1.0, run.prompts / seen)
            self._log_slowness[replica], self._seen[replica] = mean + step, seen
            self._slowness[replica] = math.exp(mean + step)
        self._runs.extend(run.row())
        self._run_of.append(replica)
        if len(self._runs) > RUNS * COLUMNS:
            del self._runs[:COLUMNS]
        self._next_fit -= 1
        if self._next_fit <= 0 and len(self._run_of) >= ENOUGH:
            self._fit()

    def _fit(self) -> None:
        """Non-negative least squares of relative errors, once more without what is far off."""
        known = self._log_slowness
        mean = sum(known.values()) / len(known) if known else 0.0
        for replica in known:
            known[replica] -= mean
            self._slowness[replica] = math.exp(known[replica])
        import numpy as np

        runs = np.array(self._runs).reshape(-1, COLUMNS)
        slowness = np.array([self.slowness(replica) for replica in self._run_of])
        # Relative errors: one run that took next to no time would outweigh all others.
        share = runs[:, -1] / (slowness * _expected_s(runs, self.curve, self.per_answer_s))
        # Both ways: among runs that find nearly all, one that finds nothing has a small share.
        each = runs[:, -1] / (slowness * runs[:, 0])
        sound = share >= FAR_TOO_FAST * np.median(share)
        sound |= each >= FAR_TOO_FAST * np.median(each)
        runs, slowness = runs[sound], slowness[sound]
        found = _fit(runs, slowness)
        kept = runs[:, -1] <= OUTLIER * slowness * _expected_s(runs, *found)
        if ENOUGH <= int(kept.sum()) < len(runs):
            found = _fit(runs[kept], slowness[kept])
        curve = found[0]
        if curve.base_s + curve.per_new_s + curve.per_pair_s > 0:
            self.curve, self.per_answer_s = found
            self.alone = Alone(curve)
            self.fitted = True
        self._next_fit = min(len(self._run_of), REFIT)

    def check(self) -> None:
        """Raise InvariantError unless speeds are finite and what is kept is bounded."""
        if any(not math.isfinite(slowness) for slowness in self._log_slowness.values()):
            raise InvariantError("prefill times: a replica's speed is no number")
        if len(self._run_of) > RUNS or len(self._ratios) > SPREAD:
            raise InvariantError("prefill times: more is kept than the limit")
        if self._ranked != sorted(self._ratios):
            raise InvariantError("prefill times: ratios by age and by size disagree")


def _expected_s(runs: Floats, curve: PrefillCurve, per_answer_s: float) -> Floats:
    """As `_Run.expected_s`, of rows."""
    prompts, new, pairs, answering, _ = runs.T
    base = curve.base_s * prompts + per_answer_s * answering
    return base + curve.per_new_s * new + curve.per_pair_s * pairs


def _fit(runs: Floats, slowness: Floats) -> tuple[PrefillCurve, float]:
    """The curve, and the seconds that each answer beside it adds to a prompt.

    runs: rows of COLUMNS. slowness: of each run's replica.

    One coefficient for all attention, that of new tokens among themselves and onto cached ones.

    Traffic that finds little in the caches says nothing of the second alone.
    """
    import numpy as np
    from scipy.optimize import nnls

    seconds = runs[:, -1] / slowness
    terms = runs[:, :-1] / seconds[:, None]
    scale = np.maximum(terms.max(axis=0), np.finfo(float).tiny)
    found, _ = nnls(terms / scale, np.ones(len(runs)))
    for column in _RIVALS_OF_NEW:
        if found[1]:
            break
        # Prompts that all lack as much do not tell cost per prompt from cost per token. Charged to
        # the prompts, whoever holds nothing would look as fast as the holder; charged to answers
        # or to pairs, a long prompt as fast as a short one.
        terms[:, column] = 0.0
        found, _ = nnls(terms / scale, np.ones(len(runs)))
    base_s, per_new_s, per_pair_s, per_answer_s = (float(value) for value in found / scale)
    return PrefillCurve(base_s, per_new_s, per_pair_s / 2, per_pair_s), per_answer_s
