"""Responses of errors: one small JSON body for every error, which never quotes what the client sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from softcue.serving.errors import STATUSES, RequestError
from softcue.serving.http.schemas import ErrorResponse, describe_error
from softcue.serving.http.service import Service


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


def add_error_handlers(app: FastAPI, service: Service) -> None:
    """Answer every error of an app with the small body."""

    def respond(error: RequestError) -> JSONResponse:
        service.metrics.failures.labels(error.code).inc()
        return error_response(error)

    @app.exception_handler(RequestError)
    async def on_request_error(_: Request, error: RequestError) -> JSONResponse:
        return respond(error)

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(_: Request, error: RequestValidationError) -> JSONResponse:
        return respond(_from_validation(error.errors()[0], service.settings.max_inputs))

    @app.exception_handler(HTTPException)
    async def on_http_error(_: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400:  # FastAPI could not read the JSON
            return respond(_malformed())
        content = {"status": error.status_code, "code": "no_route", "message": str(error.detail)}
        return JSONResponse({"error": content}, error.status_code, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def on_bug(_: Request, error: Exception) -> JSONResponse:  # starlette raises it again, so that it is logged
        service.metrics.failures.labels("bug").inc()
        content = {"status": 500, "code": "bug", "message": "a bug; the server's log has more"}
        return JSONResponse({"error": content}, 500)


def _from_validation(error: dict[str, Any], max_inputs: int) -> RequestError:
    """FastAPI's first error as ours: `loc` is ("body", field, ...)."""
    if error["type"] == "json_invalid":
        return _malformed()
    if error["loc"] == ("body", "inputs") and error["type"] == "too_short":
        return RequestError(
            "empty", setting="inputs", expected="at least one", fix='send {"inputs": [{"task": ..., "text": ...}]}'
        )
    if error["loc"] == ("body", "inputs") and error["type"] == "too_long":
        return too_many_inputs(max_inputs)
    return describe_error({**error, "loc": error["loc"][1:]}, "body")


def too_many_inputs(limit: int) -> RequestError:
    """A request has more inputs than the server takes."""
    return RequestError("too_many", setting="inputs", expected=f"at most {limit}", fix="send several requests")


def _malformed() -> RequestError:
    return RequestError("malformed", setting="body", expected="JSON in UTF-8", fix="check how it is written")
