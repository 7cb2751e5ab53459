"""Offline mode: a file of requests is scheduled before any is sent (paper section 2).

Files are in OpenAI's batch format. Input: `{"custom_id": .., "method": "POST", "url":
"/v1/chat/completions", "body": {..}}`, or the bare body; bodies keep their documents as ranked:
the router orders them, by the index this module writes, and tells the model the ranking. Output:
`{"id": .., "custom_id": .., "response": {"status_code", "request_id", "body"}, "error": null}` for
each, in the order of the input; `error` instead of `response` where none came. A run that was
killed goes on where it was when started again (batch_results.py).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import httpx
import msgspec
from tqdm import tqdm

from cp_ray.batch_results import Results, is_final
from cp_ray.config import AppConfig
from cp_ray.core.merging import FAST, THOROUGH, merge, steps
from cp_ray.core.offline import OfflineOrders
from cp_ray.core.types import BlockId, Context
from cp_ray.errors import ConfigError, InvalidRequest
from cp_ray.progress import watched
from cp_ray.router.api import ChatRequest, CompletionRequest
from cp_ray.router.auth import DEFAULT, Tenant
from cp_ray.router.limits import parse, read_json
from cp_ray.router.placing import blocks_of

Json = dict[str, Any]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TIMEOUT_S = 600.0
THOROUGH_UP_TO = 5000
"""Requests that are worth some 10 ms each of local search; beyond, some 0.1 ms each must do."""
LETTERS_A_TOKEN = 4
"""Good enough to weigh blocks against each other; no tokenizer is at hand here."""
WAITS_S = (0.2, 1.0)
"""Before each further try of a request that found the server busy or away."""


class Item(msgspec.Struct, frozen=True):
    """One request of the file. id: its custom_id, or "line-N". line: as it stood, at `number`."""

    id: str
    number: int
    url: str
    body: Json
    line: str


def plan_batch(source: Path, index: Path | None = None, tenant: str = DEFAULT) -> list[Item]:
    """The offline construction over the file: its requests in the order of sending.

    index: where to write the offline index; `index=FILE` then gives online requests of `tenant`
    the same orders. Raises ConfigError naming file and line.
    """
    items = _read(source)
    sizes: dict[BlockId, int] = {}
    contexts = [_context(source, item, tenant, sizes) for item in items]
    moves = THOROUGH if len(items) <= THOROUGH_UP_TO else FAST
    with watched("offline order", steps(len(items), moves)) as done:
        merged = merge(contexts, sizes, moves, done=done)
    if index is not None:
        orders = OfflineOrders()
        orders.adopt(merged.contexts)
        with _create(index) as file:
            file.write(orders.dump())
    return [items[position] for position in merged.sequence]


def write_plan(items: Sequence[Item], output: Path) -> int:
    """The lines of the input, in the order of sending."""
    with _create(output) as file:
        file.write("".join(item.line + "\n" for item in items).encode())
    return 0


def send_batch(
    items: Sequence[Item], output: Path, url: str, concurrency: int, api_key: str
) -> int:
    """Send what has no answer yet, in order, `concurrency` at a time. 0: all were answered.

    items: in the order of sending. Raises ConfigError when the output cannot be written, belongs
    to another input, or is being written.
    """
    in_order = sorted(items, key=lambda item: item.number)
    digest = hashlib.blake2b("\n".join(item.line for item in in_order).encode()).hexdigest()
    with Results(output, digest, [item.id for item in in_order]) as results:
        waiting = [item for item in items if item.id not in results.done]
        if waiting:
            asyncio.run(_send_all(waiting, results, url, concurrency=concurrency, api_key=api_key))
        failed, open_ = results.finish()
    if failed:
        again = f", {open_} of them for now: run it again to go on" if open_ else ""
        print(f"{failed} of {len(items)} requests failed{again}: see {output}")  # noqa: T201 - a command's output
    return 1 if failed else 0


async def _send_all(
    items: Sequence[Item], results: Results, url: str, *, concurrency: int, api_key: str
) -> None:
    queue = iter(items)
    headers = {"authorization": f"Bearer {api_key}"}
    done = len(results.done)
    with tqdm(total=len(items) + done, initial=done, unit="request") as progress:
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, headers=headers) as client:

            async def sender() -> None:
                for item in queue:
                    results.add(await _answered(client, item))
                    progress.update()

            async with asyncio.TaskGroup() as group:
                for _ in range(max(1, concurrency)):
                    group.create_task(sender())


async def _answered(client: httpx.AsyncClient, item: Item) -> Json:
    """Try again while the server is busy or away; the last answer counts."""
    for wait_s in WAITS_S:
        answer = await _send(client, item)
        if is_final(answer):
            return answer
        await asyncio.sleep(wait_s)
    return await _send(client, item)


async def _send(client: httpx.AsyncClient, item: Item) -> Json:
    answer = {"id": f"batch_req_{item.id}", "custom_id": item.id}
    try:
        response = await client.post(item.url, json={**item.body, "stream": False})
        body = response.json()
    except (httpx.HTTPError, ValueError) as error:
        fault = {"code": "connection_error", "message": f"{client.base_url}{item.url}: {error!r}"}
        return {**answer, "response": None, "error": fault}
    shown = {
        "status_code": response.status_code,
        "request_id": response.headers.get("x-request-id", ""),
        "body": body,
    }
    return {**answer, "response": shown, "error": None}


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
        items.append(_item(f"{source}, line {number}", number, value, line.decode()))
    _check_ids(source, items)
    if not items:
        raise ConfigError(f"{source}: holds no request: write one JSON body a line", param="input")
    return items


def _item(where: str, number: int, value: Json, line: str) -> Item:
    body = value["body"] if isinstance(value.get("body"), dict) else value
    asked = value.get("url") if body is not value else None
    url = asked or (CHAT if "messages" in body else COMPLETIONS)
    if url not in (CHAT, COMPLETIONS) or value.get("method", "POST") != "POST":
        raise ConfigError(f"{where}: only POST {CHAT} and POST {COMPLETIONS} are answered here")
    return Item(str(value.get("custom_id", f"line-{number}")), number, url, body, line)


def _check_ids(source: Path, items: Sequence[Item]) -> None:
    first: dict[str, int] = {}
    for item in items:
        if item.id in first:
            raise ConfigError(
                f"{source}, line {item.number}: custom_id {item.id!r} is that of line "
                f"{first[item.id]}, too: give each request its own"
            )
        first[item.id] = item.number


def _context(source: Path, item: Item, tenant: str, sizes: dict[BlockId, int]) -> Context:
    """Distinct block ids, best first; their sizes, in about tokens, go into `sizes`."""
    kind = ChatRequest if item.url == CHAT else CompletionRequest
    config = AppConfig(served_model_name=str(item.body.get("model")))
    try:
        request = parse(kind, item.body, config)
    except InvalidRequest as error:
        raise ConfigError(f"{source}, {item.id}: {error.message}") from error
    blocks, _ = blocks_of(request.documents, Tenant(tenant))
    sizes.update((block.id, len(block.text) // LETTERS_A_TOKEN + 1) for block in blocks)
    return tuple(block.id for block in blocks)
