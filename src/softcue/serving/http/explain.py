"""Explain a cue's prompt for a text: the words its vectors are near to and, for a codebook, its codes.

Backbones hold no task state, and prompts are injected through context variables. So an explanation may run beside the
inference threads. It has one thread of its own: explanations wait for each other and take at most one core.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from softcue.backbones import Backbone
from softcue.errors import SoftcueError
from softcue.inputs.collate import collate
from softcue.inspection.nearest import neighbours
from softcue.serving.engine.registry import LoadedCue
from softcue.serving.engine.requests import check_characters, check_texts
from softcue.serving.errors import RequestError, busy, deadline_exceeded, invalid, pass_failed
from softcue.serving.http.error_responses import too_many_inputs
from softcue.serving.http.schemas import ExplainBody, Input
from softcue.serving.http.service import Service

MAX_WAITING = 8  # requests at once
TOP_CODES = 3  # of a vector
TOP_WORDS = 3  # of a vector or a code
logger = logging.getLogger("softcue.serving")
Explanation = dict[str, object]


class Explainer:
    """Makes explanations one after the other, on a thread that is not an inference thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pool = ThreadPoolExecutor(1, "softcue-explain")
        self._num_waiting = 0  # only the event loop changes it

    async def explain(self, body: ExplainBody, began: float) -> list[Explanation | RequestError]:
        """Explain the prompt of each input, in order; keys, limits and errors are those of a prediction."""
        settings = self._service.settings
        if len(body.inputs) > settings.max_inputs:
            raise too_many_inputs(settings.max_inputs)
        if self._num_waiting >= MAX_WAITING:
            raise busy(MAX_WAITING, "explain requests at once")
        self._num_waiting += 1
        try:
            return [await self._explain_input(value, began + settings.deadline) for value in body.inputs]
        finally:
            self._num_waiting -= 1

    async def _explain_input(self, value: Input | RequestError, deadline: float) -> Explanation | RequestError:
        """The explanation of one input, or its own error."""
        if isinstance(value, RequestError):
            return value
        engine = self._service.engine
        try:
            if not isinstance(value.task, str):
                raise RequestError("invalid", setting="task", expected="one name", fix="send an input per cue")
            loaded_cue = engine.registry[value.task]
            texts = [value.text] if isinstance(value.text, str) else value.text
            check_characters(texts, engine.max_characters)
            if not loaded_cue.task.format:  # a published format may rewrite its rows
                check_texts(loaded_cue.task, texts)
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await asyncio.wrap_future(self._pool.submit(_explain_safely, loaded_cue, value.text))
        except TimeoutError:
            return deadline_exceeded()
        except RequestError as error:
            return error

    def close(self) -> None:
        """Finish the current explanation."""
        self._pool.shutdown(cancel_futures=True)


def _explain_safely(loaded_cue: LoadedCue, text: str | list[str]) -> Explanation:
    try:
        return explain_prompt(loaded_cue, text)
    except SoftcueError as error:
        raise invalid(error) from None
    except Exception as error:
        logger.exception("a prompt could not be explained")
        raise pass_failed() from error


@torch.no_grad()
def explain_prompt(loaded_cue: LoadedCue, text: str | Sequence[str]) -> Explanation:
    """The vectors of a cue's prompt for a text, each with its nearest words and its likeliest codes.

    There are none if a cue has no prompt among the words. If a text is read in several windows, the first is used.

    Example:
        explain_prompt(engine.registry["tickets"], "My invoice is wrong.")["vectors"][0]["words"]
    """
    cue, model = loaded_cue.cue, loaded_cue.model
    backbone, method = cue.backbone, model.method
    [example] = cue.examples([text])
    explanation: Explanation = {
        "task": loaded_cue.name,
        "version": loaded_cue.version,
        "method": cue.cue_file.method["name"],
        "reads_input": method.reads_input,
        "vectors": [],
    }
    encoder = method.prompt_encoder()
    if encoder is None:
        return explanation
    rows = model.rows(backbone, model.split(example)[:1], use_disk_cache=False)
    batch = collate(rows, backbone.tokenizer.pad_token_id).to(backbone.device)
    view = method.view_of(backbone)
    instance = model.instance(view, batch, view.input_states(batch))
    prompt = method.prompt(instance)
    if prompt is None or not bool(prompt.tokens.any()):  # only deeper layers have a prompt
        return explanation
    codebook = encoder.codebook()
    words = _nearest(view, prompt.tokens[0])
    shares = None if codebook is None else encoder.assignment(instance)[0]  # [n K]
    codes = [] if codebook is None or shares is None else _likeliest_codes(view, codebook, shares)
    no_codes: list[list[Explanation]] = [[]] * (len(words) - len(codes))  # vectors without codes come first
    explanation["vectors"] = [
        {"words": near_words} | ({"codes": vector_codes} if vector_codes else {})
        for near_words, vector_codes in zip(words, no_codes + codes, strict=True)
    ]
    return explanation


def _likeliest_codes(view: Backbone, codebook: Tensor, shares: Tensor) -> list[list[Explanation]]:
    """The likeliest codes of each vector, from their shares [n K]."""
    values, numbers = shares.topk(min(TOP_CODES, shares.shape[1]), dim=1)  # [n top]
    used, places = numbers.unique(return_inverse=True)
    words = _nearest(view, codebook[used])
    return [
        [
            {"code": number, "share": round(share, 4), "words": words[place]}
            for number, share, place in zip(*vector, strict=True)
        ]
        for vector in zip(numbers.tolist(), values.tolist(), places.tolist(), strict=True)
    ]


def _nearest(view: Backbone, vectors: Tensor) -> list[list[Explanation]]:
    """The words nearest to each vector [n D]."""
    if view.whole is not view:  # states of a deeper layer: each word would need a pass
        return [[] for _ in vectors]
    return [
        [{"word": near.word, "cosine": round(near.cosine, 4)} for near in words]
        for words in neighbours(view, vectors, TOP_WORDS)
    ]
