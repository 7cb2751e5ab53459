"""POST /v1/context/plan: order and annotation without generation."""

from collections.abc import Iterator

import pytest

from tests.shells.http_support import HTTP, Bench, running

DOCUMENTS = [{"id": f"kb/{i}", "text": f"All about topic {i}. " * 5} for i in range(4)]
QUESTION = "What about refunds?"
ASK = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with running(Bench()) as it:
        yield it


def test_a_context_plan_orders_annotates_and_reserves_nothing(bench: Bench) -> None:
    sent = {"model": "sim", "messages": ASK, "documents": DOCUMENTS}
    HTTP.post(f"{bench.url}/v1/chat/completions", json=sent)
    body = {"model": "sim", "messages": ASK, "documents": DOCUMENTS[::-1]}
    plan = HTTP.post(f"{bench.url}/v1/context/plan", json=body).json()
    assert [document["id"] for document in plan["documents"]] == [d["id"] for d in DOCUMENTS]
    assert plan["annotation"] and plan["annotation"] in plan["messages"][-1]["content"]
    assert plan["messages"][-1]["content"].endswith(QUESTION)
    assert plan["position"] == 0 and plan["group"]
    assert len(bench.dispatcher.sent) == 1
    assert bench.planner.index.counters()["reserved"] == 0


def test_a_batch_context_plan_gives_the_order_of_sending(bench: Bench) -> None:
    requests = [
        {"model": "sim", "messages": ASK, "documents": DOCUMENTS[i % 2 :: 2]} for i in range(5)
    ]
    answer = HTTP.post(f"{bench.url}/v1/context/plan", json={"requests": requests}).json()
    assert sorted(answer["order"]) == list(range(5))
    groups = [answer["plans"][index]["group"] for index in answer["order"]]
    assert groups == sorted(groups, key=groups.index)
    assert len(set(groups)) == 2
