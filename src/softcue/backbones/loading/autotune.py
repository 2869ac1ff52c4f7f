"""Settings of a frozen backbone that are chosen by measuring: number format, attention, and the cost of a pass.

A choice is kept in `choices.json` of the cache folder, under a key of all it depends on, so that a machine chooses the
same again. Small models are not measured: they take float32 and the default attention of transformers. No choice
changes the numbers of a model by more than rounding, and no weight is changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softcue.backbones.tracing import structure_of
from softcue.errors import BackboneError
from softcue.files import cache_folder, wait_for_lock, write_atomically

ATTENTIONS = ("eager", "sdpa", "flash_attention_2")
MEASURED_WEIGHTS = 5_000_000  # models with fewer weights are fast anyway
BFLOAT16_GAIN = 1.2  # in multiplying; norms and conversions between formats cost a part of it
ATTENTION_GAIN = 1.1  # less is noise on a shared machine, and no reason to leave the default
TRIAL_ROWS, TRIAL_LENGTH, TRIAL_TARGET_LENGTH = 8, 64, 4  # sizes of a typical batch
TRIAL_LAYERS = 2  # layers are alike: two show the cost of all, however deep the model
MANY_ROWS, MOST_ROWS = 8, 256  # enough to use a whole processor; the largest batch that counts
PASS_TOKENS = 64.0  # the cost of a pass, where it is not measured
# Between implementations, relative to the largest number.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}

MatrixShapes = Sequence[tuple[int, int]]
Choice = tuple[str, dict[str, float]]  # the name chosen, and the speed of each candidate relative to the default
TimedCall = Callable[[], object]
TrialOutputs = tuple[Tensor, Tensor]  # outputs and gradients at real positions


def choose_dtype(model: Any, device: torch.device) -> torch.dtype:
    """Choose bfloat16 if this device multiplies matrices of the model's shapes clearly faster in it, else float32.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> choose_dtype(BertModel(BertConfig(hidden_size=24, num_hidden_layers=1)), torch.device("cpu"))
        torch.float32
    """
    if _is_small(model):
        return torch.float32

    def measure() -> Choice:
        gain = measure_bfloat16_speed(_matrix_shapes(model), device)
        return "bfloat16" if gain >= BFLOAT16_GAIN else "float32", {"bfloat16": gain}

    chosen = _recall_or_measure(_make_key("dtype", model, device, ""), ("float32", "bfloat16"), measure)
    return torch.bfloat16 if chosen == "bfloat16" else torch.float32


def measure_bfloat16_speed(shapes: MatrixShapes, device: torch.device) -> float:
    """Measure the speed of multiplying in bfloat16 relative to float32, forward and backward, in about a second.

    Example:
        >>> measure_bfloat16_speed([(16, 16)], torch.device("cpu")) > 0
        True
    """
    gain = 0.0
    batch_tokens = TRIAL_ROWS * TRIAL_LENGTH
    for num_rows in (8, 64, batch_tokens, batch_tokens):  # the last twice: one slow moment of float32 does not decide
        calls: dict[str, TimedCall] = {}
        for dtype in (torch.float32, torch.bfloat16):
            ones = partial(torch.ones, dtype=dtype, device=device)
            operands = [(ones(num_rows, i), ones(o, i), ones(num_rows, o)) for o, i in shapes]
            calls[str(dtype)] = partial(_multiply, operands)
        gain = relative_speed(time_in_turns(calls, device, seconds=0.2), "torch.bfloat16", "torch.float32")
        is_slow = gain < BFLOAT16_GAIN if num_rows == batch_tokens else gain < 0.2  # small products say less
        if is_slow:
            break
    return gain


def _multiply(operands: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    for states, weight, gradient in operands:
        torch.nn.functional.linear(states, weight)
        torch.mm(gradient, weight)


def choose_attention(model: Any, setting: str) -> None:
    """Give a model the attention of the setting, or with `auto` the fastest one on a typical batch.

    A candidate that raises, or whose outputs and gradients differ from those of the default, is not chosen.

    Example:
        choose_attention(model, "auto")
    """
    default = model.config._attn_implementation
    if setting != "auto":
        if not _use_attention(model, setting):
            able = [name for name in ATTENTIONS if _use_attention(model, name)]
            raise BackboneError(
                setting="backbone.attention",
                got=setting,
                expected=f"one of auto, {', '.join(able)} with {model.config.model_type} here",
                fix="set backbone.attention=auto (flash_attention_2 needs a GPU, a 16-bit format and the package "
                "flash-attn)",
            )
        return
    if _is_small(model):
        return
    able = [name for name in ATTENTIONS if _use_attention(model, name)]
    _use_attention(model, default)
    if len(able) == 1 or default not in able:
        return
    word_table = model.get_input_embeddings().weight
    key = _make_key(f"attention of {', '.join(able)}", model, word_table.device, str(word_table.dtype))
    _use_attention(model, _recall_or_measure(key, able, lambda: _measure_attention(model, able, default)))


def _use_attention(model: Any, name: str) -> bool:
    """Switch a model to an implementation of attention; return whether the model and this machine support it."""
    if name == model.config._attn_implementation:
        return True
    word_table = model.get_input_embeddings().weight
    if name == "flash_attention_2" and not (
        word_table.device.type == "cuda"
        and word_table.dtype in (torch.bfloat16, torch.float16)
        and model._supports_flash_attn
        and importlib.util.find_spec("flash_attn")  # without it transformers would download code from the hub
    ):
        return False
    if name == "sdpa" and not model._supports_sdpa:
        return False
    try:
        model.set_attn_implementation(name)
    except (ValueError, ImportError):
        return False
    return bool(model.config._attn_implementation == name)


def _measure_attention(model: Any, names: Sequence[str], default: str) -> Choice:
    """Time a trial pass with each implementation that computes the same as the default."""
    trial_pass = make_trial_pass(model)
    word_table = model.get_input_embeddings().weight

    def run_with(name: str) -> TrialOutputs:
        _use_attention(model, name)
        return trial_pass()

    with keep_first_layers(model, TRIAL_LAYERS):
        try:
            started = time.perf_counter()
            default_outputs = run_with(default)
        except Exception:  # a real batch will raise the same error with a better message
            return default, {}
        if time.perf_counter() - started > 5:  # in wide layers attention is a small part: not worth the wait
            return default, {}
        calls: dict[str, TimedCall] = {default: partial(run_with, default)}
        for name in names:
            with suppress(Exception):
                if name != default and agree(run_with(name), default_outputs, word_table.dtype):
                    calls[name] = partial(run_with, name)
        seconds = time_in_turns(calls, word_table.device, seconds=1.5)
    speeds = {name: relative_speed(seconds, name, default) for name in calls}
    best = max(speeds, key=lambda name: speeds[name])
    return best if speeds[best] >= ATTENTION_GAIN else default, speeds


def pass_tokens(model: Any, length: int = TRIAL_LENGTH) -> float:
    """Return the fixed cost of a pass in tokens, measured once per machine and model.

    Example:
        pass_tokens(model)     # MiniLM: 23 to 30 on one core, 40 to 85 on two
    """
    if _is_small(model):
        return measure_pass_tokens(model, length)
    table = model.get_input_embeddings().weight
    key = _make_key(f"cost of a pass, rows of {length}", model, table.device, str(table.dtype))
    cost = recall_entry(key, "tokens", _is_cost, lambda: {"tokens": round(measure_pass_tokens(model, length), 1)})
    return float(cost)


def _is_cost(tokens: Any) -> bool:
    return isinstance(tokens, int | float) and not isinstance(tokens, bool) and 0 <= tokens < math.inf


def measure_pass_tokens(model: Any, length: int = TRIAL_LENGTH, seconds: float = 0.5) -> float:
    """Measure the fixed cost of a pass in tokens: a / b, where a pass over n tokens takes a + b n seconds.

    On a GPU a is large and b is small, so batches should have many rows, whatever their length. On one core of a
    processor a is small, so padding is what costs. Large models are not measured, because that takes longer than it
    saves.

    Example:
        measure_pass_tokens(model)
    """
    table = model.get_input_embeddings().weight.detach()  # [V D]

    @torch.no_grad()
    def run(num_rows: int) -> None:
        ids = torch.arange(num_rows * length, device=table.device) * 7 % len(table)
        inputs: dict[str, Any] = {"inputs_embeds": table[ids].view(num_rows, length, -1)}  # [B T D]
        kind = structure_of(model).kind
        if kind != "encoder":
            inputs["use_cache"] = False
        if kind == "encoder-decoder":
            inputs["decoder_inputs_embeds"] = inputs["inputs_embeds"][:, :1]
        model.base_model(**inputs)

    run(1)  # warms up
    if _time_call(lambda: run(1), table.device) * MANY_ROWS > 2 * seconds:
        return PASS_TOKENS
    times = time_in_turns({"one": lambda: run(1), "many": lambda: run(MANY_ROWS)}, table.device, seconds)
    one_row, many_rows = min(times["one"]), min(times["many"])
    per_row = (many_rows - one_row) / (MANY_ROWS - 1)  # b times the length of a row
    fixed = one_row - per_row  # a
    return length * max(0.0, fixed) / per_row if per_row * MOST_ROWS > fixed else float(length * MOST_ROWS)


# Trial passes


def make_trial_pass(model: Any) -> Callable[[], TrialOutputs]:
    """Make a function that runs a typical batch forward and backward; it returns outputs and gradients.

    The rows are padded word embeddings. Results are those of real positions.

    Example:
        outputs, gradients = make_trial_pass(model)()
    """
    kind = structure_of(model).kind
    table = model.get_input_embeddings().weight.detach()  # [V D]
    ids = torch.arange(TRIAL_ROWS * TRIAL_LENGTH, device=table.device) * 7 % len(table)
    words = table[ids].view(TRIAL_ROWS, TRIAL_LENGTH, -1)  # [B T D]
    lengths = torch.linspace(TRIAL_LENGTH, TRIAL_LENGTH // 4, TRIAL_ROWS, device=table.device).long()[:, None]  # [B 1]
    columns = torch.arange(TRIAL_LENGTH, device=table.device)
    is_real = columns < lengths if kind != "decoder" else columns >= TRIAL_LENGTH - lengths  # [B T]
    inputs: dict[str, Any] = {"attention_mask": is_real.long()}
    if kind == "encoder-decoder":
        inputs["decoder_inputs_embeds"] = words[:, :TRIAL_TARGET_LENGTH]
    if kind != "encoder":
        inputs["use_cache"] = False

    def run() -> TrialOutputs:
        with torch.inference_mode(False), torch.enable_grad():
            embeds = words.clone().requires_grad_()
            output = model.base_model(inputs_embeds=embeds, **inputs)[0].float()
            real = output.flatten(0, 1) if kind == "encoder-decoder" else output[is_real]
            # Uneven weights: the gradient of, say, an equal sum of squares vanishes behind a norm.
            weights = torch.arange(real.shape[1], device=real.device).cos()
            (gradient,) = torch.autograd.grad((real * weights).mean(), embeds)
        return real.detach(), gradient[is_real].float()

    return run


@contextmanager
def keep_first_layers(model: Any, number: int) -> Iterator[None]:
    """Reduce a model to its first layers while active. Only for models that are not in use yet.

    Example:
        with keep_first_layers(model, 2):
            outputs, gradients = make_trial_pass(model)()
    """
    structure = structure_of(model)
    layer_lists: list[tuple[Any, str, nn.ModuleList]] = []
    for stack in (structure.source, structure.decoder):
        if stack is not None and stack.list_path is not None:  # layers that are shared all stay
            path, _, name = stack.list_path.rpartition(".")
            parent = model.base_model.get_submodule(path)
            layer_lists.append((parent, name, getattr(parent, name)))
    try:
        for parent, name, layers in layer_lists:
            setattr(parent, name, nn.ModuleList(list(layers)[:number]))
        yield
    finally:
        for parent, name, layers in layer_lists:
            setattr(parent, name, layers)


def agree(outputs: TrialOutputs, expected: TrialOutputs, dtype: torch.dtype) -> bool:
    """Return whether two passes of a model in a number format gave the same, up to rounding.

    Example:
        >>> expected = torch.ones(2), torch.ones(2)
        >>> agree(expected, expected, torch.float32), agree((torch.zeros(2), torch.ones(2)), expected, torch.float32)
        (True, False)
    """
    bound = TOLERANCE[dtype]
    return all(bool((a - b).abs().max() <= bound * b.abs().max()) for a, b in zip(outputs, expected, strict=True))


# Timing


def time_in_turns(
    calls: Mapping[str, TimedCall], device: torch.device, seconds: float, max_turns: int = 15
) -> dict[str, list[float]]:
    """Time each call in turn, so that a slow moment hits all alike; as many turns as fit, at least one.

    Example:
        >>> sorted(time_in_turns({"a": lambda: 1, "b": lambda: 2}, torch.device("cpu"), seconds=0.1))
        ['a', 'b']
    """
    first_times = {name: [_time_call(call, device)] for name, call in calls.items()}  # warms up
    if sum(times[0] for times in first_times.values()) > seconds:
        return first_times
    times: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    for turn in range(max_turns):
        for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
            times[name].append(_time_call(calls[name], device))
        if time.perf_counter() - started > seconds:
            break
    return times


def _time_call(call: TimedCall, device: torch.device) -> float:
    started = time.perf_counter()
    call()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - started


def relative_speed(seconds: Mapping[str, list[float]], name: str, than: str) -> float:
    """Return how many times as fast as another call a call is, by the median of the turns.

    Example:
        >>> relative_speed({"a": [1.0, 1.0], "b": [2.0, 3.0]}, "a", than="b")
        2.5
    """
    return statistics.median(b / a for a, b in zip(seconds[name], seconds[than], strict=True))


# Choices that are kept


def _recall_or_measure(key: str, names: Collection[str], measure: Callable[[], Choice]) -> str:
    """Return the choice kept for a key if it is one of these names, else measure one and keep it."""

    def measure_entry() -> dict[str, Any]:
        name, speeds = measure()
        return {"choice": name, "speeds": {candidate: round(speed, 3) for candidate, speed in speeds.items()}}

    return str(recall_entry(key, "choice", lambda choice: choice in names, measure_entry))


def recall_entry(key: str, field: str, is_usable: Callable[[Any], bool], measure: Callable[[], dict[str, Any]]) -> Any:
    """Return a field of what is kept for a key, else measure it and keep it. A file that cannot be read is empty.

    Example:
        recall_entry("cost of a pass | cpu", "tokens", lambda tokens: tokens > 0, lambda: {"tokens": measure()})
    """
    path = cache_folder() / "choices.json"
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    # Processes of one run wait for the first one's choice instead of measuring too. Those with another key do not wait:
    # to measure runtimes takes minutes.
    with wait_for_lock(path.with_name("choices") / f"{name}.lock"):
        kept = _read_choices(path).get(key)
        if isinstance(kept, dict) and is_usable(kept.get(field)):
            return kept[field]
        entry = measure()
        with wait_for_lock(path.with_suffix(".lock")), suppress(OSError):
            entries = _read_choices(path) | {key: entry}
            write_atomically(path, (json.dumps(entries, indent=1) + "\n").encode())
    return entry[field]


def _read_choices(path: Path) -> dict[str, Any]:
    try:
        choices = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return choices if isinstance(choices, dict) else {}


def machine_key(what: str, model: Any) -> str:
    """Describe a choice and all that it depends on: the machine, its threads, the libraries and the model.

    Example:
        machine_key("runtime", backbone.model)
    """
    table = model.get_input_embeddings().weight
    return _make_key(what, model, table.device, str(table.dtype))


def _make_key(what: str, model: Any, device: torch.device, dtype: str) -> str:
    """Describe in words all that a choice depends on."""
    import transformers

    config = model.config.get_text_config()
    sizes = f"{config.num_hidden_layers} layers, {config.num_attention_heads} heads, {_matrix_shapes(model)}"
    return " | ".join(
        [
            what,
            _device_name(device),
            f"{torch.get_num_threads()} threads",
            f"torch {torch.__version__}",
            f"transformers {transformers.__version__}",
            f"{config.model_type}, {sizes}",
            dtype,
        ]
    ).removesuffix(" | ")


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}: {_processor_name()}"


@cache
def _processor_name() -> str:
    """Return the processor's name and a digest of its features; on a virtual machine the name alone says little."""
    names = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    file = Path("/proc/cpuinfo")
    lines = file.read_text("utf-8", "replace").splitlines() if file.is_file() else []
    features = sorted({line for line in lines if line.startswith(names)}) or [platform.machine(), platform.processor()]
    name = next((line.partition(":")[2].strip() for line in features if line.startswith("model name")), features[0])
    return f"{name} {hashlib.sha256(' '.join(features).encode()).hexdigest()[:8]}"


def _is_small(model: Any) -> bool:
    return bool(sum(value.numel() for value in model.parameters()) < MEASURED_WEIGHTS)


def _matrix_shapes(model: Any) -> list[tuple[int, int]]:
    """Return the shapes of the matrices of the layers."""
    words = {id(module) for module in (model.get_input_embeddings(), model.get_output_embeddings())}
    matrices = [
        value
        for module in model.modules()
        if id(module) not in words and not isinstance(module, nn.Embedding)
        for value in module.parameters(recurse=False)
        if value.dim() == 2 and min(value.shape) >= 16
    ]
    return sorted({(len(matrix), matrix.shape[1]) for matrix in matrices})
