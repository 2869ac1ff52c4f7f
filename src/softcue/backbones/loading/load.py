"""Names to backbones: model folders, hub ids, and aliases that pip can fetch. Never executes or unpickles."""

from __future__ import annotations

import contextlib
import io
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from softcue.backbones.backbone import Backbone
from softcue.backbones.compilation import compile_layers
from softcue.backbones.families import family_of
from softcue.backbones.loading.autotune import choose_attention, choose_dtype
from softcue.backbones.loading.sources import ALIASES, alias_folder
from softcue.errors import BackboneError, MissingExtraError, near_matches


class BackboneConfig(BaseModel):
    """Which frozen model, and how it is held."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("minilm", description="a model folder, a hub id, or an alias of `softcue backbones`")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="number format of the frozen weights; auto takes bfloat16 where it is measured to be faster"
    )
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = Field(
        "auto", description="how attention is computed; auto takes the fastest, measured once per machine and model"
    )
    compile: bool = Field(
        False, description="run layers through torch.compile: up to a minute at the start, then fewer seconds per step"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    max_length: int | None = Field(None, ge=4, description="cut inputs (prompt included) to this many tokens")
    gradient_checkpointing: bool = Field(
        False, description="run each layer again in the backward pass: less memory, more time, the same numbers"
    )

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.compile and self.gradient_checkpointing:
            raise ValueError("either compile or gradient_checkpointing: a compiled layer keeps what it chooses to keep")
        return self


def load_backbone(config: BackboneConfig | str) -> Backbone:
    """A frozen backbone from a folder, a hub id or an alias.

    Example:
        backbone = load_backbone("minilm")
    """
    config = BackboneConfig(name=config) if isinstance(config, str) else config
    folder = _folder_of(config.name)
    device = _device(config.device)
    source = str(folder) if folder else config.name
    extra = _gguf_file(folder)
    safe: dict[str, Any] = {"trust_remote_code": False, **extra}
    if folder is None and not _hub_answers():
        safe["local_files_only"] = True  # what was downloaded before, or a clear no at once instead of retries
    with _quiet(), _clear_errors(config.name, folder):
        from transformers import AutoConfig, AutoTokenizer
        from transformers.utils import cached_file

        model_config = AutoConfig.from_pretrained(source, **safe)
        architecture = family_of(model_config.model_type)
        tokenizer = AutoTokenizer.from_pretrained(source, **safe)
        auto_class = _auto_class(architecture.kind, model_config)
        model, report = auto_class.from_pretrained(
            source,
            config=None if extra else model_config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # _check_complete names them better
            dtype=torch.float32,
            **({} if extra else {"use_safetensors": True}),
            **safe,
        )
        if folder is None:  # where the hub's files were put, for the pooling config beside them
            found = cached_file(
                source,
                "1_Pooling/config.json",
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )
            folder = Path(found).parents[1] if found else None
    _check_complete(config.name, model, report)
    _check_tokenizer(config.name, model, tokenizer)
    model.requires_grad_(False).to(device, _dtype(config.dtype, model, device))
    choose_attention(model, config.attention)
    if config.compile:
        compile_layers(model)
    backbone = Backbone(model, tokenizer, config.name, folder)
    if config.gradient_checkpointing:
        backbone.checkpoint_layers()
    return backbone


def _folder_of(name: str) -> Path | None:
    """The local folder of a name, or None for a hub id."""
    if name in ALIASES:
        return alias_folder(name)
    path = os.path.expanduser(name)  # os.path, because pathlib raises for names no file can have
    if path and os.path.isdir(path):
        folder = Path(path)
        if (folder / "adapter_config.json").is_file():  # transformers would load it, and its base, unasked
            raise BackboneError(
                setting="backbone.name",
                got=name,
                expected="a whole model rather than an adapter",
                fix="merge the adapter into its model and save that",
            )
        has_model = (folder / "config.json").is_file() or any(folder.glob("*.gguf"))
        if not has_model:
            raise BackboneError(
                setting="backbone.name",
                got=name,
                expected="a folder with config.json or one .gguf file",
                fix="point to the model folder itself",
            )
        return folder
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name or not name
    if looks_like_path or os.path.exists(path) or len(name) > 200:
        raise BackboneError(
            setting="backbone.name",
            got=name,
            expected=f"an existing model folder, a hub id or one of {', '.join(ALIASES)}",
            fix="check the path",
        )
    return None


def _hub_answers() -> bool:
    """Whether the model hub's name can be looked up; a proxy would do that for us."""
    from huggingface_hub import constants

    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return True
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def _gguf_file(folder: Path | None) -> dict[str, str]:
    if folder is None or (folder / "config.json").is_file():
        return {}
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise BackboneError(
            setting="backbone.name",
            got=folder,
            expected="exactly one .gguf file in the folder",
            fix="leave only the one to load",
        )
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("gguf", "gguf") from error
    return {"gguf_file": files[0].name}


def _auto_class(kind: str, model_config: Any) -> Any:
    import transformers

    if kind == "decoder":
        return transformers.AutoModelForCausalLM
    if kind == "encoder-decoder":
        return transformers.AutoModelForSeq2SeqLM
    names = getattr(model_config, "architectures", None) or [""]
    # Only a checkpoint saved with a masked-word head has weights for one; ELECTRA's ForPreTraining has none.
    has_words = names[0].endswith("ForMaskedLM") or names[0] == "BertForPreTraining"
    return transformers.AutoModelForMaskedLM if has_words else transformers.AutoModel


def _check_complete(name: str, model: Any, report: dict[str, Any]) -> None:
    """Refuse a model some of whose weights were not in its files: it would answer at random."""
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
    """Without tokenizer files transformers makes an empty tokenizer, which reads every text as unknown."""
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


def _device(name: str) -> torch.device:
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


def _dtype(name: str, model: Any, device: torch.device) -> torch.dtype:
    if name == "auto":
        return choose_dtype(model, device)
    return torch.bfloat16 if name == "bfloat16" else torch.float32


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Our one line of error or nothing; not the loaders' reports and bars."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    had_bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # GGUF's bar obeys no setting
            yield
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _clear_errors(name: str, folder: Path | None) -> Iterator[None]:
    """Loaders fail in many ways; each means that this model cannot be had."""
    try:
        yield
    except BackboneError:
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
        raise BackboneError(
            setting="backbone.name",
            got=name,
            expected="a model folder, an alias or a hub id that can be downloaded",
            fix=f"{near_matches(name, ALIASES)}; or check the network{offline}: {reason}",
        ) from error
