"""Packed rows equal the rows that were packed, in memory, in files, and joined from several processes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tiny import tiny
from toy import PAIRS, TASK, make_model

from softcue.inputs import packed_rows
from softcue.inputs.packed_rows import PackedRows, join_rows, lengths_of, num_truncated, pack_rows, weights_of
from softcue.tasks import Label, Task
from softcue.types import Example, Span, TokenizedRow

NER = Task(name="ner", kind="tags", labels={"LOC": Label(words="place")})
CASES = {
    "one text": (TASK, [Example((f"parcel {number} " * (number % 9 + 1),), "ab"[number % 2]) for number in range(20)]),
    "pairs": (
        PAIRS,
        [Example((f"order {n}", f"box {n} " * (n % 5 + 1)), ("same", "other")[n % 2]) for n in range(9)],
    ),
    "tags": (NER, [Example((f"rain in Oslo {number}",), spans=(Span(8, 12, "LOC"),)) for number in range(9)]),
}
LABELS = [0, 3, 0.25, 7]
BARE = [
    TokenizedRow((1, 2, 3), None, 1, target_ids=(9,), label=label, is_truncated=label == 3, weight=1.0 + label)
    for label in LABELS
]
SETS = [TokenizedRow((1,) * length, None, 0, label=(1.0, 0.0, float(length))) for length in range(4)]
PLACES = [TokenizedRow((1, 2), (0, 1), 0, places=(0, 1, 1)), TokenizedRow((3,), (0,), 1, places=(1, 1, 0))]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def tokenized(family: str, case: str) -> list[TokenizedRow]:
    task, examples = CASES[case]
    model = make_model(tiny(family), task=task)
    return list(model.rows(tiny(family), model.training_examples(examples), with_target=True))


@pytest.mark.parametrize("spill_bytes", [1, 1 << 20])
@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
@pytest.mark.parametrize("case", CASES)
def test_packed_rows_of_tasks_come_back(
    case: str, family: str, spill_bytes: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if family == "gpt2" and case == "tags":
        pytest.skip("96 tokens hold no room for a list of spans")
    monkeypatch.setattr(packed_rows, "SPILL_BYTES", spill_bytes)
    rows = tokenized(family, case)
    packed = pack_rows(iter(rows))
    assert packed == rows
    assert [row.weight for row in packed] == [row.weight for row in rows]
    assert lengths_of(packed).tolist() == lengths_of(rows).tolist()
    assert any(isinstance(values, numpy.memmap) for values in packed.arrays.values()) == (spill_bytes == 1)
    assert not home.exists() or list(home.iterdir()) == []


@pytest.mark.parametrize("rows", [BARE, SETS, PLACES])
def test_labels_weights_and_places_come_back_with_their_types(rows: list[TokenizedRow]) -> None:
    packed = pack_rows(rows)
    assert packed == rows
    assert [type(row.label) for row in packed] == [type(row.label) for row in rows]
    assert weights_of(packed).tolist() == weights_of(rows).tolist() == [row.weight for row in rows]
    assert num_truncated(packed) == num_truncated(rows)
    assert packed[1:] == rows[1:]
    assert packed[-1] == rows[-1]
    assert packed != rows[1:]
    assert packed != [*rows[1:], rows[0]]


@pytest.mark.parametrize("rows", [BARE, SETS, PLACES])
def test_joined_parts_are_the_whole(rows: list[TokenizedRow], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_rows, "SPILL_BYTES", 1)
    assert isinstance(join_rows([pack_rows(rows[:1]), pack_rows(rows[1:])]), PackedRows)
    assert join_rows([pack_rows(rows[:1]), pack_rows(rows[1:])]) == rows
    assert join_rows([pack_rows(rows[:1]), rows[1:]]) == rows
    assert join_rows([rows[:1], rows[1:]]) == rows


def test_sentence_vectors_and_their_inputs_stay_with_their_rows() -> None:
    vectors = torch.arange(8.0).view(4, 2)
    plain = [TokenizedRow((number,), None, 0) for number in range(4)]
    packed = packed_rows.with_plain(packed_rows.with_vectors(pack_rows(BARE), vectors), plain)
    assert [row.representation.tolist() for row in packed if row.representation is not None] == vectors.tolist()
    assert [row.plain for row in packed] == plain
    halves = [PackedRows(pack_rows(BARE[part]).arrays, vectors[part], plain[part]) for part in (slice(2), slice(2, 4))]
    assert [replace(row, weight=1.0) for row in join_rows(halves)] == [replace(row, weight=1.0) for row in packed]
    assert join_rows(halves)[3].representation.tolist() == [6.0, 7.0]  # type: ignore[union-attr]


def test_a_disk_that_is_full_costs_memory_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_rows, "SPILL_BYTES", 64)
    make, num_files = tempfile.TemporaryFile, 0

    class FullDisk:
        def __init__(self, file: object) -> None:
            self.file, self.num_writes = file, 0

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

        def __enter__(self) -> object:
            return self.file.__enter__()  # type: ignore[attr-defined]

        def __exit__(self, *given: object) -> None:
            self.file.__exit__(*given)  # type: ignore[attr-defined]

        def write(self, data: bytes) -> int:
            self.num_writes += 1
            if self.num_writes == 3:
                raise OSError("no space left")
            return self.file.write(data)  # type: ignore[attr-defined,no-any-return]

    def full(**given: Any) -> FullDisk:
        nonlocal num_files
        num_files += 1
        return FullDisk(make(**given))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    rows = [TokenizedRow((number, number + 1), None, 0, label=number) for number in range(300)]
    assert pack_rows(rows) == rows
    assert num_files > 3
