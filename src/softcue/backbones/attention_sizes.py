"""How large the keys and values of a backbone's layers are: the units of prompts that are attended to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from softcue.backbones.backbone import Backbone
from softcue.backbones.structure import Projection
from softcue.backbones.tracing import ordinary_words
from softcue.inputs.collate import collate
from softcue.types import TokenizedRow

NUM_WORDS = 32  # of the text on which sizes are measured
SMALLEST = 1e-6


def attention_sizes(backbone: Backbone) -> Tensor:
    """Return the root mean square of each layer's keys and of its values, for a text of ordinary words. [L 2]

    Example:
        attention_sizes(load_backbone("minilm"))[0]     # of the first layer
    """
    sizes = torch.ones(backbone.num_layers, 2)

    def note(number: int, which: int, projection: Projection) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            sizes[number, which] = projection.take(output).float().square().mean().sqrt().clamp(min=SMALLEST)

        return hook

    special = {*backbone.tokenizer.all_special_ids}
    words = ordinary_words(len(backbone.word_table), special, NUM_WORDS)
    batch = collate([TokenizedRow(tuple(words), None, insert_at=0)], backbone.tokenizer.pad_token_id).to(
        backbone.device
    )
    with torch.no_grad(), ExitStack() as stack:
        for number, (layer, structure) in enumerate(
            zip(backbone.layers, backbone.structure.source.layers, strict=True)
        ):
            for which, projection in enumerate((structure.keys, structure.values)):
                assert projection is not None
                module = layer.get_submodule(projection.module)
                stack.callback(module.register_forward_hook(note(number, which, projection)).remove)
        backbone.read(batch, None, backbone.input_states(batch)).hidden()
    return sizes
