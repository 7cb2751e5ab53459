"""Leaders first: on engines that share only finished prefixes, followers wait for their leader.

Requests of one window that begin alike would all miss. The first that carries a prefix goes; the
others go when it is prefilled (design: leader and follower).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from cp_ray.core.types import BlockId, RequestId
from cp_ray.replay.policies import Sent

MIN_GAIN_TOKENS = 16
"""A follower waits for so many tokens more than the cache has: a page of the usual engines."""


class _Prefix(msgspec.Struct):
    carrier: RequestId
    below: dict[BlockId, _Prefix] = msgspec.field(default_factory=dict)


def hold_followers(window: Sequence[Sent], held: Callable[[Sent], int]) -> list[Sent]:
    """Set `after` where an earlier request of the window brings prefix that is not cached yet.

    held: tokens of a prompt that the cache has now. Later turns share nothing new with others.
    """
    root: dict[BlockId, _Prefix] = {}
    released = []
    for sent in window:
        if sent.request.history is not None:
            released.append(sent)
            continue
        lengths = sent.request.lengths
        alike = 0
        carrier: RequestId | None = None
        below = root
        for block in sent.context:
            prefix = below.get(block)
            if prefix is None:
                prefix = below[block] = _Prefix(sent.request.request_id)
            elif prefix.carrier != sent.request.request_id:
                alike += lengths[block]
                carrier = prefix.carrier
            below = prefix.below
        if carrier is not None and alike - held(sent) >= MIN_GAIN_TOKENS:
            released.append(msgspec.structs.replace(sent, after=carrier))
        else:
            released.append(sent)
    return released
