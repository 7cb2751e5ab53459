"""Offline mode: a file of requests is scheduled before any is sent (paper section 2).

A line of the input is the body of a chat completion or completion with `documents`, or a line of
OpenAI's batch format, `{"custom_id": .., "body": {..}}`. Bodies keep their documents as ranked:
the router orders them, by the index this module writes, and tells the model the ranking.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import httpx
import msgspec
from tqdm import tqdm

from cp_ray.config import AppConfig
from cp_ray.core.index import ContextIndex
from cp_ray.core.scheduling import schedule
from cp_ray.core.types import Context, RequestId
from cp_ray.errors import ConfigError, InvalidRequest
from cp_ray.router.api import ChatRequest, CompletionRequest
from cp_ray.router.auth import DEFAULT, Tenant
from cp_ray.router.limits import parse, read_json
from cp_ray.router.placing import blocks_of

Json = dict[str, Any]
TIMEOUT_S = 600.0


class Item(msgspec.Struct, frozen=True):
    """One request of the file. id: its custom_id, or "line-N". line: as it stood."""

    id: str
    body: Json
    line: str


def plan_batch(source: Path, index: Path | None = None, tenant: str = DEFAULT) -> list[Item]:
    """Algorithms 4 and 5 over the file: its requests in the order of sending.

    index: where to write the offline index; `index=FILE` then gives online requests of `tenant`
    the same orders. Raises ConfigError naming file and line.
    """
    items = _read(source)
    contexts = [_context(source, item, tenant) for item in items]
    built = ContextIndex()
    steps = built.build(contexts)
    if index is not None:
        with _create(index) as file:
            file.write(built.offline.dump())
    place: dict[RequestId, int] = {step.request_id: i for i, step in enumerate(steps)}
    # Along the tree first: neighbours of one group then share the most.
    along = sorted(steps, key=lambda step: step.search_path)
    return [items[place[step.request_id]] for group in schedule(along) for step in group]


def write_plan(items: Sequence[Item], output: Path) -> int:
    """The lines of the input, in the order of sending."""
    with _create(output) as file:
        file.write("".join(item.line + "\n" for item in items).encode())
    return 0


def send_batch(
    items: Sequence[Item], output: Path, url: str, concurrency: int, api_key: str
) -> int:
    """Send in order, `concurrency` at a time; a line per request as each ends. 0: all were ok.

    A line of the output is `{"custom_id": .., "response": body or null, "error": .. or null}`.
    """
    with _create(output) as file:
        failed = asyncio.run(_send_all(items, file, url, concurrency, api_key))
    if failed:
        print(f"{failed} of {len(items)} requests failed: see `error` in {output}")  # noqa: T201
    return 1 if failed else 0


async def _send_all(
    items: Sequence[Item], file: IO[bytes], url: str, concurrency: int, api_key: str
) -> int:
    queue = iter(items)
    failed = 0
    headers = {"authorization": f"Bearer {api_key}"}
    with tqdm(total=len(items), unit="request") as progress:
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, headers=headers) as client:

            async def sender() -> None:
                nonlocal failed
                for item in queue:
                    answer = await _send(client, item)
                    failed += answer["error"] is not None
                    file.write(json.dumps(answer).encode() + b"\n")
                    progress.update()

            await asyncio.gather(*(sender() for _ in range(max(1, concurrency))))
    return failed


async def _send(client: httpx.AsyncClient, item: Item) -> Json:
    route = "/v1/chat/completions" if "messages" in item.body else "/v1/completions"
    try:
        response = await client.post(route, json={**item.body, "stream": False})
        answer = response.json()
    except (httpx.HTTPError, ValueError) as error:
        fault = {"message": f"{client.base_url}{route}: {error!r}", "type": "connection_error"}
        return {"custom_id": item.id, "response": None, "error": fault}
    refused = answer.get("error") if isinstance(answer, dict) else None
    return {"custom_id": item.id, "response": None if refused else answer, "error": refused}


def _create(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def _read(source: Path) -> list[Item]:
    try:
        lines = source.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}", param="input") from error
    items = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = read_json(line)
        except InvalidRequest as error:
            raise ConfigError(f"{source}, line {number}: {error.message}") from error
        body = value["body"] if isinstance(value.get("body"), dict) else value
        name = str(value.get("custom_id", f"line-{number}"))
        items.append(Item(name, body, line.decode()))
    if not items:
        raise ConfigError(f"{source}: holds no request: write one JSON body a line", param="input")
    return items


def _context(source: Path, item: Item, tenant: str) -> Context:
    """Distinct block ids, best first."""
    kind = ChatRequest if "messages" in item.body else CompletionRequest
    config = AppConfig(served_model_name=str(item.body.get("model")))
    try:
        request = parse(kind, item.body, config)
    except InvalidRequest as error:
        raise ConfigError(f"{source}, {item.id}: {error.message}") from error
    blocks, _ = blocks_of(request.documents, Tenant(tenant))
    return tuple(block.id for block in blocks)
