"""The rivals: what to install, how to start them, and which of our policies copies which."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

import msgspec

from benchmarks.rivals.prompts import Encode, text_of, token_list
from benchmarks.rivals.rival import Rival
from cp_ray.errors import ConfigError


class Known(msgspec.Struct, frozen=True):
    """package: as installed. copy: our policy of `bench fleet`, if there is one.

    encode: a prompt as it is sent. make: for so many replicas.
    """

    package: str
    what: str
    copy: str | None
    encode: Encode
    make: Callable[[int, Encode], Rival]

    def version(self) -> str:
        """Raises ConfigError where it is not installed."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            raise ConfigError(
                f"{self.package} is not installed: pip install 'cp-ray[bench]'", param="rival"
            ) from None

    @property
    def installed(self) -> bool:
        try:
            self.version()
        except ConfigError:
            return False
        return True


def _ray(replicas: int, encode: Encode) -> Rival:
    from benchmarks.rivals.ray_router import RayPrefixRouter

    return RayPrefixRouter(replicas, encode)


def _dynamo(replicas: int, encode: Encode) -> Rival:
    from benchmarks.rivals.dynamo_selection import DynamoSelection

    return DynamoSelection(replicas, encode)


def _gateway(replicas: int, encode: Encode, *module: str) -> Rival:
    from benchmarks.rivals.gateway import Gateway

    return Gateway(replicas, encode, module)


def _smg(replicas: int, encode: Encode) -> Rival:
    return _gateway(replicas, encode, "smg", "launch")


def _sglang(replicas: int, encode: Encode) -> Rival:
    return _gateway(replicas, encode, "sglang_router.launch_router")


def _vllm(replicas: int, encode: Encode) -> Rival:
    return _gateway(replicas, encode, "vllm_router.launch_router")


def _vllm_kv(replicas: int, encode: Encode) -> Rival:
    from benchmarks.rivals.kv_aware import VllmKvAware

    return VllmKvAware(replicas, encode)


KNOWN = {
    "ray": Known("ray", "PrefixCacheAffinityRouter", "ray_prefix", text_of, _ray),
    "dynamo": Known("ai-dynamo-runtime", "SelectionService", "dynamo", token_list, _dynamo),
    "smg": Known("smg", "cache_aware", "sglang", text_of, _smg),
    "sglang-router": Known("sglang-router", "cache_aware", "sglang", text_of, _sglang),
    # Of text it only counts running requests: it matches token ids alone.
    "vllm-router": Known("vllm-router", "cache_aware", "sglang", token_list, _vllm),
    "vllm-router-kv": Known("vllm-router", "kv_aware", None, token_list, _vllm_kv),
}
