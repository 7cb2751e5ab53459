"""`cp-ray top` and `cp-ray explain`: the fleet and one request in a terminal, over HTTP."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import httpx
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cp_ray.errors import ConfigError

PERIOD_S = 1.0
_TRUST = {"trusted": "green", "suspect": "yellow", "resyncing": "yellow", "quarantined": "red"}
_BARS = " ▁▂▃▄▅▆▇█"


def run_top(url: str, key: str, *, once: bool, as_json: bool) -> int:
    """Show the fleet once a second until Ctrl-C, or once; the exit status.

    Raises ConfigError where nothing answers, or the key is not the operator's.
    """
    console = Console()
    with _client(url, key) as http:
        if as_json:
            sys.stdout.write(json.dumps(_get(http, "/fleet/data")) + "\n")
            return 0
        if once:
            console.print(screen(_get(http, "/fleet/data"), console.size.height))
            return 0
        with Live(console=console, screen=True, auto_refresh=False) as live:
            try:
                while True:
                    live.update(_screen_or_fault(http, console), refresh=True)
                    time.sleep(PERIOD_S)
            except KeyboardInterrupt:
                return 0


def run_explain(request_id: str, url: str, key: str, *, as_json: bool) -> int:
    """Print what became of one request; the exit status. Raises ConfigError."""
    with _client(url, key) as http:
        told = _get(http, f"/fleet/requests/{request_id}")
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        Console().print(explained(told))
    return 0


def screen(data: dict[str, Any], height: int = 60) -> Group:
    """All of the fleet for one screen of so many lines."""
    rows = max(8, height - 20)
    return Group(
        _headline(data),
        _replicas(data["replicas"], rows),
        Columns([_losses(data), _branches(data["branches"], 12)]),
    )


def explained(told: dict[str, Any]) -> Group:
    """One request, step by step."""
    steps = Table(title=f"request {told['request_id']}", title_justify="left", box=None)
    for name in ("ms", "what", "detail"):
        steps.add_column(name, justify="right" if name == "ms" else "left")
    for step in told["steps"]:
        steps.add_row(f"{1000 * step['at_s']:.1f}", step["what"], escape(step["detail"]))
    parts = Table(title="prompt, in the order sent", title_justify="left", box=None)
    for name in ("part", "rank given", "tokens", "found cached", ""):
        parts.add_column(name, justify="left" if name in ("part", "") else "right")
    for part in told["parts"]:
        name = f"block {part['id'][:8]}" if part["kind"] == "block" else part["kind"]
        rank = str(part["given"] + 1) if "given" in part else ""
        share = part["cached"] / part["tokens"] if part["tokens"] else 0.0
        parts.add_row(name, rank, str(part["tokens"]), str(part["cached"]), _bar(share))
    lost = Table(title="tokens computed, by cause", title_justify="left", box=None)
    lost.add_column("cause")
    lost.add_column("tokens", justify="right")
    lost.add_column("meaning")
    for loss in told["losses"]:
        if loss["tokens"]:
            lost.add_row(loss["cause"], str(loss["tokens"]), loss["meaning"])
    return Group(steps, parts, lost)


def _client(url: str, key: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=10)


def _get(http: httpx.Client, path: str) -> dict[str, Any]:
    try:
        answer = http.get(path)
    except httpx.HTTPError as error:
        raise ConfigError(f"nothing answers at {http.base_url}: {error}; set --url") from error
    try:
        body: dict[str, Any] = answer.json()
    except ValueError:
        raise ConfigError(f"{http.base_url} is no cp_ray application: set --url") from None
    if answer.status_code != 200:
        message = body.get("error", {}).get("message", f"status {answer.status_code}")
        hint = "; set CP_RAY_OPERATOR_KEY" if answer.status_code in (401, 403) else ""
        raise ConfigError(f"{message}{hint}")
    return body


def _screen_or_fault(http: httpx.Client, console: Console) -> Any:
    try:
        return screen(_get(http, "/fleet/data"), console.size.height)
    except ConfigError as error:
        return Panel(Text(error.message, style="red"), title=time.strftime("%X"))


def _headline(data: dict[str, Any]) -> Panel:
    recent = [m for m in data["series"] if m["start"] >= data["now"] - 65]
    requests = sum(m["requests"] for m in recent)
    hits = [m for m in recent if m["hit_ratio"] is not None]
    weight = sum(m["requests"] for m in hits)

    def mean(name: str) -> float:
        return sum((m[name] or 0) * m["requests"] for m in hits) / weight if weight else 0.0

    series = [m["hit_ratio"] or 0.0 for m in data["series"][-60:]]
    trusted = sum(r["trust"] == "trusted" for r in data["replicas"])
    text = (
        f"hit ratio {mean('hit_ratio'):.1%} (planned {mean('predicted_ratio'):.1%})   "
        f"TTFT {1000 * mean('ttft_p50_s'):.0f} ms, p99 {1000 * mean('ttft_p99_s'):.0f} ms   "
        f"{requests / 60:.1f} requests/s   {sum(m['failed'] for m in recent)} failed   "
        f"{sum(m['spilled'] for m in recent)} spilled\n"
        f"replicas trusted {trusted}/{len(data['replicas'])}   "
        f"report lag {data['report_lag_s']:.2f} s"
        f"{'' if data['redis_connected'] else '   REDIS AWAY'}   "
        f"unexplained {data['unexplained_share']:.2%}   "
        f"hit ratio over 5 minutes {''.join(_BARS[min(8, int(8.99 * v))] for v in series)}"
    )
    when = time.strftime("%X", time.localtime(data["now"]))
    return Panel(Text(text), title=f"cp_ray {data['app']}, {when}", title_align="left")


def _replicas(replicas: list[dict[str, Any]], rows: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("replica", "trust", "running", "to prefill", "cache fill", "", "planned ever"):
        table.add_column(name, justify="left" if name in ("replica", "trust", "") else "right")
    busiest = sorted(replicas, key=lambda r: (-r["waiting_tokens"], -r["running"], r["replica"]))
    for replica in busiest[:rows]:
        held, capacity = replica["held_tokens"], max(1, replica["capacity_tokens"])
        fill = min(1.0, (held or 0) / capacity)
        table.add_row(
            replica["replica"],
            Text(replica["trust"], style=_TRUST[replica["trust"]]),
            str(replica["running"]),
            f"{replica['waiting_tokens']:,}",
            "-" if held is None else f"{fill:.0%}",
            _bar(fill),
            f"{replica['assigned']:,}",
        )
    if len(replicas) > rows:
        table.caption = f"and {len(replicas) - rows} less busy ones"
    return table


def _losses(data: dict[str, Any]) -> Table:
    sums = data["losses"]
    total = max(1, sums["prompt_tokens"])
    table = Table(box=None, pad_edge=False, title="where prompt tokens went", title_justify="left")
    for name, justify in (("cause", "left"), ("tokens", "right"), ("share", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_row(
        "found cached", f"{sums['cached_tokens']:,}", f"{sums['cached_tokens'] / total:.1%}"
    )
    for cause, tokens in sums["by_cause"].items():
        table.add_row(cause.replace("_", " "), f"{tokens:,}", f"{tokens / total:.1%}")
    return table


def _branches(branches: list[dict[str, Any]], rows: int) -> Table:
    table = Table(box=None, pad_edge=False, title="busiest branches", title_justify="left")
    for name in ("branch", "requests", "tokens", "lives on"):
        table.add_column(name, justify="right" if name in ("requests", "tokens") else "left")
    for branch in branches[:rows]:
        head, _, slot = branch["branch"].partition("/")
        where = " ".join(name[:8] for name in branch["replicas"][:3])
        more = len(branch["replicas"]) - 3
        table.add_row(
            f"{head[:8]}/{slot}",
            f"{branch['requests']:,}",
            f"{branch['tokens']:,}",
            where + (f" +{more}" if more > 0 else ""),
        )
    return table


def _bar(share: float, width: int = 12) -> str:
    return "█" * round(share * width)
