"""A window as it is planned: what the index knows of it, laid out by `joint`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from cp_ray.core.fleet_load import FleetLoad
from cp_ray.core.joint import MENDED, lay_out
from cp_ray.core.reuse import Reuse, Wanted
from cp_ray.core.types import Context, PlanRequest, ReplicaId, ReplicaInfo


@final
class Laid:
    """A request of a window. replica: None = any. followers: contexts behind it there.

    wanted: what was known when the window was laid out, if it was.
    """

    __slots__ = ("followers", "replica", "request", "wanted")

    def __init__(
        self,
        request: PlanRequest,
        replica: ReplicaId | None = None,
        followers: tuple[Context, ...] = (),
        wanted: Wanted | None = None,
    ) -> None:
        self.request = request
        self.replica = replica
        self.followers = followers
        self.wanted = wanted


def lay_out_window(
    window: Sequence[PlanRequest],
    reuse: Reuse,
    load: FleetLoad,
    infos: list[ReplicaInfo],
    now: float,
) -> list[Laid]:
    """The window in the order of planning and sending. infos: the usable replicas."""
    if not infos:
        return [Laid(request) for request in window]
    wanted = [reuse.wanted(request) for request in window]
    mends = len(window) <= MENDED
    places = lay_out(
        [reuse.prompt(one, prefixes=mends) for one in wanted],
        [load.wait_s(info, 0, now) for info in infos],
        load.own_times(infos),
        load.congestion.price,
        load.beside_s(infos),
        surcharge=load.surcharge(infos),
        steps=load.last_steps(infos, now),
    )
    laid = []
    for place in places:
        one, replica = wanted[place.request], infos[place.replica].replica
        followers = tuple([wanted[j].ranked for j in place.followers])
        laid.append(Laid(one.request, replica, followers, one))
    return laid
