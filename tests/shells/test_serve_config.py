"""The strict checks of `serve deploy` and `ray up` files, on the files we ship and on faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from cp_ray.config import AppConfig
from cp_ray.errors import ConfigError
from cp_ray.serve_config import check_cluster_file, check_serve_config, gpus_asked

CLUSTER = Path(__file__).parents[2] / "cluster"


def _application(**changes: Any) -> dict[str, Any]:
    return {"name": "cp", "route_prefix": "/", "import_path": "cp_ray.app", **changes}


def _written(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "file.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def _fault(tmp_path: Path, document: Any, gpus: int | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        check_serve_config(_written(tmp_path, document), gpus)
    return caught.value.message


def test_the_files_we_ship_are_right_and_fit_each_other() -> None:
    gpus = check_cluster_file(CLUSTER / "local.yaml")
    assert gpus == 32
    check_serve_config(CLUSTER / "serve.yaml", gpus)


def test_the_file_we_ship_starts_two_vllm_replicas() -> None:
    [application] = yaml.safe_load((CLUSTER / "serve.yaml").read_text())["applications"]
    config = AppConfig.model_validate(application["args"])
    assert (config.engine, config.replicas) == ("vllm", 2)


def test_a_misspelt_deployment_key_is_found_that_serve_itself_accepts(tmp_path: Path) -> None:
    deployment = {"name": "Engine", "num_replica": 3}
    document = {"applications": [_application(deployments=[deployment])]}
    ServeDeploySchema.model_validate(document)  # why this check exists
    message = _fault(tmp_path, document)
    assert "unknown key 'num_replica': did you mean 'num_replicas'?" in message
    assert "applications.0: deployments.0" in message


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"application": []}, "did you mean 'applications'?"),
        ({"http_options": {"prt": 1}, "applications": []}, "did you mean 'port'?"),
        ({"applications": [_application(routeprefix="/")]}, "did you mean 'route_prefix'?"),
        (
            {"applications": [_application(deployments=[{"name": "Engin"}])]},
            "did you mean 'Engine'?",
        ),
        (
            {
                "applications": [
                    _application(
                        deployments=[{"name": "Engine", "ray_actor_options": {"num_gpu": 1}}]
                    )
                ]
            },
            "did you mean 'num_gpus'?",
        ),
        (
            {
                "applications": [
                    _application(
                        deployments=[{"name": "Engine", "autoscaling_config": {"max_replica": 1}}]
                    )
                ]
            },
            "did you mean 'max_replicas'?",
        ),
        ({"applications": [_application(import_path="cp_ray.ap")]}, "did you mean 'cp_ray.app'?"),
        (
            {"applications": [_application(import_path="cp_ray.deployment:defalt")]},
            "did you mean 'cp_ray.deployment:default'?",
        ),
        ({"applications": [_application(args={"replcas": 2})]}, "did you mean 'replicas'?"),
    ],
)
def test_a_misspelt_name_is_told_with_the_nearest_right_one(
    tmp_path: Path, document: Any, words: str
) -> None:
    assert words in _fault(tmp_path, document)


def test_a_deployment_unlike_any_of_ours_lists_them(tmp_path: Path) -> None:
    document = {"applications": [_application(deployments=[{"name": "XYZ"}])]}
    assert "known: Engine, Router" in _fault(tmp_path, document)


def test_a_value_that_fits_no_setting_names_the_setting_and_shows_no_secret(tmp_path: Path) -> None:
    args = {"replicas": 0, "redis_url": "redis://:hidden-word@h"}
    message = _fault(tmp_path, {"applications": [_application(args=args)]})
    assert "applications.0.args: replicas" in message
    assert "hidden-word" not in message


def test_what_rays_schema_refuses_names_the_place(tmp_path: Path) -> None:
    document = {
        "applications": [_application(deployments=[{"name": "Engine", "num_replicas": -1}])]
    }
    assert "num_replicas" in _fault(tmp_path, document)
    assert "import_path" in _fault(tmp_path, {"applications": [{"name": "cp"}]})


def test_the_built_application_takes_no_args(tmp_path: Path) -> None:
    application = _application(import_path="cp_ray.deployment:default", args={"replicas": 2})
    assert "takes no args" in _fault(tmp_path, {"applications": [application]})


def test_another_application_in_the_file_is_left_alone(tmp_path: Path) -> None:
    other = _application(import_path="shop.main:app", args={"x": 1}, deployments=[{"name": "Cart"}])
    check_serve_config(_written(tmp_path, {"applications": [other]}))


def test_more_gpus_than_the_cluster_states_are_refused(tmp_path: Path) -> None:
    args = {"replicas": 16, "gpus_per_replica": 2, "tensor_parallel_size": 2}
    document = {"applications": [_application(args=args)]}
    check_serve_config(_written(tmp_path, document), gpus=32)
    check_serve_config(_written(tmp_path, document))
    assert "ask for 32 GPUs, the cluster file states 31" in _fault(tmp_path, document, gpus=31)


def test_gpus_asked_counts_shares_and_tensor_parallel_replicas() -> None:
    assert gpus_asked(AppConfig(replicas=4)) == 0
    assert gpus_asked(AppConfig(replicas=4, gpus_per_replica=0.5)) == 2
    assert gpus_asked(AppConfig(replicas=4, gpus_per_replica=2, tensor_parallel_size=2)) == 8


def test_gpus_that_the_ranks_of_a_replica_cannot_share_are_refused(tmp_path: Path) -> None:
    args = {"gpus_per_replica": 1, "tensor_parallel_size": 2}
    message = _fault(tmp_path, {"applications": [_application(args=args)]})
    assert "applications.0.args" in message
    assert "set gpus_per_replica to 2" in message


@pytest.mark.parametrize("text", ["", "- a", "a: [", "\x00"])
def test_what_is_no_document_is_refused(tmp_path: Path, text: str) -> None:
    assert "file.yaml" in _fault(tmp_path, text)


@pytest.mark.parametrize("args", [[], "replicas=2", 3])
def test_args_that_are_no_mapping_are_refused(tmp_path: Path, args: Any) -> None:
    _fault(tmp_path, {"applications": [_application(args=args)]})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        check_serve_config(tmp_path / "none.yaml")


def _local(**changes: Any) -> dict[str, Any]:
    provider = {"type": "local", "head_ip": "a", "worker_ips": ["b"]}
    return {"cluster_name": "c", "provider": provider, **changes}


def test_a_cluster_file_that_states_no_gpus_claims_none(tmp_path: Path) -> None:
    assert check_cluster_file(_written(tmp_path, _local())) is None


def test_the_stated_gpus_are_those_of_all_hosts(tmp_path: Path) -> None:
    document = _local(
        head_start_ray_commands=["ray stop", "ray start --head --num-gpus 0"],
        worker_start_ray_commands=["ray start --address=$RAY_HEAD_IP:6379 --num-gpus=8"],
    )
    assert check_cluster_file(_written(tmp_path, document)) == 8


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (_local(setup_command=[]), "did you mean 'setup_commands'?"),
        (_local(auth={"ssh_user": 3}), "auth.ssh_user"),
        ({"cluster_name": "c", "provider": {"type": "local"}}, "worker_ips"),
        ({"cluster_name": "c"}, "provider"),
    ],
)
def test_a_fault_in_a_cluster_file_is_named(tmp_path: Path, document: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_cluster_file(_written(tmp_path, document))
    assert words in caught.value.message
