"""Responses of errors: one small JSON body for every error, which never quotes what the client sent.

The body has the form of the protocol whose route was asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from softcue.serving.errors import STATUSES, RequestError
from softcue.serving.http.schemas import ErrorResponse, InputsBody, describe_error
from softcue.serving.http.service import Service

BODY_EXAMPLE = '{"inputs": [{"task": NAME, "text": TEXT}]}'
CLIENT_LEFT = 499  # for log and metrics, as other servers have it
OPENAI_ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/models")
Protocol = Literal["softcue", "open-inference", "openai"]


def protocol_of(path: str) -> Protocol:
    """The protocol to which the address of a request belongs.

    Example:
        >>> protocol_of("/v1/predict"), protocol_of("/v2/models/tickets"), protocol_of("/v1/models/tickets")
        ('softcue', 'open-inference', 'openai')
    """
    if path == "/v2" or path.startswith("/v2/"):
        return "open-inference"
    return "openai" if path in OPENAI_ROUTES or path.startswith("/v1/models/") else "softcue"


def error_content(error: Mapping[str, Any], protocol: Protocol) -> dict[str, object]:
    """The body of an error with `status`, `code` and `message`, in the form of a protocol.

    Example:
        >>> error_content({"status": 429, "code": "busy", "message": "wait"}, "open-inference")
        {'error': 'wait'}
    """
    if protocol == "open-inference":
        return {"error": error["message"]}
    if protocol == "openai":
        kind = "invalid_request_error" if error["status"] < 429 else "server_error"
        return {"error": {"message": error["message"], "type": kind, "param": None, "code": error["code"]}}
    return {"error": dict(error)}


def error_response(error: RequestError, codes: Sequence[str] = (), protocol: Protocol = "softcue") -> JSONResponse:
    """The response of an error; several inputs have a code each.

    Example:
        >>> error_response(RequestError("busy", setting="server", expected="room", fix="wait")).headers["retry-after"]
        '1'
    """
    content = error_content(error.as_dict(), protocol)
    if len(codes) > 1:
        content["items"] = list(codes)
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    if error.code == "unauthorised":
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(content, error.status, headers)


def all_failed(errors: Sequence[RequestError]) -> JSONResponse:
    """The response of a request none of whose inputs has a prediction: its status is the highest of the inputs'."""
    return error_response(max(errors, key=lambda error: error.status), [error.code for error in errors])


def document_errors() -> dict[int | str, dict[str, Any]]:
    """The statuses of errors with their codes, for the OpenAPI document."""
    codes: dict[int | str, list[str]] = {}
    for code, status in STATUSES.items():
        codes.setdefault(status, []).append(code)
    return {status: {"model": ErrorResponse, "description": ", ".join(names)} for status, names in codes.items()}


def add_error_handlers(app: FastAPI, service: Service, routes: Sequence[BaseRoute]) -> None:
    """Answer every error of an app with the small body; `routes` are all routes that it has."""

    def respond(request: Request, error: RequestError) -> JSONResponse:
        service.metrics.failures.labels(error.code).inc()
        return error_response(error, protocol=protocol_of(request.url.path))

    @app.exception_handler(RequestError)
    async def on_request_error(request: Request, error: RequestError) -> JSONResponse:
        return respond(request, error)

    @app.exception_handler(ClientDisconnect)
    async def on_disconnect(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_LEFT)

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        body = _body_model(request)
        return respond(request, _from_validation(error.errors()[0], service.settings.max_inputs, body))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400:  # FastAPI could not read the JSON
            return respond(request, _malformed())
        headers = dict(error.headers or {})
        if _is_wrong_method(error):
            headers["Allow"] = ", ".join(_allowed_methods(request, routes))  # starlette names those of one route alone
        described = {"status": error.status_code, "code": "no_route", "message": _describe_http_error(error, headers)}
        content = error_content(described, protocol_of(request.url.path))
        return JSONResponse(content, error.status_code, headers)

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> JSONResponse:
        # starlette raises it again, so that it is logged
        service.metrics.failures.labels("bug").inc()
        message = "server: this is a bug of softcue; please report it with the error in the server's log"
        content = {"status": 500, "code": "bug", "message": message}
        return JSONResponse(error_content(content, protocol_of(request.url.path)), 500)


def _is_wrong_method(error: HTTPException) -> bool:
    """Whether starlette found the address, but not the method."""
    return error.status_code == 405 and error.detail == "Method Not Allowed"


def _allowed_methods(request: Request, routes: Sequence[BaseRoute]) -> list[str]:
    """The methods of all routes at the address of a request."""
    methods: set[str] = set()
    for route in routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return sorted(methods)


def _describe_http_error(error: HTTPException, headers: Mapping[str, str]) -> str:
    """Starlette's error as a message that says what to do."""
    if error.status_code == 404:
        return "address: this server has no such route; see /docs for the routes"
    if _is_wrong_method(error):
        return f"method: this route takes {headers['Allow']} only; see /docs for the routes"
    return str(error.detail)


def _body_model(request: Request) -> type[BaseModel]:
    """The model of the body that a route takes."""
    body_field = getattr(request.scope.get("route"), "body_field", None)
    body = getattr(getattr(body_field, "field_info", None), "annotation", None)
    return body if isinstance(body, type) and issubclass(body, BaseModel) else BaseModel


def _from_validation(error: dict[str, Any], max_inputs: int, body: type[BaseModel]) -> RequestError:
    """FastAPI's first error as ours: `loc` is ("body", field, ...)."""
    if error["type"] == "json_invalid":
        return _malformed()
    if not issubclass(body, InputsBody):
        return describe_error({**error, "loc": error["loc"][1:]}, "body", body.model_fields)
    if error["loc"] == ("body", "inputs") and error["type"] == "too_short":
        return RequestError("empty", setting="inputs", expected="at least one", fix=f"send {BODY_EXAMPLE}")
    if error["loc"] == ("body", "inputs") and error["type"] in ("missing", "list_type"):
        problem = "this field is missing" if error["type"] == "missing" else "expected a list"
        return RequestError("invalid", setting="inputs", problem=problem, fix=f"send {BODY_EXAMPLE}")
    if error["loc"] == ("body", "inputs") and error["type"] == "too_long":
        return too_many_inputs(max_inputs)
    return describe_error({**error, "loc": error["loc"][1:]}, "body", body.model_fields)


def too_many_inputs(limit: int) -> RequestError:
    """A request has more inputs than the server takes."""
    return RequestError(
        "too_many", setting="inputs", expected=f"at most {limit} in a request", fix="send several requests"
    )


def _malformed() -> RequestError:
    return RequestError(
        "malformed", setting="body", problem="it is not valid JSON in UTF-8", fix="check quotes, commas and encoding"
    )
