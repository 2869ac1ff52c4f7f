"""Settings of a frozen backbone that are chosen by measuring: its number format and its attention.

A choice is kept in `choices.json` of the cache folder under all it depends on, so that a machine chooses the same
again. Small models are not worth measuring: they take float32 and transformers' own default. Nothing here changes
what a model computes by more than rounding, and no weight is touched.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import platform
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softcue.backbones.families import family_of
from softcue.backbones.loading.trials import LENGTH, ROWS, Run, agree, first_layers, race, speed, typical_pass
from softcue.errors import BackboneError
from softcue.files import cache_folder, write_whole

ATTENTIONS = ("eager", "sdpa", "flash_attention_2")
MEASURED_WEIGHTS = 5_000_000  # models with fewer run in no time anyhow
BFLOAT16_GAIN = 1.2  # in multiplying; norms and conversions between formats then take their part of it
ATTENTION_GAIN = 1.1  # less is noise on a shared machine, and not worth leaving the default for
LAYERS = 2  # layers are alike: two show what all of them do, however deep the model

Shapes = Sequence[tuple[int, int]]
Measured = tuple[str, dict[str, float]]  # what to take, and how many times as fast as the default each one is


def choose_dtype(model: Any, device: torch.device) -> torch.dtype:
    """bfloat16 where this device clearly multiplies the model's own matrices faster in it, else float32.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> choose_dtype(BertModel(BertConfig(hidden_size=24, num_hidden_layers=1)), torch.device("cpu"))
        torch.float32
    """
    if _is_small(model):
        return torch.float32

    def measured() -> Measured:
        gain = bfloat16_speed(_shapes(model), device)
        return "bfloat16" if gain >= BFLOAT16_GAIN else "float32", {"bfloat16": gain}

    chosen = _recalled(_key("dtype", model, device, ""), ("float32", "bfloat16"), measured)
    return torch.bfloat16 if chosen == "bfloat16" else torch.float32


def bfloat16_speed(shapes: Shapes, device: torch.device) -> float:
    """How many times as fast as float32 the device multiplies bfloat16, forward and backward; within about a second.

    Example:
        bfloat16_speed([(384, 384), (384, 1536)], torch.device("cpu"))
    """
    found = 0.0
    for num_rows in (8, 64, ROWS * LENGTH, ROWS * LENGTH):  # the last twice: emulated formats must not win by a hiccup
        runs: dict[str, Run] = {}
        for dtype in (torch.float32, torch.bfloat16):
            ones = partial(torch.ones, dtype=dtype, device=device)
            parts = [(ones(num_rows, i), ones(o, i), ones(num_rows, o)) for o, i in shapes]
            runs[str(dtype)] = partial(_multiply, parts)
        found = speed(race(runs, device, seconds=0.2), "torch.bfloat16", "torch.float32")
        is_slow = found < BFLOAT16_GAIN if num_rows == ROWS * LENGTH else found < 0.2  # small products say less
        if is_slow:
            break
    return found


def _multiply(parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    for states, weight, gradient in parts:
        torch.nn.functional.linear(states, weight)
        torch.mm(gradient, weight)


def choose_attention(model: Any, setting: str) -> None:
    """Give a model the attention that was asked for, or with `auto` the fastest on a typical batch.

    A candidate that raises, or whose outputs and gradients are not those of the default, is out.

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
                fix="set backbone.attention=auto (flash_attention_2 needs a GPU, bfloat16 and the package flash-attn)",
            )
        return
    if _is_small(model):
        return
    able = [name for name in ATTENTIONS if _use_attention(model, name)]
    _use_attention(model, default)
    if len(able) == 1 or default not in able:
        return
    word_table = model.get_input_embeddings().weight
    key = _key(f"attention of {', '.join(able)}", model, word_table.device, str(word_table.dtype))
    _use_attention(model, _recalled(key, able, lambda: _fastest(model, able, default)))


def _use_attention(model: Any, name: str) -> bool:
    """Switch to an implementation, if the model and this machine can."""
    if name == model.config._attn_implementation:
        return True
    word_table = model.get_input_embeddings().weight
    if name == "flash_attention_2" and not (
        word_table.device.type == "cuda"
        and word_table.dtype == torch.bfloat16
        and model._supports_flash_attn
        and importlib.util.find_spec("flash_attn")  # without it transformers would fetch code from the hub
    ):
        return False
    if name == "sdpa" and not model._supports_sdpa:
        return False
    try:
        model.set_attn_implementation(name)
    except (ValueError, ImportError):
        return False
    return bool(model.config._attn_implementation == name)


def _fastest(model: Any, names: Sequence[str], default: str) -> Measured:
    run = typical_pass(model)
    word_table = model.get_input_embeddings().weight

    def with_attention(name: str) -> Any:
        _use_attention(model, name)
        return run()

    with first_layers(model, LAYERS):
        try:
            started = time.perf_counter()
            wanted = with_attention(default)
        except Exception:  # whatever it is, a real batch will tell it better
            return default, {}
        if time.perf_counter() - started > 5:  # wide layers, in which attention is a small part: not worth the wait
            return default, {}
        runs: dict[str, Run] = {default: partial(with_attention, default)}
        for name in names:
            with suppress(Exception):
                if name != default and agree(with_attention(name), wanted, word_table.dtype):
                    runs[name] = partial(with_attention, name)
        seconds = race(runs, word_table.device, seconds=1.5)
    speeds = {name: speed(seconds, name, default) for name in runs}
    best = max(speeds, key=lambda name: speeds[name])
    return best if speeds[best] >= ATTENTION_GAIN else default, speeds


def _recalled(key: str, known: Collection[str], measure: Callable[[], Measured]) -> str:
    """The choice kept for a key, else a measured one, from then on kept; a file that fails is as good as none."""
    path = cache_folder() / "choices.json"
    with _alone_at(path):  # processes of one run wait for the first one's choice instead of making their own
        choices = _read(path)
        kept = choices.get(key)
        if isinstance(kept, dict) and kept.get("choice") in known:
            return str(kept["choice"])
        choice, speeds = measure()
        choices[key] = {"choice": choice, "speeds": {name: round(own, 3) for name, own in speeds.items()}}
        with suppress(OSError):
            write_whole(path, (json.dumps(choices, indent=1) + "\n").encode())
    return choice


@contextmanager
def _alone_at(path: Path) -> Iterator[None]:
    with ExitStack() as stack:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(path.with_suffix(".lock").open("w")), fcntl.LOCK_EX)
        yield


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _key(what: str, model: Any, device: torch.device, dtype: str) -> str:
    """All that a choice depends on, in words."""
    import transformers

    config = model.config
    sizes = f"{config.num_hidden_layers} layers, {config.num_attention_heads} heads, {_shapes(model)}"
    return " | ".join(
        [
            what,
            _machine(device),
            f"{torch.get_num_threads()} threads",
            f"torch {torch.__version__}",
            f"transformers {transformers.__version__}",
            f"{config.model_type}, {sizes}",
            dtype,
        ]
    ).removesuffix(" | ")


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}: {_processor()}"


@cache
def _processor() -> str:
    """The processor's name and a digest of what it can do; a virtual machine's name alone says little."""
    names = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    file = Path("/proc/cpuinfo")
    lines = file.read_text("utf-8", "replace").splitlines() if file.is_file() else []
    about = sorted({line for line in lines if line.startswith(names)}) or [platform.machine(), platform.processor()]
    name = next((line.partition(":")[2].strip() for line in about if line.startswith("model name")), about[0])
    return f"{name} {hashlib.sha256(' '.join(about).encode()).hexdigest()[:8]}"


def _is_small(model: Any) -> bool:
    return bool(sum(value.numel() for value in model.parameters()) < MEASURED_WEIGHTS)


def _shapes(model: Any) -> list[tuple[int, int]]:
    """Of the matrices of one layer."""
    path = family_of(model.config.model_type).reader.layers
    layer = next(iter(model.base_model.get_submodule(path).children()))
    return sorted({(len(own), own.shape[1]) for own in layer.parameters() if own.dim() == 2 and min(own.shape) >= 16})
