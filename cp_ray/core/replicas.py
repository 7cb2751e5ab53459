"""The replica table: live set, epoch and sequence of each replica's eviction reports.

Epoch: incarnation of the cache in one replica process. A gap in the sequence means an eviction
was not heard, so the replica is forgotten: forgetting costs one prefill, a ghost a misroute.

| replica        | report            | verdict   | next             |
|----------------|-------------------|-----------|------------------|
| not live       | any               | UNKNOWN   | not live         |
| live (e, n)    | (e, n)            | APPLY     | live (e, n + 1)  |
| live (e, n)    | (e, < n), (< e, *)| STALE     | live (e, n)      |
| live (e, n)    | (e, s > n)        | GAP       | live (e, s + 1)  |
| live (e, n)    | (f > e, s)        | NEW_EPOCH | live (f, s + 1)  |

GAP and NEW_EPOCH: the caller forgets all it believed of the replica, then applies the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from cp_ray.core.types import EvictionReport, ReplicaId, ReplicaInfo
from cp_ray.errors import InvariantError


class Verdict(Enum):
    """What to do with a report."""

    APPLY = "apply"
    STALE = "stale"
    GAP = "gap"
    NEW_EPOCH = "new_epoch"
    UNKNOWN = "unknown"


class Expected(msgspec.Struct, frozen=True):
    """The report a live replica sends next."""

    epoch: int = 0
    seq: int = 0


class ReplicaTable:
    """Owner of the live set. `bit` numbers replicas for holder bit sets; bit 0 is nobody."""

    def __init__(self) -> None:
        self._infos: dict[ReplicaId, ReplicaInfo] = {}
        self._expected: dict[ReplicaId, Expected] = {}
        self._bit: dict[ReplicaId, int] = {}
        self._replica: dict[int, ReplicaId] = {}

    @property
    def live(self) -> Mapping[ReplicaId, ReplicaInfo]:
        """Replicas that can take requests."""
        return self._infos

    @property
    def mask(self) -> int:
        """Bits of all live replicas."""
        return sum(1 << bit for bit in self._replica)

    def bit(self, replica: ReplicaId) -> int:
        """Bit number of a live replica."""
        return self._bit[replica]

    def replica(self, bit: int) -> ReplicaId:
        """Live replica of a bit number."""
        return self._replica[bit]

    def set_live(self, infos: Iterable[ReplicaInfo]) -> tuple[ReplicaId, ...]:
        """Add those that joined; returns those that left, for the caller to forget and drop."""
        wanted = {info.replica: info for info in infos}
        left = tuple(replica for replica in self._infos if replica not in wanted)
        for replica, info in wanted.items():
            if replica not in self._infos:
                bit = next(bit for bit in range(1, len(self._bit) + 2) if bit not in self._replica)
                self._expected[replica] = Expected()
                self._bit[replica] = bit
                self._replica[bit] = replica
            self._infos[replica] = info
        return left

    def drop(self, replica: ReplicaId) -> None:
        """Take a replica out, after what it held was forgotten; its bit becomes free."""
        del self._infos[replica]
        del self._expected[replica]
        del self._replica[self._bit.pop(replica)]

    def receive(self, report: EvictionReport) -> Verdict:
        """Judge a report by the table above and advance."""
        expected = self._expected.get(report.replica)
        if expected is None:
            return Verdict.UNKNOWN
        verdict = _judge(expected, report)
        if verdict is not Verdict.STALE:
            self._expected[report.replica] = Expected(report.epoch, report.seq + 1)
        return verdict

    def check(self) -> None:
        """Raise InvariantError unless ids, bits and expectations agree."""
        same = set(self._infos) == set(self._expected) == set(self._bit)
        inverse = self._replica == {bit: replica for replica, bit in self._bit.items()}
        if not (same and inverse) or 0 in self._replica:
            raise InvariantError("replica table: live set, bits and expectations disagree")


def _judge(expected: Expected, report: EvictionReport) -> Verdict:
    if report.epoch > expected.epoch:
        return Verdict.NEW_EPOCH
    if report.epoch < expected.epoch or report.seq < expected.seq:
        return Verdict.STALE
    return Verdict.GAP if report.seq > expected.seq else Verdict.APPLY
