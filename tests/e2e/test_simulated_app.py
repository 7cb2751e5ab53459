"""The whole application on real Ray, Serve and Redis, over HTTP, with the official client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import psutil
import pytest
import ray

from cp_ray.agents.chain_of_agents import chain_of_agents
from cp_ray.batch import plan_batch, send_batch
from cp_ray.config import AppConfig
from cp_ray.named_actor import NAMESPACE, index_prefix, names_with, redis_name
from tests.e2e.support import TOPICS, application, ask, client, index_state, until

pytestmark = pytest.mark.ray
NAME = "sim"


@pytest.fixture(scope="module")
def base(serve_url: str) -> Iterator[str]:
    config = AppConfig(engine="simulated", replicas=2, decode_tokens_per_s=1000)
    with application(serve_url, NAME, config) as url:
        until(lambda: len(index_state(NAME)["replicas"]) == 2)
        yield url


def fresh(*numbers: int, salt: str) -> list[str]:
    """Documents that no other test has sent."""
    return [f"{salt} {TOPICS[number]}" for number in numbers]


def test_the_same_documents_in_another_order_hit_the_cache(base: str) -> None:
    first = ask(base, fresh(0, 1, 2, salt="order"))
    again = ask(base, fresh(2, 0, 1, salt="order"))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["cp_ray"]["order"] == ["documents.1", "documents.2", "documents.0"]
    assert again["cp_ray"]["reason"] == "holder"
    assert again["cp_ray"]["replica"] == first["cp_ray"]["replica"]
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 180
    assert abs(cached - again["cp_ray"]["predicted_cached_tokens"]) <= 16


def test_route_keeps_the_order_and_plain_plans_nothing(base: str) -> None:
    ask(base, fresh(0, 1, salt="levels"))
    swapped = fresh(1, 0, salt="levels")
    route = ask(base, swapped, headers={"x-cp-ray-reuse": "route"})
    assert route["cp_ray"]["order"] == ["documents.0", "documents.1"]
    plain = ask(base, swapped, headers={"x-cp-ray-reuse": "plain"})
    assert plain["cp_ray"]["branch"] == ""
    assert plain["cp_ray"]["predicted_cached_tokens"] == 0


def test_a_second_turn_sends_only_what_the_conversation_lacks(base: str) -> None:
    first = ask(base, fresh(1, 2, 4, salt="turns"), "one?", conversation="c-1")
    history = [
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
        {"role": "user", "content": "two?"},
    ]
    second = ask(base, fresh(1, 5, 2, salt="turns"), conversation="c-1", messages=history)
    assert second["cp_ray"]["repeated"] == ["documents.0", "documents.2"]
    assert second["cp_ray"]["order"] == ["documents.1", "documents.0", "documents.2"], "new first"
    assert second["cp_ray"]["replica"] == first["cp_ray"]["replica"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 180
    stranger = ask(base, fresh(1, 5, 2, salt="turns"), conversation="c-2", messages=history)
    assert stranger["cp_ray"]["repeated"] == []


def test_the_official_client_streams_with_usage(base: str) -> None:
    chunks = list(
        client(base).chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"documents": fresh(3, salt="stream")},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text.startswith("[simulated]")
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_models_says_that_the_engine_is_simulated(base: str) -> None:
    (model,) = client(base).models.list().data
    assert model.id == "smollm2"
    assert model.model_extra is not None
    assert model.model_extra["simulated"] is True


def test_bad_input_names_the_field_and_the_app_lives_on(base: str) -> None:
    api = client(base)
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        api.chat.completions.create(model="no-such-model", messages=[])
    with pytest.raises(openai.BadRequestError, match="messages"):
        api.chat.completions.create(model="smollm2", messages=[])
    with pytest.raises(openai.UnprocessableEntityError, match="documents"):
        api.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "q"}],
            extra_body={"documents": ["x"] * 10_000},
        )
    assert ask(base, fresh(5, salt="alive"))["usage"]["completion_tokens"] == 4


def test_siblings_at_once_prefill_their_common_prefix_once(base: str) -> None:
    shared = fresh(0, 1, 2, 3, salt="siblings")

    def sibling(number: int) -> int:
        answer = ask(base, shared, f"question {number}?")
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    with ThreadPoolExecutor(12) as pool:
        cached = list(pool.map(sibling, range(12)))
    assert sum(1 for tokens in cached if tokens == 0) <= 2, "once a replica at the very most"


def test_chain_of_agents_answers_through_the_app(base: str) -> None:
    parts = [
        [{"id": f"p{p}b{b}", "text": f"part {p} block {b} {TOPICS[b]}"} for b in range(2)]
        for p in range(5)
    ]

    async def ask_twice() -> list[int]:
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none") as api:
            chains = [
                await chain_of_agents(api, "smollm2", question, parts)
                for question in ("who is alpha?", "what does bravo do?")
            ]
        return [sum(call.answer.cached_tokens for call in chain.calls) for chain in chains]

    first, second = asyncio.run(ask_twice())
    assert second > first, "the second question reuses the parts the first one prefilled"


TOOLS: list[dict[str, object]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("find_order", "refund_order", "close_ticket")
]


def test_11_a_chat_with_tools_is_found_as_predicted_and_other_tools_are_no_hit(base: str) -> None:
    """Case 11 of the reports that users made: tools and template count before anything is keyed."""

    def ask_with(tools: list[dict[str, object]]) -> tuple[int, int, int]:
        answer = ask(base, fresh(2, 3, salt="tools"), "refund?", tools=tools)
        usage = answer["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return answer["cp_ray"]["predicted_cached_tokens"], cached, usage["prompt_tokens"]

    until(lambda: not index_state(NAME)["counters"]["reserved"])  # other tests' ends are heard
    before = index_state(NAME)["counters"]
    first, again, other, bare = (ask_with(t) for t in (TOOLS, TOOLS, TOOLS[1:], []))
    assert first[2] > other[2] > bare[2], "the engine's prompt holds the tools"
    assert again[2] == first[2]
    assert again[1] > first[2] - 16 - 1, "all whole blocks but the last token's"
    assert abs(again[0] - again[1]) <= 16
    for predicted, cached, _ in (first, other, bare):
        assert predicted == 0, "another head: nothing is expected"
        assert cached < 32, "and nothing but the template's first words is found"

    def settled() -> int:
        counters = index_state(NAME)["counters"]
        return int(counters.get("settled", 0) - before.get("settled", 0))

    until(lambda: settled() == 4)
    after = index_state(NAME)["counters"]
    assert after["planned_within_one_block"] - before.get("planned_within_one_block", 0) == 4
    assert after.get("audit_mismatches", 0) == before.get("audit_mismatches", 0)


def test_a_killed_index_costs_reuse_and_no_answer(base: str) -> None:
    (name,) = names_with(index_prefix(NAME))
    ray.kill(ray.get_actor(name, NAMESPACE), no_restart=False)
    for number in range(6):
        ask(base, fresh(number, salt="headless"))
    until(lambda: len(index_state(NAME)["replicas"]) == 2)

    def planned_again() -> bool:
        answer = ask(base, fresh(0, 1, salt="back"))
        return bool(answer["cp_ray"]["reason"] == "holder")

    until(planned_again)


def test_a_killed_redis_costs_references_and_no_answer(base: str) -> None:
    keeper = ray.get_actor(redis_name(NAME), NAMESPACE)
    first = ask(base, fresh(1, 2, salt="lost"), "one?", conversation="c-9")
    os.kill(ray.get(keeper.pid.remote()), signal.SIGKILL)
    history = [
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
        {"role": "user", "content": "two?"},
    ]
    second = ask(base, fresh(1, 2, salt="lost"), conversation="c-9", messages=history)
    assert second["cp_ray"]["repeated"] == [], "no record, no reference"
    until(lambda: index_state(NAME)["redis_connected"])


def test_a_killed_replica_is_replaced_and_its_requests_are_answered(base: str) -> None:
    holder = ask(base, fresh(4, 5, salt="dying"))["cp_ray"]["replica"]
    before = set(index_state(NAME)["replicas"])
    pids = [p.pid for p in psutil.process_iter(["cmdline"]) if _is_replica(p)]
    os.kill(pids[0], signal.SIGKILL)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: ask(base, fresh(n % 6, salt=f"kill{n}")), range(16)))
    assert len(answers) == 16
    until(lambda: set(index_state(NAME)["replicas"]) != before)
    until(lambda: len(index_state(NAME)["replicas"]) == 2)
    assert holder in before


def _is_replica(process: psutil.Process) -> bool:
    title = " ".join(process.info["cmdline"] or [])
    return title.startswith(f"ray::ServeReplica:{NAME}:Engine")


def test_health_and_readiness(base: str) -> None:
    assert httpx.get(f"{base}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{base}/readyz").json() == {"status": "ready"}


def test_a_batch_file_is_answered_line_by_line(base: str, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    messages = [{"role": "user", "content": "q"}]
    bodies = [
        {"model": "smollm2", "messages": messages, "documents": fresh(*n, salt="batch")}
        for n in ((0, 1), (2, 3), (1, 0), (3, 2))
    ]
    lines = [json.dumps({"custom_id": f"r{i}", "body": b}) for i, b in enumerate(bodies)]
    source.write_text("\n".join(lines))
    assert send_batch(plan_batch(source), output, base, 2, "none") == 0
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == ["r0", "r1", "r2", "r3"]
    assert all(a["response"]["body"]["usage"]["completion_tokens"] for a in answers)
