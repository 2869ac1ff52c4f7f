"""Backbones without weights: the shapes of well-known models, to count a method's parameters without a download.

The model is on torch's meta device, where a tensor is a shape without memory, so T5-XXL costs no more than GPT-2. It
cannot do what needs weights: a fingerprint, a prompt initialised from word embeddings, a prediction.
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
from softcue.backbones.loading.load import build_without_weights, choose_auto_class, quiet_transformers
from softcue.backbones.tracing import token_ids_of
from softcue.errors import BackboneError, first_line, near_matches

# Keys of config.json that are false where input and output words are not tied. transformers 5 builds every T5 tied and
# unties T5 1.1 only when its checkpoint holds two tables; what a 1.1 config said of tying it saves as the second key.
TYING_KEYS = ("tie_word_embeddings", "scale_decoder_outputs")


def list_shapes() -> tuple[str, ...]:
    """List the names of the models whose shapes come with softcue.

    Example:
        >>> "roberta-large" in list_shapes()
        True
    """
    return tuple(_shapes())


def backbone_like(name: str) -> Backbone:
    """Build a backbone with the shape of a model, from a known name or a folder with config.json.

    It has no weights and no vocabulary. The class of the model is the one `load_backbone` would choose.

    Example:
        >>> backbone = backbone_like("t5-xxl")
        >>> backbone.width, backbone.num_layers, backbone.device.type
        (4096, 24, 'meta')
    """
    folder = None if name in _shapes() else _find_config_folder(name)
    try:
        with quiet_transformers():
            values = _shapes()[name] if folder is None else json.loads((folder / "config.json").read_text("utf-8"))
            model = _build_model(values)
            return Backbone(model, StandInTokenizer(model.config), name, folder)
    except BackboneError:
        raise
    except Exception as error:  # a folder's config.json may be wrong in any way
        reason = first_line(error)
        raise BackboneError(
            setting="backbone shape",
            got=name,
            expected="a config.json that transformers can build a model from",
            fix=f"check it: {reason[:200].rstrip('.')}",
        ) from error


class StandInTokenizer:
    """A tokenizer with the special token ids of a configuration and without a vocabulary.

    Example:
        >>> StandInTokenizer(backbone_like("gpt2").model.config).pad_token_id  # GPT-2 has only its end token
        50256
    """

    model_max_length = int(1e30)  # the value of transformers for "no limit"
    pad_token, eos_token, mask_token = "<pad>", "</s>", "<mask>"

    def __init__(self, config: Any) -> None:
        self.bos_token_id = _first_id(config, "bos_token_id")
        self.eos_token_id = _first_id(config, "eos_token_id")
        pad_token_id = _first_id(config, "pad_token_id")
        self.pad_token_id = pad_token_id if pad_token_id is not None else self.eos_token_id or 0  # as in Backbone
        special = {self.pad_token_id, self.bos_token_id, self.eos_token_id}
        self.mask_token_id = self.pad_token_id  # no text of a stand-in has a mask
        self.all_special_ids = sorted(number for number in special if number is not None)
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        """Return one made-up id per word. Readouts tokenize labels when they are built; counts do not need real ids."""
        first = self.all_special_ids[-1] + 1
        return {"input_ids": [first + self._numbers.setdefault(word, len(self._numbers)) for word in text.split()]}


@cache
def _shapes() -> dict[str, dict[str, Any]]:
    text = files("softcue.backbones.loading").joinpath("shapes.yaml").read_text("utf-8")
    return yaml.safe_load(text)  # type: ignore[no-any-return]


def _find_config_folder(name: str) -> Path:
    path = os.path.expanduser(name)  # os.path, because pathlib raises for names no file can have
    if name and os.path.isfile(os.path.join(path, "config.json")):
        return Path(path)
    raise BackboneError(
        setting="backbone shape",
        got=name,
        expected="the name of a known shape, or a folder with config.json",
        fix=near_matches(name, list_shapes()),
    )


def _build_model(values: dict[str, Any]) -> Any:
    """Build a model without weights from the values of a config.json."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    model_type = str(values.get("model_type"))
    if model_type not in CONFIG_MAPPING_NAMES:
        raise BackboneError(
            setting="backbone model_type",
            got=model_type,
            expected="a type of model that transformers knows",
            fix=near_matches(model_type, list(CONFIG_MAPPING_NAMES)),
        )
    config = AutoConfig.for_model(**deepcopy(values))  # models may change their configuration's lists
    model = build_without_weights(choose_auto_class(config), config)
    is_untied = False in [values.get(key) for key in TYING_KEYS]
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if is_untied and head is not None and head.weight is table.weight:
        head.weight = nn.Parameter(torch.empty_like(table.weight))
    return model


def _first_id(config: Any, name: str) -> int | None:
    return next(iter(token_ids_of(config, name)), None)
