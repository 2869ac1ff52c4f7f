"""Bodies of requests and responses. FastAPI parses, checks and documents them.

Bad inputs of a request get an error each: `Input` is tried first, and a value that does not fit becomes its error.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.json_schema import SkipJsonSchema

from softcue.serving.engine.requests import Ensemble
from softcue.serving.errors import RequestError
from softcue.serving.settings import MAX_INPUTS
from softcue.types import LabelValue

StopWord = Annotated[str, Field(min_length=1, max_length=64)]
# Stops at the first wrong item: a report of each item of a large body would take gigabytes.
Texts = Annotated[list[str], Field(fail_fast=True)]


def describe_error(error: dict[str, Any], setting: str) -> RequestError:
    """The first error of pydantic as a request error, which names the field and not its value.

    Example:
        >>> describe_error({"type": "missing", "loc": ("text",), "msg": "Field required"}, "input").message
        'text: expected field required; see /docs for the fields'
    """
    if error["type"] == "extra_forbidden":  # the name of the field is the client's
        return RequestError("invalid", setting=setting, expected="no other fields", fix="see /docs for the fields")
    field = error["loc"][0] if error["loc"] else setting
    return RequestError("invalid", setting=str(field), expected=error["msg"].lower(), fix="see /docs for the fields")


def _describe_input(value: object) -> RequestError:
    try:
        Input.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        return describe_error(dict(first), "input")
    raise AssertionError("only values that do not fit come here")


class RequestBody(BaseModel):
    """The settings of all request bodies: no unknown fields, no conversions between types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Input(RequestBody):
    """One text (or pair of texts) for one task."""

    task: str | Texts = Field(description="a cue's name; for an ensemble the cues' names, or their task's name")
    text: str | Texts = Field(description="the text; a list if the task reads several texts")


CheckedInput = Annotated[
    Input | SkipJsonSchema[Annotated[Any, AfterValidator(_describe_input)]], Field(union_mode="left_to_right")
]


class PredictBody(RequestBody):
    """The body of POST /v1/predict."""

    inputs: list[CheckedInput] = Field(
        min_length=1,
        max_length=MAX_INPUTS,
        description="texts to predict; a bad input gets an error of its own (most servers take 32 at a time)",
    )
    return_scores: bool = Field(False, description="return a probability per label, if the task has labels")
    truncate: bool = Field(False, description="cut texts that are too long instead of rejecting them")
    ensemble: Ensemble | None = Field(None, description="one prediction per input from all cues of its task")


class GenerateBody(PredictBody):
    """The body of POST /v1/generate."""

    stop: list[StopWord] = Field(default_factory=list, max_length=4, description="generated text ends before these")
    max_new_tokens: int | None = Field(None, ge=1, description="replaces the cue's own limit")
    stream: bool = Field(False, description="server-sent events: text while it is generated, then each prediction")


class ExplainBody(RequestBody):
    """The body of POST /v1/explain."""

    task: str = Field(description="a cue's name")
    text: str | Texts = Field(description="the text; a list if the task reads several texts")


class ErrorDetail(BaseModel):
    """An error: HTTP status, short code, message."""

    status: int
    code: str
    message: str


class ErrorResponse(BaseModel):
    """The body of every error."""

    error: ErrorDetail
    items: list[str] | None = Field(None, description="a code per input, if there are several inputs")


class SpanBody(BaseModel):
    """A character span of the last text."""

    start: int
    end: int
    label: str | None = None


class Timings(BaseModel):
    """Milliseconds in the queue and in forward passes."""

    queue_ms: float
    compute_ms: float


class InputPrediction(BaseModel):
    """The prediction for one input; fields that do not apply are left out."""

    task: str | None = Field(None, description="the cue's name")
    version: str | None = Field(None, description="the cue's version")
    versions: dict[str, str] | None = Field(None, description="of an ensemble: version by cue")
    label: LabelValue | None = Field(
        None, description="the label, in the type of the training labels, or the generated text"
    )
    value: float | None = Field(None, description="the number of a regression task")
    scores: dict[str, float] | None = Field(None, description="probability by label")
    illegal: bool | None = Field(None, description="true if the generated text is not a valid label, number or span")
    spans: list[SpanBody] | None = None
    votes: dict[str, int] | None = Field(None, description="of an ensemble: votes by label")
    truncated: bool
    timings: Timings


class InputFailure(BaseModel):
    """The error of one input."""

    error: ErrorDetail


class PredictResponse(BaseModel):
    """A prediction or an error per input, in order."""

    results: list[InputPrediction | InputFailure]


class NearWord(BaseModel):
    """A word and its cosine similarity."""

    word: str
    cosine: float


class CodeShare(BaseModel):
    """A code of a codebook, its share of a vector, and the words nearest to it."""

    code: int
    share: float
    words: list[NearWord]


class PromptVector(BaseModel):
    """One vector of a prompt."""

    words: list[NearWord]
    codes: list[CodeShare] | None = None


class ExplainResponse(BaseModel):
    """The vectors of a cue's prompt for a text."""

    task: str
    version: str
    method: str
    reads_input: bool
    vectors: list[PromptVector]


class TaskResponse(BaseModel):
    """A loaded cue."""

    name: str
    version: str
    task: str
    description: str
    kind: str
    text: list[str]
    labels: list[LabelValue]
    method: str
    prompt_length: int
    max_length: int
    scores: dict[str, dict[str, float]]


class BrokenTask(BaseModel):
    """A cue that could not be loaded."""

    name: str
    error: ErrorDetail


class TasksResponse(BaseModel):
    """All cues of the folder."""

    tasks: list[TaskResponse]
    broken: list[BrokenTask]


class UnloadResponse(BaseModel):
    """The cue that was unloaded."""

    name: str
    version: str


class StateResponse(BaseModel):
    """The state of the server."""

    state: str


class BackboneInfo(BaseModel):
    """The served backbone."""

    name: str
    kind: str
    dtype: str
    device: str
    max_length: int
    fingerprint: dict[str, str]


class LimitsInfo(BaseModel):
    """The limits of requests."""

    max_body_bytes: int
    max_inputs: int
    max_in_flight: int
    deadline: float
    max_characters: int
    max_new_tokens: int


class InfoResponse(BaseModel):
    """The backbone, the limits and the load."""

    version: str
    backbone: BackboneInfo
    limits: LimitsInfo
    cues: int
    in_flight: int
    queue: int
