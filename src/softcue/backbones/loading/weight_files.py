"""Which weight files of a model folder may be loaded: safetensors; pickles only if the user allows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from softcue.backbones.loading.weight_reading import exact_format
from softcue.errors import BackboneError

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
OTHER_FORMATS = {"*.h5": ("TensorFlow", "from_tf"), "*.msgpack": ("Flax", "from_flax")}


def choose_weight_format(folder: Path, name: str, allow_pickle: bool) -> bool:
    """Return whether safetensors are loaded, rather than a pickle, after a check of the folder's weight files.

    Raises an error for a pickle that is not allowed, for shards that are missing, and for weights in a format that
    softcue cannot train prompts on. A folder without any known file is left to transformers, which names what it wants.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "model.safetensors").touch()
        >>> choose_weight_format(folder, "my-model", allow_pickle=False)
        True
    """
    if _has_weights(folder, name, SAFETENSORS):
        return True
    if pickles := sorted(file.name for file in folder.glob("pytorch_model*.bin")):
        if not allow_pickle:
            raise BackboneError(
                setting="backbone.name",
                got=f"{name}, whose weights are a pickle ({pickles[0]})",
                expected="model.safetensors: opening a pickle can run any code that is in it",
                fix="save it as safetensors (save_pretrained of transformers), or, if you trust its source, pass "
                "--allow-pickle (backbone.allow_pickle=true); torch then reads it with weights_only=True",
            )
        return not _has_weights(folder, name, PICKLE)
    if (onnx := next(folder.rglob("*.onnx"), None)) is not None:
        raise BackboneError(
            setting="backbone.name",
            got=f"{name}, which has only ONNX weights ({onnx.relative_to(folder)})",
            expected="model.safetensors: prompts are trained through the layers of a PyTorch model",
            fix="fetch the model this file was exported from; an ONNX file cannot be turned back into it",
        )
    for pattern, (framework, option) in OTHER_FORMATS.items():
        if file := next(folder.glob(pattern), None):
            raise BackboneError(
                setting="backbone.name",
                got=f"{name}, which has only {framework} weights ({file.name})",
                expected="model.safetensors",
                fix=f"fetch the model's safetensors, or convert it with transformers 4 and {framework}: "
                f"from_pretrained(FOLDER, {option}=True).save_pretrained(NEW)",
            )
    return True


@dataclass(frozen=True)
class ModelFiles:
    """The files of one model on this machine; none of a hub id whose weights were not downloaded yet."""

    paths: tuple[Path, ...]
    weights: tuple[Path, ...]  # those of them with weights; safetensors, where there are any

    @classmethod
    def of_folder(cls, folder: Path | None) -> Self:
        """The files of a model folder.

        Example:
            >>> ModelFiles.of_folder(None).weights
            ()
        """
        paths = [] if folder is None else sorted(path for path in folder.iterdir() if path.is_file())
        for suffix in (".safetensors", ".bin"):
            if weights := tuple(path for path in paths if path.suffix == suffix):
                return cls(tuple(paths), weights)
        return cls((), ())

    @classmethod
    def of_hub_id(cls, hub_id: str, options: Mapping[str, Any], download: bool) -> Self:
        """The files of a hub id in the cache of the hub; `download` fetches weights that are not there."""
        from huggingface_hub import snapshot_download, try_to_load_from_cache

        config = try_to_load_from_cache(hub_id, "config.json", revision=options.get("revision"))
        files = cls.of_folder(Path(config).parent if isinstance(config, str) else None)
        if files.weights or not download:
            return files
        patterns = ["config.json", "*.safetensors", "*.safetensors.index.json"]
        others = ["*/*", "consolidated*"]  # the same weights in other layouts
        folder = snapshot_download(hub_id, allow_patterns=patterns, ignore_patterns=others, **options)
        return cls.of_folder(Path(folder))

    def exact_format(self) -> torch.dtype:
        """The number format in which the weights lose nothing; in it, safetensors are mapped and take no memory."""
        is_mapped = self.weights and all(path.suffix == ".safetensors" for path in self.weights)
        return exact_format(self.weights) if is_mapped else torch.float32


def check_named_weights(model_config: Any, name: str) -> None:
    """Raise an error if a model's config.json names a weight file that is not safetensors.

    transformers loads that file before all others, and an index or adapter_model.bin may lead to a pickle.
    """
    file = getattr(model_config, "transformers_weights", None)
    if file is not None and not str(file).endswith(".safetensors"):
        raise BackboneError(
            setting="backbone.name",
            got=f"{name}, whose config.json has transformers_weights: {file}",
            expected="no such key, or a .safetensors file in it",
            fix="save the model again as safetensors (save_pretrained of transformers)",
        )


def _has_weights(folder: Path, name: str, file: str) -> bool:
    """Return whether a folder has a weight file, or an index of its shards; raise an error if a shard is missing."""
    if (folder / file).is_file():
        return True
    index = folder / f"{file}.index.json"
    if not index.is_file():
        return False
    try:
        shards = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        missing = [shard for shard in shards if not (folder / shard).is_file()]
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise BackboneError(
            setting="backbone.name",
            got=f"{name}, whose {index.name} cannot be read",
            expected="a JSON object with weight_map",
            fix=f"check its files, or fetch the model again: {type(error).__name__}",
        ) from error
    suffix = Path(file).suffix  # transformers goes by the shard's suffix, so an index could name a pickle
    if foreign := [shard for shard in shards if Path(shard).suffix != suffix]:
        raise BackboneError(
            setting="backbone.name",
            got=f"{name}, whose {index.name} names {foreign[0]}",
            expected=f"shards that are {suffix} files",
            fix="save the model again as safetensors (save_pretrained of transformers)",
        )
    if missing:
        raise BackboneError(
            setting="backbone.name",
            got=f"{name} without {', '.join(missing)}",
            expected=f"all {len(shards)} weight files of {index.name}",
            fix="check its files, or fetch the model again",
        )
    return True
