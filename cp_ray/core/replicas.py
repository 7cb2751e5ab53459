"""The replica table: who is live, what each is expected to send next, and who owes a dump.

Epoch: incarnation of the cache in one replica process. Reports and dumps of an epoch share one
numbering. A gap in it means an eviction was not heard: the replica is believed nothing until a
dump says what it still holds, or, when none comes, it is forgotten.

live (e, n): expects number n of epoch e. resyncing (e, n, m): also needs a dump numbered m or
later. Evictions are facts whenever they come and only ever shrink what is believed, so those
heard while resyncing apply at once; nothing is buffered, nothing can overflow
(docs/decisions/0006-resync-without-a-buffer.md).

| replica   | message                              | verdict   | next                           |
|-----------|--------------------------------------|-----------|--------------------------------|
| absent    | any (e, s)                           | UNKNOWN   | absent, to join as (e, s + 1)  |
| live      | report (e, n)                        | APPLY     | live (e, n + 1)                |
| live      | report (e, s > n)                    | GAP       | resyncing (e, s + 1, s - 1)    |
| live      | report (e, s < n)                    | STALE     | same                           |
| live      | dump (e, s >= n)                     | DUMP      | live (e, s + 1)                |
| resyncing | report (e, s <= n)                   | APPLY     | resyncing (e, max(n, s + 1), m)|
| resyncing | report (e, s > n)                    | GAP       | resyncing (e, s + 1, s - 1)    |
| resyncing | dump (e, s >= m)                     | DUMP      | live (e, max(n, s + 1))        |
| either    | dump (e, s < n or m)                 | STALE     | same                           |
| either    | report (f > e, s)                    | NEW_EPOCH | live (f, s + 1)                |
| either    | dump (f > e, s)                      | DUMP      | live (f, s + 1)                |
| either    | any (f < e, s)                       | STALE     | same                           |
| live      | distrusted                           |           | resyncing (e, n, n), rebuild   |
| live      | records came back after a restart    |           | resyncing (e, n, n)            |
| resyncing | no dump for RESYNC_S                 | forget    | live (e, n)                    |

APPLY, GAP: apply its evictions. NEW_EPOCH: forget all, then apply. DUMP: keep only what it lists.

A replica's first messages come before Serve names it live. What they tell concerns no request
planned here; their numbers do: the next one is neither a gap nor a new epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

import msgspec

from cp_ray.core.types import Dump, DumpRequest, EvictionReport, ReplicaId, ReplicaInfo
from cp_ray.errors import InvariantError

RESYNC_S = 10.0
"""A replica that has not sent its dump this long after it was asked is forgotten."""
ASK_AGAIN_S = 2.0
MOST_ABSENT = 1024
"""Absent replicas whose position is remembered; the one heard of first is forgotten first."""


class Verdict(Enum):
    """What to do with a message."""

    APPLY = "apply"
    STALE = "stale"
    GAP = "gap"
    NEW_EPOCH = "new_epoch"
    DUMP = "dump"
    UNKNOWN = "unknown"


class Expected(msgspec.Struct, frozen=True):
    """What a live replica sends next.

    needs: number of the dump it owes, None when it owes none. rebuild: its own view is in doubt.
    asked_first, asked_last: when it was asked for the dump, seconds.
    """

    epoch: int = 0
    seq: int = 0
    needs: int | None = None
    rebuild: bool = False
    asked_first: float | None = None
    asked_last: float | None = None


class Due(msgspec.Struct, frozen=True):
    """What is due now: replicas to ask for a dump, and those to forget for want of one."""

    ask: tuple[DumpRequest, ...]
    forget: tuple[ReplicaId, ...]


class ReplicaTable:
    """Owner of the live set. `bit` numbers replicas for holder bit sets; bit 0 is nobody.

    usable: live replicas that are not shunned, all of them when every one is; not to be changed.
    usable_infos, usable_bits: the same with what they told of themselves, with their numbers.
    """

    def __init__(self) -> None:
        self._infos: dict[ReplicaId, ReplicaInfo] = {}
        self._expected: dict[ReplicaId, Expected] = {}
        self._bit: dict[ReplicaId, int] = {}
        self._replica: dict[int, ReplicaId] = {}
        self._live_mask = 0
        self._resyncing: set[ReplicaId] = set()
        self._shunned: frozenset[ReplicaId] = frozenset()
        self._absent: dict[ReplicaId, tuple[int, int]] = {}
        self.usable: list[ReplicaId] = []
        self.usable_infos: list[ReplicaInfo] = []
        self.usable_bits: list[tuple[ReplicaId, int]] = []

    @property
    def live(self) -> Mapping[ReplicaId, ReplicaInfo]:
        """Replicas that can take requests."""
        return self._infos

    def shun(self, replicas: Collection[ReplicaId]) -> None:
        """Plan nothing there while others are usable; in place of those shunned before."""
        self._shunned = frozenset(replicas)
        self._changed()

    @property
    def mask(self) -> int:
        """Bits of the live replicas that are believed; the others are planned by load only."""
        mask = self._live_mask
        for replica in self._resyncing:
            mask ^= 1 << self._bit[replica]
        return mask

    def believed(self, replica: ReplicaId) -> bool:
        """Whether a live replica's records count; not while it owes a dump."""
        return replica not in self._resyncing

    def position(self, replica: ReplicaId) -> tuple[int, int, int | None]:
        """Epoch and number of a live replica's next message; number of the dump it owes."""
        expected = self._expected[replica]
        return expected.epoch, expected.seq, expected.needs

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
                self._expected[replica] = Expected(*self._absent.pop(replica, (0, 0)))
                self._bit[replica] = bit
                self._replica[bit] = replica
                self._live_mask |= 1 << bit
            self._infos[replica] = info
        self._changed()
        return left

    def drop(self, replica: ReplicaId) -> None:
        """Take a replica out, after what it held was forgotten; its bit becomes free."""
        del self._infos[replica]
        del self._expected[replica]
        bit = self._bit.pop(replica)
        del self._replica[bit]
        self._live_mask ^= 1 << bit
        self._resyncing.discard(replica)
        self._changed()

    def receive(self, message: EvictionReport | Dump) -> Verdict:
        """Judge a message by the table above and advance."""
        expected = self._expected.get(message.replica)
        if expected is None:
            self._heard_absent(message)
            return Verdict.UNKNOWN
        verdict = (_judge_dump if isinstance(message, Dump) else _judge_report)(expected, message)
        seq = message.seq + 1
        if verdict is Verdict.GAP:
            after = msgspec.structs.replace(expected, seq=seq, needs=message.seq - 1)
        elif verdict is Verdict.APPLY:
            after = msgspec.structs.replace(expected, seq=max(seq, expected.seq))
        elif verdict is Verdict.STALE:
            after = expected
        elif message.epoch == expected.epoch:
            after = Expected(message.epoch, max(seq, expected.seq))
        else:
            after = Expected(message.epoch, seq)
        self._set(message.replica, after)
        return verdict

    def distrust(self, replica: ReplicaId, *, rebuild: bool = True) -> None:
        """Believe nothing of the replica until its dump.

        rebuild: what it says of itself is wrong, and it is to begin anew.
        """
        expected = self._expected[replica]
        if expected.needs is not None and expected.rebuild >= rebuild:
            return
        needs = expected.seq if expected.needs is None else expected.needs
        self._set(replica, msgspec.structs.replace(expected, needs=needs, rebuild=rebuild))

    def due(self, now: float) -> Due:
        """Who is to be asked now, and who is forgotten. now: seconds, not decreasing."""
        ask, forget = [], []
        for replica in sorted(self._resyncing):
            expected = self._expected[replica]
            first, last = expected.asked_first, expected.asked_last
            if first is not None and now - first >= RESYNC_S:
                forget.append(replica)
                self._set(replica, Expected(expected.epoch, expected.seq))
            elif last is None or now - last >= ASK_AGAIN_S:
                ask.append(DumpRequest(replica, expected.rebuild))
                first = now if first is None else first
                asked = msgspec.structs.replace(expected, asked_first=first, asked_last=now)
                self._set(replica, asked)
        return Due(tuple(ask), tuple(forget))

    def check(self) -> None:
        """Raise InvariantError unless ids, bits and expectations agree."""
        same = set(self._infos) == set(self._expected) == set(self._bit)
        inverse = self._replica == {bit: replica for replica, bit in self._bit.items()}
        inverse = inverse and self._live_mask == sum(1 << bit for bit in self._replica)
        if not (same and inverse) or 0 in self._replica:
            raise InvariantError("replica table: live set, bits and expectations disagree")
        owing = {name for name, expected in self._expected.items() if expected.needs is not None}
        if owing != self._resyncing:
            raise InvariantError("replica table: those that owe a dump are not those resyncing")

    def _changed(self) -> None:
        """Every plan reads these lists: they are made when the live set changes, not each time."""
        names = [name for name in self._infos if name not in self._shunned] or list(self._infos)
        self.usable = names
        self.usable_infos = [self._infos[name] for name in names]
        self.usable_bits = [(name, self._bit[name]) for name in names]

    def _heard_absent(self, message: EvictionReport | Dump) -> None:
        position = (message.epoch, message.seq + 1)
        known = self._absent.get(message.replica, position)
        self._absent[message.replica] = max(known, position)
        if len(self._absent) > MOST_ABSENT:
            del self._absent[next(iter(self._absent))]

    def _set(self, replica: ReplicaId, expected: Expected) -> None:
        self._expected[replica] = expected
        if expected.needs is None:
            self._resyncing.discard(replica)
        else:
            self._resyncing.add(replica)


def _judge_report(expected: Expected, report: EvictionReport | Dump) -> Verdict:
    if report.epoch != expected.epoch:
        return Verdict.NEW_EPOCH if report.epoch > expected.epoch else Verdict.STALE
    if report.seq > expected.seq:
        return Verdict.GAP
    live = expected.needs is None
    return Verdict.STALE if live and report.seq < expected.seq else Verdict.APPLY


def _judge_dump(expected: Expected, dump: EvictionReport | Dump) -> Verdict:
    needs = expected.seq if expected.needs is None else expected.needs
    return Verdict.DUMP if (dump.epoch, dump.seq) >= (expected.epoch, needs) else Verdict.STALE
