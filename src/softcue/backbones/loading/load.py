"""`BackboneConfig` and `load_backbone`: from a name to a frozen backbone. No code in a model's files is run.

Pickled weights are opened only if the user allows it by name, and then with torch's `weights_only=True`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from softcue.backbones.backbone import Backbone
from softcue.backbones.checks import ensure_checked
from softcue.backbones.compilation import compile_layers, uncompiled
from softcue.backbones.loading.autotune import choose_attention, choose_dtype
from softcue.backbones.loading.digest_cache import WeightsDigest
from softcue.backbones.loading.freed_memory import returning_freed_memory
from softcue.backbones.loading.gguf_tokens import add_gguf_special_tokens
from softcue.backbones.loading.placement import (
    check_checkpoint,
    keep_gradients,
    parse_max_memory,
    placement_options,
    quantize_model,
    split_model,
)
from softcue.backbones.loading.sentence_transformers_folder import (
    fetch_sentence_transformers_files,
    warn_of_left_out_modules,
)
from softcue.backbones.loading.sources import ALIASES, adapter_error, can_reach_hub, find_model_folder, find_source
from softcue.backbones.loading.weight_files import ModelFiles, check_named_weights
from softcue.backbones.loading.weight_reading import reading_without_maps
from softcue.backbones.quantized_linear import Quantization
from softcue.backbones.sharding import shard_layers
from softcue.backbones.structure_cache import restore_structure
from softcue.backbones.tracing import is_causal_model
from softcue.backbones.word_head import has_word_head
from softcue.errors import BackboneError, SoftcueError, near_matches
from softcue.garbage_collection import collection_paused

NumberFormat = Literal["auto", "float32", "bfloat16", "float16"]
Attention = Literal["auto", "eager", "sdpa", "flash_attention_2"]


class BackboneConfig(BaseModel):
    """Which frozen model, in which form and on which device."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        "minilm",
        description="a model folder, a .gguf file, a hub id (or ID@REVISION), or an alias of `softcue backbones`",
    )
    allow_pickle: bool = Field(
        False,
        description="open weights in pytorch_model.bin, with weights_only=True; a pickle can run code, so say it for "
        "each command and only for models you trust",
    )
    revision: str = Field(
        "", description="branch, tag or commit of a hub id, instead of ID@REVISION in the name; empty: the newest"
    )
    dtype: NumberFormat = Field(
        "auto", description="number format of the frozen weights; auto takes bfloat16 where it is measured to be faster"
    )
    quantization: Quantization = Field(
        "none",
        description="keep the matrices of the layers in 8 or 4 bits, which saves memory and costs time; what is "
        "computed and trained keeps its number format (extra quantization)",
    )
    attention: Attention = Field(
        "auto", description="how attention is computed; auto takes the fastest, measured once per machine and model"
    )
    compile: bool = Field(
        False, description="run layers through torch.compile: up to a minute at the start, then fewer seconds per step"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    device_map: Literal["none", "auto", "balanced", "balanced_low_0", "sequential"] = Field(
        "none", description="how accelerate splits the model over several devices; none: it is whole on backbone.device"
    )
    max_memory: str = Field(
        "", description="with device_map: what each device may hold, such as 0=20GB,1=20GB,cpu=0GB; empty: all it has"
    )
    max_length: int | None = Field(None, ge=4, description="cut inputs (prompt included) to this many tokens")
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of hidden values dropped in training: of embeddings and of each sub-layer's output, not of "
        "attention weights; bound to rows",
    )
    gradient_checkpointing: bool = Field(
        False, description="run each layer again in the backward pass: less memory, more time, the same numbers"
    )

    shard_layers: bool = Field(
        False,
        description="with torchrun: each process keeps a part of every layer (FSDP), for a backbone that does not fit "
        "one device; methods that change its weights are refused",
    )

    @model_validator(mode="after")
    def _check_exclusive(self) -> Self:
        if self.compile and self.gradient_checkpointing:
            raise ValueError("either compile or gradient_checkpointing: a compiled layer keeps what it chooses to keep")
        if self.compile and self.shard_layers:
            raise ValueError("either compile or shard_layers: the weights of a compiled layer must stay where they are")
        if self.device_map != "none" and self.device != "auto":
            raise ValueError("either device or device_map: a model that is split is on several devices")
        if self.max_memory and self.device_map == "none":
            raise ValueError("max_memory needs device_map=auto: it says what a part of the model may take")
        if self.compile and (self.quantization != "none" or self.device_map != "none"):
            raise ValueError("either compile or quantization or device_map: only plain layers are compiled")
        parse_max_memory(self.max_memory)
        return self


def load_backbone(config: BackboneConfig | str) -> Backbone:
    """Load a frozen backbone from a folder, a hub id or an alias, and check it (checks.py).

    Example:
        backbone = load_backbone("minilm")
    """
    config = BackboneConfig(name=config) if isinstance(config, str) else config
    device = _find_device(config.device)
    # A backbone whose layers are divided may not fit one device, so it is loaded and checked on the processor.
    unchecked = config.model_copy(update={"device": "cpu"}) if config.shard_layers else config
    with returning_freed_memory() if config.quantization != "none" else collection_paused():
        backbone = load_unchecked(unchecked)
        with uncompiled():  # a compiled layer would be compiled for each shape of the checks
            ensure_checked(backbone)
    if config.shard_layers:
        shard_layers(backbone, device)
    return backbone


def load_unchecked(config: BackboneConfig) -> Backbone:
    """Load a frozen backbone without checking it.

    Example:
        backbone = load_unchecked(BackboneConfig(name="minilm"))
    """
    config = _with_revision(config)
    files = find_source(config.name, config.allow_pickle)
    device = _find_device(config.device)
    source, folder, gguf_file = files.name, files.folder, files.gguf_file
    options: dict[str, Any] = {"trust_remote_code": False, **files.options}
    if folder is None and not can_reach_hub():
        options["local_files_only"] = True  # files downloaded before, or an error at once instead of retries
    hub_options: dict[str, Any] = {key: options[key] for key in ("revision", "local_files_only") if key in options}
    with quiet_transformers(), _explain_errors(config.name, folder):
        from transformers import AutoConfig, AutoTokenizer

        model_config = AutoConfig.from_pretrained(source, **options)
        check_named_weights(model_config, config.name)
        checkpoint = check_checkpoint(model_config, config.name, config.quantization)
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        if gguf_file is not None:
            add_gguf_special_tokens(tokenizer, gguf_file)
        auto_class = choose_auto_class(model_config)
        if config.dtype == "auto" and checkpoint and isinstance(model_config.dtype, torch.dtype):
            dtype = model_config.dtype  # in which its scales were made
        elif config.dtype == "auto":
            dtype = choose_dtype(build_without_weights(auto_class, model_config), device)
        else:
            dtype = getattr(torch, config.dtype)
        # What softcue knows about the weights from their files alone, where memory has less than the files.
        loses_digits = dtype == torch.float16 or config.quantization != "none" or config.device_map != "none"
        if gguf_file is not None:
            model_files = ModelFiles((gguf_file,), (gguf_file,))
        elif folder is None:
            model_files = ModelFiles.of_hub_id(source, hub_options, download=loses_digits or bool(checkpoint))
        else:
            model_files = ModelFiles.of_folder(Path(source))
        digest = WeightsDigest(model_files.paths, auto_class.__name__)
        load = partial(
            auto_class.from_pretrained,
            source,
            config=None if gguf_file else model_config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # _check_weights names them
            **files.weight_options,
            **options,
        )
        placement = placement_options(device, config.device_map, parse_max_memory(config.max_memory))
        if checkpoint:
            digest.set_from_files(model_files.weights)
            model = _read(config.name, load, dtype, device, {"device_map": {"": device}, **placement})
            keep_gradients(model)
        elif config.quantization != "none":
            model = _read(config.name, load, model_files.exact_format())
            digest.set_from(model)
            model = quantize_model(model, config.quantization, dtype, device, config.name)
            if config.device_map != "none":
                model = split_model(model, config.device_map, parse_max_memory(config.max_memory))
        else:
            if loses_digits and digest.recall() is None:
                digest.set_from(_read(config.name, load, model_files.exact_format()))
            model = _read(config.name, load, dtype, device, placement)
        if folder is None:  # the folder of the hub's files, for what it says about sentence vectors
            folder = fetch_sentence_transformers_files(source, **hub_options)
    warn_of_left_out_modules(config.name, folder)
    _check_tokenizer(config.name, model, tokenizer)
    model.requires_grad_(False)
    if config.device_map == "none" and not checkpoint:
        model.to(device)
    try:
        restore_structure(model)
    except BackboneError:
        if config.dtype != "auto" or dtype == torch.float32:
            raise
        return load_unchecked(config.model_copy(update={"dtype": "float32"}))  # it cannot run in bfloat16
    choose_attention(model, config.attention)
    if config.compile:
        compile_layers(model)
    backbone = Backbone(model, tokenizer, config.name, folder)
    backbone.digest_weights = digest
    if config.gradient_checkpointing:
        backbone.checkpoint_layers()
    return backbone


def _with_revision(config: BackboneConfig) -> BackboneConfig:
    """The settings with the revision in the name, as a cue records it."""
    if not config.revision:
        return config
    hub_id, _, named = config.name.partition("@")
    if find_model_folder(config.name) is not None or named not in ("", config.revision):
        raise BackboneError(
            setting="backbone.revision",
            got=config.revision,
            expected=f"a hub id without another revision in backbone.name, and not {config.name}",
            fix="leave it out: a folder, a file or an alias has one revision",
        )
    return config.model_copy(update={"name": f"{hub_id}@{config.revision}", "revision": ""})


CPU = torch.device("cpu")


def _read(
    name: str,
    load: Callable[..., Any],
    dtype: torch.dtype,
    device: torch.device = CPU,
    placement: Mapping[str, Any] | None = None,
) -> Any:
    """Read a model in a number format onto its device, and check that all its weights were there."""
    with reading_without_maps(dtype, device):
        # dtype, and not `.to(dtype)` later, which would also round buffers such as rotary frequencies
        model, report = load(dtype=dtype, **(placement or {}))
    if getattr(model, "_hf_peft_config_loaded", False):  # of a hub id
        raise adapter_error(name)
    model = _drop_missing_head(model, report)
    _check_weights(name, model, report)
    return model


def choose_auto_class(model_config: Any) -> Any:
    """Choose the class of transformers that loads a model with the heads its checkpoint has weights for.

    Example:
        >>> from transformers import T5Config
        >>> choose_auto_class(T5Config()).__name__
        'AutoModelForSeq2SeqLM'
    """
    import transformers
    from transformers.models.auto import modeling_auto as mappings

    model_type = model_config.model_type
    architecture = (getattr(model_config, "architectures", None) or [""])[0]
    is_masked = (
        model_type in mappings.MODEL_FOR_MASKED_LM_MAPPING_NAMES
        and not getattr(model_config, "is_decoder", False)
        and not architecture.endswith(("ForCausalLM", "LMHeadModel"))
    )
    if architecture.endswith("EncoderModel") and model_type in mappings.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
        return transformers.AutoModelForTextEncoding  # the encoder of a T5 alone
    if getattr(model_config, "is_encoder_decoder", False):
        if model_type in mappings.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
            return transformers.AutoModelForSeq2SeqLM
    elif is_masked:
        has_head = _has_word_head(architecture, model_config)
        return transformers.AutoModelForMaskedLM if has_head else transformers.AutoModel
    elif model_type in mappings.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return transformers.AutoModelForCausalLM
    elif model_type in mappings.MODEL_MAPPING_NAMES and hasattr(model_config, "vocab_size"):
        return transformers.AutoModel
    raise BackboneError(
        setting="backbone model_type",
        got=model_type,
        expected="a text model: an encoder, an encoder-decoder or a decoder that transformers can load",
        fix="take a model of another type",
    )


def _has_word_head(architecture: str, model_config: Any) -> bool:
    """Whether checkpoints of a class hold a masked-word head; BertForPreTraining has one, ElectraForPreTraining not."""
    import transformers

    if not architecture.endswith("ForPreTraining"):
        return architecture.endswith("ForMaskedLM")
    with torch.device("meta"):
        return getattr(transformers, architecture)(deepcopy(model_config)).get_output_embeddings() is not None


def build_without_weights(auto_class: Any, model_config: Any) -> Any:
    """Build the model of a configuration on torch's meta device, where a tensor is a shape without memory.

    Example:
        >>> from transformers import AutoModel, BertConfig
        >>> build_without_weights(AutoModel, BertConfig(hidden_size=24)).get_input_embeddings().weight.shape[1]
        24
    """
    config = deepcopy(model_config)  # models may change their configuration
    with torch.device("meta"):  # transformers then initialises no weights, but still ties them
        return auto_class.from_config(config, dtype=torch.float32, trust_remote_code=False)


def _drop_missing_head(model: Any, report: dict[str, Any]) -> Any:
    """Return the model without its head for words, if its files hold nothing of the head.

    Sentence encoders such as all-mpnet-base-v2 still have the class they were made from in their configuration. Those
    made from decoders (e5-mistral) have no output words.
    """
    if not has_word_head(model) and not is_causal_model(model):
        return model
    prefix = f"{model.base_model_prefix}."
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    head = {name for name, _ in model.named_parameters() if not name.startswith(prefix)} - tied
    if not head or not head <= set(report["missing_keys"]):
        return model
    report["missing_keys"] = {name for name in report["missing_keys"] if name.startswith(prefix)}
    return model.base_model


def _check_weights(name: str, model: Any, report: dict[str, Any]) -> None:
    """Raise an error if some weights were not in the model's files: they would be random."""
    base = model.base_model
    missing = {key for key in report["missing_keys"] if "pooler" not in key and "position_ids" not in key}
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    missing -= tied
    wrong = sorted(missing | {key if isinstance(key, str) else key[0] for key in report["mismatched_keys"]})
    if wrong:
        raise BackboneError(
            setting="backbone.name",
            got=name,
            expected=f"weights for all of {type(base).__name__}",
            fix=f"{len(wrong)} are missing or of another shape, first: {wrong[0]}; fetch the model again",
        )


def _check_tokenizer(name: str, model: Any, tokenizer: Any) -> None:
    """Raise an error for an empty tokenizer, which transformers makes without tokenizer files, or one too large."""
    vocabulary = tokenizer.get_vocab()
    if len(vocabulary.keys() - set(tokenizer.all_special_tokens)) < 10:
        raise BackboneError(
            setting="backbone.name",
            got=name,
            expected="a tokenizer beside the model",
            fix="its files are missing or empty; fetch the model again",
        )
    num_words = model.get_input_embeddings().weight.shape[0]
    if (last := max(vocabulary.values())) >= num_words:
        raise BackboneError(
            setting="backbone.name",
            got=name,
            expected=f"a tokenizer for its {num_words} word embeddings",
            fix=f"this one numbers words up to {last}, so it belongs to another model; fetch the model again",
        )


def _find_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BackboneError(
            setting="backbone.device", got=name, expected="a device of this machine", fix="use auto or cpu"
        ) from error
    return device


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide the reports and progress bars of transformers, and what torchao says when it is imported, while active."""
    from transformers.utils import logging as reports

    level = reports.get_verbosity()
    had_bars = reports.is_progress_bar_enabled()
    torchao_warnings = logging.getLogger("torch.utils._pytree")
    torchao_level = torchao_warnings.level
    reports.set_verbosity_error()
    reports.disable_progress_bar()
    torchao_warnings.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # no setting hides GGUF's bar
            yield
    finally:
        reports.set_verbosity(level)
        torchao_warnings.setLevel(torchao_level)
        if had_bars:
            reports.enable_progress_bar()


@contextlib.contextmanager
def _explain_errors(name: str, folder: Path | None) -> Iterator[None]:
    """Turn any error of the loaders into a BackboneError that names the model and the reason."""
    try:
        yield
    except SoftcueError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        reason = " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:200].rstrip(".")
        if folder is not None:
            raise BackboneError(
                setting="backbone.name",
                got=name,
                expected="a complete safetensors model folder",
                fix=f"check its files: {reason}",
            ) from error
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
        if "model.safetensors" in reason:
            reason += "; a model whose weights are only in a pickle needs --allow-pickle"
        raise BackboneError(
            setting="backbone.name",
            got=name,
            expected="a model folder, an alias or a hub id that can be downloaded",
            fix=f"{near_matches(name, ALIASES)}; or check the network{offline}: {reason}",
        ) from error
