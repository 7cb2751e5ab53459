"""Bearer key -> tenant -> region -> cache salt. Keys are kept as digests, never as they are."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

import msgspec

from cp_ray.config import AppConfig
from cp_ray.errors import ConfigError, Unauthorized
from cp_ray.router.api import ChatRequest, CompletionRequest
from cp_ray.setting_types import DIGEST

DEFAULT = "default"
PUBLIC_REGION = "public"
"""Region of documents that every tenant may share."""


class Tenant(msgspec.Struct, frozen=True):
    """Who asks. salted: whether its prompts are kept apart from everybody else's."""

    name: str
    salted: bool = True

    @property
    def cache_salt(self) -> str | None:
        """Salt of its prompts in the engine; None = the open one. The default tenant needs none."""
        return None if self.name == DEFAULT or not self.salted else self.name

    def region(self, *, public: bool) -> str:
        """Whose requests may share a block."""
        return PUBLIC_REGION if public else self.name


class Authenticator:
    """Maps the `Authorization` header to a tenant. Without keys everybody is the default one."""

    def __init__(self, config: AppConfig) -> None:
        """Raises ConfigError when a tenant has a reserved name, or no key that can be one."""
        for name in (PUBLIC_REGION, DEFAULT):
            if name in config.api_keys:
                raise ConfigError(
                    f"api_keys: a tenant cannot be named {name!r}: rename it", param="api_keys"
                )
        unknown = sorted(set(config.share_public) - config.api_keys.keys())
        if unknown:
            raise ConfigError(
                f"share_public: {unknown[0]!r} is no tenant of api_keys: add its key, or leave "
                "it out",
                param="share_public",
            )
        self._sharing = frozenset(config.share_public)
        self._lift = config.lift_documents
        keys = {name: key.get_secret_value() for name, key in config.api_keys.items()}
        self._digests = key_digests(keys)

    def tenant(self, authorization: str | None) -> Tenant:
        """Raises Unauthorized on a missing or unknown key. Takes the same time for every key."""
        if not self._digests:
            return Tenant(DEFAULT)
        scheme, _, given = (authorization or "").partition(" ")
        found = key_holder(self._digests, given)
        if scheme.lower() != "bearer" or found is None:
            raise Unauthorized(
                "the API key is missing or unknown: send the header `Authorization: Bearer KEY`",
                code="invalid_api_key",
            )
        return Tenant(found)

    def view(self, tenant: Tenant, request: ChatRequest | CompletionRequest) -> Tenant:
        """The tenant as this request's prompt is cached: salted, or open to every tenant.

        Open only if its tenant opted in, every block is public, and it belongs to no conversation:
        earlier turns hold what was said of other blocks. One private block salts the whole prompt,
        and what is lifted out of messages is private.
        """
        if tenant.name not in self._sharing or not request.documents:
            return tenant
        if getattr(request, "conversation", None) is not None:
            return tenant
        if isinstance(request, ChatRequest):
            said = [m for m in request.messages if m.role not in ("system", "developer")]
            lifts = request.lift_documents
            if len(said) > 1 or (self._lift if lifts is None else lifts):
                return tenant
        return Tenant(tenant.name, salted=not all(d.public for d in request.documents))


def key_digests(keys: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Holder and SHA-256 of each key, from `sha256:HEX sha256:HEX ...` of each holder.

    Keys are random and long, so a plain digest will do. Raises ConfigError.
    """
    digests = []
    for name, text in keys.items():
        words = text.split()
        if not words:
            raise ConfigError(f"api_keys: the key of {name!r} is empty", param="api_keys")
        digests += [(name, _bytes_of(name, word)) for word in words]
    return digests


def key_holder(digests: Sequence[tuple[str, bytes]], given: str) -> str | None:
    """Whose key this is. Compares with every digest, so that time tells nothing."""
    digest = hashlib.sha256(given.strip().encode("utf-8", "replace")).digest()
    found = None
    for name, known in digests:
        if hmac.compare_digest(known, digest):
            found = name
    return found


def _bytes_of(name: str, word: str) -> bytes:
    try:
        digest = bytes.fromhex(word.removeprefix(DIGEST.decode()))
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ConfigError(
            f"api_keys: the digest of {name!r} is not sha256: and 64 hexadecimal digits",
            param="api_keys",
        )
    return digest
