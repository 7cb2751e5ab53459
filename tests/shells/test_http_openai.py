"""The official openai client, and raw httpx where its shape matters, against the router."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from cp_ray.core.types import FirstToken, ReplicaId, Routed, Settled
from cp_ray.errors import EngineError, InvalidRequest, Overloaded
from tests.shells.http_support import HTTP, Bench, running, wait_for

DOCUMENTS = [
    {"id": f"kb/{name}", "title": name.title(), "text": f"All about {name} and its rules. " * 4}
    for name in ("refunds", "shipping", "taxes", "returns")
]
QUESTION = "What about refunds?"
ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with running(Bench()) as it:
        yield it


CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="none", max_retries=0, timeout=20)


def client(bench: Bench, key: str = "none") -> OpenAI:
    return CLIENT.with_options(base_url=f"{bench.url}/v1", api_key=key)


def ask(bench: Bench, headers: dict[str, str] | None = None, **body: object) -> httpx.Response:
    whole = {"model": "sim", "messages": ASK, **body}
    return HTTP.post(
        f"{bench.url}/v1/chat/completions", json=whole, headers=headers or {}, timeout=20
    )


def events(response: httpx.Response) -> list[dict[str, object]]:
    lines = [line[6:] for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_chat_completion_reads_as_openai_s(bench: Bench) -> None:
    answer = client(bench).chat.completions.create(
        model="sim",
        messages=ASK,
        extra_body={"documents": DOCUMENTS},
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content == "one two three"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 3
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.usage.prompt_tokens == len(bench.dispatcher.sent[0].tokens)


def test_repeated_documents_report_their_cached_tokens(bench: Bench) -> None:
    first = ask(bench, {"x-cp-ray-explain": "1"}, documents=DOCUMENTS)
    assert first.json()["cp_ray"]["cached_tokens"] == 0
    other = [{"role": "user", "content": "Is it taxed?"}]
    second = ask(bench, {"x-cp-ray-explain": "1"}, documents=DOCUMENTS[::-1], messages=other)
    explained = second.json()["cp_ray"]
    assert explained["cached_tokens"] == explained["predicted_cached_tokens"] > 100
    assert explained["order"] == [document["id"] for document in DOCUMENTS]
    assert explained["reason"] == "holder"
    assert explained["replica"] == "r0"
    details = second.json()["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == explained["cached_tokens"]


def test_without_the_explain_header_nothing_of_ours_is_in_the_answer(bench: Bench) -> None:
    assert "cp_ray" not in ask(bench, documents=DOCUMENTS).json()
    assert '"cp_ray":' not in ask(bench, documents=DOCUMENTS, stream=True).text


def test_a_stream_reads_as_openai_s(bench: Bench) -> None:
    stream = client(bench).chat.completions.create(model="sim", messages=ASK, stream=True)
    chunks = list(stream)
    assert [c.choices[0].delta.content for c in chunks] == ["", "one ", "two ", "three", None]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks] == [None] * 4 + ["stop"]
    assert len({c.id for c in chunks}) == 1


def test_include_usage_adds_one_chunk_without_choices_before_done(bench: Bench) -> None:
    chunks = events(ask(bench, stream=True, stream_options={"include_usage": True}))
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    assert isinstance(usage, dict) and usage["completion_tokens"] == 3
    plain = events(ask(bench, stream=True))
    assert all("usage" not in chunk for chunk in plain)
    assert len(plain) == len(chunks) - 1


@pytest.mark.parametrize("include_usage", [True, False])
def test_the_last_chunk_of_a_stream_explains(bench: Bench, include_usage: bool) -> None:
    options = {"include_usage": include_usage}
    response = ask(bench, {"x-cp-ray-explain": "1"}, stream=True, stream_options=options)
    chunks = events(response)
    assert ["cp_ray" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_completions_place_the_blocks_before_the_prompt(bench: Bench) -> None:
    answer = client(bench).completions.create(
        model="sim", prompt="Question?", max_tokens=2, extra_body={"documents": DOCUMENTS[:2]}
    )
    assert answer.object == "text_completion"
    assert answer.choices[0].text == "one two "
    tail = bench.tokenizer.encode("Question?")
    assert tuple(bench.dispatcher.sent[0].tokens)[-len(tail) :] == tuple(tail)
    stream = client(bench).completions.create(model="sim", prompt="Question?", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "one two three"


def test_a_document_is_a_string_or_an_object_and_equal_ones_collapse(bench: Bench) -> None:
    twice = ["same text", {"id": "a", "text": "same text"}, {"id": "a", "text": "same text"}]
    response = ask(bench, {"x-cp-ray-explain": "1"}, documents=twice)
    assert response.json()["cp_ray"]["order"] == ["documents.0"]


def test_the_models_route_names_the_model_and_says_it_is_simulated(bench: Bench) -> None:
    (model,) = client(bench).models.list().data
    assert model.id == "sim"
    assert model.model_dump()["simulated"] is True


def test_health_and_readiness_answer(bench: Bench) -> None:
    assert HTTP.get(f"{bench.url}/healthz").json() == {"status": "ok"}
    assert HTTP.get(f"{bench.url}/readyz").status_code == 200


def test_a_request_id_is_honoured_and_returned(bench: Bench) -> None:
    assert ask(bench, {"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    own = ask(bench)
    assert own.headers["x-request-id"] == own.json()["id"].removeprefix("chatcmpl-")
    assert ask(bench, {"x-request-id": "abc-1"}).json()["id"] != own.json()["id"]


def test_the_index_hears_what_happened_in_order(bench: Bench) -> None:
    ask(bench, documents=DOCUMENTS)
    request = bench.dispatcher.sent[0].request_id
    assert bench.planner.heard == [
        Routed(request, ReplicaId("r0")),
        FirstToken(request),
        Settled(request, 0, ok=True),
    ]


@pytest.mark.parametrize("reuse", ["full", "plain"])
def test_an_explained_answer_tells_when_each_stage_was_reached(bench: Bench, reuse: str) -> None:
    """By the real clocks: the index takes 30 ms, the engine 40 ms."""
    bench.planner.delay_s, bench.engine.delay_s = 0.03, 0.04
    headers = {"x-cp-ray-explain": "1", "x-cp-ray-reuse": reuse}
    timing = ask(bench, headers, documents=DOCUMENTS).json()["cp_ray"]["timing_ms"]
    assert list(timing) == ["prepared", "planned", "issued", "first_token"]
    assert 0 < timing["prepared"] <= timing["planned"] <= timing["issued"]
    assert timing["issued"] + 39 <= timing["first_token"]
    assert (timing["planned"] - timing["prepared"] > 29) == (reuse == "full")


def test_a_spill_is_explained_as_one(bench: Bench) -> None:
    bench.dispatcher.engines[ReplicaId("r9")] = bench.engine
    bench.dispatcher.divert = ReplicaId("r9")
    explained = ask(bench, {"x-cp-ray-explain": "1"}, documents=DOCUMENTS).json()["cp_ray"]
    assert (explained["reason"], explained["replica"]) == ("spill", "r9")


def test_an_index_that_is_down_lets_requests_pass_through_in_their_order(bench: Bench) -> None:
    bench.planner.down = True
    explained = ask(bench, {"x-cp-ray-explain": "1"}, documents=DOCUMENTS).json()["cp_ray"]
    assert explained["reason"] == "passthrough"
    assert explained["order"] == [document["id"] for document in DOCUMENTS]
    step = bench.dispatcher.steps[0]
    assert step is not None and step.replica is None and step.branch == step.context[0]


def test_the_reuse_header_lowers_but_never_raises(bench: Bench) -> None:
    ask(bench, {"x-cp-ray-reuse": "plain"}, documents=DOCUMENTS)
    assert bench.dispatcher.steps == [None]
    assert bench.planner.heard == []
    with running(Bench(reuse="plain")) as plain:
        ask(plain, {"x-cp-ray-reuse": "full"}, documents=DOCUMENTS)
        assert plain.dispatcher.steps == [None]


def test_an_error_before_the_first_token_has_a_status_even_in_a_stream(bench: Bench) -> None:
    bench.engine.fault = (0, EngineError("the engine broke"))
    with pytest.raises(openai.InternalServerError) as caught:
        client(bench).chat.completions.create(model="sim", messages=ASK, stream=True)
    assert caught.value.status_code == 502
    assert bench.planner.heard[-1] == Settled(bench.dispatcher.sent[0].request_id, 0, ok=False)


def test_an_error_in_the_middle_of_a_stream_reaches_the_client(bench: Bench) -> None:
    bench.engine.fault = (1, EngineError("the engine broke"))
    with pytest.raises(openai.APIError, match="the engine broke"):
        list(client(bench).chat.completions.create(model="sim", messages=ASK, stream=True))
    settled = Settled(bench.dispatcher.sent[0].request_id, 0, ok=False)
    wait_for(lambda: bench.planner.heard[-1] == settled)


def test_an_unforeseen_error_is_a_500_without_internals(bench: Bench) -> None:
    bench.engine.fault = (0, RuntimeError("secret detail"))
    response = ask(bench)
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["error"]["type"] == "server_error"
    bench.engine.fault = None
    assert ask(bench).status_code == 200


def test_an_error_that_wraps_one_of_ours_keeps_its_meaning(bench: Bench) -> None:
    wrapped = RuntimeError("task failed")
    wrapped.cause = InvalidRequest("prompt too long", param="messages")  # type: ignore[attr-defined]
    bench.engine.fault = (0, wrapped)
    assert ask(bench).status_code == 400


def test_overload_says_when_to_come_back(bench: Bench) -> None:
    bench.engine.fault = (0, Overloaded("full", retry_after_s=7))
    response = ask(bench)
    assert (response.status_code, response.headers["retry-after"]) == (503, "7")


def test_too_many_waiting_requests_are_refused_at_once() -> None:
    with (
        running(Bench(max_queued_requests=2, max_ongoing_requests=1)) as bench,
        ThreadPoolExecutor(8) as pool,
    ):
        bench.engine.delay_s = 0.3
        answers = list(pool.map(lambda _: ask(bench), range(8)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses.count(503) >= 1 and statuses.count(200) >= 2
    assert all(a.headers["retry-after"] for a in answers if a.status_code == 503)


@pytest.mark.parametrize(
    ("stream", "patience_s"),
    [(True, 0.1), (False, 0.1), (False, 0.3)],
    ids=["stream", "before the first token", "after it"],
)
def test_a_client_that_leaves_cancels_its_request(
    bench: Bench, stream: bool, patience_s: float
) -> None:
    bench.engine.delay_s = 0.2
    with pytest.raises(httpx.ReadTimeout):
        HTTP.post(
            f"{bench.url}/v1/chat/completions",
            json={"model": "sim", "messages": ASK, "stream": stream},
            timeout=httpx.Timeout(5, read=patience_s),
        )
    wait_for(lambda: bench.engine.aborted == 1)
    # After its first token the prompt is in the engine's cache, whoever still reads.
    settled = Settled(bench.dispatcher.sent[0].request_id, 0, ok=patience_s > 0.2)
    wait_for(lambda: bench.planner.heard[-1] == settled)
    assert bench.planner.index.counters()["reserved"] == 0


def test_closing_a_stream_after_its_first_chunk_cancels_the_request(bench: Bench) -> None:
    bench.engine.delay_s = 0.2
    stream = client(bench).chat.completions.create(model="sim", messages=ASK, stream=True)
    next(stream)
    stream.close()
    wait_for(lambda: bench.engine.aborted == 1)
    settled = Settled(bench.dispatcher.sent[0].request_id, 0, ok=True)
    wait_for(lambda: bench.planner.heard[-1] == settled)


def test_concurrent_requests_are_all_answered_and_planned_together() -> None:
    with running(Bench(window_ms=50.0)) as bench, ThreadPoolExecutor(12) as pool:
        bench.planner.delay_s = 0.1
        answers = list(pool.map(lambda _: ask(bench, documents=DOCUMENTS), range(12)))
    assert [answer.status_code for answer in answers] == [200] * 12
    assert sum(bench.planner.batches) == 12
    assert len(bench.planner.batches) < 12


def test_keys_give_tenants_whose_caches_are_apart() -> None:
    keys = {"acme": "k-acme", "bob": "k-bob"}
    with running(Bench(api_keys=keys)) as bench:
        for key in ("k-acme", "k-bob"):
            client(bench, key).chat.completions.create(model="sim", messages=ASK)
        assert [request.cache_salt for request in bench.dispatcher.sent] == ["acme", "bob"]
        with pytest.raises(openai.AuthenticationError):
            client(bench, "wrong").chat.completions.create(model="sim", messages=ASK)
        with pytest.raises(openai.AuthenticationError):
            client(bench, "wrong").models.list()
        assert HTTP.get(f"{bench.url}/healthz").status_code == 200
