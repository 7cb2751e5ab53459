"""The rivals: what to install, how to start them, and which of our policies copies which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata

import msgspec

from benchmarks.rivals.prompts import text_of, token_list
from benchmarks.rivals.rival import Rival
from cp_ray.core.pages import Piece
from cp_ray.errors import ConfigError


class Known(msgspec.Struct, frozen=True):
    """package: as installed. copy: our policy of `bench fleet`. make: for so many replicas."""

    package: str
    what: str
    copy: str
    make: Callable[[int], Rival]

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


def _ray(replicas: int) -> Rival:
    from benchmarks.rivals.ray_router import RayPrefixRouter

    return RayPrefixRouter(replicas)


def _dynamo(replicas: int) -> Rival:
    from benchmarks.rivals.dynamo_selection import DynamoSelection

    return DynamoSelection(replicas)


def _gateway(
    module: tuple[str, ...], encode: Callable[[Sequence[Piece]], object], replicas: int
) -> Rival:
    from benchmarks.rivals.gateway import Gateway

    return Gateway(replicas, module, encode)


KNOWN = {
    "ray": Known("ray", "PrefixCacheAffinityRouter", "ray_prefix", _ray),
    "dynamo": Known("ai-dynamo-runtime", "SelectionService", "dynamo", _dynamo),
    "smg": Known("smg", "cache_aware", "sglang", partial(_gateway, ("smg", "launch"), text_of)),
    "sglang-router": Known(
        "sglang-router",
        "cache_aware",
        "sglang",
        partial(_gateway, ("sglang_router.launch_router",), text_of),
    ),
    # Of text it only counts running requests: it matches token ids alone.
    "vllm-router": Known(
        "vllm-router",
        "cache_aware",
        "sglang",
        partial(_gateway, ("vllm_router.launch_router",), token_list),
    ),
}
