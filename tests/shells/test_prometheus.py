"""Every expression of the dashboard and of the alerts runs on a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import yaml

from cp_ray import metrics
from cp_ray.config import AppConfig
from tests.e2e.support import TOPICS, application, ask, index_state, until

GRAFANA = Path(__file__).parents[2] / "cluster" / "grafana"
NAME = "metered"
QUIET = {metrics.BEYOND_BELIEF, metrics.ESTIMATED_TTFT, metrics.REPEATED_BLOCKS}
"""Metrics that ordinary traffic need not touch."""


def expressions() -> list[str]:
    panels = json.loads((GRAFANA / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((GRAFANA / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_dashboard_and_the_alerts_name_only_metrics_that_there_are() -> None:
    exported = {spec.exported for spec in metrics.ALL}
    exported |= {f"{s.exported}_bucket" for s in metrics.ALL if s.kind == "histogram"}
    named = set()
    for expression in [*expressions(), *(alert["expr"] for alert in alerts())]:
        named |= set(re.findall(r"ray_cp_ray_\w+", expression))
    assert named - exported == set()
    shown = {name.removesuffix("_bucket") for name in named}
    assert {spec.exported for spec in metrics.ALL} - shown <= {
        metrics.BEYOND_BELIEF.exported,
    }


def test_the_operations_page_says_what_to_do_about_each_alert() -> None:
    text = (GRAFANA.parents[1] / "docs" / "operations.md").read_text()
    assert [alert["alert"] for alert in alerts() if alert["alert"] not in text] == []


def missing(text: str) -> list[str]:
    """Metrics that this application does not export yet; others of the session may."""
    of_ours = r'^{}(_bucket)?{{[^}}]*app="' + NAME
    names = [spec.exported for spec in metrics.ALL if spec not in QUIET]
    return [name for name in names if not re.search(of_ours.format(name), text, re.MULTILINE)]


@pytest.fixture(scope="module")
def scraped(serve_url: str) -> Iterator[str]:
    """Where Ray exports the metrics of a running application that has had some traffic."""
    config = AppConfig(engine="simulated", replicas=2, decode_tokens_per_s=1000)
    address = f"http://127.0.0.1:{ray.nodes()[0]['MetricsExportPort']}"
    with application(serve_url, NAME, config) as base:
        until(lambda: len(index_state(NAME)["replicas"]) == 2)
        for number in range(8):
            ask(base, TOPICS[number % 4 :])

        def all_there() -> bool:
            ask(base, TOPICS[:2])
            return not missing(httpx.get(f"{address}/metrics", timeout=10).text)

        until(all_there, 90)
        yield address


@pytest.mark.ray
def test_ray_exports_every_metric_under_the_name_we_say(scraped: str) -> None:
    assert missing(httpx.get(f"{scraped}/metrics", timeout=10).text) == []


@pytest.mark.ray
@pytest.mark.timeout(180)
@pytest.mark.skipif(not shutil.which("prometheus"), reason="no Prometheus (apt install prometheus)")
def test_every_expression_runs_on_a_real_prometheus(scraped: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shutil.copy(GRAFANA / "alerts.yaml", tmp_path / "alerts.yaml")
    config = yaml.safe_load((GRAFANA / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [scraped.removeprefix("http://")]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path}/prometheus.yaml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stderr=subprocess.DEVNULL,
    )
    http = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=10)

    def values(expression: str) -> list[Any]:
        filled = expression.replace("$app", NAME).replace("$__rate_interval", "30s")
        answer = http.get("/query", params={"query": filled}).json()
        assert answer["status"] == "success", (expression, answer)
        found: list[Any] = answer["data"]["result"]
        return found

    def scraped_twice() -> bool:
        try:
            found = values("count_over_time(ray_cp_ray_prompt_tokens_total[1m])")
        except (httpx.HTTPError, json.JSONDecodeError):
            return False  # not up, or not ready yet: then it answers in plain text
        return any(int(series["value"][1]) >= 4 for series in found)

    try:
        until(scraped_twice, 60)
        empty = [expression for expression in expressions() if not values(expression)]
        quiet = tuple(spec.exported for spec in QUIET)
        assert [e for e in empty if not any(name in e for name in quiet)] == []
        for alert in alerts():
            values(alert["expr"])
        rules = http.get("/rules").json()["data"]["groups"][0]["rules"]
        assert len(rules) == len(alerts())

        def evaluated() -> bool:
            rules = http.get("/rules").json()["data"]["groups"][0]["rules"]
            return all(rule["health"] == "ok" for rule in rules)

        until(evaluated, 20)
    finally:
        process.terminate()
        process.wait(20)
