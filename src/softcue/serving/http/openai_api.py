"""The completions of OpenAI's API: /v1/completions, /v1/chat/completions and /v1/models. A cue's name is the model.

A cue that generates text answers with it, a cue that predicts one label with the label. Cues decode as they were
trained to: settings that would change this are errors instead of being ignored.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import StreamingResponse

from softcue.serving.engine.registry import LoadedCue
from softcue.serving.engine.requests import Options, ServedPrediction
from softcue.serving.errors import STATUSES, RequestError
from softcue.serving.http.error_responses import error_content
from softcue.serving.http.middleware import BodyRoute
from softcue.serving.http.schemas import Input, RequestBody, StopWord, Texts
from softcue.serving.http.service import CurrentService, Service
from softcue.serving.http.submitted_inputs import EVENT_HEADERS, SubmittedInputs, data_event
from softcue.serving.settings import MAX_INPUTS

DONE = b"data: [DONE]\n\n"
MakeChunk = Callable[[str, bool], dict[str, object]]  # a part of a text, and whether it is the first of its choice


class CompletionSettings(RequestBody):
    """What both kinds of completion take. Fields that a cue cannot follow allow only the value without effect."""

    model: str = Field(description="a cue's name")
    max_tokens: int | None = Field(None, ge=1, description="replaces the cue's own limit; for cues that generate text")
    stop: StopWord | Annotated[list[StopWord], Field(max_length=4)] | None = Field(
        None, description="generated text ends before these"
    )
    stream: bool = Field(False, description="server-sent events: text while it is generated")
    temperature: float | None = Field(None, ge=0, le=0, description="only 0: the cue decodes as it was trained to")
    top_p: float | None = Field(None, ge=1, le=1, description="only 1")
    n: int | None = Field(None, ge=1, le=1, description="only 1")
    presence_penalty: float | None = Field(None, ge=0, le=0, description="only 0")
    frequency_penalty: float | None = Field(None, ge=0, le=0, description="only 0")
    seed: int | None = Field(None, description="no effect: the same text gets the same completion")
    user: str | None = Field(None, description="no effect, and not logged")

    def options(self) -> Options:
        """The settings for the engine."""
        stop = () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        return Options(truncate=False, max_new_tokens=self.max_tokens, stop=stop)


class CompletionBody(CompletionSettings):
    """The body of POST /v1/completions."""

    prompt: str | Texts = Field(description="a text, or a list of texts with a completion each")


class TextPart(RequestBody):
    """One text of a message."""

    type: Literal["text"]
    text: str


class UserMessage(RequestBody):
    """The text that the cue reads."""

    role: Literal["user"]
    content: str | Annotated[list[TextPart], Field(min_length=1, max_length=16)] = Field(
        description="the text; parts are the texts of a cue that reads several columns, in their order"
    )
    name: str | None = None


class ChatBody(CompletionSettings):
    """The body of POST /v1/chat/completions: one message, because a cue reads one input and knows no conversation."""

    messages: list[UserMessage] = Field(min_length=1, max_length=1, description="one message of the user")
    max_completion_tokens: int | None = Field(None, ge=1, description="the same as max_tokens")

    def options(self) -> Options:
        """The settings for the engine."""
        update = {} if self.max_completion_tokens is None else {"max_tokens": self.max_completion_tokens}
        return CompletionSettings.options(self.model_copy(update=update))


class CompletionHead(BaseModel):
    """What all responses have. There is no `usage`: the server does not count the tokens of single requests."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str | None = Field(None, description="the cue's version")


class TextChoice(BaseModel):
    """The completion of one prompt."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class ChatMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"]
    content: str


class ChatChoice(BaseModel):
    """The completion of the message."""

    index: int
    message: ChatMessage
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class CompletionResponse(CompletionHead):
    """The body of a response of /v1/completions."""

    choices: list[TextChoice]


class ChatResponse(CompletionHead):
    """The body of a response of /v1/chat/completions."""

    choices: list[ChatChoice]


class ModelResponse(BaseModel):
    """A loaded cue."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(0, description="0: a cue does not record it")
    owned_by: str = "softcue"


class ModelsResponse(BaseModel):
    """All loaded cues."""

    object: Literal["list"] = "list"
    data: list[ModelResponse]


class OpenAIErrorDetail(BaseModel):
    """An error."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIError(BaseModel):
    """The body of an error."""

    error: OpenAIErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": OpenAIError} for status in sorted({*STATUSES.values()})}
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "a completion, or events with `stream`"}
}


class CompletionRoute(BodyRoute):
    """A route for completions."""

    body_example = '{"model": NAME, "prompt": TEXT}, or "messages" instead of "prompt" for a chat'


router = APIRouter(tags=["OpenAI's API"], responses=ERRORS)
completion_router = APIRouter(route_class=CompletionRoute, tags=["OpenAI's API"], responses=ERRORS)
routers = (router, completion_router)


@router.get("/v1/models", response_model=ModelsResponse)
async def models(service: CurrentService) -> object:
    """List all loaded cues."""
    return {"data": [{"id": cue.name} for cue in service.engine.registry.loaded()]}


@router.get("/v1/models/{name}", response_model=ModelResponse)
async def model(name: str, service: CurrentService) -> object:
    """Return one loaded cue."""
    return {"id": service.engine.registry[name].name}


@completion_router.post("/v1/completions", response_model=CompletionResponse, responses=EVENTS)
async def completions(body: CompletionBody, request: Request) -> object:
    """Complete texts: the cue's generated text, or the label that it predicts."""
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if not 1 <= len(prompts) <= MAX_INPUTS:
        raise RequestError(
            "invalid", setting="prompt", expected=f"1 to {MAX_INPUTS} texts", fix="send several requests"
        )
    completion = Completion(request, body, [Input(task=body.model, text=prompt) for prompt in prompts])
    if body.stream:
        return completion.stream("text_completion", _text_chunk)
    served = await completion.served()
    choices = [
        {"index": index, "text": _text(result), "finish_reason": _finish_reason(result)}
        for index, result in enumerate(served)
    ]
    return {**completion.head("text_completion"), "choices": choices}


@completion_router.post("/v1/chat/completions", response_model=ChatResponse, responses=EVENTS)
async def chat_completions(body: ChatBody, request: Request) -> object:
    """Answer one message: the cue's generated text, or the label that it predicts."""
    content = body.messages[0].content
    texts = content if isinstance(content, str) else [part.text for part in content]
    text = texts[0] if isinstance(texts, list) and len(texts) == 1 else texts
    completion = Completion(request, body, [Input(task=body.model, text=text)])
    if body.stream:
        return completion.stream("chat.completion.chunk", _chat_chunk)
    [result] = await completion.served()
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": _text(result)},
        "finish_reason": _finish_reason(result),
    }
    return {**completion.head("chat.completion"), "choices": [choice]}


class Completion:
    """One request for completions: its inputs in the engine, and the fields that all its responses share."""

    def __init__(self, request: Request, body: CompletionSettings, inputs: list[Input]) -> None:
        service: Service = request.app.state.service
        self._cue = service.engine.registry[body.model]
        _check_answers_with_text(self._cue)
        self._id, self._created = uuid.uuid4().hex, int(time.time())
        options, limit = body.options(), service.settings.max_new_tokens
        if (options.max_new_tokens or 0) > limit:
            raise RequestError("invalid", setting="max_tokens", expected=f"1 to {limit}", fix="lower it")
        should_stream = body.stream and self._cue.task.kind == "generation"  # a label is not the text that is written
        self._inputs = SubmittedInputs(request, inputs, options, should_stream)

    def head(self, kind: str) -> dict[str, object]:
        """The fields of a response besides its choices."""
        prefix = "cmpl" if kind == "text_completion" else "chatcmpl"
        return {
            "id": f"{prefix}-{self._id}",
            "object": kind,
            "created": self._created,
            "model": self._cue.name,
            "system_fingerprint": self._cue.version,
        }

    async def served(self) -> list[ServedPrediction]:
        """The predictions of all inputs."""
        return await self._inputs.predictions()

    def stream(self, kind: str, make_chunk: MakeChunk) -> StreamingResponse:
        """Server-sent events with the parts of the texts; `make_chunk` makes the fields of a choice."""
        return StreamingResponse(self._events(kind, make_chunk), media_type="text/event-stream", headers=EVENT_HEADERS)

    async def _events(self, kind: str, make_chunk: MakeChunk) -> AsyncIterator[bytes]:
        head, begun = self.head(kind), set()
        async with aclosing(self._inputs.parts()) as parts:
            async for index, part in parts:
                if isinstance(part, RequestError):
                    self._inputs.abandon()
                    yield data_event(error_content(part.as_dict(), "openai"))
                    return
                text, reason = (part, None) if isinstance(part, str) else ("", _finish_reason(part))
                if not isinstance(part, str) and index not in begun:  # a label comes as a whole
                    text = _text(part)
                choice = {"index": index, "finish_reason": reason, **make_chunk(text, index not in begun)}
                begun.add(index)
                yield data_event({**head, "choices": [choice]})
        yield DONE


def _text_chunk(text: str, is_first: bool) -> dict[str, object]:
    return {"text": text, "logprobs": None}


def _chat_chunk(text: str, is_first: bool) -> dict[str, object]:
    return {"delta": {**({"role": "assistant"} if is_first else {}), "content": text}}


def _check_answers_with_text(cue: LoadedCue) -> None:
    """Raise an error for a cue whose prediction is not one text: a number, a set of labels, spans."""
    if cue.task.kind not in ("generation", "classification", "referent", "span"):
        raise RequestError(
            "invalid",
            setting="model",
            expected=f"a cue that answers with a text or a label; the task of this one is {cue.task.kind}",
            fix="use POST /v1/predict",
        )


def _text(result: ServedPrediction) -> str:
    return result.prediction.label_text or ""


def _finish_reason(result: ServedPrediction) -> str:
    return "stop" if result.is_ended else "length"
