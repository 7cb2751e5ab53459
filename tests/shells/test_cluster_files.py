"""Every file below cluster/ is checked strictly, and the checks find faults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from ray.serve._private.constants import PROXY_HEALTH_CHECK_PERIOD_S

from cp_ray.cli import main
from cp_ray.cluster_files import check_compose, check_file, check_ray_service
from cp_ray.compiling import STAMP
from cp_ray.config import AppConfig
from cp_ray.deployment import engine_resources
from cp_ray.errors import ConfigError
from cp_ray.serve_config import check_cluster_file, check_serve_config, gpus_asked

CLUSTER = Path(__file__).parents[2] / "cluster"
SERVE = sorted([CLUSTER / "serve.yaml", *(CLUSTER / "serve").glob("*.yaml")])
GPUS = {
    "gpu-1": (1, 1, 1),
    "tp1-8": (8, 8, 1),
    "tp2-8": (16, 8, 2),
    "tp2-16": (32, 16, 2),
    "tp16-2": (32, 2, 16),
    "sglang-tp1-8": (8, 8, 1),
    "redis-tls": (16, 8, 2),
}
HEADS = ("aws", "gcp", "local", "rayservice-16", "rayservice-32", "compose")
ENGINES = get_args(AppConfig.model_fields["engine"].annotation)


def settings_of(path: Path) -> AppConfig:
    (application,) = yaml.safe_load(path.read_text())["applications"]
    return AppConfig.model_validate(application["args"])


def engine_is_here(path: Path) -> None:
    (application,) = yaml.safe_load(path.read_text())["applications"]
    if application["args"]["engine"] not in ENGINES:
        pytest.skip(f"engine {application['args']['engine']} is not in this version")


def test_the_list_of_sizes_names_every_serve_config_file() -> None:
    assert {path.stem for path in (CLUSTER / "serve").glob("*.yaml")} == GPUS.keys()


@pytest.mark.parametrize("path", SERVE, ids=lambda path: path.stem)
def test_a_serve_config_file_is_right_and_asks_for_replicas_times_ranks(path: Path) -> None:
    engine_is_here(path)
    check_serve_config(path)
    config = settings_of(path)
    if path.stem in GPUS:
        gpus, replicas, ranks = GPUS[path.stem]
        assert gpus_asked(config) == gpus == replicas * ranks
        assert (config.replicas, config.tensor_parallel_size) == (replicas, ranks)
    resources = engine_resources(config)
    bundles = resources.get("placement_group_bundles", [{"GPU": config.gpus_per_replica}])
    assert sum(bundle["GPU"] for bundle in bundles) == config.gpus_per_replica


def test_a_replica_over_two_hosts_is_packed_and_one_of_two_gpus_stays_on_one() -> None:
    across = engine_resources(settings_of(CLUSTER / "serve" / "tp16-2.yaml"))
    assert across["placement_group_strategy"] == "PACK"
    assert len(across["placement_group_bundles"]) == 16
    within = engine_resources(settings_of(CLUSTER / "serve" / "tp2-16.yaml"))
    assert within["placement_group_strategy"] == "STRICT_PACK"


@pytest.mark.parametrize(
    "path", [path for path in SERVE if path.stem in GPUS], ids=lambda path: path.stem
)
def test_hosts_that_share_an_application_share_a_redis(path: Path) -> None:
    engine_is_here(path)
    config = settings_of(path)
    assert (config.redis_url is not None) == (GPUS[path.stem][0] > 8)


def test_secrets_of_the_tls_file_are_secrets() -> None:
    config = settings_of(CLUSTER / "serve" / "redis-tls.yaml")
    shown = repr(config)
    assert not [word for word in ("PASSWORD", "KEY_A", "OPERATOR_KEY") if word in shown]
    assert config.redis_url is not None
    assert config.redis_url.get_secret_value().startswith("rediss://")


@pytest.mark.parametrize(
    ("name", "gpus", "serve"),
    [("aws", 16, "tp2-8"), ("gcp", 16, "tp2-8"), ("local", 32, "tp2-16"), ("local", 32, "tp16-2")],
)
def test_a_ray_up_file_is_right_and_fits_the_serve_config_it_names(
    name: str, gpus: int, serve: str
) -> None:
    path = CLUSTER / f"{name}.yaml"
    assert check_cluster_file(path) == gpus
    check_serve_config(CLUSTER / "serve" / f"{serve}.yaml", gpus)
    with pytest.raises(ConfigError, match="add hosts"):
        check_serve_config(CLUSTER / "serve" / f"{serve}.yaml", gpus - 1)


@pytest.mark.parametrize(("name", "gpus"), [("rayservice-16", 16), ("rayservice-32", 32)])
def test_a_ray_service_has_the_gpus_its_replicas_ask_for(name: str, gpus: int) -> None:
    path = CLUSTER / "kuberay" / f"{name}.yaml"
    assert check_ray_service(path) == gpus
    serve = yaml.safe_load(yaml.safe_load(path.read_text())["spec"]["serveConfigV2"])
    config = AppConfig.model_validate(serve["applications"][0]["args"])
    assert gpus_asked(config) == gpus


def _changed(tmp_path: Path, old: str, new: str) -> Path:
    text = (CLUSTER / "kuberay" / "rayservice-16.yaml").read_text()
    assert old in text
    path = tmp_path / "service.yaml"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("replicas: 8\n", "replicas: 9\n", "ask for 18 GPUs, the cluster file states 16"),
        ("tensor_parallel_size: 2\n", "tensor_parallel_siz: 2\n", "'tensor_parallel_size'"),
        ("workerGroupSpecs:", "workerGroupSpec:", "did you mean 'workerGroupSpecs'"),
        ("maxReplicas: 2", "maxReplicas: 1", "maxReplicas=1"),
        ("volumeMounts:", "volumeMount:", "did you mean 'volumeMounts'"),
        ("apiVersion: ray.io/v1", "apiVersion: ray.io/v2", "ray.io/v1"),
        ("mode: token", "mod: token", "did you mean 'mode'"),
        (
            "image: registry.example/cp-ray:0.1.0-cuda\n              ports:",
            "image: x\n              ports:",
            "same image",
        ),
    ],
)
def test_a_fault_in_a_ray_service_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_ray_service(_changed(tmp_path, old, new))


def test_the_compose_file_is_right_and_names_files_that_exist() -> None:
    check_compose(CLUSTER / "compose.yaml")


@pytest.mark.parametrize(
    ("service", "words"),
    [
        ({"image": "x", "volume": []}, "did you mean 'volumes'"),
        ({"ports": []}, "neither image nor build"),
        ({"image": "x", "volumes": ["./nothing:/a"]}, "does not exist"),
        ({"image": "x", "volumes": ["nowhere:/a"]}, "not declared"),
    ],
)
def test_a_fault_in_a_compose_file_is_named(
    tmp_path: Path, service: dict[str, Any], words: str
) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(yaml.safe_dump({"services": {"s": service}}))
    with pytest.raises(ConfigError, match=words):
        check_compose(path)


@pytest.mark.parametrize("path", sorted((CLUSTER / "docker").iterdir()), ids=lambda path: path.name)
def test_a_container_file_follows_the_rules(path: Path) -> None:
    text = path.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    words = [line.split(maxsplit=1) for line in lines]
    known = {
        *("FROM", "ARG", "ENV", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "HEALTHCHECK"),
        *("ENTRYPOINT", "CMD"),
    }
    assert {word[0] for word in words} <= known, "ADD, MAINTAINER and the like have no place here"
    images = [rest for name, rest in words if name == "FROM"]
    assert all(re.search(r":[\w.-]*\d", image) and "latest" not in image for image in images)
    *_, user = [rest for name, rest in words if name == "USER"]
    assert user.isdecimal() and int(user) >= 10_000, "not root, and by number for Kubernetes"
    assert [name for name, _ in words].count("HEALTHCHECK") == 1
    for name, rest in words:
        if name == "COPY":
            *sources, _ = rest.split()
            assert [s for s in sources if not (CLUSTER.parent / s).exists()] == []
        if name == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/*" in rest
            packages = rest.partition("--no-install-recommends")[2].partition("&&")[0].split()
            assert all("=" in package for package in packages), "versions are pinned"
        if name in ("ENTRYPOINT", "CMD"):
            assert rest.startswith("["), "the exec form passes signals on"
    assert "PIP_NO_CACHE_DIR=1" in text
    (command,) = [rest for name, rest in words if name == "CMD" and "yaml" in rest]
    assert (CLUSTER.parent / yaml.safe_load(command)[0]).exists()


def test_the_images_are_made_of_what_they_name_and_of_nothing_compiled_here() -> None:
    lines = (CLUSTER.parent / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    named = set()
    for path in (CLUSTER / "docker").iterdir():
        for line in path.read_text().splitlines():
            if line.startswith("COPY "):
                named |= {source.partition("/")[0] for source in line.split()[1:-1]}
    assert kept == named
    assert "*" in lines and "**/*.so" in lines and str(STAMP) in lines
    assert named >= {"hatch_build.py", "README.md"}, "the build reads them"


def test_a_volume_of_the_compose_file_lies_where_the_image_has_a_folder_of_its_user() -> None:
    """Docker makes any other one root's, and no model could be written there."""
    (image,) = [path for path in (CLUSTER / "docker").iterdir() if "cuda" in path.name]
    service = yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"]["cp-ray"]
    (place,) = [volume.partition(":")[2] for volume in service["volumes"]]
    assert f"install -d -o cp -g cp {place}" in image.read_text()


PERIOD = "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S"


def test_every_head_looks_at_the_proxies_as_often_as_the_chaos_tests_do() -> None:
    hosts = (CLUSTER.parent / "tests/chaos/hosts.py").read_text()
    (often,) = re.findall(f'"{PERIOD}": "(.*)"', hosts)
    assert float(often) != PROXY_HEALTH_CHECK_PERIOD_S, "else there is nothing to set"
    told = {}
    for path in CLUSTER.glob("**/*.yaml"):
        document = yaml.safe_load(path.read_text())
        if "cluster_name" in document:
            (start,) = [s for s in document["head_start_ray_commands"] if "ray start" in s]
            told[path.name] = re.findall(f"; (?:.* )?{PERIOD}=(\\S+) .*ray start", start)
        elif document.get("kind") == "RayService":
            group = document["spec"]["rayClusterConfig"]["headGroupSpec"]
            (container,) = group["template"]["spec"]["containers"]
            told[path.name] = [one["value"] for one in container["env"] if one["name"] == PERIOD]
        elif "services" in document:
            told[path.name] = [str(document["services"]["cp-ray"]["environment"][PERIOD])]
    assert told.keys() == {f"{name}.yaml" for name in HEADS}
    assert all(found == [often] for found in told.values()), told


FILES = sorted(path for path in CLUSTER.rglob("*.yaml") if path.parent.name != "grafana")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CLUSTER)))
def test_doctor_checks_any_of_them(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if path.parent.name == "serve":
        engine_is_here(path)
    assert main(["doctor", "--config", str(path)]) == 0
    assert "is right" in capsys.readouterr().out


def test_the_readme_of_the_folder_names_every_file() -> None:
    text = (CLUSTER / "README.md").read_text()
    files = [path for path in CLUSTER.rglob("*") if path.is_file() and path.name != "README.md"]
    assert [path.name for path in files if str(path.relative_to(CLUSTER)) not in text] == []


def test_a_wrong_file_is_told_by_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("applications: [{import_path: cp_ray.app, name: a, routeprefix: /}]\n")
    assert main(["doctor", "--config", str(path)]) == 2
    assert "route_prefix" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        check_file(tmp_path / "none.yaml")
