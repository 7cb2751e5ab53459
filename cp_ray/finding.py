"""Finding: what one check of a host found, and what to do about it."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One check. ok: True, False (it will not run), None (cannot be told from here).

    fix: what to do; empty when there is nothing to do.
    """

    name: str
    ok: bool | None
    detail: str
    fix: str = ""
