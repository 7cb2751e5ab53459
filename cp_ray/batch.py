"""Offline mode: a file of requests is ordered and scheduled before any is sent (paper section 2).

Input: JSON lines, each the body of a chat completion or completion with `documents`. Output of
planning: the same bodies, documents in prefix-aligned order, in the order of sending.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

from cp_ray.config import AppConfig
from cp_ray.core.index import ContextIndex
from cp_ray.core.scheduling import schedule
from cp_ray.core.types import BlockId, RequestId, Step
from cp_ray.errors import ConfigError, InvalidRequest
from cp_ray.router.api import ChatRequest, CompletionRequest
from cp_ray.router.assembly import blocks_of
from cp_ray.router.auth import DEFAULT, Tenant
from cp_ray.router.limits import parse, read_json

Body = dict[str, Any]
TIMEOUT_S = 600.0


def plan_batch(source: Path, index_file: Path | None = None) -> list[Body]:
    """Algorithms 4 and 5 over the file; writes the offline index where asked for.

    The index is for `index=FILE`: it then gives online requests the same orders. Raises
    ConfigError naming file and line.
    """
    bodies = _read(source)
    documents: list[dict[BlockId, Any]] = [_documents(source, n, b) for n, b in bodies]
    index = ContextIndex()
    steps = index.build([tuple(blocks) for blocks in documents])
    if index_file is not None:
        index_file.write_bytes(index.offline.dump())
    place: dict[RequestId, int] = {step.request_id: i for i, step in enumerate(steps)}
    planned = []
    for group in schedule(_along_the_tree(steps)):
        for step in group:
            number = place[step.request_id]
            ordered = [documents[number][block] for block in step.context]
            planned.append({**bodies[number][1], "documents": ordered})
    return planned


def send_batch(bodies: Sequence[Body], output: Path, url: str, concurrency: int) -> int:
    """Send in order, `concurrency` at a time; one line of output per body. 0 when all were ok."""
    answers = asyncio.run(_send_all(bodies, url, concurrency))
    output.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    failed = sum(1 for answer in answers if "error" in answer)
    if failed:
        print(f"{failed} of {len(answers)} requests failed: see `error` in {output}")  # noqa: T201
    return 1 if failed else 0


async def _send_all(bodies: Sequence[Body], url: str, concurrency: int) -> list[Body]:
    answers: list[Body] = [{} for _ in bodies]
    queue = iter(enumerate(bodies))
    progress = tqdm(total=len(bodies), unit="request")
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:

        async def sender() -> None:
            for number, body in queue:
                answers[number] = await _send(client, body)
                progress.update()

        await asyncio.gather(*(sender() for _ in range(max(1, concurrency))))
    progress.close()
    return answers


async def _send(client: httpx.AsyncClient, body: Body) -> Body:
    route = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    # The order is decided: a router in front keeps it and chooses the replica.
    sent = {**body, "stream": False}
    try:
        response = await client.post(route, json=sent)
        answer: Body = response.json()
    except (httpx.HTTPError, ValueError) as error:
        return {"error": {"message": f"{route}: {error!r}", "type": "connection_error"}}
    return answer


def _read(source: Path) -> list[tuple[int, Body]]:
    try:
        lines = source.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}", param="input") from error
    bodies = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                bodies.append((number, read_json(line)))
            except InvalidRequest as error:
                raise ConfigError(f"{source}, line {number}: {error.message}") from error
    if not bodies:
        raise ConfigError(f"{source}: holds no request: write one JSON body a line", param="input")
    return bodies


def _documents(source: Path, number: int, body: Body) -> dict[BlockId, Any]:
    """Block id -> the document as the client wrote it, best first."""
    kind = ChatRequest if "messages" in body else CompletionRequest
    config = AppConfig(served_model_name=str(body.get("model")))
    try:
        request = parse(kind, body, config)
    except InvalidRequest as error:
        raise ConfigError(f"{source}, line {number}: {error.message}") from error
    blocks, sources = blocks_of(request.documents, Tenant(DEFAULT))
    return {block.id: body["documents"][sources[block.id].position] for block in blocks}


def _along_the_tree(steps: Sequence[Step]) -> list[Step]:
    """Stable order by search path, so that neighbours of one group share the most."""
    return sorted(steps, key=lambda step: step.search_path)
