"""Cached rows equal newly tokenized rows; the texts and the settings of the formatter decide the cache file."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.torch import load_file
from tiny import tiny
from toy import PAIRS, TASK, make_model

from softcue.inference import TaskModel
from softcue.inputs import token_cache
from softcue.inputs.formatter import InputFormatter
from softcue.inputs.packed_rows import PackedRows
from softcue.tasks import Label, Task
from softcue.types import Example, Span

NER = Task(name="ner", kind="tags", labels={"LOC": Label(words="place")})
ONE = [Example((f"where is parcel {number} " * (number % 40 + 1),)) for number in range(30)]
TWO = [Example((f"parcel {number}", f"order {number} " * (number % 40)), "same") for number in range(1, 31)]
MARKED = [Example((f"rain in Oslo {number}",), spans=(Span(8, 12, "LOC"),), offset=number) for number in range(30)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(token_cache, "MIN_CACHED_ROWS", 10)
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path))
    return tmp_path / "tokens"


def tokenize(model: TaskModel, examples: list[Example]) -> list[object]:
    return [model.formatter.source(example) for example in examples]


@pytest.mark.parametrize("family", ["bert", "roberta", "t5", "gpt2"])
@pytest.mark.parametrize(("task", "examples"), [(TASK, ONE), (PAIRS, TWO), (NER, MARKED)])
def test_cached_rows_equal_newly_tokenized_rows(
    family: str, task: Task, examples: list[Example], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if family == "gpt2" and task is NER:
        pytest.skip("96 tokens hold no room for a list of spans")
    model = make_model(tiny(family), task=task)
    expected = tokenize(model, examples)
    assert token_cache.tokenize_rows(model.formatter, "digest", examples) == expected
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr(InputFormatter, "source", lambda *_: pytest.fail("tokenized again"))
    assert token_cache.tokenize_rows(model.formatter, "digest", examples) == expected


def test_every_setting_that_changes_tokens_changes_the_cache_file(folder: Path) -> None:
    formatter = make_model(tiny("bert"), task=PAIRS).formatter
    swapped = PAIRS.model_copy(update={"sentences": ("{second}", "{first}")})
    variants = [
        formatter,
        replace(formatter, limit=20),
        replace(formatter, insert_at="end"),
        replace(formatter, suffix=" x"),
        replace(formatter, offset_unit="token"),
        replace(formatter, offset_unit="word"),
        replace(formatter, task=swapped),
    ]
    for variant in variants:
        assert token_cache.tokenize_rows(variant, "a", TWO) == [variant.source(example) for example in TWO]
    token_cache.tokenize_rows(formatter, "b", TWO)
    token_cache.tokenize_rows(formatter, "a", TWO[::-1])
    assert len(list(folder.iterdir())) == len(variants) + 2


@pytest.mark.parametrize("damage", [b"", b"nonsense" * 100, None])
def test_damaged_cache_file_is_replaced(folder: Path, damage: bytes | None) -> None:
    model = make_model(tiny("bert"))
    token_cache.tokenize_rows(model.formatter, "a", ONE)
    [path] = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    assert token_cache.tokenize_rows(model.formatter, "a", ONE) == tokenize(model, ONE)
    assert token_cache.tokenize_rows(model.formatter, "a", ONE) == tokenize(model, ONE)


def test_cache_file_with_a_changed_bit_is_replaced(folder: Path) -> None:
    model, draws = make_model(tiny("bert")), random.Random(7)
    expected = token_cache.tokenize_rows(model.formatter, "a", ONE)
    [path] = folder.iterdir()
    whole = path.read_bytes()
    for _ in range(40):
        damaged = bytearray(whole)
        damaged[draws.randrange(len(whole))] ^= 1 << draws.randrange(8)
        path.write_bytes(damaged)
        assert token_cache.tokenize_rows(model.formatter, "a", ONE) == expected
        assert path.read_bytes() == whole


def test_cache_file_with_ids_beyond_the_vocabulary_is_replaced(folder: Path) -> None:
    model = make_model(tiny("bert"))
    expected = token_cache.tokenize_rows(model.formatter, "a", ONE)
    [path] = folder.iterdir()
    mapped = token_cache._map_file(path)
    assert mapped is not None
    arrays = {name: numpy.array(values) for name, values in mapped.items()}
    arrays["ids"][0] = 10**6
    path.write_bytes(b"".join(token_cache.file_chunks(arrays)))
    assert token_cache.tokenize_rows(model.formatter, "a", ONE) == expected


def test_a_cache_file_is_a_safetensors_file_whose_rows_are_mapped(folder: Path) -> None:
    model = make_model(tiny("bert"))
    token_cache.tokenize_rows(model.formatter, "a", ONE)
    rows = token_cache.tokenize_rows(model.formatter, "a", ONE)
    assert isinstance(rows, PackedRows)
    assert all(isinstance(values, numpy.memmap) for values in rows.arrays.values())
    [path] = folder.iterdir()
    tensors = load_file(path)
    assert tensors["ids"].tolist() == [token for row in rows for token in row.ids]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("is_truncated", None),
        ("insert_at", numpy.zeros(3, numpy.int32)),
        ("places", numpy.zeros((2, 4), numpy.int32)),
        ("offsets", numpy.zeros(3, numpy.int32)),
        ("is_truncated", numpy.zeros(30)),
        ("other", numpy.zeros(30, numpy.int32)),
    ],
)
def test_cache_file_whose_arrays_are_not_those_of_the_rows_is_replaced(folder: Path, name: str, values: Any) -> None:
    formatter = make_model(tiny("bert")).formatter
    expected = token_cache.tokenize_rows(formatter, "digest", ONE)
    [path] = folder.iterdir()
    arrays = {key: numpy.array(array) for key, array in token_cache._map_file(path).items() if key != name}
    if values is not None:
        arrays[name] = values
    path.write_bytes(b"".join(token_cache.file_chunks(arrays)))
    assert token_cache.tokenize_rows(formatter, "digest", ONE) == expected


def test_least_recently_used_file_is_removed_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formatter = make_model(tiny("bert")).formatter
    names = []
    for number in range(3):
        before = set(folder.iterdir()) if folder.exists() else set()
        token_cache.tokenize_rows(formatter, str(number), ONE)
        [path] = set(folder.iterdir()) - before
        os.utime(path, (1000 + number, 1000 + number))
        names.append(path)
    token_cache.tokenize_rows(formatter, "0", ONE)  # used again: now the newest
    monkeypatch.setattr(token_cache, "SIZE_LIMIT", 3 * names[0].stat().st_size)
    token_cache.tokenize_rows(formatter, "3", ONE)
    assert [path.exists() for path in names] == [True, False, True]


def test_unwritable_cache_folder_does_not_stop_the_run(folder: Path) -> None:
    folder.write_text("a file in the way")
    model = make_model(tiny("bert"))
    assert token_cache.tokenize_rows(model.formatter, "a", ONE) == tokenize(model, ONE)


def test_few_rows_are_not_cached(folder: Path) -> None:
    model = make_model(tiny("bert"))
    token_cache.tokenize_rows(model.formatter, "a", ONE[:9])
    assert not folder.exists()


def test_environment_variable_turns_the_cache_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTCUE_CACHE_MB", "0")
    model = make_model(tiny("bert"))
    assert token_cache.tokenize_rows(model.formatter, "a", ONE) == tokenize(model, ONE)
    assert not folder.exists()


def test_argument_turns_the_cache_off(folder: Path) -> None:
    model = make_model(tiny("bert"))
    assert token_cache.tokenize_rows(model.formatter, "a", ONE, use_disk_cache=False) == tokenize(model, ONE)
    assert not folder.exists()
    token_cache.tokenize_rows(model.formatter, "a", ONE)
    [path] = folder.iterdir()
    path.write_bytes(b"damaged")
    token_cache.tokenize_rows(model.formatter, "a", ONE, use_disk_cache=False)
    assert path.read_bytes() == b"damaged"  # neither read nor replaced


def test_models_with_the_same_vocabulary_do_not_share_cache_files(folder: Path) -> None:
    bert, distilbert = tiny("bert"), tiny("distilbert")
    assert bert.fingerprint.tokenizer == distilbert.fingerprint.tokenizer
    models = [make_model(backbone, task=PAIRS) for backbone in (distilbert, bert)]
    examples = [Example(("one text", f"another {number}")) for number in range(20)]
    rows_by_model = [
        token_cache.tokenize_rows(model.formatter, bert.fingerprint.tokenizer, examples) for model in models
    ]
    assert [rows[0].segments is None for rows in rows_by_model] == [True, False]
    assert len(list(folder.iterdir())) == 2
