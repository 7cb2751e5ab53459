"""One request's spans in its replica: prefill, up to the first token, and decode."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from cp_ray.core.types import ReplicaId
from cp_ray.tracing import Tracer
from cp_ray.workers.engine import Chunk, EngineRequest


async def traced(
    tracer: Tracer, replica: ReplicaId, request: EngineRequest, chunks: AsyncGenerator[Chunk, None]
) -> AsyncGenerator[Chunk, None]:
    """The same chunks. Waiting for a place in the engine is part of prefill."""
    span = tracer.follow("prefill", request.traceparent)
    span.set(request_id=request.request_id, replica=replica, prompt_tokens=len(request.prompt))
    first: Chunk | None = None
    last: Chunk | None = None
    try:
        async with aclosing(chunks) as coming:
            async for chunk in coming:
                if first is None:
                    first = chunk
                    span.set(cached_tokens=chunk.cached_tokens)
                    span.end()
                    span = tracer.follow("decode", request.traceparent)
                    span.set(request_id=request.request_id, replica=replica)
                last = chunk
                yield chunk
    except Exception as error:
        span.fail(error)
        raise
    finally:
        if last is not None:
            span.set(output_tokens=last.completion_tokens, finish_reason=last.finish_reason)
        span.end()
