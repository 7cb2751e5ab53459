"""Requests a second that the index plans for a fleet: `python -m benchmarks.index_rate`.

First in this process, on one core: plans, all feedback and one eviction entry for each plan, one
request at a time and in windows. Then (--actor) through the real index actor on real Ray and
Redis, by the client that the ingress uses. No engine runs; see `index_traffic`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice

from tqdm import tqdm

from benchmarks.index_traffic import Fleet, requests
from cp_ray.compiling import is_compiled
from cp_ray.core.index import ContextIndex
from cp_ray.core.types import EvictionReport, Feedback, PlanRequest, ReplicaId, ReplicaInfo, Step
from cp_ray.store import wire

K, WINDOW, PAGE, CAPACITY, STEP = 15, 32, 16, 1 << 30, 8192
SLACK = 4096
"""Records the index may hold beyond those it does: nothing is forgotten for want of room."""
REPORT_EVERY = 128
"""Requests planned between reports: at 5,000 a second about the 20 ms that a reporter waits."""
FILL_WINDOW = 64


class InProcess:
    """An index of `records` contexts on `replicas` replicas, and seconds spent in its parts."""

    def __init__(self, records: int, replicas: int, seed: int = 0) -> None:
        names = [ReplicaId(f"replica-{number}") for number in range(replicas)]
        self.index = ContextIndex(max_records=records + SLACK)
        self.index.set_replicas([ReplicaInfo(name, PAGE, CAPACITY, STEP) for name in names])
        self._records = records
        self._requests = requests(K, seed)
        self._fleet = Fleet()
        self._sequence: Counter[ReplicaId] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.entries = 0

    def fill(self) -> None:
        with tqdm(total=self._records, desc="fill", unit="req", disable=None, delay=1) as bar:
            while len(self.index.records) < self._records:
                self.step(list(islice(self._requests, FILL_WINDOW)), one_by_one=True)
                bar.update(FILL_WINDOW)

    def rate(self, count: int, window: int) -> dict[str, float]:
        """Microseconds per request of each part; requests a second by the clock and by CPU."""
        windows = [list(islice(self._requests, window)) for _ in range(count // window)]
        self.seconds.clear()
        self.entries, since = 0, 0
        cpu = 0.0
        for one in windows:
            since += window
            cpu += self.step(one, evicts=since >= REPORT_EVERY)
            since %= REPORT_EVERY
        count = window * len(windows)
        index_s = sum(self.seconds[part] for part in ("plan", "hear", "apply"))
        found = {f"{part}_us": 1e6 * taken / count for part, taken in self.seconds.items()}
        return found | {
            "planned_per_s": count / index_s,
            "planned_per_cpu_s": count / cpu,
            "entries_per_planned": self.entries / count,
        }

    def step(
        self, window: Sequence[PlanRequest], *, evicts: bool = True, one_by_one: bool = False
    ) -> float:
        """Plan a window, hear of earlier ones, apply what is reported; CPU seconds of the index."""
        now = time.monotonic()
        payload = wire.encode(window)
        cpu, mark = time.process_time(), time.perf_counter()
        if one_by_one:
            steps = [step for one in window for step in self.index.plan([one], now)]
        else:
            steps = self.index.plan(window, now)
        mark = self._took("plan", mark)
        cpu = time.process_time() - cpu
        heard = self._fleet.sent(steps)
        reports = self._reports() if evicts else []
        cpu -= time.process_time()
        mark = time.perf_counter()
        for feedback in heard:
            self.index.hear(feedback, now)
        mark = self._took("hear", mark)
        for report in reports:
            self.index.apply(report)
        self._took("apply", mark)
        cpu += time.process_time()
        self._code(payload, steps, heard, reports)
        return cpu

    def _took(self, part: str, since: float) -> float:
        now = time.perf_counter()
        self.seconds[part] += now - since
        return now

    def _reports(self) -> list[EvictionReport]:
        reports = []
        for replica, entries in self._fleet.lost(self._records).items():
            self.entries += len(entries)
            reports.append(EvictionReport(replica, 0, self._sequence[replica], tuple(entries)))
            self._sequence[replica] += 1
        return reports

    def _code(
        self,
        payload: bytes,
        steps: Sequence[Step],
        heard: Sequence[Feedback],
        reports: Sequence[EvictionReport],
    ) -> None:
        """What the actor would decode and encode."""
        told, lost = wire.encode(heard), [wire.encode(report) for report in reports]
        since = time.perf_counter()
        wire.decode(payload, list[PlanRequest])
        wire.encode(steps)
        wire.decode(told, list[Feedback])
        for report in lost:
            wire.decode(report, EvictionReport)
        self._took("wire", since)


def in_process(records: int, replicas: int, count: int) -> dict[str, dict[str, float]]:
    """Rates one request at a time and in windows."""
    bench = InProcess(records, replicas)
    bench.fill()
    found = {
        "one at a time": bench.rate(count, 1),
        f"windows of {WINDOW}": bench.rate(count, WINDOW),
    }
    bench.index.check()
    return found


def main() -> int:
    """Print JSON; exit 1 when a rate is below its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--replicas", type=int, default=32)
    parser.add_argument("--requests", type=int, default=20_000, help="planned in each measurement")
    parser.add_argument("--actor", action="store_true", help="through the index actor, too")
    parser.add_argument("--in-flight", type=int, default=4, help="windows in flight to the actor")
    args = parser.parse_args()
    sizes = {"records": args.records, "replicas": args.replicas, "requests": args.requests}
    found = in_process(args.records, args.replicas, args.requests)
    result: dict[str, object] = {**sizes, "compiled": is_compiled(), "in process": found}
    windows = found[f"windows of {WINDOW}"]
    met = windows["planned_per_s"] >= 5000
    if args.actor:
        from benchmarks.index_rate_actor import through_actor

        through = through_actor(args.records, args.replicas, args.requests, args.in_flight)
        result["through the actor"] = through
        met = met and through["planned_per_s"] >= 2500
    result["load_average"] = round(os.getloadavg()[0], 1)
    print(json.dumps(result, indent=1, default=str))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
