"""Hard prompts: text before the row whose words stay as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.tasks import Task


def hard_text(setting: str, task: Task) -> str:
    """Return the text of `method.hard_prompt`; `task` stands for the task's label words and description."""
    text = " ".join([*task.label_words, task.description]).strip() if setting == "task" else setting
    if setting and not text.strip():
        raise ConfigurationError(
            setting="method.hard_prompt",
            got=setting,
            expected="a task with label words or a description, or a text",
            fix="write the text itself, or leave it out",
        )
    return text


def hard_vectors(text: str, backbone: Backbone) -> Tensor:
    """Return T, the word vectors of a frozen text. [t D]"""
    return backbone.word_input_states[torch.tensor(_tokenize(text, backbone), dtype=torch.long)].float()


def separate_vectors(text: str, separator: str, backbone: Backbone) -> Tensor:
    """Return the word vectors of a frozen text and the separator behind it, as in front of another text. [t D]

    Some tokenizers drop white space before a word, and write a token for it at the end of a text.
    """
    next_word = "a"
    ids = _tokenize(f"{text}{separator}{next_word}", backbone) if text.strip() else []
    num_next = len(_tokenize(next_word, backbone))
    return backbone.word_input_states[torch.tensor(ids[: len(ids) - num_next], dtype=torch.long)].float()


def _tokenize(text: str, backbone: Backbone) -> list[int]:
    return list(backbone.tokenizer(text, add_special_tokens=False)["input_ids"]) if text.strip() else []
