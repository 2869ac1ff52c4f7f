"""Examples in a file equal those in memory, and a run that reads them from there is the same run."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from softcue.tasks import splits
from softcue.tasks.splits import TaskConfig, _identity, read_splits, split_off
from softcue.tasks.stored_examples import StoredExamples, store_examples
from softcue.types import Example, Span

EXAMPLES = [
    Example(("plain",), "a"),
    Example(("a pair", "of texts\n\u2028"), 0.1 + 0.2),
    Example(("lone surrogate \ud800",)),
    Example(("who?", "Ann"), "Ann", ("Ann", "ann"), (Span(0, 3), Span(1, 2, "PER")), "group", ("Ann", "Bob"), 7),
    Example(("set",), labels=("a", "b"), weight=2.5),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_every_field_comes_back(home: Path) -> None:
    stored = store_examples(EXAMPLES)
    assert list(stored) == EXAMPLES
    assert [stored[number] for number in range(-5, 5)] == EXAMPLES * 2
    assert [example.weight for example in stored] == [example.weight for example in EXAMPLES]
    assert list(stored[1::2]) == EXAMPLES[1::2]
    assert list(stored[1:4]) == EXAMPLES[1:4]
    assert list(stored.take([4, 0])[::-1]) == [EXAMPLES[0], EXAMPLES[4]]
    assert list(stored[5:]) == []
    with pytest.raises(IndexError):
        stored[5]
    assert list(home.iterdir()) == []  # the file has no name


def test_records_across_blocks_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softcue.tasks.stored_examples.BLOCK", 64)
    examples = [Example(("x" * (number % 200),), str(number)) for number in range(300)]
    assert list(store_examples(examples)) == examples


def held_out_in_memory(examples: Sequence[Example], share: float, seed: int, by_class: bool) -> list[Example]:
    """The rows to hold out, with whole identities in memory: the rule that `split_off` follows."""
    classes: dict[object, list[tuple[str, ...]]] = defaultdict(list)
    targets = {_identity(example): example.target for example in examples}
    for identity, target in targets.items():
        classes[target if by_class and isinstance(target, str) else None].append(identity)
    label_sets: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for example in examples:
        label_sets[_identity(example)].update(example.labels)
    num_left = Counter(label for example in examples for label in example.labels)
    generator, held_out = random.Random(seed), set()
    for identities in classes.values():
        generator.shuffle(identities)
        number = min(max(1, round(share * len(identities))), len(identities) - 1)
        if isinstance(targets[identities[0]], float):  # from each of so many equal parts, the first in random order
            ordered = sorted(identities, key=lambda identity: float(str(targets[identity])))
            parts = [set[tuple[str, ...]]() for _ in range(number)]
            for rank, identity in enumerate(ordered):
                parts[rank * number // len(ordered)].add(identity)
            identities = [next(identity for identity in identities if identity in part) for part in parts]
        for identity in identities:
            if number and all(num_left[label] > count for label, count in label_sets[identity].items()):
                held_out.add(identity)
                num_left.subtract(label_sets[identity])
                number -= 1
    return [example for example in examples if _identity(example) in held_out]


@pytest.mark.parametrize("kind", ["classes", "sets", "numbers"])
@pytest.mark.parametrize("is_stored", [False, True])
def test_held_out_rows_are_those_of_whole_identities(kind: str, is_stored: bool) -> None:
    draws = random.Random(3)
    examples = []
    for _ in range(300):
        texts = (f"text {draws.randrange(80)}", f"text {draws.randrange(4)}")
        targets: dict[str, str | float] = {"classes": draws.choice("abc"), "numbers": draws.random()}
        target = targets.get(kind)
        labels = tuple(sorted(draws.sample("abcd", draws.randrange(3)))) if kind == "sets" else ()
        examples.append(Example(texts, target, labels=labels))
    rows = store_examples(examples) if is_stored else examples
    for seed in range(5):
        train, validation = split_off(rows, 0.2, seed, by_class=kind == "classes")
        expected = held_out_in_memory(examples, 0.2, seed, by_class=kind == "classes")
        assert list(validation) == expected
        assert Counter(map(repr, train)) + Counter(map(repr, expected)) == Counter(map(repr, examples))
        assert isinstance(train, StoredExamples) == is_stored


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".jsonl.gz", ".parquet"])
def test_large_files_are_not_held_in_memory_and_give_the_same_splits(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": f"text {number}", "label": "abc"[number % 3]} for number in range(60)]
    path = tmp_path / f"rows{suffix}"
    if suffix == ".csv":
        path.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))
    elif suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    expected = read_splits(TaskConfig(train=str(path)), {})
    monkeypatch.setattr(splits, "MIN_STORED_BYTES", 0)
    streamed = read_splits(TaskConfig(train=str(path)), {})
    assert isinstance(streamed.train, StoredExamples)
    assert streamed.task == expected.task
    assert list(streamed.train) == expected.train
    assert list(streamed.validation) == expected.validation
