"""Responses of errors: one small JSON body for every error, which never quotes what the client sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from softcue.serving.errors import STATUSES, RequestError
from softcue.serving.http.schemas import ErrorResponse, describe_error
from softcue.serving.http.service import Service

BODY_EXAMPLE = '{"inputs": [{"task": NAME, "text": TEXT}]}'


def error_response(error: RequestError, codes: Sequence[str] = ()) -> JSONResponse:
    """The response of an error; several inputs have a code each.

    Example:
        >>> error_response(RequestError("busy", setting="server", expected="room", fix="wait")).headers["retry-after"]
        '1'
    """
    content: dict[str, object] = {"error": error.as_dict()}
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

    def respond(error: RequestError) -> JSONResponse:
        service.metrics.failures.labels(error.code).inc()
        return error_response(error)

    @app.exception_handler(RequestError)
    async def on_request_error(_: Request, error: RequestError) -> JSONResponse:
        return respond(error)

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        fields = _body_fields(request)
        return respond(_from_validation(error.errors()[0], service.settings.max_inputs, fields))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400:  # FastAPI could not read the JSON
            return respond(_malformed())
        headers = dict(error.headers or {})
        if _is_wrong_method(error):
            headers["Allow"] = ", ".join(_allowed_methods(request, routes))  # starlette names those of one route alone
        content = {"status": error.status_code, "code": "no_route", "message": _describe_http_error(error, headers)}
        return JSONResponse({"error": content}, error.status_code, headers)

    @app.exception_handler(Exception)
    async def on_bug(_: Request, error: Exception) -> JSONResponse:  # starlette raises it again, so that it is logged
        service.metrics.failures.labels("bug").inc()
        message = "server: this is a bug of softcue; please report it with the error in the server's log"
        content = {"status": 500, "code": "bug", "message": message}
        return JSONResponse({"error": content}, 500)


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


def _body_fields(request: Request) -> list[str]:
    """The fields of the body that a route takes."""
    body_field = getattr(request.scope.get("route"), "body_field", None)
    body = getattr(getattr(body_field, "field_info", None), "annotation", None)
    return list(body.model_fields) if isinstance(body, type) and issubclass(body, BaseModel) else []


def _from_validation(error: dict[str, Any], max_inputs: int, fields: Collection[str]) -> RequestError:
    """FastAPI's first error as ours: `loc` is ("body", field, ...)."""
    if error["type"] == "json_invalid":
        return _malformed()
    if error["loc"] == ("body", "inputs") and error["type"] == "too_short":
        return RequestError("empty", setting="inputs", expected="at least one", fix=f"send {BODY_EXAMPLE}")
    if error["loc"] == ("body", "inputs") and error["type"] in ("missing", "list_type"):
        problem = "this field is missing" if error["type"] == "missing" else "expected a list"
        return RequestError("invalid", setting="inputs", problem=problem, fix=f"send {BODY_EXAMPLE}")
    if error["loc"] == ("body", "inputs") and error["type"] == "too_long":
        return too_many_inputs(max_inputs)
    return describe_error({**error, "loc": error["loc"][1:]}, "body", fields)


def too_many_inputs(limit: int) -> RequestError:
    """A request has more inputs than the server takes."""
    return RequestError(
        "too_many", setting="inputs", expected=f"at most {limit} in a request", fix="send several requests"
    )


def _malformed() -> RequestError:
    return RequestError(
        "malformed", setting="body", problem="it is not valid JSON in UTF-8", fix="check quotes, commas and encoding"
    )
