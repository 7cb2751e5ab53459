"""One string object per block id, however many messages brought it.

An id of 32 digits takes 81 bytes and a context has many: kept as they came they would double an
index's memory. The interpreter's table forgets an id with its last user.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import cast

from cp_ray.core.types import BlockId

interned = cast("Callable[[BlockId], BlockId]", sys.intern)
"""The id that was here first, if an equal one is in use."""
