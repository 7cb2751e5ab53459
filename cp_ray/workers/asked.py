"""What a replica was asked, as rates: the part of a fleet's demand that it reports to Serve.

Rates of sums add up over replicas and average over time; means of requests would do neither.
"""

from __future__ import annotations

from cp_ray.workers.engine import EngineRequest

REQUESTS = "cp_requests_per_s"
PLANNED = "cp_planned_per_s"
PREFILL = "cp_prefill_s_per_s"
TTFT = "cp_ttft_s_per_s"


class AskedRates:
    """Counts clients' requests between two questions. Times: seconds, any origin."""

    def __init__(self, now: float) -> None:
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._since = now
        self._requests = 0
        self._planned = 0
        self._prefill_s = 0.0
        self._ttft_s = 0.0

    def count(self, request: EngineRequest) -> None:
        """A request came. One without a plan counts, but has no estimates to add."""
        if request.ahead:
            return
        self._requests += 1
        self._planned += request.estimated_ttft_s > 0
        self._prefill_s += request.estimated_prefill_s
        self._ttft_s += request.estimated_ttft_s

    def rates(self, now: float) -> dict[str, float]:
        """Since the last call, by name; counting begins anew."""
        passed = max(now - self._since, 1e-3)
        sums = {
            REQUESTS: self._requests,
            PLANNED: self._planned,
            PREFILL: self._prefill_s,
            TTFT: self._ttft_s,
        }
        self._begin(now)
        return {name: total / passed for name, total in sums.items()}
