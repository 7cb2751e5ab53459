"""Case 11 over HTTP: an engine that sees another prompt than the router keyed shows in a count."""

from collections.abc import AsyncIterator

import msgspec

from cp_ray.core.packed import packed
from cp_ray.core.types import ReplicaId
from cp_ray.workers.engine import Chunk, EngineRequest
from tests.shells.http_support import HTTP, PAGE, Bench, TapeEngine, running

TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
DOCUMENTS = [" ".join(f"w{document}x{place}" for place in range(40)) for document in range(3)]


class OtherTemplate(TapeEngine):
    """Applies a template of its own: no two prompts begin alike."""

    async def generate(self, request: EngineRequest) -> AsyncIterator[Chunk]:
        changed = packed([hash(request.request_id) & 0xFFFF, *request.tokens])
        async for chunk in super().generate(msgspec.structs.replace(request, prompt=changed)):
            yield chunk


def counted(engine: TapeEngine) -> tuple[int, int, list[tuple[int, int]]]:
    """Answers of one chat with tools to three questions: settled, as predicted; pairs of tokens.

    The questions differ in their first word: what they have in common is no block of the index.
    """
    with running(Bench(engines={ReplicaId("r0"): engine})) as bench:
        pairs = []
        for turn in range(3):
            body = {
                "model": "sim",
                "messages": [{"role": "user", "content": f"{turn} is which?"}],
                "documents": DOCUMENTS,
                "tools": TOOLS,
            }
            answer = HTTP.post(
                f"{bench.url}/v1/chat/completions", json=body, headers={"x-cp-ray-explain": "1"}
            ).json()["cp_ray"]
            pairs.append((answer["predicted_cached_tokens"], answer["cached_tokens"]))
        counters = bench.planner.index.counters()
    return counters["settled"], counters["planned_within_one_block"], pairs


def test_11_the_same_chat_with_tools_is_found_as_predicted() -> None:
    settled, as_predicted, pairs = counted(TapeEngine())
    assert (settled, as_predicted) == (3, 3)
    assert pairs[0] == (0, 0)
    assert all(predicted > 100 for predicted, _ in pairs[1:])
    assert all(abs(predicted - cached) <= PAGE for predicted, cached in pairs)


def test_11_an_engine_with_another_template_shows_as_predictions_that_fail() -> None:
    settled, as_predicted, pairs = counted(OtherTemplate())
    assert (settled, as_predicted) == (3, 1)
    assert [cached for _, cached in pairs] == [0, 0, 0]
