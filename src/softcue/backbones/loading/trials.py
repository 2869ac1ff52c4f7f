"""How a model is tried before it is used: one typical pass, whether two of them agree, and how long each takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from softcue.backbones.families import family_of

ROWS, LENGTH, ANSWER = 8, 64, 4  # a typical batch
MANY_ROWS, MOST_ROWS = 8, 256  # that keep a processor busy; that are as many as one likes
PASS_TOKENS = 64.0  # what a pass costs by itself, where it is not measured
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}  # between implementations, of the largest number

Run = Callable[[], object]
Outcome = tuple[Tensor, Tensor]  # outputs and gradients of real positions


def typical_pass(model: Any) -> Callable[[], Outcome]:
    """A pass over padded rows of frozen words and back to them, which gives outputs and gradients of real positions.

    Example:
        outputs, gradients = typical_pass(model)()
    """
    kind = family_of(model.config.model_type).kind
    table = model.get_input_embeddings().weight.detach()  # [V D]
    words = table[torch.arange(ROWS * LENGTH, device=table.device) * 7 % len(table)].view(ROWS, LENGTH, -1)  # [B T D]
    lengths = torch.linspace(LENGTH, LENGTH // 4, ROWS, device=table.device).long()  # [B]
    places = torch.arange(LENGTH, device=table.device)
    is_real = places < lengths[:, None] if kind != "decoder" else places >= LENGTH - lengths[:, None]  # [B T]
    inputs: dict[str, Any] = {"attention_mask": is_real.long()}
    if kind == "encoder-decoder":
        inputs["decoder_inputs_embeds"] = words[:, :ANSWER]
    if kind != "encoder":
        inputs["use_cache"] = False

    def run() -> Outcome:
        with torch.inference_mode(False), torch.enable_grad():
            embeds = words.clone().requires_grad_()
            output = model.base_model(inputs_embeds=embeds, **inputs)[0].float()
            real = output.flatten(0, 1) if kind == "encoder-decoder" else output[is_real]
            # uneven: of an equal sum of squares, say, a norm leaves nothing
            uneven = torch.arange(real.shape[1], device=real.device).cos()
            (gradient,) = torch.autograd.grad((real * uneven).mean(), embeds)
        return real.detach(), gradient[is_real].float()

    return run


def pass_tokens(model: Any, length: int = LENGTH, seconds: float = 0.5) -> float:
    """How many tokens take as long as a pass takes by itself: a / b, where a pass over n tokens takes a + b n.

    A GPU has a large a and hardly any b, so it should be given many rows, whatever their length; with one core of a
    processor it is the other way round, and padding is what costs. Large models are not tried, as that would take
    longer than it helps.

    Example:
        pass_tokens(model)     # MiniLM: 23 to 30 on one core, 40 to 85 on two
    """
    table = model.get_input_embeddings().weight.detach()  # [V D]

    @torch.no_grad()
    def read(num_rows: int) -> None:
        ids = torch.arange(num_rows * length, device=table.device) * 7 % len(table)
        inputs: dict[str, Any] = {"inputs_embeds": table[ids].view(num_rows, length, -1)}  # [B T D]
        kind = family_of(model.config.model_type).kind
        if kind != "encoder":
            inputs["use_cache"] = False
        if kind == "encoder-decoder":
            inputs["decoder_inputs_embeds"] = inputs["inputs_embeds"][:, :1]
        model.base_model(**inputs)

    read(1)  # warms up
    if _seconds(lambda: read(1), table.device) * MANY_ROWS > 2 * seconds:
        return PASS_TOKENS
    found = race({"one": lambda: read(1), "many": lambda: read(MANY_ROWS)}, table.device, seconds)
    one, many = min(found["one"]), min(found["many"])
    each = (many - one) / (MANY_ROWS - 1)  # b times the length of a row
    alone = one - each  # a
    return length * max(0.0, alone) / each if each * MOST_ROWS > alone else float(length * MOST_ROWS)


@contextmanager
def first_layers(model: Any, number: int) -> Iterator[None]:
    """While active, the model has only its first layers. For models no one else uses yet.

    Example:
        with first_layers(model, 2):
            outputs, gradients = typical_pass(model)()
    """
    architecture = family_of(model.config.model_type)
    whole: list[tuple[Any, str, nn.ModuleList]] = []
    for stack in (architecture.reader, architecture.writer):
        if stack is not None:
            path, _, name = stack.layers.rpartition(".")
            parent = model.base_model.get_submodule(path)
            whole.append((parent, name, getattr(parent, name)))
    try:
        for parent, name, layers in whole:
            setattr(parent, name, nn.ModuleList(list(layers)[:number]))
        yield
    finally:
        for parent, name, layers in whole:
            setattr(parent, name, layers)


def agree(found: Outcome, wanted: Outcome, dtype: torch.dtype) -> bool:
    """Whether two passes of a model in a number format gave the same, up to rounding.

    Example:
        >>> one = torch.ones(2), torch.ones(2)
        >>> agree(one, one, torch.float32), agree((torch.zeros(2), torch.ones(2)), one, torch.float32)
        (True, False)
    """
    bound = TOLERANCE[dtype]
    return all(bool((a - b).abs().max() <= bound * b.abs().max()) for a, b in zip(found, wanted, strict=True))


def race(runs: Mapping[str, Run], device: torch.device, seconds: float, turns: int = 15) -> dict[str, list[float]]:
    """Seconds of each, taken in turn so that a slow moment hits all alike; as many turns as fit, one at least.

    Example:
        >>> sorted(race({"a": lambda: 1, "b": lambda: 2}, torch.device("cpu"), seconds=0.1))
        ['a', 'b']
    """
    first = {name: [_seconds(run, device)] for name, run in runs.items()}  # warms up
    if sum(own[0] for own in first.values()) > seconds:
        return first
    found: dict[str, list[float]] = {name: [] for name in runs}
    started = time.perf_counter()
    for turn in range(turns):
        for name in list(runs)[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(_seconds(runs[name], device))
        if time.perf_counter() - started > seconds:
            break
    return found


def _seconds(run: Run, device: torch.device) -> float:
    started = time.perf_counter()
    run()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - started


def speed(seconds: Mapping[str, list[float]], name: str, than: str) -> float:
    """How many times as fast, by the median of the turns.

    Example:
        >>> speed({"a": [1.0, 1.0], "b": [2.0, 3.0]}, "a", than="b")
        2.5
    """
    return statistics.median(b / a for a, b in zip(seconds[name], seconds[than], strict=True))
