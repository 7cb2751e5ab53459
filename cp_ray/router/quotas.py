"""What one tenant may ask of one ingress: requests and tokens a minute, and calls at a time.

Token buckets that hold a minute's worth. With several ingresses each has its share of the limits:
Serve spreads the requests over them. Bounded: tenants come from the settings, never from clients.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

from cp_ray.config import AppConfig
from cp_ray.errors import Overloaded

MINUTE_S = 60.0


class _Bucket:
    """rate: units a second. left may be negative: what was let in is paid off first."""

    def __init__(self, size: float, now: float) -> None:
        self.size = self.left = size
        self.rate = size / MINUTE_S
        self._at = now

    def fill(self, now: float) -> None:
        self.left = min(self.size, self.left + (now - self._at) * self.rate)
        self._at = now

    def seconds_until(self, amount: float) -> int:
        return max(1, math.ceil((amount - self.left) / self.rate))


class Quotas:
    """Owner of every tenant's buckets and open calls. clock: seconds, not decreasing."""

    def __init__(
        self,
        config: AppConfig,
        clock: Callable[[], float] = time.monotonic,
        ingresses: int | None = None,
    ) -> None:
        """ingresses: that share the limits; default: the configured ones."""
        self._share = 1 / (config.ingress_replicas if ingresses is None else ingresses)
        self._requests_per_minute = config.tenant_requests_per_minute
        self._tokens_per_minute = config.tenant_tokens_per_minute
        self._calls = config.tenant_max_calls
        self._clock = clock
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        self._open: Counter[str] = Counter()

    def request(self, tenant: str) -> None:
        """Count one request. Raises Overloaded (429) when the minute's are used up."""
        bucket = self._bucket(tenant, "requests", self._requests_per_minute)
        if bucket is None:
            return
        if bucket.left < 1:
            raise _too_many("requests a minute", self._requests_per_minute, bucket.seconds_until(1))
        bucket.left -= 1

    def tokens(self, tenant: str, amount: int) -> None:
        """Count prompt and output tokens. Raises Overloaded (429) while the last are paid off.

        A request larger than the bucket passes when it is full: it then takes minutes to fill.
        """
        bucket = self._bucket(tenant, "tokens", self._tokens_per_minute)
        if bucket is None:
            return
        if bucket.left <= 0 or bucket.left < min(amount, bucket.size):
            wait_s = bucket.seconds_until(min(amount, bucket.size))
            raise _too_many("tokens a minute", self._tokens_per_minute, wait_s)
        bucket.left -= amount

    def enter(self, tenant: str) -> Callable[[], None]:
        """Open a call; call what is returned when it ends, however often.

        Raises Overloaded (429) when as many are open as may be.
        """
        if self._calls is not None and self._open[tenant] >= max(1, self._calls * self._share):
            raise _too_many("calls at a time", self._calls, 1)
        self._open[tenant] += 1
        ended = False

        def leave() -> None:
            nonlocal ended
            if not ended:
                ended = True
                self._open[tenant] -= 1
                if not self._open[tenant]:
                    del self._open[tenant]

        return leave

    def open_calls(self, tenant: str) -> int:
        """Calls that have not ended."""
        return self._open[tenant]

    def _bucket(self, tenant: str, kind: str, limit: int | None) -> _Bucket | None:
        if limit is None:
            return None
        now = self._clock()
        bucket = self._buckets.get((tenant, kind))
        if bucket is None:
            bucket = self._buckets[tenant, kind] = _Bucket(max(1.0, limit * self._share), now)
        bucket.fill(now)
        return bucket


def _too_many(what: str, limit: int | None, wait_s: int) -> Overloaded:
    return Overloaded(
        f"this key may have {limit} {what}: try again in {wait_s} s",
        retry_after_s=wait_s,
        status=429,
    )
