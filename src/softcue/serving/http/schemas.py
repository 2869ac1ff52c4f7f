"""Bodies of requests and responses: what may be asked, how it is read, and how answers and refusals are written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from softcue.serving.engine.requests import Answer, Ensemble, Item, Options, Result
from softcue.serving.errors import RequestError
from softcue.serving.settings import ServerSettings

Short = Annotated[str, Field(min_length=1, max_length=64)]
Texts = Annotated[
    list[str], Field(fail_fast=True)
]  # the first wrong one is enough: a report of each would take gigabytes
Model = TypeVar("Model", bound=BaseModel)


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Input(_Body):
    """One text (or pair of texts) for one task."""

    task: str | Texts = Field(description="a cue's name; of an ensemble the cues' names, or their task's")
    text: str | Texts = Field(description="what to read; a list where the task reads several texts")


class PredictBody(_Body):
    """What POST /v1/predict takes."""

    inputs: list[Any] = Field(
        description="of `Input` each; a bad one is refused alone",
        json_schema_extra={"items": {"$ref": "#/components/schemas/Input"}, "minItems": 1},
    )
    return_scores: bool = Field(False, description="with a probability per label, where there are any")
    truncate: bool = Field(False, description="cut texts that are too long instead of refusing them")
    ensemble: Ensemble | None = Field(None, description="one answer per input from all cues of its task")

    def options(self) -> Options:
        """As the engine takes them."""
        return Options(self.ensemble, self.truncate)


class GenerateBody(PredictBody):
    """What POST /v1/generate takes."""

    stop: list[Short] = Field(default_factory=list, max_length=4, description="written text ends before these")
    max_new_tokens: int | None = Field(None, ge=1, description="instead of the cue's own limit")
    stream: bool = Field(False, description="server-sent events: text as it is written, then each answer")

    def options(self) -> Options:
        """As the engine takes them."""
        return Options(self.ensemble, self.truncate, True, self.max_new_tokens, tuple(self.stop))


class ExplainBody(_Body):
    """What POST /v1/explain takes."""

    task: str = Field(description="a cue's name")
    text: str | Texts = Field(description="what to read; a list where the task reads several texts")


async def read_body(request: Request, settings: ServerSettings) -> bytes:
    """A JSON body, refused before it is read where its headers are enough to do so."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError("media_type", setting="Content-Type", expected="application/json", fix="send JSON")
    limit = settings.max_body_bytes
    too_large = RequestError(
        "too_large", setting="body", expected=f"at most {limit:,} bytes", fix="send fewer or shorter texts"
    )
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limit:
        raise too_large
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise too_large
    except ClientDisconnect as error:
        raise RequestError("malformed", setting="body", expected="a whole body", fix="send all of it") from error
    if not body.strip():
        raise RequestError("empty", setting="body", expected="a JSON object", fix="see /openapi.json")
    return bytes(body)


def parsed(kind: type[Model], body: bytes) -> Model:
    """A body as the model it should be.

    Example:
        >>> parsed(PredictBody, b'{"inputs": [{"task": "tickets", "text": "Hello"}]}').truncate
        False
    """
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(
            "malformed", setting="body", expected="JSON in UTF-8", fix="check how it is written"
        ) from error
    return validated(kind, value, "body")


def validated(kind: type[Model], value: object, where: str) -> Model:
    """A value as a model, or a refusal that names the field and not what was in it."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        fields = ", ".join(kind.model_fields)
        if first["type"] == "extra_forbidden":  # its name is the client's
            raise RequestError(
                "invalid", setting=where, expected=f"no fields but {fields}", fix="leave the others out"
            ) from None
        field = next((str(part) for part in first["loc"] if part in kind.model_fields), where)
        raise RequestError(
            "invalid", setting=field, expected=first["msg"].lower(), fix=f"see /openapi.json; fields: {fields}"
        ) from None


def checked_inputs(body: PredictBody, settings: ServerSettings) -> list[Item | RequestError]:
    """The inputs of a request, bad ones as refusals."""
    if not body.inputs:
        raise RequestError(
            "empty", setting="inputs", expected="at least one", fix='send {"inputs": [{"task": ..., "text": ...}]}'
        )
    if len(body.inputs) > settings.max_inputs:
        raise RequestError(
            "too_many", setting="inputs", expected=f"at most {settings.max_inputs}", fix="send several requests"
        )
    found: list[Item | RequestError] = []
    for value in body.inputs:
        try:
            item = validated(Input, value, "input")
        except RequestError as refusal:
            found.append(refusal)
        else:
            found.append((item.task, item.text))
    return found


def shown(result: Result, return_scores: bool) -> dict[str, object]:
    """A result as JSON."""
    if not isinstance(result, Answer):
        return {"error": result.as_dict()}
    found = result.as_dict()
    if not return_scores:
        found.pop("scores", None)
    return found


def answered(results: Sequence[Result], return_scores: bool) -> Response:
    """The response to a request; where no item has an answer, its status is the gravest of theirs."""
    refusals = [result for result in results if isinstance(result, RequestError)]
    if len(refusals) < len(results):
        return as_json({"results": [shown(result, return_scores) for result in results]})
    gravest = max(refusals, key=lambda refusal: refusal.status)
    return refused(gravest, [refusal.code for refusal in refusals])


def refused(refusal: RequestError, items: Sequence[str] = ()) -> Response:
    """The response of a refusal; always small. Several items have a code each."""
    body: dict[str, object] = {"error": refusal.as_dict()}
    if len(items) > 1:
        body["items"] = list(items)
    headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else {}
    if refusal.code == "unauthorised":
        headers["WWW-Authenticate"] = "Bearer"
    return as_json(body, refusal.status, headers)


def as_json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response; NaN is a bug here, and half a character becomes a question mark."""
    return Response(encoded(value), status, headers, media_type="application/json")


def encoded(value: object) -> bytes:
    """JSON in UTF-8.

    Example:
        >>> encoded({"label": "à"}).decode()
        '{"label":"à"}'
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
