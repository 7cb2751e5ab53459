"""Strict checks of the two files a cluster is started from, before anything starts.

`serve deploy FILE` ignores unknown keys of deployments (`num_replica: 3` is accepted); a typing
error would show only as a wrong fleet. Both checks raise ConfigError that names the key, where
it stands and the nearest right one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from cp_ray.config import AppConfig
from cp_ray.errors import ConfigError

DEPLOYMENTS = ("Engine", "Router")
"""Names of our two deployments, as a Serve config file must spell them."""
_BUILDERS = ("cp_ray.app", "cp_ray:app")
_BUILT = ("cp_ray.deployment.default", "cp_ray.deployment:default")
_NUM_GPUS = re.compile(r"--num-gpus[= ](\d+)")


def check_serve_config(path: Path, gpus: int | None = None) -> None:
    """Check a Serve config file with Ray's own schema and with ours.

    gpus: GPUs of the cluster where known (`check_cluster_file`); a plan that asks for more is
    refused. Raises ConfigError.
    """
    check_serve_document(read_yaml(path), str(path), gpus)


def check_serve_document(document: dict[str, Any], place: str, gpus: int | None = None) -> float:
    """The same for a document already read; `place` names it in errors. Returns GPUs asked for."""
    from ray.serve.schema import ServeDeploySchema

    _no_unknown_keys(document, ServeDeploySchema, place)
    _validate(document, ServeDeploySchema, place)
    asked = 0.0
    for number, application in enumerate(document.get("applications", [])):
        where = f"{place}: applications.{number}"
        target = application["import_path"]
        if target in _BUILDERS:
            asked += gpus_asked(_settings(application.get("args") or {}, where))
        elif target in _BUILT:
            if application.get("args"):
                raise ConfigError(
                    f"{where}: {target} takes no args: set import_path to {_BUILDERS[0]}",
                    param="args",
                )
        elif re.split(r"[.:]", target)[0] == "cp_ray":
            raise unknown_name(where, "import_path", target, (*_BUILDERS, *_BUILT))
        else:
            continue  # another application in the same file is not ours to judge
        for deployment in application.get("deployments") or []:
            if deployment["name"] not in DEPLOYMENTS:
                raise unknown_name(where, "deployment", deployment["name"], DEPLOYMENTS)
    if gpus is not None and asked > gpus:
        raise ConfigError(
            f"{place}: the replicas ask for {asked:g} GPUs, the cluster file states {gpus}: "
            "lower replicas or gpus_per_replica, or add hosts",
            param="replicas",
        )
    return asked


def check_cluster_file(path: Path) -> int | None:
    """Check a `ray up` file with Ray's own schema; returns the GPUs it states, if it does.

    Stated means `--num-gpus` in a start command (provider local), or `resources` of the node
    types, of as many hosts as may be. Raises ConfigError.
    """
    import click
    import jsonschema  # type: ignore[import-untyped]
    from ray.autoscaler._private.util import prepare_config, validate_config

    document = read_yaml(path)
    schema = json.loads(resources.files("ray.autoscaler").joinpath("ray-schema.json").read_text())
    known = [*schema["properties"], "min_workers"]  # the latter is read for provider local only
    for key in document:
        if key not in known:
            raise unknown_name(str(path), "key", key, known)
    try:
        validate_config(prepare_config(document))
    except jsonschema.ValidationError as error:
        at = ".".join(str(part) for part in error.absolute_path) or "top level"
        raise ConfigError(f"{path}: {at}: {error.message}") from error
    except (ValueError, KeyError, RuntimeError, click.ClickException) as error:
        raise ConfigError(f"{path}: {error}") from error
    return _stated_gpus(document)


def gpus_asked(config: AppConfig) -> float:
    """GPUs that all engine replicas of `config` need together."""
    return config.most_replicas * config.gpus_per_replica


def _stated_gpus(document: Mapping[str, Any]) -> int | None:
    def per_host(field: str) -> int | None:
        found = [_NUM_GPUS.search(command) for command in document.get(field) or []]
        return next((int(match[1]) for match in found if match), None)

    types = document.get("available_node_types")
    if types:
        head_type = document.get("head_node_type")
        return sum(
            int(kind["resources"].get("GPU", 0))
            * (1 if name == head_type else int(kind.get("max_workers", 0)))
            for name, kind in types.items()
        )
    head, worker = per_host("head_start_ray_commands"), per_host("worker_start_ray_commands")
    if head is None and worker is None:
        return None
    workers = len(document["provider"].get("worker_ips") or [])
    return (head or 0) + (worker or 0) * workers


def _settings(args: Any, where: str) -> AppConfig:
    from cp_ray.deployment import engine_resources

    try:
        config = AppConfig.model_validate(args)
        engine_resources(config)  # settings that do not go together
    except ConfigError as error:
        raise ConfigError(f"{where}.args: {error.message}", param=error.param) from error
    except ValidationError as error:
        raise _first(error, f"{where}.args") from None  # pydantic's text shows the input's secrets
    return config


def read_yaml(path: Path) -> dict[str, Any]:
    """A document of keys and values. Raises ConfigError."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected keys and values, as in cluster/serve.yaml")
    return document


def _validate(document: Mapping[str, Any], model: type[BaseModel], where: str) -> None:
    try:
        model.model_validate(document)
    except ValidationError as error:
        raise _first(error, where) from None


def _first(error: ValidationError, where: str) -> ConfigError:
    fault = error.errors(include_input=False, include_url=False)[0]
    at = ".".join(str(part) for part in fault["loc"])
    return ConfigError(f"{where}: {at}: {fault['msg']}", param=at)


def _no_unknown_keys(value: Any, model: type[BaseModel], where: str) -> None:
    """Walk the document beside the schema; Ray's models drop what they do not know."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            _no_unknown_keys(item, model, f"{where}.{number}")
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        field = model.model_fields.get(key)
        if field is None:
            raise unknown_name(where, "key", key, model.model_fields)
        for inner_model in _models_in(field.annotation):
            _no_unknown_keys(inner, inner_model, f"{where}: {key}")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def unknown_name(where: str, what: str, name: Any, known: Any) -> ConfigError:
    """The error for a name that is not known, with the nearest right one."""
    names = [str(right) for right in known]
    near = get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return ConfigError(f"{where}: unknown {what} {name!r}: {hint}", param=str(name))
