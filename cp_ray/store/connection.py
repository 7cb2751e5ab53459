"""One checked connection pool to Redis or Valkey: address, timeouts, and faults in plain words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import redis.asyncio as aioredis
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from cp_ray.errors import ConfigError, StoreUnavailable

CONNECT_TIMEOUT_S = 0.4
REPLY_TIMEOUT_S = 0.9
"""A store that is down costs a caller at most about this; `Store` bounds the sum at 1 s."""
MAX_CONNECTIONS = 64
OLDEST = (6, 2)

FAULTS = (exceptions.RedisError, OSError, TimeoutError)
"""Whatever can go wrong with a connection."""
_ADVICE: tuple[tuple[type[BaseException], str], ...] = (  # the first that fits
    (
        exceptions.AuthenticationError,
        "{where} refuses the password: check user and password in redis_url",
    ),
    (
        exceptions.NoPermissionError,
        "the user of redis_url lacks rights on {where}: "
        "it needs ~cp:{app}:* +@read +@write +@connection",
    ),
    (exceptions.OutOfMemoryError, "{where} is full: raise its maxmemory"),
    (exceptions.ReadOnlyError, "{where} is a read-only replica: set redis_url to the primary"),
    (
        exceptions.InvalidResponse,
        "what listens on {where} is no Redis: check the port in redis_url",
    ),
    (exceptions.ResponseError, "{where} refused a command: {error}"),
    (exceptions.BusyLoadingError, "{where} is still loading its data: try again in a moment"),
    (
        exceptions.TimeoutError,
        "no answer from {where}: is it a Redis, and does its TLS match the scheme of redis_url "
        "(rediss:// is TLS)?",
    ),
    (
        BaseException,
        "Redis at {where} cannot be reached ({error}): start it, correct redis_url, or leave "
        "redis_url out to use the embedded server",
    ),
)


def address(url: str) -> str:
    """`host:port` of a Redis URL: what may be shown. The URL itself holds the password."""
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError:
        return "redis_url"
    return f"{parts.hostname or 'localhost'}:{port}"


def open_client(url: str, *, blocking: bool = False) -> aioredis.Redis:
    """Make a client of redis:// or rediss:// (TLS), with ACL user and password from the URL.

    blocking: replies may take as long as the command asks; the caller bounds them. Raises
    ConfigError when the URL is none.
    """
    if not url.startswith(("redis://", "rediss://")):
        raise ConfigError(
            "redis_url must be redis://[user:password@]host[:port][/db], or rediss:// for TLS",
            param="redis_url",
        )
    try:
        pool = aioredis.BlockingConnectionPool.from_url(
            url,
            max_connections=2 if blocking else MAX_CONNECTIONS,
            timeout=REPLY_TIMEOUT_S,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=None if blocking else REPLY_TIMEOUT_S,
            # One try more at once: a pooled connection is stale after the server came back.
            retry=Retry(NoBackoff(), 1),
            retry_on_error=[exceptions.ConnectionError],
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"redis_url cannot be read ({type(error).__name__}): special characters in a password "
            "must be percent-encoded",
            param="redis_url",
        ) from error
    return aioredis.Redis.from_pool(pool)


async def check_server(client: aioredis.Redis, url: str, app: str) -> None:
    """Prove that `client` may do what cp_ray does, on a server new enough.

    Raises ConfigError that says what to do: unreachable, wrong password, missing rights, no
    Redis, too old, full.
    """
    where = address(url)
    probe = f"cp:{app}:probe"
    try:
        await client.set(probe, b"1", ex=10)
        await client.get(probe)
        await client.xrevrange(f"cp:{app}:reports", count=1)
    except FAULTS as error:
        advice = next(advice for type_, advice in _ADVICE if isinstance(error, type_))
        message = advice.format(where=where, app=app, error=error)
        raise ConfigError(message, param="redis_url") from error
    await _check_version(client, where)


async def _check_version(client: aioredis.Redis, where: str) -> None:
    try:
        info = await client.info("server")
    except exceptions.RedisError:
        return  # the right to INFO is not needed for anything else
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < OLDEST:
        raise ConfigError(
            f"{where} runs Redis {version}: 6.2 or newer, or Valkey, is needed", param="redis_url"
        )


@asynccontextmanager
async def faults_as_unavailable(url: str) -> AsyncIterator[None]:
    """Turn whatever goes wrong with Redis later into StoreUnavailable."""
    try:
        yield
    except FAULTS as error:
        raise StoreUnavailable(
            f"Redis at {address(url)}: {str(error) or type(error).__name__}"
        ) from error
