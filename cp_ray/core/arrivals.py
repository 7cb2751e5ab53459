"""Plans that travel with their requests, until a replica says that it has the request.

On the direct data plane the Router answers HAProxy and hears no more of it; where HAProxy knows no
such replica (yet), or its client has left, a plan is lost with all that it has reserved. So a plan
of which no replica tells is taken back, long before its lease: one prefill is forgotten, at worst.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from cp_ray.core.types import RequestId
from cp_ray.errors import InvariantError

PATIENCE_S: Final = 10.0
"""HAProxy waits five seconds for a Router, and as long to connect. What comes later is served."""


@final
class Arrivals:
    """Owner of the plans on their way. Times: seconds, any origin, not decreasing."""

    def __init__(self) -> None:
        self._planned: OrderedDict[RequestId, float] = OrderedDict()

    def planned(self, request: RequestId, now: float) -> None:
        """It goes out with its plan."""
        self._planned.pop(request, None)
        self._planned[request] = now

    def heard(self, request: RequestId) -> None:
        """Somebody has told of it. Unknown requests do nothing."""
        self._planned.pop(request, None)

    def lost(self, now: float) -> list[RequestId]:
        """Those nobody has told of in time, oldest first; they are waited for no more."""
        lost = []
        for request, planned in self._planned.items():
            if now - planned < PATIENCE_S:
                break
            lost.append(request)
        for request in lost:
            del self._planned[request]
        return lost

    def __len__(self) -> int:
        return len(self._planned)

    def check(self) -> None:
        """Raise InvariantError unless they are in order of planning."""
        times = list(self._planned.values())
        if times != sorted(times):
            raise InvariantError("arrivals: not in order of planning")
