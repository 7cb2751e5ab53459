"""engine_kwargs: what an engine's arguments may not be, and what is set where nobody else did."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from cp_ray.errors import ConfigError

ONE_CACHE = "one cache for each replica is what the index follows; set replicas= instead"
ONE_STAGE = "stages on several hosts are not built"
EVENTS_ARE_OURS = "cp_ray reads the engine's cache events itself"


class Refusals(msgspec.Struct, frozen=True):
    """Arguments of one engine that have another home, and those of which one value is possible.

    elsewhere: argument -> where it is set. only: argument -> that value, and why.
    """

    elsewhere: Mapping[str, str]
    only: Mapping[str, tuple[Any, str]]

    def check(self, kwargs: Mapping[str, Any]) -> None:
        """Raise ConfigError for an argument that has another home, or that breaks the contract."""
        for name, value in kwargs.items():
            if name in self.elsewhere:
                raise ConfigError(
                    f"engine_kwargs.{name} is not taken: {self.elsewhere[name]}",
                    param="engine_kwargs",
                )
            only, reason = self.only.get(name, (value, ""))
            if value != only:
                raise ConfigError(
                    f"engine_kwargs.{name}={value!r} is not possible (only {only!r}): {reason}",
                    param="engine_kwargs",
                )


def prepare_environment(wanted: Mapping[str, str], *, local: bool) -> None:
    """Set what an engine reads from the environment, before it is imported; the user's values stay.

    local: the model needs no hub, so none is asked.
    """
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if local else {}
    for name, value in (offline | dict(wanted)).items():
        os.environ.setdefault(name, value)
