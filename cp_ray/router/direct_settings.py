"""What Serve must be started with for the direct data plane: read before any of our code runs."""

from __future__ import annotations

from collections.abc import Mapping

from cp_ray.errors import ConfigError
from cp_ray.router.handed import AUTHORIZATION

HA_PROXY = "RAY_SERVE_ENABLE_HA_PROXY"
FORWARD_BODY = "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY"
SHOWN_HEADER = "RAY_SERVE_SESSION_ID_HEADER_KEY"
"""HAProxy shows the Router this header alone; Serve means one that names a session."""
DIRECT_SETTINGS = {HA_PROXY: "1", FORWARD_BODY: "1", SHOWN_HEADER: AUTHORIZATION}


def check_direct(environ: Mapping[str, str], *, keys: bool) -> None:
    """Raise ConfigError where the environment is not that. keys: whether tenants have keys."""
    needed = {name: DIRECT_SETTINGS[name] for name in (HA_PROXY, FORWARD_BODY)}
    if keys:  # without them nobody needs to be told from others
        needed[SHOWN_HEADER] = AUTHORIZATION
    missing = {name: value for name, value in needed.items() if environ.get(name) != value}
    if missing:
        words = " ".join(f"{name}={value}" for name, value in missing.items())
        raise ConfigError(
            f"data_plane=direct: Serve runs without {words}: set it in the environment of "
            "`ray start` on every host (of `serve run`, where that starts Ray), or leave "
            "data_plane out",
            param="data_plane",
        )
