"""The command line, as a user meets it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cp_ray.cli import main
from cp_ray.preflight import check_before_serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["replica=3"], "did you mean 'replicas'"),
        (["replicas=0"], "greater than or equal to 1"),
        (["engine"], "KEY=VALUE"),
        (["engine_kwargs={"], "engine_kwargs"),
        (["nothing-here.yaml"], "nothing-here.yaml"),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_a_misspelt_deployment_key_is_found_before_serve_ignores_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "cluster" / "serve.yaml").read_text()
    wrong = tmp_path / "serve.yaml"
    wrong.write_text(text.replace("graceful_shutdown_timeout_s", "graceful_shutdown_timeout"))
    assert main(["serve", str(wrong)]) == 2
    assert "graceful_shutdown_timeout_s" in capsys.readouterr().err


def test_serving_stops_at_a_wrong_redis_and_a_port_in_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 8000))
        taken.listen()
        words = ["engine=simulated", "redis_url=redis://127.0.0.1:1"]
        assert check_before_serving(words) is None
    error = capsys.readouterr().err
    assert "redis" in error
    assert "port 8000" in error
    assert error.count("->") == 2, "each with what to do"


def test_a_good_setting_goes_on_to_serve_run() -> None:
    assert check_before_serving(["engine=simulated"]) == ["cp_ray.app", "engine=simulated"]


def test_bench_index_prints_its_figures_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "index", "--n", "50", "--k", "4", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["n"] == 50
    assert figures["plan_us_p50"] > 0


def test_importing_the_package_imports_no_ray() -> None:
    code = "import sys, cp_ray; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


def test_serve_finds_the_app_by_both_spellings() -> None:
    from ray._common.utils import import_attr

    assert import_attr("cp_ray.app") is import_attr("cp_ray:app")
