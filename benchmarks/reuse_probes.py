"""Single questions about `bench reuse`, each answered by a replay that isolates one cause.

python -m benchmarks.reuse_probes memory    does a longer memory of the index cost reuse?
python -m benchmarks.reuse_probes window    in which order should a window be sent?
python -m benchmarks.reuse_probes pins      do pages of running requests cost the others?
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from benchmarks.reuse_table import DATA
from cp_ray.core.index import ContextIndex
from cp_ray.core.prefix_cache import PrefixCache
from cp_ray.core.scheduling import schedule
from cp_ray.core.types import ReplicaId, ReplicaInfo, Step
from cp_ray.replay import policies
from cp_ray.replay.conversations import pieces_of
from cp_ray.replay.playback import Playback
from cp_ray.replay.policies import Indexed, Sent
from cp_ray.replay.reuse import Bench, ReuseOptions
from cp_ray.replay.trace import read_trace

NO_LIMIT = 1 << 62


class _Forgetful(Indexed):
    """Policy `online` whose index remembers only so many requests."""

    def __init__(self, records: int) -> None:
        super().__init__("exact", None)
        self._index = ContextIndex(max_records=records)
        self._index.set_replicas([ReplicaInfo(ReplicaId("replay"), 1, NO_LIMIT)])


def memory() -> None:
    for name in ("qasper", "multihoprag", "mtrag"):
        requests = read_trace(DATA / name).requests
        for records in (20, 100, 300, 1000, NO_LIMIT):
            playback = Playback(
                _Forgetful(records), PrefixCache(None, 1, record_limit=1 << 20), leaders=False
            )
            playback.play(requests, 1, conversations=False, title=name)
            asked = sum(one.asked for one in playback.played)
            hit = sum(one.cached for one in playback.played) / asked
            shown = "all" if records == NO_LIMIT else records
            print(f"{name}: cache without limit, index remembers {shown}: {hit:.4f}", flush=True)


def _arrival(steps: Sequence[Step]) -> list[list[Step]]:
    return [list(steps)]


def _most_held(steps: Sequence[Step]) -> list[list[Step]]:
    return [sorted(steps, key=lambda step: -step.reused_tokens)]


def _groups_by_most_held(steps: Sequence[Step]) -> list[list[Step]]:
    groups: dict[str, list[Step]] = {}
    for step in steps:
        groups.setdefault(step.branch or step.request_id, []).append(step)
    return sorted(groups.values(), key=lambda group: -max(step.reused_tokens for step in group))


ORDERS: dict[str, Callable[[Sequence[Step]], list[list[Step]]]] = {
    "Algorithm 5": schedule,
    "arrival": _arrival,
    "most held first": _most_held,
    "groups, most held first": _groups_by_most_held,
}


def window() -> None:
    print("multihoprag 100k 400k, qasper 100k 400k, mtrag 100k 400k, 32 in flight, step; then")
    print("mtrag, 32 conversations, 400k: share from the cache, tokens computed per request")
    for name, order in ORDERS.items():
        vars(policies)["schedule"] = order
        bench = Bench()
        hits = []
        for trace in ("multihoprag", "qasper", "mtrag"):
            for capacity in (100_000, 400_000):
                options = ReuseOptions(
                    DATA / trace, policies=("online",), cache_tokens=capacity, in_flight=32
                )
                hits.append(f"{bench.run(options)[0].hit_ratio:.4f}")
        options = ReuseOptions(
            DATA / "mtrag", policies=("online",), cache_tokens=400_000, conversations=32
        )
        mixed = bench.run(options)[0]
        shown = f"{' '.join(hits)}; {mixed.hit_ratio:.4f} {mixed.prefill_tokens:.0f}"
        print(f"{name:<24} {shown}", flush=True)


def pins() -> None:
    requests = read_trace(DATA / "multihoprag").requests
    total = sum(sum(request.block_tokens) for request in requests)
    for capacity in (100_000, 400_000):
        for together in (8, 32, 64):
            cache = PrefixCache(capacity, 1, sharing="finished", record_limit=1 << 20)
            hit = 0
            for first in range(0, len(requests), together):
                sent = [Sent(r, r.context) for r in requests[first : first + together]]
                for one in sent:
                    hit += min(cache.lookup(pieces_of(one)), sum(one.request.block_tokens))
                for one in sent:
                    cache.admit(one.request.request_id, pieces_of(one))
                    cache.prefilled(one.request.request_id)
                    cache.release(one.request.request_id)
            print(f"nothing pinned, {capacity} tokens, {together} in flight: {hit / total:.4f}")


def main() -> int:
    probes = {"memory": memory, "window": window, "pins": pins}
    if len(sys.argv) != 2 or sys.argv[1] not in probes:
        print(__doc__)
        return 2
    probes[sys.argv[1]]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
