"""`softcue import`: a PEFT folder with prompts or LoRA becomes a cue.

A folder may come from a stranger. Nothing is unpickled. What adapter_config.json says is checked first. Then the
header of the tensors' file must have exactly the names and shapes that follow from it, and the machine must have the
memory for them, before a tensor is read. The new cue is loaded as any cue is, with all checks, before its folder
appears.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from softcue.backbones import Backbone
from softcue.backbones.linears import linear_widths, select_linears
from softcue.backbones.passes.decoder import KeyValueCache
from softcue.backbones.tracing import LARGEST_DIFFERENCE, ROUGH_DIFFERENCE
from softcue.configuration import method_config
from softcue.cue import Cue, load
from softcue.cue.cue import COPIES_IN_MEMORY
from softcue.cue.cue_file import FORMAT, CueBackbone, CueFile, package_versions
from softcue.errors import BackboneError, ConfigurationError, as_configuration_error
from softcue.files import TEMPORARY_SUFFIX, convert_write_errors, open_regular, read_within, remove
from softcue.inference import TaskModel, make_task_model
from softcue.interop.peft import (
    CONFIG_FILE,
    MODEL_PREFIX,
    PROMPT_EMBEDDINGS,
    TENSORS_FILE,
    batch_of,
    read_prefix,
    split_heads,
    trial_row,
)
from softcue.machine import GIGABYTE, read_memory
from softcue.methods import METHODS
from softcue.methods.method import MOST_WIDTH
from softcue.prompts import DeepPrompt
from softcue.readouts import ReadoutConfig
from softcue.tasks import Task, portable

CONFIG_LIMIT = 1 << 20  # bytes of adapter_config.json
HEADER_LIMIT = 4 << 20  # bytes of names and shapes in the tensors' file
MOST_VECTORS = 1000
MOST_TASKS = 1000
MOST_RANKS = 256  # of a multitask prompt
FOLDER = "PEFT folder"
# Keys that change what a LoRA folder computes, and that softcue does not have.
UNKNOWN_LORA = (
    *("use_dora", "use_qalora", "lora_bias", "layer_replication", "target_parameters", "trainable_token_indices"),
    *("alora_invocation_tokens", "arrow_config", "rank_pattern", "alpha_pattern"),
    *("use_bdlora", "kasa_config", "monteclora_config"),
)
# Initial values with which PEFT leaves the weights of the model as they are. With others (PiSSA, OLoRA, CorDA, LoftQ,
# LoRA-GA) it changes them whenever it loads the folder, and the matrices are an update of the changed weights.
PLAIN_INITS = (True, False, "gaussian", "eva", "orthogonal", "mica")


class PeftConfig(BaseModel):
    """What softcue reads of adapter_config.json; other keys say how the folder was trained."""

    model_config = ConfigDict(extra="allow", frozen=True)

    peft_type: str
    task_type: str | None = None
    num_virtual_tokens: int = Field(1, ge=1, le=MOST_VECTORS)
    num_transformer_submodules: int | None = Field(None, ge=1, le=2)
    num_tasks: int = Field(1, ge=1, le=MOST_TASKS)
    num_ranks: int = Field(1, ge=1, le=MOST_RANKS)
    r: int = Field(8, ge=1, le=MOST_WIDTH)
    lora_alpha: float = Field(8, gt=0, allow_inf_nan=False)
    use_rslora: bool = False
    bias: str = "none"

    @property
    def num_submodules(self) -> int:
        """The modules that PEFT has virtual tokens for: 2 if the decoder of an encoder-decoder has its own."""
        return self.num_transformer_submodules or (2 if self.task_type == "SEQ_2_SEQ_LM" else 1)


@dataclass(frozen=True)
class ImportedMethod:
    """A method and its parameters, as a PEFT folder has them."""

    settings: Mapping[str, Any]  # of the section `method`
    tensors: Mapping[str, Tensor]  # of the method
    prefix: KeyValueCache | None = None  # keys and values as attention reads them, from which tensors are computed


def import_peft(
    folder: str | Path,
    output_dir: str | Path,
    *,
    backbone: Backbone,
    task: Task,
    readout: ReadoutConfig | None = None,
    task_id: int | None = None,
) -> Cue:
    """Make a cue from a PEFT folder: prompt tuning, P-tuning, multitask prompt tuning, prefix tuning or LoRA.

    `task` says what texts and labels are; its template should be the text that the folder was trained on. `task_id` is
    the task of a multitask prompt.

    Example:
        backbone = softcue.backbones.load_backbone("gpt2")
        import_peft("their-prompt", "cues/theirs", backbone=backbone, task=find_task("tickets"))
    """
    source, target = Path(folder), Path(output_dir)
    if target.exists():
        _refuse("output_dir", output_dir, "a folder that does not exist yet", "choose another name")
    config = read_peft_config(source)
    if (task_id is not None) != (config.peft_type == "MULTITASK_PROMPT_TUNING"):
        expected = "a number for multitask prompt tuning, and for nothing else"
        _refuse("task_id", task_id, expected, f"the folder is of type {config.peft_type}")
    readers = {
        "PROMPT_TUNING": _read_prompt,
        "P_TUNING": _read_prompt,
        "MULTITASK_PROMPT_TUNING": _read_multitask_prompt,
        "PREFIX_TUNING": _read_prefix,
        "LORA": _read_lora,
    }
    if config.peft_type not in readers:
        _refuse(f"{FOLDER}, peft_type", config.peft_type, f"one of {', '.join(readers)}", "softcue has no such method")
    method = readers[config.peft_type](source, config, backbone, task_id or 0)
    model = _build_model(method, backbone, task, readout or ReadoutConfig())
    record = CueFile(
        format=FORMAT,
        task=portable(task),
        method=model.method.config.model_dump(mode="json"),
        readout=model.readout.config,
        backbone=CueBackbone.of(backbone, model.max_length),
        training={"imported_from": f"PEFT ({config.peft_type})"},
        counts=asdict(model.counts()),
        versions=package_versions(),
        tensors_sha256="",
    )
    return _save(Cue(model, backbone, record), target)


def read_peft_config(folder: Path) -> PeftConfig:
    """Read and check adapter_config.json.

    Example:
        read_peft_config(Path("their-prompt")).peft_type
    """
    file = folder / CONFIG_FILE
    try:
        values = json.loads(read_within(file, CONFIG_LIMIT).decode())
    except (OSError, ValueError, RecursionError) as error:
        _refuse(FOLDER, folder, f"a folder with a readable {CONFIG_FILE}", f"check the path: {error}")
    if not isinstance(values, dict):
        _refuse(str(file), type(values).__name__, "a JSON object", "save the folder again")
    try:
        return PeftConfig.model_validate({key: value for key, value in values.items() if value is not None})
    except ValidationError as error:
        raise as_configuration_error(CONFIG_FILE, error) from error


def _refuse(setting: str, got: object, expected: str, fix: str) -> NoReturn:
    raise ConfigurationError(setting=setting, got=got, expected=expected, fix=fix)


# --- the folder ---


@contextmanager
def _open_tensors(folder: Path) -> Iterator[TensorFile]:
    """The tensors' file of a folder, of which only the header has been read."""
    from safetensors import SafetensorError, safe_open

    file = folder / TENSORS_FILE
    if not file.exists() and (folder / "adapter_model.bin").exists():
        advice = f"a pickle can run any code when it is opened; save it as {TENSORS_FILE} where you trust it"
        _refuse(FOLDER, "adapter_model.bin", TENSORS_FILE, advice)
    try:
        with open_regular(file) as handle:
            header_size = int.from_bytes(handle.read(8), "little")
        if header_size > HEADER_LIMIT:
            raise ValueError(f"a header of {header_size:,} bytes")
        opened = safe_open(file, framework="pt")
    except OSError as error:
        _refuse(str(file), error.strerror or "unreadable", "a readable safetensors file", "check the folder")
    except (SafetensorError, ValueError, KeyError) as error:
        _refuse(str(file), error, "a readable safetensors file", "save the folder again")
    with opened as tensors:
        slices = {name: tensors.get_slice(name) for name in list(tensors.keys())}
        shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
        dtypes = {name: str(part.get_dtype()) for name, part in slices.items()}
        yield TensorFile(file, shapes, dtypes, tensors.get_tensor)


@dataclass(frozen=True)
class TensorFile:
    """An open file of tensors: what its header says, and how one of them is read."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    get_tensor: Callable[[str], Tensor]

    def read(self, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """The tensors in float32, all finite. Shapes, number format and memory are checked before one is read."""
        for name, shape in expected.items():
            where = f"{self.path}, tensor '{name}'"
            if self.shapes[name] != shape:
                _refuse(where, list(self.shapes[name]), f"shape {list(shape)}", "is it of this backbone?")
            if not self.dtypes[name].startswith(("F", "BF")):
                _refuse(where, self.dtypes[name], "floating-point numbers", "save the folder again")
        num_bytes = torch.float32.itemsize * sum(torch.Size(shape).numel() for shape in expected.values())
        available = read_memory().available  # gigabytes
        if available is not None and num_bytes * COPIES_IN_MEMORY > available * GIGABYTE:
            expected_size = f"at most {available / COPIES_IN_MEMORY:.1f} GB, as this machine has memory for"
            _refuse(str(self.path), f"{num_bytes / GIGABYTE:.1f} GB of numbers", expected_size, "use a larger machine")
        tensors = {}
        for name in expected:
            tensors[name] = self.get_tensor(name).float()
            if not bool(torch.isfinite(tensors[name]).all()):
                _refuse(f"{self.path}, tensor '{name}'", "NaN or infinity", "finite numbers", "train it again")
        return tensors


def _read_shapes(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The tensors of a folder, which must be exactly these."""
    with _open_tensors(folder) as file:
        _check_names(folder, set(file.shapes), set(shapes))
        return file.read(shapes)


def _check_names(folder: Path, names: set[str], expected: set[str]) -> None:
    file = str(folder / TENSORS_FILE)
    if missing := sorted(expected - names):
        _refuse(file, f"no tensor '{missing[0]}'", "all tensors of its adapter_config.json", "save the folder again")
    if extra := sorted(names - expected):
        advice = "a head or other weights of PEFT's model cannot become part of a cue"
        _refuse(file, f"tensor '{extra[0]}'", f"only tensors of {len(expected)} names", advice)


# --- one reader for each type ---


def _prompt_settings(length: int) -> dict[str, Any]:
    return {"name": "prompt-tuning", "prompt_length": length, "insert_at": "front", "init": "uniform"}


def _read_prompt(folder: Path, config: PeftConfig, backbone: Backbone, task_id: int) -> ImportedMethod:
    """Virtual tokens as embeddings. PEFT leaves out those of an encoder-decoder's decoder too."""
    length = config.num_virtual_tokens
    shapes = {PROMPT_EMBEDDINGS: (length * config.num_submodules, backbone.width)}
    vectors = _read_shapes(folder, shapes)[PROMPT_EMBEDDINGS][:length]  # [P D]
    return ImportedMethod(_prompt_settings(length), {"encoder.prompt": vectors})


def _read_multitask_prompt(folder: Path, config: PeftConfig, backbone: Backbone, task_id: int) -> ImportedMethod:
    """The prompt of one task: the shared prompt times the task's product of two small matrices."""
    if config.num_submodules > 1:
        advice = "its virtual tokens are in the decoder too, where softcue has none"
        _refuse(f"{FOLDER}, num_transformer_submodules", config.num_submodules, "1", advice)
    if task_id not in range(config.num_tasks):
        _refuse("task_id", task_id, f"0 to {config.num_tasks - 1}", "name a task of the folder")
    length, width = config.num_virtual_tokens, backbone.width
    shapes = {
        PROMPT_EMBEDDINGS: (length, width),
        "prefix_task_cols": (config.num_tasks, length, config.num_ranks),
        "prefix_task_rows": (config.num_tasks, config.num_ranks, width),
    }
    tensors = _read_shapes(folder, shapes)
    of_task = tensors["prefix_task_cols"][task_id] @ tensors["prefix_task_rows"][task_id]  # [P D]
    return ImportedMethod(_prompt_settings(length), {"encoder.prompt": tensors[PROMPT_EMBEDDINGS] * of_task})


def _read_prefix(folder: Path, config: PeftConfig, backbone: Backbone, task_id: int) -> ImportedMethod:
    """Keys and values of every layer."""
    if backbone.kind == "encoder-decoder":
        advice = "PEFT's prefixes are in the decoder, those of softcue in the encoder"
        _refuse(f"{FOLDER}, peft_type", config.peft_type, "another type with an encoder-decoder", advice)
    length, num_layers, key_width = config.num_virtual_tokens, backbone.num_layers, backbone.key_width
    shapes = {PROMPT_EMBEDDINGS: (length, 2 * num_layers * key_width)}
    matrix = _read_shapes(folder, shapes)[PROMPT_EMBEDDINGS]
    settings = {"name": "prefix-tuning", "prompt_length": length, "insert_at": "front", "rule": "kv"}
    layers = matrix.view(length, num_layers, 2 * key_width).unbind(dim=1)  # each [P 2K]
    if backbone.kind == "encoder":
        return ImportedMethod(settings, {f"encoder.prompts.{layer}": part for layer, part in enumerate(layers)})
    return ImportedMethod(settings, {}, split_heads(layers, backbone))


def _read_lora(folder: Path, config: PeftConfig, backbone: Backbone, task_id: int) -> ImportedMethod:
    """The matrices of each module; the modules are those that have tensors."""
    extra = config.model_extra or {}
    if unknown := [key for key in UNKNOWN_LORA if extra.get(key)]:
        _refuse(f"{FOLDER}, {unknown[0]}", extra[unknown[0]], "nothing", "softcue's LoRA does not have it")
    init = extra.get("init_lora_weights", True)
    if (init.lower() if isinstance(init, str) else init) not in PLAIN_INITS:
        expected = f"one of {', '.join(map(str, PLAIN_INITS))}"
        advice = "it changes the model's own weights; convert it to plain LoRA where it was trained"
        _refuse(f"{FOLDER}, init_lora_weights", init, expected, advice)
    if config.bias != "none":
        _refuse(f"{FOLDER}, bias", config.bias, "none", "softcue's LoRA trains no biases")
    widths = {path: linear_widths(module) for path, module in backbone.linears.items()}
    with _open_tensors(folder) as file:
        names: dict[str, dict[str, str]] = {}  # path below the base model -> a or b -> name of the tensor
        for name in file.shapes:
            path, letter = _parse_lora_name(name, backbone)
            names.setdefault(path, {})[letter] = name
        paths = [path for path in backbone.linears if path in names]
        if not paths:
            _refuse(str(file.path), "no tensors", "the matrices of LoRA", "save the folder again")
        shapes: dict[str, tuple[int, ...]] = {}
        for path in paths:
            if len(names[path]) < 2:
                _refuse(str(file.path), f"half of the update of {path}", "both matrices", "save it again")
            num_in, num_out = widths[path]
            shapes |= {names[path]["a"]: (config.r, num_in), names[path]["b"]: (num_out, config.r)}
        tensors = file.read(shapes)
    state = {
        f"updates.{number}.{letter}": tensors[names[path][letter]]
        for number, path in enumerate(paths)
        for letter in ("a", "b")
    }
    last_names = list(dict.fromkeys(path.rpartition(".")[2] for path in paths))
    by_name = {path for name in last_names for path in select_linears(backbone.linears, name)}
    scale = config.lora_alpha / config.r**0.5 if config.use_rslora else config.lora_alpha / config.r
    targets = last_names if by_name == set(paths) else paths
    return ImportedMethod({"name": "lora", "rank": config.r, "alpha": scale * config.r, "targets": targets}, state)


def _parse_lora_name(name: str, backbone: Backbone) -> tuple[str, str]:
    """The path below the base model, and a or b, of a tensor's name. PEFT's model may be of another class."""
    path = name.removeprefix(MODEL_PREFIX).removesuffix(".weight")
    path, _, part = path.rpartition(".lora_")
    for candidate in (path, path.removeprefix(f"{backbone.model.base_model_prefix}.")):
        if part in ("A", "B") and candidate in backbone.linears:
            return candidate, part.lower()
    advice = "a head, an embedding or another weight cannot become part of a cue"
    _refuse(f"{FOLDER}, tensor", name, f"an update of a linear module in the layers of {backbone.name}", advice)


# --- the cue ---


def _build_model(method: ImportedMethod, backbone: Backbone, task: Task, readout: ReadoutConfig) -> TaskModel:
    """A task model with the folder's parameters; its readout has no trained head."""
    if backbone.kind == "encoder" and readout.name == "auto":
        readout = readout.model_copy(update={"name": "label-words"})
    config = method_config(dict(method.settings))
    model = make_task_model(task, (METHODS[config.name], config), readout, backbone, None)
    if any(True for _ in model.readout.parameters()):
        _refuse(
            "readout.name",
            model.readout.config.name,
            "a readout without a trained head: label-words or generation",
            "a PEFT folder has no head of softcue; train a cue if the task needs one",
        )
    model = model.to(backbone.device).eval()
    if method.prefix is None:
        model.method.load_state_dict(method.tensors)
    else:
        _set_prefix(model, backbone, method.prefix)
    return model


def _set_prefix(model: TaskModel, backbone: Backbone, target: KeyValueCache) -> None:
    """Set the keys and values of a decoder's prompt so that attention reads these.

    A prompt holds what the projections give; attention reads it behind the rotation of its position. That is a linear
    map R with R^T R = c I, and a backward pass applies R^T. With a norm of keys in between it is not: an error.
    """
    encoder = model.method.prompt_encoder()
    assert isinstance(encoder, DeepPrompt)
    parameters = list(encoder.prompts)
    batch = batch_of(trial_row(model, backbone), backbone)
    with torch.enable_grad():
        parts = _pair_up(read_prefix(model, backbone, batch), target)
        product = torch.stack([(part.float() * wanted.float()).sum() for part, wanted in parts]).sum()
        gradients = torch.autograd.grad(product, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.copy_(gradient)
        rotated = read_prefix(model, backbone, batch)
        for parameter, (keys, _), (wanted, _) in zip(parameters, rotated, target, strict=True):
            scale = (keys.float() * wanted.float()).sum() / wanted.float().square().sum().clamp(min=1e-30)
            parameter[:, : parameter.shape[1] // 2] /= scale.clamp(min=1e-30)
        parts = _pair_up(read_prefix(model, backbone, batch), target)
    difference = max(float((part - wanted).norm() / wanted.norm().clamp(min=1e-30)) for part, wanted in parts)
    if difference > LARGEST_DIFFERENCE.get(backbone.dtype, ROUGH_DIFFERENCE):
        raise BackboneError(
            setting="backbone",
            got=backbone.name,
            expected="a model whose attention reads keys as projections give them, up to a rotation",
            fix=f"its keys pass a norm, which cannot be undone (they differ by {difference:.1e})",
        )


def _pair_up(keys_values: KeyValueCache, others: KeyValueCache) -> list[tuple[Tensor, Tensor]]:
    """Keys with keys and values with values, of all layers."""
    return [pair for layer, other in zip(keys_values, others, strict=True) for pair in zip(layer, other, strict=True)]


def _save(cue: Cue, target: Path) -> Cue:
    """Write the cue and load it with all checks, before its folder appears."""
    temporary = target.with_name(f"{target.name}{TEMPORARY_SUFFIX}")
    with convert_write_errors("output_dir", target):
        remove(temporary)
        temporary.mkdir(parents=True)
        try:
            cue.save(temporary / target.name)
            load(temporary / target.name, cue.backbone)
            os.replace(temporary / target.name, target)
        finally:
            remove(temporary)
    return load(target, cue.backbone)
