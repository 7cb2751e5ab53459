"""Trust: whether what a replica says it holds is what its engine really finds.

Each answer is an audit: the tokens the replica's residency held of the prompt when the engine
scheduled it, against the tokens the engine says it found. They match within one engine block, or
the residency is wrong. Doubt rises by MISMATCH and falls by 1 for each match:

| trust       | doubt            | audit    | next                                     |
|-------------|------------------|----------|------------------------------------------|
| TRUSTED     | 0                | match    | TRUSTED                                  |
| TRUSTED     | 0                | mismatch | SUSPECT (MISMATCH)                       |
| SUSPECT     | d                | match    | SUSPECT (d - 1), TRUSTED at 0            |
| SUSPECT     | d                | mismatch | SUSPECT (d + MISMATCH), or QUARANTINED   |
| QUARANTINED | LIMIT and more   | any      | QUARANTINED                              |
| any         |                  | restored | TRUSTED                                  |

One or two mismatches never quarantine; three do when at most 8 matches lie between them, and so
does any lasting share above 1 in 17. With independent mismatches at rate p, a quarantine begins
with probability about 45 p^3 a request (three within 11): 5e-8 at p = 0.001.
"""

from __future__ import annotations

from enum import Enum

from cp_ray.core.types import ReplicaId
from cp_ray.errors import InvariantError

MISMATCH = 16
LIMIT = 40


class Trust(Enum):
    """QUARANTINED: planned by load only until it has begun anew."""

    TRUSTED = "trusted"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"


class TrustLedger:
    """Owner of the doubt about each replica; none is kept of those that are trusted."""

    def __init__(self) -> None:
        self._doubt: dict[ReplicaId, int] = {}

    def of(self, replica: ReplicaId) -> Trust:
        """Trust in a replica."""
        doubt = self._doubt.get(replica, 0)
        if doubt >= LIMIT:
            return Trust.QUARANTINED
        return Trust.SUSPECT if doubt else Trust.TRUSTED

    def audit(self, replica: ReplicaId, *, matches: bool) -> Trust:
        """Take one audit, by the table above."""
        doubt = self._doubt.get(replica, 0)
        if doubt < LIMIT:
            self._put(replica, doubt - 1 if matches else doubt + MISMATCH)
        return self.of(replica)

    def restore(self, replica: ReplicaId) -> None:
        """It has begun anew, or left."""
        self._doubt.pop(replica, None)

    def check(self) -> None:
        """Raise InvariantError when a trusted replica has an entry."""
        if any(doubt <= 0 for doubt in self._doubt.values()):
            raise InvariantError("trust ledger: a trusted replica has doubt")

    def _put(self, replica: ReplicaId, doubt: int) -> None:
        if doubt > 0:
            self._doubt[replica] = doubt
        else:
            self._doubt.pop(replica, None)
