"""The OpenAPI document: all of the routes, the fields that are checked, and who may read it."""

from __future__ import annotations

from typing import Any

from starlette.routing import Route

from cp_ray.config import AppConfig
from cp_ray.router.api import HARMLESS, REFUSED, ChatRequest, CompletionRequest
from cp_ray.router.endpoints import build_api
from cp_ray.router.fleet_page import Fleet
from cp_ray.router.openapi import openapi
from tests.shells.http_support import HTTP, Bench, running

KEYS = {"acme": "key-of-acme"}


class Nothing:
    """An index that is down."""

    async def fleet(self, since: float) -> None:
        return None

    async def explain(self, request_id: str) -> None:
        return None


def document(bench: Bench) -> dict[str, Any]:
    with running(bench) as it:
        answer = HTTP.get(f"{it.url}/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_every_route_is_in_it_and_nothing_else() -> None:
    bench = Bench()
    api = build_api(bench.service)
    Fleet(bench.config, Nothing()).add_to(api)
    routes = {
        (route.path, method.lower())
        for route in api.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    paths = openapi(bench.config, fleet=True)["paths"]
    assert routes == {(path, method) for path, item in paths.items() for method in item}


def test_without_a_fleet_it_names_none() -> None:
    paths = document(Bench())["paths"]
    assert "/v1/chat/completions" in paths
    assert not [path for path in paths if path.startswith("/fleet")]


def test_limits_are_those_of_json_schema() -> None:
    """pydantic writes `ge` where a limit stands behind a validator, which nobody understands."""

    def names(part: Any) -> set[str]:
        if isinstance(part, list):
            return set().union(*map(names, part))
        return set(part).union(*map(names, part.values())) if isinstance(part, dict) else set()

    found = openapi(AppConfig(engine="simulated"), fleet=True)
    assert not names(found) & {"ge", "gt", "le", "lt", "strict", "multiple_of"}
    fields = found["components"]["schemas"]["ChatRequest"]["properties"]
    assert fields["top_k"]["anyOf"][0]["minimum"] == 0


def test_every_field_that_is_known_is_there_and_no_other() -> None:
    schemas = openapi(AppConfig(engine="simulated"), fleet=False)["components"]["schemas"]
    for kind in (ChatRequest, CompletionRequest):
        schema = schemas[kind.__name__]
        assert set(schema["properties"]) == {*kind.model_fields, *REFUSED, *HARMLESS}
        assert schema["additionalProperties"] is False


def test_the_limits_are_those_of_the_application() -> None:
    found = document(Bench(max_output_tokens=77, max_documents=5))
    fields = found["components"]["schemas"]["ChatRequest"]["properties"]
    assert fields["model"] == {"const": "sim"}
    assert fields["max_tokens"]["anyOf"][0]["maximum"] == 77
    assert fields["documents"]["anyOf"][0]["maxItems"] == 5


def test_it_needs_no_key_and_says_that_others_do() -> None:
    assert "security" not in document(Bench())
    found = document(Bench(api_keys=KEYS))
    assert found["security"] == [{"key": []}]
    assert found["paths"]["/healthz"]["get"]["security"] == []


def test_a_wrong_method_is_told_the_right_ones() -> None:
    with running(Bench()) as it:
        answer = HTTP.get(f"{it.url}/v1/chat/completions")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
