"""The Open Inference Protocol, version 2, over HTTP (KServe, Triton): texts and predictions as tensors.

An input tensor is a text column of the cue, an output tensor a part of its predictions. Texts may come as JSON or in
the binary form of Triton's clients, and so do predictions.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

import pydantic_core
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, BeforeValidator, Field

import softcue
from softcue.serving.engine.registry import LoadedCue
from softcue.serving.engine.requests import Options
from softcue.serving.errors import STATUSES, RequestError
from softcue.serving.http.error_responses import too_many_inputs
from softcue.serving.http.middleware import BodyRoute, parse_length
from softcue.serving.http.schemas import Input, RequestBody
from softcue.serving.http.service import CurrentService
from softcue.serving.http.submitted_inputs import SubmittedInputs
from softcue.serving.settings import MAX_INPUTS
from softcue.types import Prediction, label_text

HEADER_LENGTH = "inference-header-content-length"  # bytes of JSON in front of binary tensors
LENGTH_BYTES = 4  # in front of each text of a binary tensor, little-endian
MOST_PARAMETERS = 16


def _check_parameters(value: object) -> object:
    """Stop at the first wrong parameter: a report of each, with all possible types, would take much memory."""
    if (
        not isinstance(value, dict)
        or len(value) > MOST_PARAMETERS
        or not all(isinstance(entry, bool | int | float | str) for entry in value.values())
    ):
        raise ValueError(f"at most {MOST_PARAMETERS} numbers, texts, or true and false, by name")
    return value


Parameters = Annotated[dict[str, bool | int | float | str], BeforeValidator(_check_parameters)]


class TensorRoute(BodyRoute):
    """A route whose body is JSON, or JSON followed by binary tensors. Triton's client names no media type."""

    media_types: ClassVar[tuple[str, ...]] = ("application/json", "application/octet-stream", "")
    body_example: ClassVar[str] = '{"inputs": [{"name": COLUMN, "shape": [1], "datatype": "BYTES", "data": [TEXT]}]}'

    def as_json(self, request: Request, body: bytes) -> bytes:
        """The JSON of a body, with the texts of binary tensors as its data."""
        scope = request.scope
        length = request.headers.get(HEADER_LENGTH)
        others = [header for header in scope["headers"] if header[0] != b"content-type"]
        scope["headers"] = [*others, (b"content-type", b"application/json")]
        return body if length is None else with_binary_tensors(body, length)


def with_binary_tensors(body: bytes, header_length: str) -> bytes:
    """The JSON in front of binary tensors, with their texts as `data`.

    Example:
        >>> header = b'{"inputs":[{"name":"text","parameters":{"binary_data_size":6}}]}'
        >>> with_binary_tensors(header + bytes([2, 0, 0, 0]) + b"ok", str(len(header)))
        b'{"inputs":[{"name":"text","data":["ok"]}]}'
    """
    malformed = RequestError(
        "malformed",
        setting="body",
        problem=f"its tensors do not fit {HEADER_LENGTH} and binary_data_size",
        fix="check both, or send the tensors as JSON",
    )
    place = parse_length(header_length, len(body))
    if place is None:
        raise malformed
    try:
        content = pydantic_core.from_json(body[:place], allow_inf_nan=False)
        for tensor in content["inputs"]:
            size = tensor.get("parameters", {}).pop("binary_data_size", None)
            if size is None:
                continue
            if not isinstance(size, int) or size < 0 or place + size > len(body):
                raise malformed
            tensor["data"] = list(islice(_binary_texts(body[place : place + size]), MAX_INPUTS + 1))
            tensor.pop("parameters")
            place += size
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise malformed from error
    if place != len(body):
        raise malformed
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def _binary_texts(data: bytes) -> Iterator[str]:
    """The texts of a binary tensor: each has its length in front."""
    place = 0
    while place < len(data):
        start = place + LENGTH_BYTES
        place = start + int.from_bytes(data[place:start], "little")
        if start > len(data) or place > len(data):
            raise ValueError("a text is longer than its tensor")
        yield data[start:place].decode()


class InferBody(RequestBody):
    """The body of an inference: a tensor of texts for each text column of the cue."""

    id: str | None = Field(None, max_length=256, description="given back with the predictions")
    parameters: Parameters = Field(
        default_factory=dict,
        description="`truncate`: cut texts that are too long; `binary_data_output`: all outputs behind the JSON",
    )
    inputs: list[InputTensor] = Field(min_length=1, max_length=16)
    outputs: list[RequestedOutput] | None = Field(None, max_length=16, description="all outputs if it is left out")


class InputTensor(RequestBody):
    """The texts of one column, one per row."""

    name: str = Field(description="a text column of the cue")
    shape: list[int] = Field(min_length=1, max_length=2, description="[rows] or [rows, 1]")
    datatype: Literal["BYTES"]
    parameters: Parameters = Field(default_factory=dict)
    data: list[Any] = Field(description="texts, or lists of one text")


class RequestedOutput(RequestBody):
    """An output tensor to give back."""

    name: str
    parameters: Parameters = Field(default_factory=dict, description="`binary_data`: behind the JSON, not in it")


class OutputTensor(BaseModel):
    """A part of the predictions."""

    name: str
    shape: list[int]
    datatype: str
    data: list[str | float] | None = Field(None, description="left out where the tensor follows the JSON")
    parameters: dict[str, int] | None = Field(None, description="`binary_data_size`: its bytes behind the JSON")


class InferResponse(BaseModel):
    """The predictions of all rows."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


class TensorMetadata(BaseModel):
    """Name, type and shape of a tensor; -1 is the number of rows."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """A loaded cue."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(BaseModel):
    """The server."""

    name: str
    version: str
    extensions: list[str]


class LiveResponse(BaseModel):
    """Whether the process should keep running."""

    live: bool


class ReadyResponse(BaseModel):
    """Whether the server accepts requests."""

    ready: bool


class ModelReadyResponse(ReadyResponse):
    """Whether a cue can be asked."""

    name: str


class ProtocolError(BaseModel):
    """The body of an error."""

    error: str


@dataclass(frozen=True)
class Output:
    """An output tensor of a cue: its shape without the rows, and how a prediction fills a row."""

    name: str
    datatype: str
    row: Callable[[Prediction], list[str] | list[float]]
    row_shape: tuple[int, ...] = ()

    def tensor(self, predictions: Sequence[Prediction]) -> OutputTensor:
        """The tensor of all rows, flat."""
        data: list[str | float] = [value for prediction in predictions for value in self.row(prediction)]
        return OutputTensor(
            name=self.name, shape=[len(predictions), *self.row_shape], datatype=self.datatype, data=data
        )


def outputs_of(cue: LoadedCue) -> list[Output]:
    """The output tensors of a cue, by its kind of task.

    Example:
        [output.name for output in outputs_of(registry["tickets"])]     # ["label", "scores"]
    """
    task = cue.task
    names = [task.label_value(name) for name in task.label_names]

    def scores(prediction: Prediction) -> list[float]:
        assert prediction.scores is not None
        return [float(prediction.scores[name]) for name in names]

    def value(prediction: Prediction) -> list[float]:
        if prediction.value is None:  # a tensor of numbers has no place for this
            raise RequestError(
                "invalid",
                setting="inputs",
                problem="the cue's answer to one of the rows is not a number",
                fix="use POST /v1/predict, which marks such rows as illegal",
            )
        return [prediction.value]

    def labels(prediction: Prediction) -> list[str]:
        return [json.dumps([label_text(label) for label in prediction.labels or ()], ensure_ascii=False)]

    def spans(prediction: Prediction) -> list[str]:
        return [json.dumps(prediction.as_dict().get("spans", []), ensure_ascii=False)]

    if task.kind == "regression":
        return [Output("value", "FP32", value)]
    outputs = [Output("labels", "BYTES", labels)] if task.kind == "multi-label" else []
    if task.kind not in ("multi-label", "tags"):
        outputs.append(Output("label", "BYTES", lambda prediction: [prediction.label_text or ""]))
    if task.kind in ("span", "tags"):
        outputs.append(Output("spans", "BYTES", spans))
    if task.has_row_labels and cue.model.readout.decoding is None:  # generated labels have no scores
        outputs.append(Output("scores", "FP32", scores, (len(names),)))
    return outputs


async def find_cue(name: str, service: CurrentService, version: str | None = None) -> LoadedCue:
    """The cue of an address, as a dependency of routes; a version that is not the current one is an error."""
    cue = service.engine.registry[name]
    if version not in (None, cue.version):
        raise RequestError(
            "unknown_task",
            setting="version",
            problem="this is not the version that is loaded",
            fix=f"leave it out, or ask for {cue.version}",
        )
    return cue


NamedCue = Annotated[LoadedCue, Depends(find_cue)]
ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ProtocolError} for status in sorted({*STATUSES.values()})}
probes = APIRouter(tags=["open inference protocol"])  # open routes
router = APIRouter(tags=["open inference protocol"], responses=ERRORS)
infer_router = APIRouter(route_class=TensorRoute, tags=["open inference protocol"], responses=ERRORS)
routers = (router, infer_router)


@probes.get("/v2/health/live", response_model=LiveResponse)
async def live(service: CurrentService, response: Response) -> object:
    """Say whether the process should keep running."""
    is_live = service.state != "failed"
    response.status_code = 200 if is_live else 503
    return {"live": is_live}


@probes.get("/v2/health/ready", response_model=ReadyResponse)
async def ready(service: CurrentService, response: Response) -> object:
    """Say whether the server accepts requests."""
    is_ready = service.state == "ready"
    response.status_code = 200 if is_ready else 503
    return {"ready": is_ready}


@router.get("/v2", response_model=ServerMetadata)
async def server_metadata() -> object:
    """Return name and version of the server."""
    return {"name": "softcue", "version": softcue.__version__, "extensions": ["binary_tensor_data"]}


@router.get("/v2/models/{name}", response_model=ModelMetadata)
@router.get("/v2/models/{name}/versions/{version}", response_model=ModelMetadata)
async def model_metadata(cue: NamedCue) -> object:
    """Return the tensors of a cue. `scores` are in the order of the labels in GET /v1/tasks/{name}."""
    inputs = [{"name": column, "datatype": "BYTES", "shape": [-1]} for column in cue.task.text]
    outputs = [
        {"name": output.name, "datatype": output.datatype, "shape": [-1, *output.row_shape]}
        for output in outputs_of(cue)
    ]
    return {
        "name": cue.name,
        "versions": [cue.version],
        "platform": "softcue",
        "inputs": inputs,
        "outputs": outputs,
    }


@router.get("/v2/models/{name}/ready", response_model=ModelReadyResponse)
@router.get("/v2/models/{name}/versions/{version}/ready", response_model=ModelReadyResponse)
async def model_ready(cue: NamedCue) -> object:
    """Say that a cue can be asked."""
    return {"name": cue.name, "ready": True}


@infer_router.post("/v2/models/{name}/infer", response_model=InferResponse, response_model_exclude_none=True)
@infer_router.post(
    "/v2/models/{name}/versions/{version}/infer", response_model=InferResponse, response_model_exclude_none=True
)
async def infer(body: InferBody, cue: NamedCue, request: Request, service: CurrentService) -> object:
    """Predict the rows of a cue's text columns. An error of one row is the error of the request."""
    max_inputs = service.settings.max_inputs
    if any(len(tensor.data) > max_inputs for tensor in body.inputs):  # before anything is made of each row
        raise too_many_inputs(max_inputs)
    texts = _texts(body, cue)
    outputs = _requested(body, cue)
    inputs = [Input(task=cue.name, text=row[0] if len(row) == 1 else list(row)) for row in texts]
    options = Options(truncate=body.parameters.get("truncate") is True)
    served = await SubmittedInputs(request, inputs, options).predictions()
    predictions = [result.prediction for result in served]
    tensors = [output.tensor(predictions) for output in outputs]
    response = InferResponse(
        model_name=cue.name, model_version=served[0].versions[cue.name], id=body.id, outputs=tensors
    )
    every = body.parameters.get("binary_data_output", False)
    wanted = {output.name: output.parameters.get("binary_data", every) for output in body.outputs or []}
    is_binary = [wanted.get(tensor.name, every) is True for tensor in tensors]
    return binary_response(response, is_binary) if any(is_binary) else response


def binary_response(response: InferResponse, is_binary: Sequence[bool]) -> Response:
    """The response with some tensors behind its JSON, as Triton's binary tensor extension has it."""
    data = [tensor_bytes(tensor) if binary else b"" for tensor, binary in zip(response.outputs, is_binary, strict=True)]
    for tensor, binary, values in zip(response.outputs, is_binary, data, strict=True):
        if binary:
            tensor.data, tensor.parameters = None, {"binary_data_size": len(values)}
    header = response.model_dump_json(exclude_none=True).encode()
    content = b"".join([header, *data])
    return Response(content, media_type="application/octet-stream", headers={HEADER_LENGTH: str(len(header))})


def tensor_bytes(tensor: OutputTensor) -> bytes:
    """A tensor's values in a row, little-endian; each text has its length in front.

    Example:
        >>> tensor_bytes(OutputTensor(name="label", shape=[1], datatype="BYTES", data=["ok"]))
        b'\\x02\\x00\\x00\\x00ok'
    """
    values = tensor.data or []
    if tensor.datatype == "FP32":
        return struct.pack(f"<{len(values)}f", *values)
    texts = [str(value).encode() for value in values]
    return b"".join(len(text).to_bytes(LENGTH_BYTES, "little") + text for text in texts)


def _texts(body: InferBody, cue: LoadedCue) -> list[tuple[str, ...]]:
    """The texts of each row, in the order of the cue's columns."""
    columns = cue.task.text
    tensors = {tensor.name: tensor for tensor in body.inputs}
    if tensors.keys() != set(columns) or len(tensors) != len(body.inputs):
        expected = f"one tensor for each text column of the cue: {', '.join(columns)}"
        raise RequestError("invalid", setting="inputs", expected=expected, fix="see GET /v2/models/{name}")
    rows = [_column(tensors[column]) for column in columns]
    if len({len(column) for column in rows}) != 1:
        raise RequestError("invalid", setting="inputs", expected="tensors of equally many rows", fix="check `shape`")
    return list(zip(*rows, strict=True))


def _column(tensor: InputTensor) -> list[str]:
    """The texts of a tensor of shape [rows] or [rows, 1], flat or nested."""
    values = [value[0] if isinstance(value, list) and len(value) == 1 else value for value in tensor.data]
    num_rows = tensor.shape[0]
    has_shape = tensor.shape in ([num_rows], [num_rows, 1]) and len(values) == num_rows and num_rows > 0
    if not has_shape or not all(isinstance(value, str) for value in values):
        raise RequestError(
            "invalid",
            setting="inputs",
            expected="texts, as many as `shape` says: [rows] or [rows, 1]",
            fix="send at least one text, and check `shape`",
        )
    return values


def _requested(body: InferBody, cue: LoadedCue) -> list[Output]:
    """The outputs that the client wants, or all."""
    outputs = {output.name: output for output in outputs_of(cue)}
    if body.outputs is None:
        return list(outputs.values())
    names = [output.name for output in body.outputs]
    if not set(names) <= outputs.keys():
        raise RequestError(
            "invalid", setting="outputs", expected=f"outputs of this cue: {', '.join(outputs)}", fix="check the names"
        )
    return [outputs[name] for name in names]
