"""`GET /fleet`: a page that shows the fleet, its data, and one request explained.

The page itself holds nothing; its data needs the operator's key where there are keys. A tenant
may have its own requests explained, and nobody else's.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable
from importlib import resources
from typing import Protocol

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from cp_ray.config import AppConfig
from cp_ray.errors import CpRayError, EngineUnavailable, InvalidRequest, Unauthorized, to_http
from cp_ray.router.auth import Authenticator, key_digests, key_holder

_ID = re.compile(r"(?:chatcmpl-|cmpl-)?([0-9a-zA-Z_-]{1,128})")


class Shows(Protocol):
    """What the index actor shows (`cp_ray.index_actor.teller.Teller`)."""

    def fleet(self, since: float) -> Awaitable[bytes | None]:
        """JSON of the fleet; None = the index is down."""

    def explain(self, request_id: str) -> Awaitable[tuple[str, bytes] | None]:
        """Tenant and JSON of one request; None = nobody knows it."""


class Fleet:
    """The routes below /fleet."""

    def __init__(self, config: AppConfig, shows: Shows) -> None:
        self._shows = shows
        self._auth = Authenticator(config)
        self._keys = bool(config.api_keys)
        key = config.operator_key
        self._operator = key_digests({"operator": key.get_secret_value()}) if key else []
        self._page = resources.files("cp_ray.router").joinpath("fleet.html").read_bytes()
        self._policy = _content_policy(self._page.decode())

    def add_to(self, api: FastAPI) -> None:
        """Add the routes to the application."""
        api.add_api_route("/fleet", self._show_page, methods=["GET"])
        api.add_api_route("/fleet/data", self._show_data, methods=["GET"])
        api.add_api_route("/fleet/requests/{request_id}", self._show_request, methods=["GET"])

    def is_operator(self, authorization: str | None) -> bool:
        """Whether the header carries the operator's key, or none is needed."""
        if not self._operator:
            return not self._keys
        scheme, _, given = (authorization or "").partition(" ")
        return key_holder(self._operator, given) is not None and scheme.lower() == "bearer"

    def _demand_operator(self, authorization: str | None) -> None:
        if self.is_operator(authorization):
            return
        if self._operator and not self._keys:
            raise Unauthorized(
                "the operator key is missing or unknown: send the header "
                "`Authorization: Bearer KEY`",
                code="invalid_api_key",
            )
        self._auth.tenant(authorization)  # a stranger is told 401, a tenant 403
        raise InvalidRequest(
            "this page is for the operator: send the key that the setting operator_key names",
            code="operator_only",
            status=403,
        )

    async def _show_page(self) -> Response:
        headers = {"content-security-policy": self._policy, **_PRIVATE}
        return Response(self._page, media_type="text/html", headers=headers)

    async def _show_data(self, request: Request) -> Response:
        try:
            self._demand_operator(request.headers.get("authorization"))
            shown = await self._shows.fleet(_since(request.query_params.get("since", "0")))
            if shown is None:
                raise EngineUnavailable(
                    "the index is down or late: requests pass through, order as given; "
                    "try again in a few seconds",
                    code="index_down",
                )
        except CpRayError as error:
            return _failed(error)
        return Response(shown, media_type="application/json", headers=_PRIVATE)

    async def _show_request(self, request: Request, request_id: str) -> Response:
        try:
            shown = await self._explained(request, request_id)
        except CpRayError as error:
            return _failed(error)
        return Response(shown, media_type="application/json", headers=_PRIVATE)

    async def _explained(self, request: Request, request_id: str) -> bytes:
        authorization = request.headers.get("authorization")
        operator = self.is_operator(authorization)
        tenant = None if operator else self._auth.tenant(authorization).name
        match = _ID.fullmatch(request_id)
        found = await self._shows.explain(match[1]) if match else None
        if found is None or (not operator and found[0] != tenant):
            # The same for one that is another's: its existence is nobody's business.
            raise InvalidRequest(
                "no such request among the last ones: take the id of an answer of the last "
                "minutes; while the index is down none is known",
                param="request_id",
                code="request_not_found",
                status=404,
            )
        return found[1]


_PRIVATE = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def _failed(error: CpRayError) -> Response:
    status, headers, body = to_http(error)
    return JSONResponse(body, status, {**headers, **_PRIVATE})


def _since(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(
            "since: is no number: send seconds since 1970", param="since"
        ) from None


def _content_policy(page: str) -> str:
    """Only the script and the style of this very page run, and they reach only this server."""
    hashes = {
        tag: base64.b64encode(
            hashlib.sha256(
                page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0].encode()
            ).digest()
        ).decode()
        for tag in ("script", "style")
    }
    return (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; "
        f"style-src 'sha256-{hashes['style']}'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
