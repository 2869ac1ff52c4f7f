"""Backbones with random weights in the shapes of real models (MiniLM, T5 v1.1 small, a GPT-2 of width 512).

Weights do not matter for speed. Texts are random token ids, and cues have random prompts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from softcue.backbones import Backbone
from softcue.backbones.loading.autotune import choose_attention, choose_dtype
from softcue.inference import TaskModel, make_task_model
from softcue.methods import METHODS
from softcue.readouts import ReadoutConfig
from softcue.tasks import Label, Task
from softcue.types import Example

LABELS = ("one", "two")
LABEL_WORDS = ("11", "12")  # token ids, like all text here
SHAPES: dict[str, dict[str, Any]] = {
    "encoder": {
        "vocab_size": 30522,
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
    "encoder-decoder": {
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 1024,
        "num_layers": 8,
        "num_heads": 6,
        "feed_forward_proj": "gated-gelu",
        "decoder_start_token_id": 0,
    },
    "decoder": {"vocab_size": 32000, "n_embd": 512, "n_layer": 8, "n_head": 8, "eos_token_id": 1, "bos_token_id": 1},
}


def random_backbone(kind: str, with_defaults: bool = False) -> Backbone:
    """A backbone of that kind with random weights, in float32 with transformers' attention.

    `with_defaults` chooses number format and attention as loading does: what is fastest on this machine.
    """
    torch.manual_seed(0)
    model = random_model(kind)
    if with_defaults:
        model.requires_grad_(False)
        model.to(choose_dtype(model, torch.device("cpu")))
        choose_attention(model, "auto")
    return Backbone(model, NumberTokenizer(), f"random {kind}")


def random_cue(
    backbone: Backbone, method: str, settings: dict[str, Any], readout: ReadoutConfig | None = None, seed: int = 0
) -> TaskModel:
    """A new cue for a task with two labels."""
    labels = {name: Label(words=words) for name, words in zip(LABELS, LABEL_WORDS, strict=True)}
    task = Task(name="bench", labels=labels)
    config = METHODS[method].Config.model_validate({"name": method, **settings})
    generator = torch.Generator().manual_seed(seed)
    return make_task_model(task, (METHODS[method], config), readout or ReadoutConfig(), backbone, generator)


def vary_cue(cue: TaskModel, num_cues: int) -> list[TaskModel]:
    """The cue and copies of it with other parameter values. Copying is much faster than building each."""
    cues = [cue]
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_cues - 1):
        variant = copy.deepcopy(cue)
        for parameter in variant.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
        cues.append(variant)
    return cues


def random_examples(lengths: Sequence[int]) -> list[Example]:
    """Texts of written-out token ids, labelled alternately."""
    ids = torch.randint(10, 1000, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    texts = [" ".join(map(str, row.tolist())) for row in ids.split(list(lengths))]
    return [Example((text,), LABELS[number % 2]) for number, text in enumerate(texts)]


def random_model(kind: str, with_head: bool = False) -> Any:
    """A transformers model. PEFT needs a classification head on an encoder."""
    import transformers as hf

    if kind == "encoder":
        config = hf.BertConfig(**SHAPES[kind], num_labels=len(LABELS))
        return hf.BertForSequenceClassification(config) if with_head else hf.BertModel(config)
    if kind == "encoder-decoder":
        return hf.T5ForConditionalGeneration(hf.T5Config(**SHAPES[kind]))
    return hf.GPT2LMHeadModel(hf.GPT2Config(**SHAPES[kind]))


class NumberTokenizer:
    """A minimal tokenizer for texts of written-out token ids."""

    pad_token_id, eos_token_id, pad_token, eos_token, all_special_ids = 0, 1, "0", "1", (0, 1)
    unk_token, special_tokens_map = None, {"pad_token": "0", "eos_token": "1"}
    all_special_tokens: tuple[str, ...] = ()  # none is looked for in texts: any number may hold these digits
    model_max_length = 512

    def get_vocab(self) -> dict[str, int]:
        """An empty vocabulary: all number tokenizers are the same."""
        return {}

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        """Numbers become themselves; other words become an id made from their length."""
        return {"input_ids": [int(word) if word.isdigit() else 2 + len(word) for word in text.split()]}
