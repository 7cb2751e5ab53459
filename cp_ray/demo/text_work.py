"""What a body's text costs a Router by itself: read, checked, cut, tokenized, put together."""

from __future__ import annotations

import json
import time

from cp_ray.config import AppConfig
from cp_ray.core.types import RequestId
from cp_ray.demo.streams import Bodies
from cp_ray.router.api import ChatRequest
from cp_ray.router.assembly import Assembler
from cp_ray.router.auth import Authenticator
from cp_ray.router.limits import parse, read_json
from cp_ray.router.tokenizer import Piece, WordTokenizer

COUNT, WARM = 200, 300
"""Bodies that are measured, and those before: by then a pool of known texts is known."""


def text_ms(bodies: Bodies) -> tuple[float, float]:
    """CPU milliseconds of one body: in cp_ray's Router, and in the bare one."""
    config = AppConfig(engine="simulated", model="sim")
    tenant = Authenticator(config).tenant(None)
    assembler = Assembler(WordTokenizer(), "sim")
    whole = WordTokenizer(cached_tokens=0)
    mine = its = 0.0
    for number in range(WARM + COUNT):
        data = bodies.next()
        began = time.process_time()
        request: ChatRequest = parse(ChatRequest, read_json(data), config)
        prepared = assembler.prepare(request, tenant, RequestId(str(number)))
        assembler.finish(prepared, prepared.plan.context)
        middle = time.process_time()
        body = json.loads(data)
        texts = [*(f"{text}\n\n" for text in body["documents"]), body["messages"][-1]["content"]]
        whole.tokens([Piece("".join(texts))])
        if number >= WARM:
            mine += middle - began
            its += time.process_time() - middle
    return 1000 * mine / COUNT, 1000 * its / COUNT
