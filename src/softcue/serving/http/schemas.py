"""Bodies of requests and responses. FastAPI parses, checks and documents them.

Bad inputs of a request get an error each: `Input` is tried first, and a value that does not fit becomes its error.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.json_schema import SkipJsonSchema

from softcue.errors import near_matches
from softcue.serving.engine.requests import Ensemble
from softcue.serving.errors import RequestError
from softcue.serving.settings import MAX_INPUTS
from softcue.types import LabelValue

FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
# what stands around the expectation in pydantic's messages, such as "List should have at most 4 items after validation"
PYDANTIC_MESSAGE = re.compile(r"^\w+ should (be|have) | after validation.*$|^Value error, ")
UNION_FIELDS = {
    "task": "a name, or a list of names",
    "text": "a text, or a list of texts",
    "prompt": "a text, or a list of texts",
}
MOST_FIELDS = 32  # of an object, known or not
StopWord = Annotated[str, Field(min_length=1, max_length=64)]
# Stops at the first wrong item: a report of each item of a large body would take gigabytes.
Texts = Annotated[list[str], Field(fail_fast=True)]


def describe_error(error: dict[str, Any], setting: str, fields: Collection[str]) -> RequestError:
    """The first error of pydantic as a request error, which names the field and not its value.

    `setting` is what has the fields: "body" or "input".

    Example:
        >>> describe_error({"type": "missing", "loc": ("text",), "msg": "Field required"}, "input", ["text"]).message
        'text: this field is missing; see /docs for the fields'
        >>> describe_error({"type": "extra_forbidden", "loc": ("txt",), "msg": ""}, "input", ["task", "text"]).message
        "input: there is no field 'txt'; did you mean 'text'? known: task, text"
    """
    if not error["loc"]:
        return RequestError(
            "invalid", setting=setting, expected="a JSON object", fix=f"it has the fields {', '.join(fields)}"
        )
    field, fix = str(error["loc"][0]), "see /docs for the fields"
    if len(error["loc"]) > 1 and error["type"] in ("extra_forbidden", "missing"):  # a field of an object in the field
        inner = str(error["loc"][-1])
        name = f"field '{inner}'" if FIELD_NAME.fullmatch(inner) else "unknown field"
        problem = f"its {name} is missing" if error["type"] == "missing" else f"it takes no {name}"
        return RequestError("invalid", setting=field, problem=problem, fix=fix)
    if error["type"] == "extra_forbidden":
        # The name of the field is the client's. It is repeated only if it is a plain word: it might be a text.
        problem = f"there is no field '{field}'" if FIELD_NAME.fullmatch(field) else "it has an unknown field"
        return RequestError("invalid", setting=setting, problem=problem, fix=near_matches(field[:64], fields))
    if error["type"] == "missing":
        return RequestError("invalid", setting=field, problem="this field is missing", fix=fix)
    if field in UNION_FIELDS:  # pydantic names only the first of the possible types
        return RequestError("invalid", setting=field, expected=UNION_FIELDS[field], fix=fix)
    expected = PYDANTIC_MESSAGE.sub("", error["msg"])
    return RequestError("invalid", setting=field, expected=expected[:1].lower() + expected[1:], fix=fix)


def _describe_input(value: object) -> RequestError:
    try:
        Input.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_input=False, include_url=False, include_context=False)
        unknown = [entry for entry in errors if entry["type"] == "extra_forbidden"]  # often explains a missing field
        return describe_error(dict((unknown or errors)[0]), "input", Input.model_fields)
    raise AssertionError("only values that do not fit come here")


class RequestBody(BaseModel):
    """The settings of all request bodies: no unknown fields, no conversions between types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _check_number(cls, value: object) -> object:
        """Stop before pydantic reports each of many unknown fields, which takes seconds and much memory."""
        if isinstance(value, dict) and len(value) > MOST_FIELDS:
            raise ValueError(f"at most {MOST_FIELDS} fields")
        return value


class Input(RequestBody):
    """One text (or pair of texts) for one task."""

    task: str | Texts = Field(description="a cue's name; for an ensemble the cues' names, or their task's name")
    text: str | Texts = Field(description="the text; a list if the task reads several texts")


CheckedInput = Annotated[
    Input | SkipJsonSchema[Annotated[Any, AfterValidator(_describe_input)]], Field(union_mode="left_to_right")
]


class InputsBody(RequestBody):
    """The inputs of every body."""

    inputs: list[CheckedInput] = Field(
        min_length=1,
        max_length=MAX_INPUTS,
        description="tasks and texts; a bad input gets an error of its own (most servers take 32 at a time)",
    )


class PredictBody(InputsBody):
    """The body of POST /v1/predict."""

    return_scores: bool = Field(False, description="return a probability per label, if the task has labels")
    truncate: bool = Field(False, description="cut texts that are too long instead of rejecting them")
    ensemble: Ensemble | None = Field(None, description="one prediction per input from all cues of its task")


class GenerateBody(PredictBody):
    """The body of POST /v1/generate."""

    stop: list[StopWord] = Field(default_factory=list, max_length=4, description="generated text ends before these")
    max_new_tokens: int | None = Field(None, ge=1, description="replaces the cue's own limit")
    stream: bool = Field(False, description="server-sent events: text while it is generated, then each prediction")


class ExplainBody(InputsBody):
    """The body of POST /v1/explain: the inputs of a prediction."""


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
    """Milliseconds in the queue and in forward passes; those of a long text's windows are added up."""

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
    labels: list[LabelValue] | None = Field(
        None, description="the set of labels of a multi-label task, in place of `label`; it may be empty"
    )
    value: float | None = Field(None, description="the number of a regression task")
    scores: dict[str, float] | None = Field(
        None, description="probability by label; of a multi-label task each by itself"
    )
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


class PromptExplanation(BaseModel):
    """The vectors of a cue's prompt for one input."""

    task: str
    version: str
    method: str
    reads_input: bool
    vectors: list[PromptVector]


class ExplainResponse(BaseModel):
    """An explanation or an error per input, in order."""

    results: list[PromptExplanation | InputFailure]


class CheckedExample(BaseModel):
    """A message that comes with softcue, and the cues that predict its right label."""

    texts: list[str] = Field(description="one text, or two for cues that read two")
    labels: dict[str, str] = Field(description="the right label, by the name of each loaded cue that was checked")


class ExamplesResponse(BaseModel):
    """Messages for which every loaded cue of a sample task is right."""

    examples: list[CheckedExample]


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
    metric: str = Field(description="the main metric of the task")
    scores: dict[str, dict[str, float]] = Field(description="split -> metric -> score")
    rows: dict[str, int] = Field(description="split -> rows behind its scores, as far as the cue has it")


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
    runtime: str  # what runs the frozen layers
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
