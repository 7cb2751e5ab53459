import asyncio
import pickle
from typing import Any

import openai
import pytest

from cp_ray.agents.chain_of_agents import (
    AgentFailed,
    ChainAnswer,
    Progress,
    chain_of_agents,
    manager_prompt,
    worker_prompt,
)
from cp_ray.agents.chat import ChatFailed, chat
from cp_ray.errors import ConfigError
from tests.shells.stub_openai import chunks_of, stub

PARTS = [[{"id": f"{p}{i}", "text": f"text {p}{i}"} for i in range(3)] for p in "abc"]


def run(url: str, **options: Any) -> ChainAnswer:
    async def go() -> ChainAnswer:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await chain_of_agents(client, "m", "why?", PARTS, **options)

    return asyncio.run(go())


def test_all_workers_share_one_system_prompt_and_what_varies_comes_after_the_blocks() -> None:
    first = worker_prompt(1, PARTS[0], "", "why?")
    second = worker_prompt(2, PARTS[1], "a unit", "how?")
    assert first.system == second.system
    assert "why?" not in first.system + str(first.documents)
    assert "a unit" in second.user
    assert second.user.index("a unit") < second.user.index("how?")
    assert second.user == second.messages[-1]["content"]
    assert (first.agent, second.agent) == ("worker-1", "worker-2")


def test_the_first_worker_hears_of_no_reader_before() -> None:
    assert "before you" not in worker_prompt(1, PARTS[0], " \n", "why?").user


def test_the_manager_sees_every_unit_in_order_and_no_document() -> None:
    prompt = manager_prompt(["one", "two"], "why?")
    assert prompt.documents == ()
    assert prompt.user.index("one") < prompt.user.index("two") < prompt.user.index("why?")


def test_each_worker_gets_the_unit_of_the_one_before_it() -> None:
    def reply(body: dict[str, Any]) -> Any:
        return chunks_of(f"unit of {body['agent']}", cached=4)

    with stub(reply) as (url, seen):
        answer = run(url, unit_tokens=12, answer_tokens=16)
    assert [body["agent"] for body in seen] == ["worker-1", "worker-2", "worker-3", "manager"]
    assert "unit of worker-2" in seen[2]["messages"][-1]["content"]
    assert [d["id"] for d in seen[1]["documents"]] == ["b0", "b1", "b2"]
    assert "documents" not in seen[3]
    assert [body["max_tokens"] for body in seen] == [12, 12, 12, 16]
    assert answer.units == ("unit of worker-1", "unit of worker-2", "unit of worker-3")
    assert answer.answer == "unit of manager"
    call = answer.calls[0].answer
    assert (call.prompt_tokens, call.cached_tokens, call.prefilled_tokens) == (10, 4, 6)
    assert 0 < call.ttft_s <= call.total_s


def test_documents_go_out_in_the_order_of_the_ranker() -> None:
    with stub(lambda _: chunks_of("x")) as (url, seen):
        run(url, rank=lambda part, _question: PARTS[part][::-1])
    assert [d["id"] for d in seen[0]["documents"]] == ["a2", "a1", "a0"]


def test_a_worker_that_failed_is_asked_again_and_its_chain_goes_on() -> None:
    faults: list[Any] = [503, chunks_of("half")[:1]]

    def reply(body: dict[str, Any]) -> Any:
        if body["agent"] == "worker-2" and faults:
            return faults.pop(0)
        return chunks_of(f"unit of {body['agent']}")

    heard: list[Progress] = []
    with stub(reply) as (url, seen):
        answer = run(url, progress=heard.append)
    agents = [body["agent"] for body in seen]
    assert agents == ["worker-1", *["worker-2"] * 3, "worker-3", "manager"]
    assert seen[1] == seen[2] == seen[3], "asked the same again"
    assert [call.tries for call in answer.calls] == [1, 3, 1, 1]
    second = [(event.kind, event.text) for event in heard if event.agent == "worker-2"]
    kinds = [kind for kind, _ in second]
    assert kinds == ["asked", "failed", "asked", "text", "failed", "asked", "text", "answered"]
    assert second[3][1] == "half"
    assert second[-1][1] == "unit of worker-2"
    assert {event.number for event in heard if event.agent == "manager"} == {4}


@pytest.mark.parametrize(("status", "times"), [(503, 3), (422, 1)])
def test_a_refusal_is_final_and_a_fault_after_three_tries(status: int, times: int) -> None:
    with stub(lambda _: status) as (url, seen), pytest.raises(AgentFailed, match="worker-1"):
        run(url)
    assert len(seen) == times


def test_a_failed_worker_is_named() -> None:
    def reply(body: dict[str, Any]) -> Any:
        return 503 if body["agent"] == "worker-2" else chunks_of("x")

    with stub(reply) as (url, seen), pytest.raises(AgentFailed, match="worker-2 failed") as failed:
        run(url, tries=1)
    assert len(seen) == 2
    assert failed.value.cause.status == 503
    again = pickle.loads(pickle.dumps(failed.value))  # noqa: S301
    assert (again.agent, again.cause.status) == ("worker-2", 503)


def test_a_chain_needs_something_to_read() -> None:
    async def go(parts: list[Any]) -> None:
        async with openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="x") as client:
            await chain_of_agents(client, "m", "why?", parts)

    wrong: list[list[Any]] = [[], [[]], [PARTS[0], []]]
    for parts in wrong:
        with pytest.raises(ConfigError, match="parts"):
            asyncio.run(go(parts))


@pytest.mark.parametrize(
    ("answer", "status", "started"),
    [
        (429, 429, False),
        ([], 0, False),
        (chunks_of("half")[:1], 0, True),
        ([*chunks_of("half")[:1], {"error": {"message": "replica died"}}], 0, True),
    ],
)
def test_an_answer_that_does_not_come_whole_is_an_error(
    answer: Any, status: int, started: bool
) -> None:
    async def go(url: str) -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            await chat(client, model="m", messages=[{"role": "user", "content": "?"}], max_tokens=2)

    with stub(lambda _: answer) as (url, _), pytest.raises(ChatFailed) as failed:
        asyncio.run(go(url))
    assert (failed.value.status, failed.value.started) == (status, started)
