"""What becomes of an answer whose replica is lost in the middle of it."""

from collections.abc import AsyncIterator
from typing import Any

from cp_ray.core.story import Story
from cp_ray.core.types import ReplicaId, Settled
from cp_ray.errors import EngineError
from cp_ray.router.dispatch import REPLICA_LOST
from cp_ray.router.endpoints import WHOLE_TRIES
from cp_ray.router.watch import Observer
from cp_ray.workers.engine import Chunk, EngineRequest
from tests.shells.http_support import HTTP, Bench, TapeEngine, running

BODY = {"model": "sim", "messages": [{"role": "user", "content": "why?"}]}


class DyingEngine(TapeEngine):
    """The first `deaths` answers are cut after one token, as the dispatcher then says it."""

    def __init__(self, deaths: int, error: EngineError) -> None:
        super().__init__()
        self.deaths = deaths
        self.error = error

    async def generate(self, request: EngineRequest) -> AsyncIterator[Chunk]:
        self.fault = (1, self.error) if self.deaths > 0 else None
        self.deaths -= 1
        async for chunk in super().generate(request):
            yield chunk


def bench(deaths: int, code: str | None = REPLICA_LOST) -> Bench:
    engine: Any = DyingEngine(deaths, EngineError("lost while it answered", code=code))
    return Bench(engines={ReplicaId("r0"): engine})


def test_an_answer_that_is_not_streamed_begins_anew() -> None:
    with running(bench(deaths=WHOLE_TRIES - 1)) as router:
        answer = HTTP.post(f"{router.url}/v1/chat/completions", json=BODY)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "one two three"
    assert answer.json()["usage"]["completion_tokens"] == 3
    settled = [event.ok for event in router.planner.heard if isinstance(event, Settled)]
    assert settled == [False] * (WHOLE_TRIES - 1) + [True]


def test_replicas_lost_again_and_again_are_an_error() -> None:
    with running(bench(deaths=WHOLE_TRIES)) as router:
        answer = HTTP.post(f"{router.url}/v1/chat/completions", json=BODY)
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == REPLICA_LOST
    assert len(router.dispatcher.sent) == WHOLE_TRIES


def test_another_fault_of_the_engine_is_not_repeated() -> None:
    with running(bench(deaths=1, code=None)) as router:
        assert HTTP.post(f"{router.url}/v1/chat/completions", json=BODY).status_code == 502
    assert len(router.dispatcher.sent) == 1


def test_a_stream_that_has_begun_ends_with_the_error() -> None:
    with running(bench(deaths=1)) as router:
        text = HTTP.post(f"{router.url}/v1/chat/completions", json={**BODY, "stream": True}).text
    assert "lost while it answered" in text
    assert "[DONE]" not in text
    assert len(router.dispatcher.sent) == 1


def test_a_stream_that_breaks_for_whatever_reason_is_a_failure_and_not_the_clients_leave() -> None:
    stories: list[Story] = []
    router = bench(deaths=1)
    engine: Any = router.dispatcher.engines[ReplicaId("r0")]
    engine.error = RuntimeError("not foreseen")
    router.service.observer = Observer("app", stories.append)
    with running(router):
        answer = HTTP.post(f"{router.url}/v1/chat/completions", json={**BODY, "stream": True})
    assert "internal_error" in answer.text
    assert [story.outcome for story in stories] == ["failed"]
    assert [event.ok for event in router.planner.heard if isinstance(event, Settled)] == [False]
