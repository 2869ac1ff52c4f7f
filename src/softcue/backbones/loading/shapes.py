"""Backbones without weights: the shapes of well-known models, to count a method's numbers with no download.

The model lies on torch's meta device, where a tensor is a shape without memory, so T5-XXL costs no more than
GPT-2. What needs weights (a fingerprint, a prompt begun from word embeddings, an answer) is not to be had from it.
"""

from __future__ import annotations

import json
import os
from copy import deepcopy
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from softcue.backbones.backbone import Backbone
from softcue.backbones.families import family_of
from softcue.backbones.loading.load import _auto_class, _quiet
from softcue.errors import BackboneError, near_matches


def known_shapes() -> tuple[str, ...]:
    """Names of the models whose shapes come with softcue.

    Example:
        >>> "roberta-large" in known_shapes()
        True
    """
    return tuple(_shapes())


def backbone_like(name: str) -> Backbone:
    """A backbone of a model's shape, without its weights and words: a known name, or a folder with config.json.

    The model's class is the one `load_backbone` would choose.

    Example:
        >>> backbone = backbone_like("t5-xxl")
        >>> backbone.width, backbone.num_layers, backbone.device.type
        (4096, 24, 'meta')
    """
    folder = None if name in _shapes() else _folder_of(name)
    try:
        with _quiet():
            values = _shapes()[name] if folder is None else json.loads((folder / "config.json").read_text("utf-8"))
            model = _weightless(values)
            return Backbone(model, StandInTokenizer(model.config), name, folder)
    except BackboneError:
        raise
    except Exception as error:  # a folder's config.json may be wrong in any way
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise BackboneError(
            setting="backbone shape",
            got=name,
            expected="a config.json that transformers can build a model from",
            fix=f"check it: {reason[:200].rstrip('.')}",
        ) from error


class StandInTokenizer:
    """The special token numbers of a configuration, and no vocabulary.

    Example:
        >>> StandInTokenizer(backbone_like("gpt2").model.config).pad_token_id  # GPT-2 has none but its end token
        50256
    """

    model_max_length = int(1e30)  # transformers' way to say that the tokenizer sets no limit
    pad_token, eos_token, mask_token = "<pad>", "</s>", "<mask>"

    def __init__(self, config: Any) -> None:
        self.bos_token_id = _first_id(config, "bos_token_id")
        self.eos_token_id = _first_id(config, "eos_token_id")
        own = _first_id(config, "pad_token_id")
        self.pad_token_id = own if own is not None else self.eos_token_id or 0  # as Backbone does it
        special = {self.pad_token_id, self.bos_token_id, self.eos_token_id}
        self.all_special_ids = sorted(number for number in special if number is not None)
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        """One made-up number per word: readouts cut their labels when they are built, and no count depends on how."""
        first = self.all_special_ids[-1] + 1
        return {"input_ids": [first + self._numbers.setdefault(word, len(self._numbers)) for word in text.split()]}


@cache
def _shapes() -> dict[str, dict[str, Any]]:
    text = files("softcue.backbones.loading").joinpath("shapes.yaml").read_text("utf-8")
    return yaml.safe_load(text)  # type: ignore[no-any-return]


def _folder_of(name: str) -> Path:
    path = os.path.expanduser(name)  # os.path, because pathlib raises for names no file can have
    if name and os.path.isfile(os.path.join(path, "config.json")):
        return Path(path)
    raise BackboneError(
        setting="backbone shape",
        got=name,
        expected="the name of a known shape, or a folder with config.json",
        fix=near_matches(name, known_shapes()),
    )


def _weightless(values: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    architecture = family_of(str(values.get("model_type")))
    config = AutoConfig.for_model(**deepcopy(values))  # models may change their configuration's lists
    with torch.device("meta"):  # transformers then draws no first weights either, but still ties them
        auto_class = _auto_class(architecture.kind, config)
        model = auto_class.from_config(config, dtype=torch.float32, trust_remote_code=False)
    # transformers 5 builds every T5 tied, and unties T5 1.1 only once its checkpoint turns out to hold two tables.
    # What a 1.1 config said of tying lives on as scale_decoder_outputs, also in what transformers 5 saves.
    is_untied = False in (values.get("tie_word_embeddings"), values.get("scale_decoder_outputs"))
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if is_untied and head is not None and head.weight is table.weight:
        head.weight = nn.Parameter(torch.empty_like(table.weight))
    return model


def _first_id(config: Any, name: str) -> int | None:
    """A token number, or the first of several, which chat models have for their end."""
    found = getattr(config, name, None)
    if isinstance(found, (list, tuple)):
        found = found[0] if found else None
    return found if found is None else int(found)
