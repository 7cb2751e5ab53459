"""What the fleet has to do: who runs what, how long it will take, and what that costs the others.

The load ledger and all that is learnt from it, changed together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cp_ray.core.estimated_ttft import PrefillTimes
from cp_ray.core.last_step import LastStep
from cp_ray.core.load import IDLE, LoadLedger, Work
from cp_ray.core.own_times import OwnTimes
from cp_ray.core.placement import ANSWER_STEPS, BEHIND, Congestion, Option
from cp_ray.core.room import Room
from cp_ray.core.types import ReplicaId, ReplicaInfo, RequestId

FULL: Final = 0.9
"""Share of a cache taken or spoken for from which prompts may wait for room, not for prefill."""


class FleetLoad:
    """Owner of ledger, prefill times, congestion and room. Times: seconds, any origin."""

    def __init__(self) -> None:
        self.ledger = LoadLedger()
        self.times = PrefillTimes()
        self.congestion = Congestion()
        self.room = Room()
        self._assigned: dict[ReplicaId, int] = {}
        self.judged = 0
        self.within_p90 = 0

    def own_s(self, replica: ReplicaId, cached: int, new: int) -> float:
        """Prefill of a prompt there, beside the answers that run there now."""
        return self.times.seconds(replica, cached, new, self.ledger.answering(replica))

    def own_times(self, infos: Sequence[ReplicaInfo]) -> OwnTimes:
        """As `own_s` by the replica's number, for a window: nothing is learnt meanwhile."""
        times, ledger = self.times, self.ledger
        return OwnTimes(
            times.alone,
            [times.per_answer_s * ledger.answering(info.replica) for info in infos],
            [times.slowness(info.replica) for info in infos],
        )

    def beside_s(self, infos: Sequence[ReplicaInfo]) -> list[float]:
        """What an answer and those that run on each replica take from each other."""
        answer_s = ANSWER_STEPS * self.times.per_answer_s
        return [answer_s * self.ledger.answering(info.replica) for info in infos]

    def surcharge(self, infos: Sequence[ReplicaInfo]) -> list[float]:
        """What those who will come behind add to the price of a second of prefill there."""
        queues = self.ledger.queues
        return [BEHIND * len(queues.get(info.replica, IDLE).waiting) for info in infos]

    def last_steps(self, infos: Sequence[ReplicaInfo], now: float) -> list[LastStep]:
        """The step that ends each replica's line, as far as one more prompt would get into it."""
        queues = [self.ledger.queues.get(info.replica, IDLE) for info in infos]
        return [
            queue.joinable(info.step_tokens, queue.wait_s(now))
            for queue, info in zip(queues, infos, strict=True)
        ]

    def wait_s(self, info: ReplicaInfo, new: int, now: float) -> float:
        """Until the replica has prefilled what is planned there, and has room for this prompt."""
        pinned = self.ledger.pinned_tokens(info.replica)
        room_s = self.room.wait_s(pinned, new, info.capacity_tokens)
        return self.ledger.wait_s(info.replica, now) + room_s

    def options(
        self, infos: list[ReplicaInfo], held: list[int], total: int, now: float
    ) -> list[Option]:
        """Each replica's offer for a prompt of `total` tokens, so many of which it holds."""
        queues, room, times, alone = self.ledger.queues, self.room, self.times, self.times.alone
        offers = []
        last, alone_s = -1, 0.0
        answer_s = ANSWER_STEPS * times.per_answer_s
        for at, info in enumerate(infos):
            replica, cached = info.replica, held[at]
            queue = queues.get(replica, IDLE)
            new = total - cached
            if cached != last:  # most hold as much as the one before: the head, or nothing
                last, alone_s = cached, alone.seconds(cached, new)
            room_s = room.wait_s(queue.pinned, new, info.capacity_tokens)
            line_s = queue.wait_s(now)
            own_s = times.beside(replica, alone_s, queue.answering)
            assigned = self._assigned.get(replica, 0)
            beside_s = answer_s * queue.answering
            waiting = len(queue.waiting)
            late_s = 0.0
            if waiting and info.step_tokens:
                late_s = own_s * queue.joinable(info.step_tokens, line_s).late_share(new)
            offers.append(
                Option(
                    replica,
                    line_s + room_s,
                    own_s,
                    queue.running,
                    assigned,
                    beside_s=beside_s,
                    waiting=waiting,
                    late_s=late_s,
                    step_tokens=info.step_tokens,
                    new=new,
                )
            )
        return offers

    def reserve(
        self,
        request: RequestId,
        option: Option,
        cached: int,
        new: int,
        *,
        now: float,
        replicas: int,
    ) -> Work:
        """Take an offer. cached: as planned in the end. replicas: live ones."""
        seconds = self.own_s(option.replica, cached, new)
        work = Work(cached, new, seconds, option.wait_s + seconds, option.step_tokens)
        self.ledger.reserve(request, option.replica, work, now)
        self.congestion.planned(seconds, replicas, now)
        self._assigned[option.replica] = self._assigned.get(option.replica, 0) + 1
        return work

    def moved(self, request: RequestId, info: ReplicaInfo | None, tokens: int, now: float) -> None:
        """The request runs there, and finds nothing. info: None = a replica not known (yet)."""
        if info is None:
            self.ledger.free(request)
            return
        seconds = self.own_s(info.replica, 0, tokens)
        ttft_s = self.wait_s(info, tokens, now) + seconds
        work = Work(0, tokens, seconds, ttft_s, info.step_tokens)
        self.ledger.move(request, info.replica, work, now)

    def first_token(
        self, request: RequestId, infos: Mapping[ReplicaId, ReplicaInfo], now: float
    ) -> None:
        """Free the prefill, and learn how long it took."""
        done = self.ledger.prefill_done(request, now)
        if done is None or done.replica not in infos:
            return
        replica = done.replica
        if self.times.fitted:
            self.judged += 1
            self.within_p90 += self.times.judge(done.work.ttft_s, done.ttft_s)
        idle = not self.ledger.prefill_tokens(replica)
        if self.ledger.pinned_tokens(replica) > infos[replica].capacity_tokens * FULL:
            self.times.skip(replica, done.seconds, idle=idle)
            return
        self.times.observe(
            replica,
            done.work.cached,
            done.work.new,
            done.seconds,
            answering=self.ledger.answering(replica) - 1,
            idle=idle,
        )

    def ended(self, request: RequestId, now: float) -> None:
        """Free all of its load. Unknown requests do nothing."""
        alone_s = self.ledger.answered(request, now)
        if alone_s is not None:
            self.room.answered(alone_s)

    def assigned(self, replica: ReplicaId) -> int:
        """Requests ever planned there."""
        return self._assigned.get(replica, 0)

    def drop_replica(self, replica: ReplicaId) -> None:
        """The replica is gone."""
        self.ledger.drop_replica(replica)
        self.times.forget(replica)
        self._assigned.pop(replica, None)

    def counters(self) -> dict[str, int]:
        """reserved: requests now. ttft_judged, ttft_within_p90: since the start."""
        return {
            "reserved": len(self.ledger),
            "ttft_judged": self.judged,
            "ttft_within_p90": self.within_p90,
        }

    def check(self) -> None:
        """Raise InvariantError unless the books balance."""
        self.ledger.check()
        self.times.check()
