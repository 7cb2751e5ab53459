"""Policies that arrange the whole trace before the first request: `paper_offline`, `plan:FILE`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cp_ray.core.index import ContextIndex
from cp_ray.core.scheduling import schedule
from cp_ray.core.types import BlockId, RequestId
from cp_ray.errors import ConfigError
from cp_ray.replay.policies import AsTheyCame
from cp_ray.replay.trace import TraceRequest, numbered_lines


class PaperOffline(AsTheyCame):
    """Policy `paper_offline`: Algorithm 4 (average linkage on Eq. 1), then Algorithm 5."""

    plans = True
    by_capacity = False

    def arrange(self, requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        """Aligned contexts, grouped by branch. O(n^2) memory in distinct contexts."""
        steps = ContextIndex().build([request.context for request in requests])
        place = {step.request_id: number for number, step in enumerate(steps)}
        return [
            requests[place[step.request_id]].reordered(step.context)
            if requests[place[step.request_id]].movable
            else requests[place[step.request_id]]
            for group in schedule(steps)
            for step in group
        ]


class _Line(msgspec.Struct):
    request_id: int | str
    context: list[int | str]


class PlanFile(AsTheyCame):
    """Policy `plan:FILE`: JSON lines of {request_id, context}, in the order of sending."""

    plans = True
    by_capacity = False

    def __init__(self, file: Path) -> None:
        if not file.is_file():
            raise ConfigError(f"--policy plan:FILE: no such file: {file}", param="policy")
        self._file = file

    def arrange(self, requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        """The plan's requests that the trace has; ConfigError where the two do not agree."""
        asked = {request.request_id: request for request in requests}
        arranged: dict[RequestId, TraceRequest] = {}
        for number, text in numbered_lines(self._file):
            where = f"{self._file}, line {number}"
            try:
                line = msgspec.json.decode(text, type=_Line)
            except msgspec.MsgspecError as error:
                raise ConfigError(f"{where}: {error}", param="policy") from error
            request = asked.get(RequestId(str(line.request_id)))
            if request is None:
                continue
            context = tuple(BlockId(str(block)) for block in line.context)
            if sorted(context) != sorted(request.context) or request.request_id in arranged:
                raise ConfigError(
                    f"{where}: request {request.request_id} is planned twice, or has other blocks "
                    "than in the trace; replay the plan with the trace and k it was made for",
                    param="policy",
                )
            arranged[request.request_id] = request.reordered(context)
        missing = asked.keys() - arranged.keys()
        if missing:
            raise ConfigError(
                f"{self._file} does not plan {len(missing)} requests of the trace, "
                f"among them {min(missing)}",
                param="policy",
            )
        return list(arranged.values())
