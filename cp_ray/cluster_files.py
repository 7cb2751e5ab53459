"""Strict checks of RayService and compose files, and of any file that starts a cluster.

The RayService check knows the fields that our files use, by KubeRay 1.5's reference; a field that
it does not know is refused, because Kubernetes, too, may drop it without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cp_ray.errors import ConfigError
from cp_ray.serve_config import (
    check_cluster_file,
    check_serve_config,
    check_serve_document,
    read_yaml,
    unknown_name,
)

_ANY = "anything"
_CONTAINER = {
    "name": _ANY,
    "image": _ANY,
    "command": _ANY,
    "args": _ANY,
    "env": _ANY,
    "ports": _ANY,
    "resources": {"limits": _ANY, "requests": _ANY},
    "volumeMounts": _ANY,
    "lifecycle": _ANY,
    "securityContext": _ANY,
}
_TEMPLATE = {
    "metadata": _ANY,
    "spec": {
        "containers": [_CONTAINER],
        "volumes": _ANY,
        "tolerations": _ANY,
        "nodeSelector": _ANY,
        "affinity": _ANY,
        "imagePullSecrets": _ANY,
        "serviceAccountName": _ANY,
    },
}
_RAY_SERVICE: dict[str, Any] = {
    "apiVersion": _ANY,
    "kind": _ANY,
    "metadata": {"name": _ANY, "namespace": _ANY, "labels": _ANY, "annotations": _ANY},
    "spec": {
        "serveConfigV2": _ANY,
        "upgradeStrategy": {"type": _ANY},
        "excludeHeadPodFromServeSvc": _ANY,
        "serveService": _ANY,
        "rayClusterConfig": {
            "rayVersion": _ANY,
            "authOptions": {"mode": _ANY},
            "enableInTreeAutoscaling": _ANY,
            "autoscalerOptions": _ANY,
            "gcsFaultToleranceOptions": {
                "redisAddress": _ANY,
                "redisUsername": _ANY,
                "redisPassword": _ANY,
                "externalStorageNamespace": _ANY,
            },
            "headGroupSpec": {
                "serviceType": _ANY,
                "rayStartParams": _ANY,
                "template": _TEMPLATE,
            },
            "workerGroupSpecs": [
                {
                    "groupName": _ANY,
                    "replicas": _ANY,
                    "minReplicas": _ANY,
                    "maxReplicas": _ANY,
                    "numOfHosts": _ANY,
                    "rayStartParams": _ANY,
                    "template": _TEMPLATE,
                }
            ],
        },
    },
}
_PLAIN = (
    *("image", "command", "entrypoint", "ports", "environment", "volumes", "restart", "shm_size"),
    *("depends_on", "healthcheck", "networks", "user", "read_only", "cap_drop", "logging"),
    "stop_grace_period",
)
_SERVICE = dict.fromkeys(_PLAIN, _ANY) | {
    "build": {"context": _ANY, "dockerfile": _ANY, "args": _ANY, "target": _ANY},
    "ulimits": _ANY,
    "deploy": {"resources": {"reservations": {"devices": _ANY}, "limits": _ANY}},
}
_GPU = "nvidia.com/gpu"


def check_file(path: Path) -> str:
    """Check a file by what it is; returns what was found. Raises ConfigError."""
    document = read_yaml(path)
    if document.get("kind") == "RayService":
        gpus = check_ray_service(path)
        return f"{path}: a RayService with {gpus} GPUs is right"
    if "services" in document:
        check_compose(path)
        return f"{path}: a compose file is right"
    if "cluster_name" in document:
        stated = check_cluster_file(path)
        told = "that states no GPUs" if stated is None else f"with {stated} GPUs"
        return f"{path}: a `ray up` file {told} is right"
    check_serve_config(path)
    return f"{path}: a Serve config file is right"


def check_ray_service(path: Path) -> int:
    """Check a RayService: fields, its Serve config, and that the GPUs suffice; returns them.

    Raises ConfigError.
    """
    document = read_yaml(path)
    _known(document, _RAY_SERVICE, str(path))
    try:
        spec = document["spec"]
        cluster = spec["rayClusterConfig"]
        groups = cluster["workerGroupSpecs"]
        gpus = sum(int(group["replicas"]) * _gpus_of(group) for group in groups)
        heads = cluster["headGroupSpec"]["template"]["spec"]["containers"]
        serve = yaml.safe_load(spec["serveConfigV2"])
        versions = (document["apiVersion"], document["kind"])
    except (KeyError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: a part of a RayService is missing or wrong: {error}") from error
    if versions != ("ray.io/v1", "RayService"):
        raise ConfigError(f"{path}: apiVersion and kind must be ray.io/v1 and RayService")
    for group in groups:
        least, most = group.get("minReplicas", 0), group.get("maxReplicas", 0)
        if not least <= group["replicas"] <= most:
            raise ConfigError(
                f"{path}: group {group['groupName']}: replicas={group['replicas']} is not "
                f"between minReplicas={least} and maxReplicas={most}",
                param="replicas",
            )
    if len({container["image"] for container in [*heads, *_containers(groups)]}) != 1:
        raise ConfigError(f"{path}: head and workers must run the same image", param="image")
    check_serve_document(serve, f"{path}: serveConfigV2", gpus)
    return gpus


def check_compose(path: Path) -> None:
    """Check a compose file: fields, and that the files it names are there. Raises ConfigError."""
    document = read_yaml(path)
    _known(document, {"name": _ANY, "services": _ANY, "volumes": _ANY, "networks": _ANY}, str(path))
    for name, service in document["services"].items():
        where = f"{path}: services.{name}"
        _known(service, _SERVICE, where)
        if "image" not in service and "build" not in service:
            raise ConfigError(f"{where}: has neither image nor build", param="image")
        build = service.get("build")
        if build:
            file = path.parent / build["context"] / build["dockerfile"]
            if not file.exists():
                raise ConfigError(f"{where}: {file} does not exist", param="build")
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith(".") and not (path.parent / source).exists():
                raise ConfigError(f"{where}: {source} does not exist", param="volumes")
            if not source.startswith((".", "/")) and source not in (document.get("volumes") or {}):
                raise ConfigError(f"{where}: volume {source!r} is not declared", param="volumes")


def _gpus_of(group: Mapping[str, Any]) -> int:
    return sum(
        int(container.get("resources", {}).get("limits", {}).get(_GPU, 0))
        for container in _containers([group])
    )


def _containers(groups: list[Any] | list[Mapping[str, Any]]) -> list[Any]:
    return [container for group in groups for container in group["template"]["spec"]["containers"]]


def _known(value: Any, fields: Any, where: str) -> None:
    if fields == _ANY:
        return
    if isinstance(fields, list):
        if not isinstance(value, list):
            raise ConfigError(f"{where}: must be a list")
        for number, item in enumerate(value):
            _known(item, fields[0], f"{where}.{number}")
        return
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must have keys and values")
    for key, inner in value.items():
        if key not in fields:
            raise unknown_name(where, "key", key, fields)
        _known(inner, fields[key], f"{where}.{key}")
