"""Tasks of lm-evaluation-harness with a cue: its learned prompt in front of each context, on its frozen backbone.

    python -m softcue.interop.lm_eval run --model softcue --model_args cue=cues/titles --tasks TASK

The harness writes the whole context, so the cue's own template and answer prefix are left out. Its package is an
extra, hence imported inside functions; it has no entry points for models, hence the command above.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from softcue.backbones import ForwardPass
from softcue.backbones.passes.decoding import cut_at_stop
from softcue.backbones.passes.forward_pass import sum_log_probabilities
from softcue.cue import Cue, load
from softcue.errors import ConfigurationError, DataError, MissingExtraError, SoftcueError
from softcue.inference import TaskModel
from softcue.inference.task_model import with_readout
from softcue.inputs.collate import batch_by_length, collate
from softcue.readouts.generation import Generation
from softcue.tasks import Task
from softcue.types import Batch, Example, TokenizedRow

NAME = "softcue"  # of the model in the harness
BATCH_SIZE = 16
MAX_NEW_TOKENS = 256  # as the harness has it
GREEDY = {"do_sample": (False, None), "temperature": (0, 0.0, None), "num_beams": (1, None)}


class CueScorer:
    """Log-likelihoods and generated text of a cue for contexts that are written out already.

    Example:
        CueScorer(softcue.load("cues/titles")).log_likelihoods([("The parcel is", " late")])
    """

    def __init__(self, cue: Cue, batch_size: int = BATCH_SIZE) -> None:
        readout = cue.model.readout
        if not isinstance(readout, Generation) or readout.sentinels is not None or cue.model.reformulation is not None:
            raise ConfigurationError(
                setting="cue",
                got=cue.name,
                expected="a cue that writes its target as text: readout.name=generation without a sentinel",
                fix="train one on a decoder or an encoder-decoder",
            )
        self.cue, self._batch_size = cue, batch_size
        self._models: dict[int, TaskModel] = {}  # by the most target tokens

    def log_likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation of a context, and whether greedy decoding would write it.

        Example:
            scorer.log_likelihoods([("The parcel is", " late"), ("The parcel is", " blue")])
        """
        if not pairs:
            return []
        pairs = [_move_spaces(context, continuation) for context, continuation in pairs]
        targets = [self._target_ids(context, continuation) for context, continuation in pairs]
        model = self._model(max(map(len, targets)))
        rows = self._rows(model, [context for context, _ in pairs])
        rows = [replace(row, target_ids=target) for row, target in zip(rows, targets, strict=True)]
        results: dict[int, tuple[float, bool]] = {}
        lengths = [model.length(row) for row in rows]
        for numbers in batch_by_length(lengths, self._batch_size, model.tokens_at_once):
            results |= dict(zip(numbers, self._score(model, [rows[number] for number in numbers]), strict=True))
        return [results[number] for number in range(len(rows))]

    def generate(self, contexts: Sequence[str], until: Sequence[str], max_new_tokens: int) -> list[str]:
        """The text that greedy decoding writes after each context, up to the first of the stop texts.

        Example:
            scorer.generate(["Question: Who came?\\nAnswer:"], until=["\\n"], max_new_tokens=16)
        """
        if not contexts:
            return []
        model, texts = self._model(max_new_tokens), dict[int, str]()
        rows = self._rows(model, contexts)
        lengths = [model.length(row) for row in rows]
        for numbers in batch_by_length(lengths, self._batch_size, model.tokens_at_once):
            generated = self._generate(model, [rows[number] for number in numbers], until)
            texts |= dict(zip(numbers, generated, strict=True))
        return [texts[number] for number in range(len(contexts))]

    @torch.no_grad()
    def _generate(self, model: TaskModel, rows: Sequence[TokenizedRow], until: Sequence[str]) -> list[str]:
        tokenizer, decoding = self.cue.backbone.tokenizer, model.readout.decoding
        assert decoding is not None

        def decode(ids: Sequence[int]) -> str:
            return str(tokenizer.decode(ids, skip_special_tokens=True))

        def has_stop(ids: Sequence[int]) -> bool:
            text = decode(ids)
            return any(stop in text for stop in until)

        forward_pass = self._read(model, rows)[0]
        forward_pass = replace(forward_pass, listeners=[has_stop] * len(rows))
        return [cut_at_stop(decode(ids), until) for ids in forward_pass.generate(decoding)]

    @torch.no_grad()
    def _score(self, model: TaskModel, rows: Sequence[TokenizedRow]) -> list[tuple[float, bool]]:
        forward_pass, batch = self._read(model, rows, with_target=True)
        logits = forward_pass.target_logits(batch.target_ids).float()  # [B U V]
        sums = sum_log_probabilities(logits, batch.target_ids, batch.target_mask)  # [B]
        is_likeliest = (logits.argmax(dim=-1) == batch.target_ids) | ~batch.target_mask  # [B U]
        return list(zip(sums.tolist(), is_likeliest.all(dim=1).tolist(), strict=True))

    def _read(
        self, model: TaskModel, rows: Sequence[TokenizedRow], with_target: bool = False
    ) -> tuple[ForwardPass, Batch]:
        """A forward pass of rows with the cue's prompt, and their batch."""
        backbone = self.cue.backbone
        batch = collate(rows, backbone.tokenizer.pad_token_id).to(backbone.device)
        return model.read(model.method.view_of(backbone), batch, with_target)[0], batch

    def _model(self, num_target_tokens: int) -> TaskModel:
        """The cue's method with room for so many target tokens, which reads a context as it is."""
        if num_target_tokens not in self._models:
            cue = self.cue
            update = {"decoding": "greedy", "max_new_tokens": num_target_tokens}
            readout = cue.model.readout.config.model_copy(update=update)
            task = Task(name="lm-eval", kind="generation")
            model = with_readout(task, cue.model.method, readout, cue.backbone, cue.model.max_length)
            model.formatter = replace(model.formatter, answer_prefix="")
            self._models[num_target_tokens] = model.eval()
        return self._models[num_target_tokens]

    def _rows(self, model: TaskModel, contexts: Sequence[str]) -> list[TokenizedRow]:
        for context in contexts:
            if not context.strip():
                raise DataError(
                    setting="context",
                    got=context,
                    expected="a text: a cue writes a target for a source",
                    fix="choose a task of the harness whose contexts are not empty",
                )
        rows = model.rows(self.cue.backbone, [Example((context,)) for context in contexts], use_disk_cache=False)
        for context, row in zip(contexts, rows, strict=True):
            if row.is_truncated:
                raise DataError(
                    setting="context",
                    got=f"{len(context)} characters",
                    expected=f"at most {model.formatter.limit} tokens beside the cue's prompt and the target",
                    fix="take fewer few-shot examples or a lower max_gen_toks, or a backbone that reads longer texts",
                )
        return list(rows)

    def _target_ids(self, context: str, continuation: str) -> tuple[int, ...]:
        """The tokens of a continuation: on a decoder those behind the context's, else those of the text alone."""
        tokenizer = self.cue.backbone.tokenizer

        def encode(text: str) -> list[int]:
            ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            return ids

        if self.cue.backbone.kind == "decoder":
            ids = encode(context + continuation)[len(encode(context)) :]
        else:
            ids = encode(continuation)
        if not ids:
            raise DataError(
                setting="continuation", got=continuation, expected="a text with tokens", fix="check the task's choices"
            )
        return tuple(ids)


def _move_spaces(context: str, continuation: str) -> tuple[str, str]:
    """The spaces at the end of a context belong to the continuation, as the harness itself has it."""
    stripped = context.rstrip()
    return (stripped, context[len(stripped) :] + continuation) if stripped else (context, continuation)


@cache
def register() -> type[Any]:
    """Register the model `softcue` with the harness, and return its class.

    Example:
        softcue_model = register()
        lm_eval.simple_evaluate(model="softcue", model_args="cue=cues/titles", tasks=["my-task"])
        lm_eval.simple_evaluate(model=softcue_model(cue), tasks=["my-task"])
    """
    try:
        from lm_eval.api.model import LM
        from lm_eval.api.registry import register_model
        from lm_eval.models import MODEL_MAPPING  # noqa: F401  the harness looks for its own models only once
    except ImportError as error:
        raise MissingExtraError("lm_eval", "lm-eval") from error

    @register_model(NAME)
    class SoftcueLM(LM):  # type: ignore[misc, unused-ignore]
        """A cue as a model of the harness."""

        def __init__(
            self,
            cue: str | Path | Cue,
            backbone: str | None = None,
            batch_size: int | str = BATCH_SIZE,
            max_gen_toks: int = MAX_NEW_TOKENS,
            max_batch_size: int | None = None,
            device: str | None = None,
        ) -> None:
            super().__init__()
            loaded = cue if isinstance(cue, Cue) else load(cue, backbone)
            if device is not None and _is_elsewhere(torch.device(device), loaded.backbone.device):
                raise ConfigurationError(
                    setting="device",
                    got=device,
                    expected=f"{loaded.backbone.device.type}, where the backbone is",
                    fix="leave it out",
                )
            size = int(batch_size) if str(batch_size).isdecimal() else max_batch_size or BATCH_SIZE  # else "auto"
            self._scorer, self._max_gen_toks = CueScorer(loaded, size), max_gen_toks

        def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            """Score continuations of contexts."""
            return self._scorer.log_likelihoods([request.args for request in requests])

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            """Say that a cue has no perplexity of plain text."""
            raise ConfigurationError(
                setting="task",
                got="loglikelihood_rolling",
                expected="a task with contexts: a cue writes a target for a source, it has no perplexity of plain text",
                fix="choose a task of loglikelihood, multiple_choice or generate_until",
            )

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            """Generate text greedily."""
            texts: dict[int, str] = {}
            groups: dict[tuple[tuple[str, ...], int], list[int]] = {}
            for number, request in enumerate(requests):
                groups.setdefault(_generation_settings(request.args[1], self._max_gen_toks), []).append(number)
            for (until, max_new_tokens), numbers in groups.items():
                contexts = [requests[number].args[0] for number in numbers]
                texts |= dict(zip(numbers, self._scorer.generate(contexts, until, max_new_tokens), strict=True))
            return [texts[number] for number in range(len(requests))]

    return SoftcueLM


def _is_elsewhere(wanted: torch.device, device: torch.device) -> bool:
    """Whether another device is wanted. The harness asks for cuda:0 by itself, also where there is none."""
    return wanted.type != device.type and (wanted.type != "cuda" or torch.cuda.is_available())


def _generation_settings(settings: Mapping[str, Any], max_gen_toks: int) -> tuple[tuple[str, ...], int]:
    """Stop texts and most tokens of the harness' generation settings; sampling and beams are errors."""
    for name, allowed in GREEDY.items():
        if settings.get(name) not in allowed:
            raise ConfigurationError(
                setting=f"gen_kwargs {name}",
                got=settings[name],
                expected="greedy decoding",
                fix="leave it out, or set do_sample=False and temperature=0",
            )
    until = settings.get("until") or ()
    stops = (until,) if isinstance(until, str) else tuple(until)
    return tuple(stop for stop in stops if stop), int(settings.get("max_gen_toks") or max_gen_toks)


def main() -> None:
    """Run the harness' own command line with the model `softcue` in its registry."""
    try:
        register()
        from lm_eval.__main__ import cli_evaluate

        cli_evaluate()
    except SoftcueError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
