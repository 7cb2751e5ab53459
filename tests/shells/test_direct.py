"""The direct data plane without HAProxy: a Router that hands plans, a replica that follows them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cp_ray.config import AppConfig
from cp_ray.core.types import (
    Arrived,
    BlockId,
    HeadId,
    PlanRequest,
    ReplicaId,
    RequestId,
    Routed,
    Settled,
    Step,
)
from cp_ray.errors import ConfigError
from cp_ray.router.direct import CUT, route_api
from cp_ray.router.direct_settings import DIRECT_SETTINGS, check_direct
from cp_ray.router.endpoints import build_api
from cp_ray.router.handed import HEADER, Counted, Given, Handed, Refused, Seal, hand
from tests.shells.http_support import HTTP, Bench, served

DOCUMENTS = ["alpha " * 30, "bravo " * 30, "carol " * 30]
SEAL = Seal('{"some": "config"}')
BODY = {"model": "sim", "messages": [{"role": "user", "content": "which?"}], "max_tokens": 3}


def _plan(blocks: int, *, movable: bool = True) -> PlanRequest:
    context = tuple(BlockId(f"b{n}") for n in range(blocks))
    name = RequestId("r")
    return PlanRequest(name, HeadId("h"), 3, context, (1,) * blocks, 0, movable=movable)


STEP = Step(RequestId("r"), _plan(2).context, ReplicaId("r1"), "h/2", (1,), 7, "holder")


class Plane:
    """A Router, a replica on the same index and store, and the test as HAProxy between them."""

    def __init__(self, router: Bench, replica: Bench, urls: tuple[str, str]) -> None:
        self.router, self.replica = router, replica
        self.routing, self.answering = urls
        self.routed: list[dict[str, Any]] = []

    def ask(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
        """As HAProxy does it: only the body and the authorization are shown to the Router."""
        shown = {name: value for name, value in headers.items() if name == "authorization"}
        data = body if isinstance(body, bytes) else None
        json = None if isinstance(body, bytes) else body
        route = HTTP.post(f"{self.routing}/internal/route", content=data, json=json, headers=shown)
        assert route.status_code == 200
        self.routed.append(route.json())
        given = route.json()["request_headers"]
        headers = {name.replace("_", "-"): value for name, value in headers.items()} | given
        explained = {"x-cp-ray-explain": "1"} | headers
        url = f"{self.answering}{path}"
        return HTTP.post(url, content=data, json=json, headers=explained)

    def hit(self, **more: Any) -> dict[str, Any]:
        """A generation that must succeed: its `cp_ray`."""
        answer = self.ask(BODY | {"documents": DOCUMENTS} | more)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["cp_ray"]
        return found


@contextlib.contextmanager
def plane(**settings: Any) -> Iterator[Plane]:
    settings = {"data_plane": "direct", **settings}
    router = Bench(**settings)
    replica = Bench(planner=router.planner, store=router.store, **settings)

    async def choose(plan: Given | None) -> str:
        planned = plan.replica if isinstance(plan, Handed) else None
        return f"SERVE_REPLICA::app#Engine#{planned or 'any'}"

    with (
        served(route_api(router.service, choose, SEAL)) as routing,
        served(build_api(replica.service, seal=SEAL)) as answering,
    ):
        yield Plane(router, replica, (routing, answering))


@pytest.fixture(scope="module")
def direct() -> Iterator[Plane]:
    with plane() as made:
        yield made


def test_the_replica_follows_the_routers_plan(direct: Plane) -> None:
    first = direct.hit()
    assert direct.routed[-1]["replica_id"] == "SERVE_REPLICA::app#Engine#r0"
    again = direct.hit(documents=DOCUMENTS[::-1])
    assert again["order"] == ["documents.2", "documents.1", "documents.0"], "the first one's"
    assert again["cached_tokens"] > 80
    assert again["cached_tokens"] == again["predicted_cached_tokens"]
    assert again["reason"] == "holder"
    assert first["replica"] == again["replica"] == "r0"
    assert again["timing_ms"]["routed"] > 0
    assert direct.router.dispatcher.sent == [], "nothing passes the Router"
    assert len(direct.replica.planner.batches) == 2, "planned once each, by the Router"


def test_the_answer_is_named_by_serves_own_server(direct: Plane) -> None:
    assert "x-request-id" not in direct.ask(BODY).headers
    assert "x-request-id" not in direct.ask(BODY | {"model": "no"}).headers


def test_a_conversation_goes_on_from_its_record(direct: Plane) -> None:
    first = direct.ask(BODY | {"documents": DOCUMENTS, "conversation": "c"}).json()
    history = [
        BODY["messages"][0],  # type: ignore[index]
        first["choices"][0]["message"],
        {"role": "user", "content": "and?"},
    ]
    turn = {"messages": history, "documents": DOCUMENTS[1:], "conversation": "c"}
    second = direct.hit(**turn)
    assert second["repeated"] == ["documents.0", "documents.1"]
    assert second["cached_tokens"] > 80


def test_a_plan_of_another_prompt_is_not_followed_and_forgotten(direct: Plane) -> None:
    """The record is gone by the time that the replica reads it, so its prompt is another one."""
    first = direct.ask(BODY | {"documents": DOCUMENTS, "conversation": "lost"}).json()
    history = [
        BODY["messages"][0],  # type: ignore[index]
        first["choices"][0]["message"],
        {"role": "user", "content": "and?"},
    ]
    body = BODY | {"messages": history, "documents": DOCUMENTS[1:], "conversation": "lost"}
    route = HTTP.post(f"{direct.routing}/internal/route", json=body).json()["request_headers"]
    handed = SEAL.read(route[HEADER])
    assert isinstance(handed, Handed)
    kept, direct.replica.store.records = direct.replica.store.records, {}  # type: ignore[attr-defined]
    headers = route | {"x-cp-ray-explain": "1"}
    answer = HTTP.post(f"{direct.answering}/v1/chat/completions", json=body, headers=headers)
    direct.replica.store.records = kept  # type: ignore[attr-defined]
    assert answer.status_code == 200
    assert answer.json()["cp_ray"]["repeated"] == []
    assert answer.json()["cp_ray"]["request_id"] != handed.request_id
    assert Settled(handed.request_id, 0, ok=False) in direct.replica.planner.heard


@pytest.mark.parametrize("level", ["plain", "route"])
def test_a_lower_level_keeps_the_clients_order(direct: Plane, level: str) -> None:
    direct.hit()
    body = BODY | {"documents": DOCUMENTS[::-1]}
    answer = direct.ask(body, x_cp_ray_reuse=level).json()["cp_ray"]
    assert answer["order"] == ["documents.0", "documents.1", "documents.2"]
    handed = SEAL.read(direct.routed[-1]["request_headers"][HEADER])
    assert isinstance(handed, Handed)
    assert Settled(handed.request_id, 0, ok=False) in direct.replica.planner.heard


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "JSON"),
        (BODY | {"model": "no-such"}, 404, "no-such"),
        (BODY | {"messages": []}, 400, "messages"),
        (BODY | {"documents": ["x"] * 1000}, 422, "documents"),
        (BODY | {"documents": ["word " * 5000]}, 400, "context length"),
    ],
)
def test_bad_input_is_answered_by_the_replica_in_our_words(
    direct: Plane, body: Any, status: int, says: str
) -> None:
    answer = direct.ask(body)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "more", "status"),
    [
        ("/v1/context/plan", {}, 200),
        ("/v1/unknown", {}, 404),
        ("/v1/completions", {}, 400),
        ("/v1/chat/completions", {"x_cp_ray_reuse": "bogus"}, 400),
        ("/v1/chat/completions", {}, 200),
    ],
)
def test_what_is_not_followed_is_taken_back(
    direct: Plane, path: str, more: dict[str, str], status: int
) -> None:
    answer = direct.ask(BODY | {"documents": DOCUMENTS}, path, **more)
    assert answer.status_code == status, answer.text
    handed = SEAL.read(direct.routed[-1]["request_headers"][HEADER])
    assert isinstance(handed, Handed)
    heard = [e for e in direct.replica.planner.heard if e.request_id == handed.request_id]
    assert isinstance(heard[-1], Settled)
    assert len([e for e in heard if isinstance(e, Settled)]) == 1, "once"
    assert heard[-1].ok == (status == 200 and path.endswith("completions"))


def test_a_plan_is_known_to_have_arrived_before_its_request_waits_for_anything() -> None:
    with plane(max_ongoing_requests=1) as made, ThreadPoolExecutor(2) as pool:
        made.replica.engine.delay_s = 1.0
        answers = list(pool.map(lambda n: made.ask(BODY | {"documents": [f"{n}"]}), range(2)))
        assert {answer.status_code for answer in answers} == {200}
        heard = [type(event) for event in made.replica.planner.heard]
        assert heard[:3] == [Arrived, Arrived, Routed], "before the first one's first token"


def test_a_plan_that_a_replica_makes_itself_is_nowhere_else(direct: Plane) -> None:
    before = len(direct.replica.planner.heard)
    answer = HTTP.post(f"{direct.answering}/v1/chat/completions", json=BODY)
    assert answer.status_code == 200
    kinds = [type(event) for event in direct.replica.planner.heard[before:]]
    assert kinds[:2] == [Arrived, Routed]


def test_a_body_too_large_for_the_replica_leaves_nothing_planned() -> None:
    with plane(max_body_bytes=1024) as made:
        answer = made.ask(
            BODY | {"documents": [f"{n} {text}" for n in range(3) for text in DOCUMENTS]}
        )
        assert answer.status_code == 413
        handed = SEAL.read(made.routed[-1]["request_headers"][HEADER])
        assert isinstance(handed, Handed)
        assert made.replica.planner.heard[-1] == Settled(handed.request_id, 0, ok=False)


def test_calls_beyond_a_tenants_limit_leave_nothing_planned() -> None:
    with plane(tenant_max_calls=1) as made, ThreadPoolExecutor(6) as pool:
        made.replica.engine.delay_s = 0.2
        answers = list(pool.map(lambda n: made.ask(BODY | {"documents": [f"{n}"]}), range(6)))
        assert {answer.status_code for answer in answers} == {200, 429}
        settled = [e for e in made.replica.planner.heard if isinstance(e, Settled)]
        assert len(settled) == 6


def test_scores_and_batches_are_no_business_of_the_routers(direct: Plane) -> None:
    scored = direct.ask({"id": "unknown", "score": 1}, "/v1/score")
    assert scored.status_code == 400
    assert "guardrail" in scored.text
    assert direct.routed[-1]["request_headers"] == {}
    planned = direct.ask({"requests": [BODY | {"documents": DOCUMENTS}] * 2}, "/v1/context/plan")
    assert len(planned.json()["plans"]) == 2
    assert direct.routed[-1]["request_headers"] == {}


def test_the_replica_judges_what_the_router_saw_cut_or_cannot_read(direct: Plane) -> None:
    """A chunked body may come to the Router short, and unmarked."""
    body = BODY | {"documents": DOCUMENTS}
    route = HTTP.post(f"{direct.routing}/internal/route", content=b'{"model": "sim", "mess')
    given = route.json()["request_headers"]
    answer = HTTP.post(f"{direct.answering}/v1/chat/completions", json=body, headers=given)
    assert answer.status_code == 200
    missing = direct.ask({"model": "sim", "documents": DOCUMENTS})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "messages")


def test_an_index_that_stalls_the_router_costs_the_plan_and_no_answer(
    direct: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cp_ray.router.direct.PLAN_S", 0.05)
    direct.router.planner.delay_s = 0.5
    try:
        route = HTTP.post(f"{direct.routing}/internal/route", json=BODY | {"documents": DOCUMENTS})
    finally:
        direct.router.planner.delay_s = 0.0
    assert route.json()["request_headers"] == {}
    assert route.elapsed.total_seconds() < 0.4


def test_a_cut_body_goes_to_some_replica_which_plans_it(direct: Plane) -> None:
    cut = HTTP.post(f"{direct.routing}/internal/route", content=b'{"mod', headers={CUT: "5/900"})
    assert cut.json() == {"replica_id": "SERVE_REPLICA::app#Engine#any", "request_headers": {}}
    body = BODY | {"documents": DOCUMENTS}
    answer = HTTP.post(f"{direct.answering}/v1/chat/completions", json=body)
    assert answer.status_code == 200


def test_without_the_index_the_clients_order_is_handed(direct: Plane) -> None:
    direct.router.planner.down = True
    try:
        answer = direct.hit(documents=["delta " * 9, "echo " * 9])
    finally:
        direct.router.planner.down = False
    assert answer["order"] == ["documents.0", "documents.1"]
    assert answer["reason"] == "passthrough"
    assert direct.routed[-1]["replica_id"].endswith("#any")


def test_tenants_are_told_apart_and_counted_once() -> None:
    keys = {"acme": "one", "other": "two"}
    with plane(api_keys=keys, tenant_requests_per_minute=2) as made:
        body = BODY | {"documents": DOCUMENTS}
        for _ in range(2):
            assert made.ask(body, authorization="Bearer one").status_code == 200
        third = made.ask(body, authorization="Bearer one")
        assert third.status_code == 429
        assert "retry-after" in third.headers
        assert made.ask(body, authorization="Bearer two").status_code == 200
        nobody = made.ask(body, authorization="Bearer three")
        assert nobody.status_code == 401
        assert nobody.json()["error"]["code"] == "invalid_api_key"


def test_context_plans_are_counted_too() -> None:
    with plane(tenant_requests_per_minute=2) as made:
        answers = [made.ask(BODY | {"documents": DOCUMENTS}, "/v1/context/plan") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]


def test_a_forged_plan_is_none(direct: Plane) -> None:
    """As who reaches a replica past HAProxy could send it."""
    first = direct.hit()
    victim = hand(_plan(3), msgspec.structs.replace(STEP, context=_plan(3).context), 1.0)
    victim = msgspec.structs.replace(victim, request_id=RequestId(first["request_id"]))
    heard = len(direct.replica.planner.heard)
    forged = {HEADER: Seal("{}").header(victim)}
    assert HTTP.post(f"{direct.answering}/v1/score", json={}, headers=forged).status_code == 400
    assert len(direct.replica.planner.heard) == heard


def test_what_a_client_puts_into_the_header_is_nothing_to_a_router_of_the_other_plane() -> None:
    bench = Bench()
    refused = SEAL.header(Refused(418, {}, {"error": {}}))
    with served(build_api(bench.service)) as url:
        answer = HTTP.post(f"{url}/v1/chat/completions", json=BODY, headers={HEADER: refused})
    assert answer.status_code == 200


@given(st.permutations(range(6)))
def test_a_plan_comes_through_the_header_as_it_was(places: list[int]) -> None:
    plan = _plan(6)
    order = tuple(plan.context[place] for place in places)
    step = Step(plan.request_id, order, ReplicaId("r1"), "h/2", (1, 2), 7, "holder", 0.5, 0.25)
    header = SEAL.header(hand(plan, step, 1.5))
    assert header.isascii() and '"' not in header and "}" not in header
    handed = SEAL.read(header)
    assert isinstance(handed, Handed)
    assert handed.step(plan) == step
    assert handed.step(_plan(5)) is None
    assert (handed.step(_plan(6, movable=False)) is None) == (places != sorted(places))


def test_places_that_are_none_are_not_followed() -> None:
    plan = _plan(3)
    step = Step(plan.request_id, plan.context, None, "", (), 0, "load")
    good = hand(plan, step, 1.0)
    for places in ((0, 1), (0, 1, 1), (0, 1, 3), (-1, 0, 1)):
        assert msgspec.structs.replace(good, places=places).step(plan) is None


@given(st.text(max_size=80) | st.binary(max_size=60).map(lambda b: b.decode("latin-1")))
def test_what_cannot_be_read_was_not_handed(text: str) -> None:
    assert SEAL.read(text) is None


@pytest.mark.parametrize("given", [Refused(429, {}, {}), Counted(), hand(_plan(2), STEP, 1.0)])
def test_only_what_our_own_routers_signed_was_handed(given: Given) -> None:
    header = SEAL.header(given)
    assert SEAL.read(header) == given
    assert Seal('{"another": "config"}').read(header) is None
    for at in range(0, len(header), 3):
        other = "A" if header[at] != "A" else "B"
        assert SEAL.read(header[:at] + other + header[at + 1 :]) is None


def test_what_serve_must_be_started_with_is_named() -> None:
    with pytest.raises(ConfigError, match=r"RAY_SERVE_ENABLE_HA_PROXY=1 .*FORWARD_BODY=1: set"):
        check_direct({}, keys=False)
    some = {name: value for name, value in DIRECT_SETTINGS.items() if "SESSION" not in name}
    check_direct(some, keys=False)
    with pytest.raises(ConfigError, match="SESSION_ID_HEADER_KEY=authorization"):
        check_direct(some, keys=True)
    check_direct(DIRECT_SETTINGS, keys=True)


def test_prewarming_needs_the_other_plane() -> None:
    with pytest.raises(ConfigError, match="prewarm"):
        AppConfig(data_plane="direct", prewarm=True)
