"""Initial prompts beyond the paper's three, which tests/paper/test_prompt_tuning.py compares."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file
from tiny import tiny
from toy import TASK, make_model

from softcue.errors import ConfigurationError
from softcue.prompts.prompt_tuning import label_vectors, text_vectors, vocabulary_vectors
from softcue.tasks import Task

TABLE = torch.arange(6000 * 2.0).view(6000, 2)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def prompt_of(family: str = "bert", task: Task = TASK, **settings: object) -> torch.Tensor:
    return make_model(tiny(family), "prompt-tuning", task=task, **settings).method.state_dict()["encoder.prompt"]  # type: ignore[no-any-return]


def test_sampled_vocabulary_takes_distinct_common_rows_and_no_special_ones() -> None:
    rows = (vocabulary_vectors(TABLE, 4990, seeded(), skip=range(10))[:, 0] / 2).long().tolist()
    assert len(set(rows)) == 4990
    assert min(rows) == 10
    assert max(rows) == 4999


def test_a_prompt_longer_than_the_vocabulary_is_drawn_with_replacement() -> None:
    assert vocabulary_vectors(TABLE[:5], 12, seeded()).shape == (12, 2)


def test_surplus_labels_are_dropped_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="holds only that many of 3 labels"):
        vectors = label_vectors(TABLE, [[1], [2], [3]], torch.zeros(2, 2))
    assert torch.equal(vectors, TABLE[1:3])


def test_free_text_puts_piece_i_into_row_i() -> None:
    vectors = text_vectors(TABLE, [7, 8], torch.zeros(3, 2))
    assert torch.equal(vectors, torch.stack([TABLE[7], TABLE[8], torch.zeros(2)]))


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
def test_a_labels_prompt_starts_with_the_words_vectors(family: str) -> None:
    backbone = tiny(family)
    vectors = prompt_of(family, init="labels", prompt_length=6)
    for row, words in enumerate(TASK.label_words):
        pieces = backbone.tokenizer(words, add_special_tokens=False)["input_ids"]
        torch.testing.assert_close(vectors[row], backbone.word_table[pieces].mean(0))


def test_a_text_prompt_starts_with_the_texts_pieces() -> None:
    backbone = tiny("bert")
    pieces = backbone.tokenizer("my order", add_special_tokens=False)["input_ids"]
    vectors = prompt_of(init="text", init_text="my order", prompt_length=len(pieces) + 2)
    torch.testing.assert_close(vectors[: len(pieces)], backbone.word_table[pieces])


@pytest.mark.parametrize("init", ["uniform", "vocabulary", "labels"])
def test_the_same_seed_starts_the_same_prompt(init: str) -> None:
    assert torch.equal(prompt_of(init=init, seed=1), prompt_of(init=init, seed=1))
    assert not torch.equal(prompt_of(init=init, seed=1), prompt_of(init=init, seed=2))


def test_init_scale_multiplies_the_start() -> None:
    torch.testing.assert_close(prompt_of(init_scale=3.0), prompt_of() * 3.0)


@pytest.mark.parametrize("kind", ["npy", "safetensors", "folder"])
def test_a_prompt_starts_from_a_file_or_another_cue(tmp_path: Path, kind: str) -> None:
    values = torch.randn(4, 32)
    path = {"npy": tmp_path / "p.npy", "safetensors": tmp_path / "p.safetensors", "folder": tmp_path}[kind]
    if kind == "npy":
        numpy.save(path, values.numpy())
    elif kind == "safetensors":
        save_file({"anything": values}, path)
    else:
        save_file(
            {"method.encoder.prompt": values, "readout.head.1.weight": torch.zeros(2, 32)}, path / "cue.safetensors"
        )
    assert torch.equal(prompt_of(init="file", init_from=str(path), prompt_length=4), values)


def test_a_file_of_another_shape_is_refused(tmp_path: Path) -> None:
    save_file({"prompt": torch.zeros(4, 32)}, tmp_path / "p.safetensors")
    with pytest.raises(ConfigurationError, match=r"set method\.prompt_length=4"):
        prompt_of(init="file", init_from=str(tmp_path / "p.safetensors"), prompt_length=5)
    save_file({"prompt": torch.zeros(4, 7)}, tmp_path / "q.safetensors")
    with pytest.raises(ConfigurationError, match="same width"):
        prompt_of(init="file", init_from=str(tmp_path / "q.safetensors"), prompt_length=4)


def test_a_file_with_nan_or_pickles_or_nothing_is_refused(tmp_path: Path) -> None:
    save_file({"prompt": torch.full((4, 32), float("nan"))}, tmp_path / "p.safetensors")
    with pytest.raises(ConfigurationError, match="finite"):
        prompt_of(init="file", init_from=str(tmp_path / "p.safetensors"), prompt_length=4)
    numpy.save(tmp_path / "o.npy", numpy.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigurationError, match=r"method\.init_from"):
        prompt_of(init="file", init_from=str(tmp_path / "o.npy"), prompt_length=4)
    with pytest.raises(ConfigurationError, match=r"method\.init_from"):
        prompt_of(init="file", init_from=str(tmp_path / "missing"), prompt_length=4)


def test_text_init_without_text_says_what_to_set() -> None:
    with pytest.raises(ConfigurationError, match=r"method\.init_text"):
        prompt_of(init="text")
