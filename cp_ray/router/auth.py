"""Bearer key -> tenant -> region -> cache salt."""

from __future__ import annotations

import hmac

import msgspec

from cp_ray.config import AppConfig
from cp_ray.errors import ConfigError, Unauthorized

DEFAULT = "default"
PUBLIC_REGION = "public"
"""Region of documents that every tenant may share."""


class Tenant(msgspec.Struct, frozen=True):
    """Who asks. cache_salt: keeps its cached prefixes apart in the engine; None = the open one."""

    name: str

    @property
    def cache_salt(self) -> str | None:
        """Salt of all its prompts; the default tenant needs none."""
        return None if self.name == DEFAULT else self.name

    def region(self, *, public: bool) -> str:
        """Whose requests may share a block."""
        return PUBLIC_REGION if public else self.name


class Authenticator:
    """Maps the `Authorization` header to a tenant. Without keys everybody is the default one."""

    def __init__(self, config: AppConfig) -> None:
        """Raises ConfigError when a tenant has the name of the public region, or an empty key."""
        if PUBLIC_REGION in config.api_keys:
            raise ConfigError(
                f"api_keys: a tenant cannot be named {PUBLIC_REGION!r}: rename it", param="api_keys"
            )
        self._keys = {
            tenant: key.get_secret_value().encode() for tenant, key in config.api_keys.items()
        }
        for tenant, key in self._keys.items():
            if not key:
                raise ConfigError(f"api_keys: the key of {tenant!r} is empty", param="api_keys")

    def tenant(self, authorization: str | None) -> Tenant:
        """Raises Unauthorized on a missing or unknown key. Takes the same time for every key."""
        if not self._keys:
            return Tenant(DEFAULT)
        scheme, _, given = (authorization or "").partition(" ")
        found = None
        for tenant, key in self._keys.items():
            if hmac.compare_digest(key, given.strip().encode("utf-8", "replace")):
                found = tenant
        if scheme.lower() != "bearer" or found is None:
            raise Unauthorized(
                "the API key is missing or unknown: send the header `Authorization: Bearer KEY`",
                code="invalid_api_key",
            )
        return Tenant(found)
