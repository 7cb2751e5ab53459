"""The garbage collector of a process that plans: next to nothing of it lies in cycles.

The interpreter's own setting looks for cycles after 700 objects more than were freed. Laying out a
window makes thousands that are gone with it, so a tenth of its time went into such passes, and
what they left as old brought on full ones: a fifth of a second at 100,000 requests, without a plan.
"""

from __future__ import annotations

import gc

PASS_AFTER = 50_000
"""Objects more than were freed: more than a window has at once. Of cycles (a failed call with its
traceback) at most so many wait: some 10 MB."""


def collect_seldom() -> None:
    """For a process that has imported what it needs: full passes leave that out from now on."""
    gc.collect()
    gc.freeze()  # going over what imports made takes 95 ms
    gc.set_threshold(PASS_AFTER)
