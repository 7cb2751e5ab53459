"""The composition root: what `serve run cp_ray.app key=value` makes of its settings."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from ray.serve import Application

import cp_ray.deployment
from cp_ray.config import AppConfig, parse_settings
from cp_ray.deployment import app, engine_resources
from cp_ray.errors import ConfigError


def test_an_unknown_setting_names_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'replica': did you mean 'replicas'"):
        AppConfig.model_validate({"replica": "2"})


def test_an_unknown_setting_does_not_print_the_secrets_beside_it() -> None:
    with pytest.raises(ConfigError) as caught:
        AppConfig.model_validate({"redis_url": "redis://:secret@host", "replica": "2"})
    assert "secret" not in str(caught.value)


def test_settings_keep_their_secrets_on_the_way_to_another_process() -> None:
    config = AppConfig.model_validate(
        {"redis_url": "redis://:secret@host", "api_keys": '{"a": "key"}'}
    )
    assert AppConfig.model_validate_json(config.to_json()) == config
    assert "secret" not in repr(config)


def test_serve_can_see_the_type_of_the_builders_argument() -> None:
    [parameter] = inspect.signature(app).parameters.values()
    assert parameter.annotation is AppConfig


def test_one_rank_takes_its_gpus_itself() -> None:
    options = engine_resources(AppConfig(cpus_per_replica=2, gpus_per_replica=0.5))
    assert options == {"ray_actor_options": {"num_cpus": 2, "num_gpus": 0.5}}


def test_tensor_parallel_ranks_share_a_host_and_leave_the_gpus_to_the_engine() -> None:
    options = engine_resources(AppConfig(gpus_per_replica=4, tensor_parallel_size=4))
    assert options["ray_actor_options"]["num_gpus"] == 0
    assert [bundle["GPU"] for bundle in options["placement_group_bundles"]] == [1, 1, 1, 1]
    first = options["placement_group_bundles"][0]
    assert first["CPU"] == options["ray_actor_options"]["num_cpus"]
    assert options["placement_group_strategy"] == "STRICT_PACK"


def test_sglang_starts_its_ranks_itself_so_the_replica_takes_all_gpus() -> None:
    args = AppConfig(engine="sglang", gpus_per_replica=4, tensor_parallel_size=4)
    assert engine_resources(args) == {"ray_actor_options": {"num_cpus": 0.5, "num_gpus": 4}}


def test_a_replica_of_sglang_over_several_hosts_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigError, match=r"across_hosts=true .* leave across_hosts out") as said:
        parse_settings(["engine=sglang", "across_hosts=true", "tensor_parallel_size=2"])
    assert said.value.param == "across_hosts"
    assert parse_settings(["engine=sglang", "across_hosts=false"]).across_hosts is False
    across = AppConfig(gpus_per_replica=2, tensor_parallel_size=2, across_hosts=True)
    assert engine_resources(across)["placement_group_strategy"] == "PACK"


def test_the_replicas_alone_run_on_the_python_they_are_given() -> None:
    options = engine_resources(AppConfig(engine="sglang", engine_python="/env/bin/python"))
    assert options["ray_actor_options"]["runtime_env"] == {"py_executable": "/env/bin/python"}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_argument_that_breaks_the_contract_is_refused_before_anything_starts(
    engine: str,
) -> None:
    for name, value in (("kv_events_config", {}), ("data_parallel_size", 2)):
        args = AppConfig.model_validate({"engine": engine, "engine_kwargs": {name: value}})
        with pytest.raises(ConfigError, match=name):
            app(args)


@pytest.mark.parametrize("gpus", [0, 3])
def test_gpus_that_the_ranks_cannot_share_are_refused(gpus: int) -> None:
    with pytest.raises(ConfigError, match="set gpus_per_replica to 2"):
        engine_resources(AppConfig(gpus_per_replica=gpus, tensor_parallel_size=2))


def test_a_missing_index_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="index file cannot be read"):
        app(AppConfig(index=str(tmp_path / "none")))


def test_serve_build_finds_a_built_application() -> None:
    assert isinstance(cp_ray.deployment.default, Application)
