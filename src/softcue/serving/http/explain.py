"""What a cue's prompt is made of for one text: the words its vectors are near to and, of a codebook, its codes.

Backbones hold no task state and what a pass injects travels in context variables, so this may run beside the inference
thread. It has one thread of its own: many who ask wait for each other, and answers lose no more than one core.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from softcue.backbones import Backbone
from softcue.errors import SoftcueError
from softcue.inputs.collate import collate
from softcue.inspection.nearest import neighbours
from softcue.serving.engine.registry import LoadedCue
from softcue.serving.engine.results import failed
from softcue.serving.errors import busy, check_characters, deadline_exceeded, invalid
from softcue.serving.http.schemas import ExplainBody
from softcue.serving.http.service import Service
from softcue.types import Instance

MAX_WAITING = 8  # explanations asked for at once
TOP_CODES = 3  # of a vector
TOP_WORDS = 3  # of a vector or a code
logger = logging.getLogger("softcue.serving")
Explanation = dict[str, object]


class Explainer:
    """Explanations one after the other, on a thread that is not the inference thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pool = ThreadPoolExecutor(1, "softcue-explaining")
        self._num_waiting = 0  # only the event loop changes it

    async def explain(self, body: ExplainBody, deadline: float) -> Explanation:
        """What the prompt of a cue is made of for a text; keys, limits and errors are those of a prediction."""
        engine = self._service.engine
        served = engine.registry[body.task]
        texts = [body.text] if isinstance(body.text, str) else body.text
        check_characters(texts, engine.max_characters)
        if self._num_waiting >= MAX_WAITING:
            raise busy(MAX_WAITING, "explanations at once")
        self._num_waiting += 1
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await asyncio.wrap_future(self._begun(served, body.text))
        except TimeoutError:
            raise deadline_exceeded() from None
        finally:
            self._num_waiting -= 1

    def close(self) -> None:
        """Finish the one under way."""
        self._pool.shutdown(cancel_futures=True)

    def _begun(self, served: LoadedCue, text: str | list[str]) -> Future[Explanation]:
        return self._pool.submit(_guarded, served, text)


def _guarded(served: LoadedCue, text: str | list[str]) -> Explanation:
    try:
        return explained(served, text)
    except SoftcueError as error:
        raise invalid(error) from None
    except Exception as error:
        logger.exception("a prompt could not be explained")
        raise failed() from error


@torch.no_grad()
def explained(served: LoadedCue, text: str | Sequence[str]) -> Explanation:
    """The vectors of a cue's prompt for a text, each with the words it is near to and its likeliest codes.

    There are none where a cue has no prompt, or one that stands among no words. Of a text that is read in several
    windows, the first is looked at.

    Example:
        explained(engine.registry["tickets"], "My invoice is wrong.")["vectors"][0]["words"]
    """
    cue = served.cue
    model, backbone, method = cue.model, cue.backbone, cue.model.method
    [example] = cue.examples([text])
    found: Explanation = {
        "task": served.name,
        "version": served.version,
        "method": cue.cue_file.method["name"],
        "reads_input": method.reads_input,
        "vectors": [],
    }
    encoder = method.prompt_encoder()
    if encoder is None:
        return found
    rows = model.rows(backbone, model.split(example)[:1])
    batch = collate(rows, backbone.tokenizer.pad_token_id).to(backbone.device)
    seen = method.view_of(backbone)
    instance = Instance(seen.input_states(batch), batch.mask, batch.representation)
    prompt = method.prompt(instance)
    if prompt is None or not bool(prompt.tokens.any()):  # only deeper layers have a prompt
        return found
    codebook = encoder.codebook()
    words = _nearest(seen, prompt.tokens[0])
    shares = None if codebook is None else encoder.assignment(instance)[0]  # [n K]
    codes = [] if codebook is None or shares is None else _codes(seen, codebook, shares)
    plain: list[list[Explanation]] = [[]] * (len(words) - len(codes))  # vectors without codes stand in front
    found["vectors"] = [
        {"words": near} | ({"codes": own} if own else {}) for near, own in zip(words, plain + codes, strict=True)
    ]
    return found


def _codes(seen: Backbone, codebook: Tensor, shares: Tensor) -> list[list[Explanation]]:
    """The likeliest codes of each vector, from their shares [n K]."""
    values, numbers = shares.topk(min(TOP_CODES, shares.shape[1]), dim=1)  # [n top]
    used, places = numbers.unique(return_inverse=True)
    words = _nearest(seen, codebook[used])
    return [
        [
            {"code": number, "share": round(share, 4), "words": words[place]}
            for number, share, place in zip(*own, strict=True)
        ]
        for own in zip(numbers.tolist(), values.tolist(), places.tolist(), strict=True)
    ]


def _nearest(seen: Backbone, vectors: Tensor) -> list[list[Explanation]]:
    """The words nearest to each vector [n D]."""
    if not isinstance(seen.word_input_states, Tensor):  # states of a deeper layer: each word would need a pass
        return [[] for _ in vectors]
    found = neighbours(seen, vectors, TOP_WORDS)
    return [[{"word": near.word, "cosine": round(near.cosine, 4)} for near in own] for own in found]
