"""Random weights of real shapes (MiniLM, T5 v1.1 small, a GPT-2 of width 512), random texts, cues on them.

The weights do not matter for speed.
"""

from __future__ import annotations

from typing import Any

import torch

from softcue.backbones import Backbone
from softcue.methods import METHODS, TaskModel, make_task_model
from softcue.readouts import ReadoutConfig
from softcue.tasks import Label, Task
from softcue.types import Example

CLASSES = ("one", "two")
WORDS = ("11", "12")  # token numbers, as all text here


def random_backbone(kind: str) -> Backbone:
    """A backbone of that kind."""
    torch.manual_seed(0)
    return Backbone(random_model(kind), NumberTokenizer(), f"random {kind}")


def random_cue(
    backbone: Backbone, method: str, settings: dict[str, Any], readout: ReadoutConfig | None = None, seed: int = 0
) -> TaskModel:
    """A new cue for two classes."""
    task = Task(name="bench", labels={name: Label(words=words) for name, words in zip(CLASSES, WORDS, strict=True)})
    config = METHODS[method].Config.model_validate({"name": method, **settings})
    generator = torch.Generator().manual_seed(seed)
    return make_task_model(task, (METHODS[method], config), readout or ReadoutConfig(), backbone, generator)


def random_examples(num_rows: int, length: int) -> list[Example]:
    """Texts of written-out token numbers, in two classes."""
    numbers = torch.randint(10, 1000, (num_rows, length), generator=torch.Generator().manual_seed(0)).tolist()
    return [Example((" ".join(map(str, row)),), CLASSES[number % 2]) for number, row in enumerate(numbers)]


def random_model(kind: str, classes: int = 0) -> Any:
    """A transformers model; with `classes`, an encoder gets a head for PEFT."""
    import transformers as hf

    if kind == "encoder":
        config = hf.BertConfig(vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
                               intermediate_size=1536, num_labels=classes or 2)  # fmt: skip
        return hf.BertForSequenceClassification(config) if classes else hf.BertModel(config)
    if kind == "encoder-decoder":
        return hf.T5ForConditionalGeneration(hf.T5Config(
            vocab_size=32128, d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_heads=6,
            feed_forward_proj="gated-gelu", decoder_start_token_id=0))  # fmt: skip
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=32000, n_embd=512, n_layer=8, n_head=8, eos_token_id=1, bos_token_id=1)
    )


class NumberTokenizer:
    """Enough of a tokenizer for texts that are written-out token numbers."""

    pad_token_id, eos_token_id, pad_token, eos_token, all_special_ids = 0, 1, "0", "1", (0, 1)
    unk_token, special_tokens_map = None, {"pad_token": "0", "eos_token": "1"}
    model_max_length = 512

    def get_vocab(self) -> dict[str, int]:
        """Nothing that could tell two of them apart."""
        return {}

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        """The numbers themselves; other words by their length."""
        return {"input_ids": [int(word) if word.isdigit() else 2 + len(word) for word in text.split()]}
