from __future__ import annotations

import gc
import gzip
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pyarrow
import pyarrow.parquet
import pytest

from softcue.errors import DataError, MissingExtraError
from softcue.tasks import Task, examples_from, readers
from softcue.tasks.readers import name_of, read_rows
from softcue.tasks.rows import with_labels
from softcue.types import Example

ROWS = [{"text": "hello there", "label": "greeting"}, {"text": "see you", "label": "farewell"}]


def values_of(source: Any) -> list[dict[str, object]]:
    rows = [row for _, row in read_rows(source)]
    assert not [str(row) for row in rows if isinstance(row, DataError)]
    return [dict(row) for row in rows if not isinstance(row, DataError)]


def locations_of(source: Any) -> list[str]:
    return [location for location, _ in read_rows(source)]


def message_of(source: Any) -> str:
    """Of the one error, whether it ended the rows or stood in the place of one."""
    try:
        [message] = errors_of(source)
    except DataError as error:
        return str(error)
    return message


def errors_of(source: Any) -> list[str]:
    return [str(row) for _, row in read_rows(source) if isinstance(row, DataError)]


def write_file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def save_rows(folder: Path, suffix: str) -> Path:
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
        return path
    kind = suffix.lower().removesuffix(".gz")
    if kind == ".jsonl":
        text = "".join(json.dumps(row) + "\n" for row in ROWS)
    elif kind == ".json":
        text = json.dumps(ROWS, indent=2)
    else:
        part = {".csv": ",", ".v2.csv": ",", ".tsv": "\t"}[kind]
        text = "\n".join([part.join(ROWS[0]), *(part.join(row.values()) for row in ROWS)]) + "\n"
    return write_file(folder, path.name, gzip.compress(text.encode()) if suffix.lower().endswith(".gz") else text)


@pytest.mark.parametrize(
    "suffix",
    [
        ".csv",
        ".CSV",
        ".tsv",
        ".jsonl",
        ".json",
        ".parquet",
        ".csv.gz",
        ".tsv.gz",
        ".jsonl.gz",
        ".json.gz",
        ".JSONL.GZ",
        ".v2.csv",
    ],
)
@pytest.mark.parametrize("as_string", [True, False])
def test_every_file_format_gives_the_same_rows(tmp_path: Path, suffix: str, as_string: bool) -> None:
    path = save_rows(tmp_path, suffix)
    assert values_of(str(path) if as_string else path) == ROWS


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet", ".csv.gz"])
def test_missing_column_of_a_file_names_it_and_the_columns_that_exist(tmp_path: Path, suffix: str) -> None:
    path = save_rows(tmp_path, suffix)
    location = locations_of(path)[0] if "json" in suffix else path  # in a table it is missing in all rows
    with pytest.raises(DataError) as caught:
        examples_from(path, Task(name="t", text=("message",)))
    assert str(caught.value) == (
        f"{location}, column 'message': got 'no such column'; expected a column of that name; "
        f"known: {', '.join(sorted(ROWS[0]))}"
    )


@pytest.mark.parametrize("source", [ROWS, pandas.DataFrame(ROWS)], ids=["list", "frame"])
def test_missing_column_of_rows_in_memory_names_it_and_the_columns_that_exist(source: Any) -> None:
    task = Task(name="t", label="team", columns={"team": ("gold", "class")})
    with pytest.raises(DataError) as caught:
        examples_from(source, task)
    place = "row 1" if source is ROWS else "the rows given"
    assert str(caught.value) == (
        f"{place}, column 'team': got 'no such column'; expected a column of that name or 'gold' or 'class'; "
        f"did you mean 'text'? known: {', '.join(sorted(ROWS[0]))}"
    )


@pytest.mark.parametrize("source", [ROWS, tuple(ROWS), pandas.DataFrame(ROWS)], ids=["list", "tuple", "frame"])
def test_rows_in_memory_give_the_same_rows(source: Any) -> None:
    assert values_of(source) == ROWS
    assert locations_of(source) == ["row 1", "row 2"]


def test_tsv_keeps_raw_quotes_as_in_glue(tmp_path: Path) -> None:
    path = write_file(tmp_path, "rows.tsv", 'text\tlabel\n"unclosed\ta\nit said "yes" twice"\tb\n')
    assert values_of(path) == [
        {"text": '"unclosed', "label": "a"},
        {"text": 'it said "yes" twice"', "label": "b"},
    ]


def test_csv_reads_quoted_commas_quotes_and_newlines(tmp_path: Path) -> None:
    path = write_file(tmp_path, "rows.csv", 'text,label\n"one, two",a\n"she said ""no""",b\n"first\nsecond",c\n')
    assert [row["text"] for row in values_of(path)] == ["one, two", 'she said "no"', "first\nsecond"]


def test_location_is_the_line_where_a_row_begins(tmp_path: Path) -> None:
    path = write_file(tmp_path, "rows.csv", 'text,label\n"first\nsecond",a\n\nplain,b\n')
    assert locations_of(path) == [f"{path}, line 2", f"{path}, line 5"]


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl"])
def test_byte_order_mark_is_dropped(tmp_path: Path, name: str) -> None:
    text = '{"text": "hi"}\n' if name.endswith("jsonl") else "text\nhi\n"
    assert values_of(write_file(tmp_path, name, b"\xef\xbb\xbf" + text.encode())) == [{"text": "hi"}]


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl"])
def test_windows_line_ends_are_removed(tmp_path: Path, name: str) -> None:
    text = '{"text": "hi"}\r\n\r\n' if name.endswith("jsonl") else "text\r\nhi\r\n\r\n"
    assert values_of(write_file(tmp_path, name, text)) == [{"text": "hi"}]


def test_line_separator_inside_json_text_does_not_end_the_line(tmp_path: Path) -> None:
    path = write_file(tmp_path, "rows.jsonl", '{"text": "one\u2028two"}\n')
    assert values_of(path) == [{"text": "one\u2028two"}]


def test_long_csv_field_is_read_whole(tmp_path: Path) -> None:
    assert len(str(values_of(write_file(tmp_path, "rows.csv", "text\n" + "a" * 200_000))[0]["text"])) == 200_000


def test_json_values_keep_their_types(tmp_path: Path) -> None:
    assert values_of(write_file(tmp_path, "rows.jsonl", '{"a": null, "b": 1.5, "c": true}')) == [
        {"a": None, "b": 1.5, "c": True}
    ]


@pytest.mark.parametrize("name", ["empty.csv", "empty.tsv", "empty.jsonl", "empty.csv.gz"])
def test_empty_file_has_no_rows(tmp_path: Path, name: str) -> None:
    assert values_of(write_file(tmp_path, name, "")) == []


@pytest.mark.parametrize(
    ("name", "content", "line", "parts"),
    [
        ("rows.csv", "text,label\na,b\na,b,c\n", 3, ["'3 fields'", "2, as in the header", "quote or fix"]),
        ("rows.csv", "text,label\nonly\n", 2, ["'1 fields'", "expected 2", "quote or fix"]),
        ("rows.tsv", "text\tlabel\na\tb\tc\n", 2, ["'3 fields'", "expected 2", "quote or fix"]),
        ("rows.csv", 'text,label\n"a"b,c\n', 2, ["expected after", "well-formed fields", "fix the quoting"]),
        ("rows.csv", 'text,label\na,b\n"open,c\nd,e\n', 3, ["end of data", "well-formed", "fix the quoting"]),
        ("rows.csv", "text,text,label\na,b,c\n", 1, ["'text'", "a different name", "rename one"]),
        ("rows.jsonl", '{"a": 1}\n{"a": \n', 2, ['{"a": ', "one JSON object", "fix it: Expecting"]),
        ("rows.jsonl", "[" * 100_000, 1, ["[[[", "one JSON object per line", "fix it"]),
        ("rows.jsonl", '{"a": 1}\n\n["a"]\n', 3, ['["a"]', "expected a JSON object", "write {...}"]),
        ("rows.csv", b"text\nfine\ncaf\xe9\n", 3, ["byte 0xe9", "UTF-8 text", "iconv -f latin1"]),
        ("rows.csv", b"\xef\xbb\xbftext\ncaf\xe9\n", 2, ["byte 0xe9", "UTF-8 text", "iconv"]),
        ("rows.jsonl", '{"a": 1}\n'.encode("utf-16"), 1, ["byte 0xff", "UTF-8 text", "iconv"]),
    ],
)
def test_error_of_an_unreadable_line_names_file_and_reason(
    tmp_path: Path, name: str, content: str | bytes, line: int, parts: list[str]
) -> None:
    path = write_file(tmp_path, name, content)
    message = message_of(path)
    assert message.startswith(f"{path}, line {line}")
    for part in parts:
        assert part in message


def test_reading_goes_on_after_a_bad_row(tmp_path: Path) -> None:
    path = write_file(tmp_path, "rows.csv", 'text,label\na,b\nonly\n"x"y,z\nc,d\n')
    assert locations_of(path) == [f"{path}, line {line}" for line in (2, 3, 4, 5)]
    assert [message.split(":")[0] for message in errors_of(path)] == [f"{path}, line 3", f"{path}, line 4"]
    path = write_file(tmp_path, "rows.jsonl", '{"a": \n[1]\n{"a": 1}\n')
    assert locations_of(path) == [f"{path}, line {line}" for line in (1, 2, 3)]
    assert len(errors_of(path)) == 2
    assert len(errors_of([3, {"text": "hi"}, None])) == 2


def test_carriage_returns_alone_end_the_lines_of_a_table(tmp_path: Path) -> None:
    assert values_of(write_file(tmp_path, "rows.csv", "text,label\rhi,a\rho,b")) == [
        {"text": "hi", "label": "a"},
        {"text": "ho", "label": "b"},
    ]


def test_quoted_windows_line_end_is_kept_as_written(tmp_path: Path) -> None:
    assert values_of(write_file(tmp_path, "rows.csv", 'text\r\n"one\r\ntwo"\r\n')) == [{"text": "one\r\ntwo"}]


def test_open_quote_is_an_error_within_the_field_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "FIELD_LIMIT", 1000)
    path = write_file(tmp_path, "rows.csv", 'text\nfine\n"open\n' + "more\n" * 10_000)
    message = message_of(path)
    assert message.startswith(f"{path}, line 3: got 'field larger than field limit (1000)'; expected well-formed")


def test_multibyte_characters_across_chunks_are_decoded(tmp_path: Path) -> None:
    text = "\u00e9\u20ac\U0001f600" * 20_000
    assert values_of(write_file(tmp_path, "rows.jsonl", json.dumps({"text": text}, ensure_ascii=False))) == [
        {"text": text}
    ]


# --- json ---


def test_json_object_of_objects_gives_its_values(tmp_path: Path) -> None:
    path = write_file(tmp_path, "rows.json", json.dumps({"0": ROWS[0], "x": ROWS[1]}))
    assert values_of(path) == ROWS
    assert locations_of(path) == [f"{path}, entry 0", f"{path}, entry x"]


def test_other_json_object_is_one_record(tmp_path: Path) -> None:
    path = write_file(tmp_path, "rows.json", '{"version": 1, "data": {"a": 1}}')
    assert list(read_rows(path)) == [(str(path), {"version": 1, "data": {"a": 1}})]


def test_json_list_is_read_on_after_a_bad_value(tmp_path: Path) -> None:
    path = write_file(tmp_path, "rows.json", '[{"a": 1}, 3, {"a": 2}]')
    assert errors_of(path) == [f"{path}, entry 2: got 3; expected a JSON object; write {{...}} there"]
    assert len(locations_of(path)) == 3


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ('{"a": 1}\n{"a": 2}\n', ["line 2: got '{\"a\": 2}'", "one JSON value", "name it .jsonl if every line is"]),
        ("", ["line 1", "one JSON value in the whole file"]),
        ("[" * 100_000, ["line 1: got '[[[", "one JSON value"]),
        ("3", ["expected a list of objects; write [{...}, {...}]"]),
        (b'[{"a":\n"\xe9"}]', ["line 2: got 'byte 0xe9'; expected UTF-8 text"]),
    ],
)
def test_error_of_damaged_json_names_the_line(tmp_path: Path, content: str | bytes, parts: list[str]) -> None:
    message = message_of(write_file(tmp_path, "rows.json", content))
    for part in (str(tmp_path), *parts):
        assert part in message


# --- gz ---


@pytest.mark.parametrize("name", ["rows.csv.gz", "rows.json.gz", "rows.jsonl.gz"])
@pytest.mark.parametrize("damage", ["cut", "plain", "flipped"])
def test_damaged_gz_file_is_a_clear_error(tmp_path: Path, name: str, damage: str) -> None:
    packed = gzip.compress(b'{"a": 1}\n' * 1000)
    middle = len(packed) // 2
    content = {
        "cut": packed[:-12],
        "plain": b"a,b\n1,2\n",
        "flipped": packed[:middle] + bytes(255 - byte for byte in packed[middle : middle + 4]) + packed[middle + 4 :],
    }[damage]
    path = write_file(tmp_path, name, content)
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    assert str(caught.value).startswith(f"data file: got '{path}'; expected an undamaged gz file; fetch it again: ")


@pytest.mark.parametrize("name", ["rows.csv.gz", "rows.jsonl.gz"])
def test_decompressed_size_is_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = write_file(tmp_path, name, gzip.compress(b"text\n" + b"a\n" * 50_000))
    monkeypatch.setattr(readers, "SIZE_LIMIT", 1000)
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    assert str(caught.value) == (
        f"data file: got '{path}'; expected at most 1,000 bytes once decompressed; "
        "split it into several files, as .jsonl or .parquet"
    )
    plain = write_file(tmp_path, "rows.csv", "text\n" + "a\n" * 5000)
    assert len(values_of(plain)) == 5000


@pytest.mark.parametrize("name", ["rows.json", "rows.json.gz"])
def test_size_of_a_json_file_is_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = json.dumps([{"a": 1}] * 500).encode()
    path = write_file(tmp_path, name, gzip.compress(text) if name.endswith("gz") else text)
    assert len(values_of(path)) == 500
    monkeypatch.setattr(readers, "JSON_SIZE_LIMIT", 1000)
    assert "expected at most 1,000 bytes" in message_of(path)


def test_line_without_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LINE_LIMIT", 100)
    path = write_file(tmp_path, "rows.jsonl.gz", gzip.compress(b'{"a": 1}\n' + b" " * 5000))
    with pytest.raises(DataError, match=r"line 2: got .* expected lines of less than 100 characters; check the line"):
        list(read_rows(path))


# --- several files ---


def test_several_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    first, second = save_rows(tmp_path, ".csv"), save_rows(tmp_path, ".jsonl.gz")
    for source in ([str(first), second], (first, second)):
        assert values_of(source) == ROWS * 2
        assert locations_of(source)[-1] == f"{second}, line 2"
    assert name_of([first, second]) == f"{first}, {second}"
    assert name_of([first] * 5).endswith(" and 2 more")


def test_missing_file_of_several_is_reported_before_any_is_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected an existing file"):
        read_rows([save_rows(tmp_path, ".csv"), tmp_path / "no.csv"])


# --- files that are not there, or no files ---


def test_missing_file_suggests_the_nearest_name(tmp_path: Path) -> None:
    write_file(tmp_path, "train.csv", "")
    write_file(tmp_path, "notes.txt", "")
    message = message_of(tmp_path / "trian.csv")
    assert f"data file: got '{tmp_path}/trian.csv'; expected an existing file" in message
    assert "did you mean 'train.csv'?" in message
    assert "notes.txt" not in message


def test_missing_folder_says_check_the_path(tmp_path: Path) -> None:
    assert message_of(tmp_path / "nowhere" / "rows.csv").endswith("check the path")


def test_folder_with_a_data_suffix_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").mkdir()
    assert "expected an existing file" in message_of(tmp_path / "rows.csv")


def test_file_that_may_not_be_read_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_file(tmp_path, "rows.csv", "text\nhi\n")

    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    message = message_of(path)
    assert str(path) in message
    assert "expected a readable file; check it: Permission denied" in message


@pytest.mark.parametrize("name", ["rows.xlsx", "rows", "rows.txt", "rows.gz", "rows.parquet.gz", "rows.csv.zip"])
def test_unknown_suffix_lists_the_known_ones(tmp_path: Path, name: str) -> None:
    message = message_of(write_file(tmp_path, name, "text\nhi\n"))
    assert message.startswith(f"data file: got '{tmp_path / name}'; expected a name ending in .csv, .tsv, .jsonl")
    assert message.endswith("rename or convert it")


def test_damaged_parquet_file_is_a_clear_error(tmp_path: Path) -> None:
    path = write_file(tmp_path, "rows.parquet", "not parquet")
    message = message_of(path)
    assert f"data file: got '{path}'; expected a readable parquet file; write it again" in message


@pytest.mark.parametrize("source", [[5], [["hello", "a"]]])
def test_error_of_a_row_that_is_no_dictionary_names_the_row(source: Any) -> None:
    message = message_of(source)
    assert message.startswith("row 1: got ")
    assert "expected a dictionary with a value per column; pass rows such as {'text'" in message


@pytest.mark.parametrize("source", [5, {"text": ["a"]}])
def test_source_of_another_kind_is_a_clear_error(source: Any) -> None:
    message = message_of(source)
    assert message.startswith("data: got ")
    assert "expected a file, a DataFrame, a Dataset or a list of dictionaries; pass rows" in message


class FakeTable(list[dict[str, object]]):
    features = {  # noqa: RUF012
        "sentence": SimpleNamespace(dtype="string"),
        "label": SimpleNamespace(int2str=lambda number: ["negative", "positive"][number]),
        "idx": SimpleNamespace(dtype="int32"),
    }


def fake_hub(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("hub:glue#sst2@train", ("glue", "sst2", "train")),
        ("hub:stanfordnlp/sst2@test[:10]", ("stanfordnlp/sst2", None, "test[:10]")),
    ],
)
def test_hub_address_is_split_and_class_numbers_become_names(
    monkeypatch: pytest.MonkeyPatch, address: str, expected: tuple[str | None, ...]
) -> None:
    calls: list[tuple[str | None, ...]] = []

    def load(name: str, configuration: str | None, split: str) -> FakeTable:
        calls.append((name, configuration, split))
        return FakeTable([{"sentence": "good", "label": 1, "idx": 0}, {"sentence": "hidden", "label": -1, "idx": 1}])

    fake_hub(monkeypatch, load)
    assert list(read_rows(address)) == [
        (f"{address}, row 1", {"sentence": "good", "label": "positive", "idx": 0}),
        (f"{address}, row 2", {"sentence": "hidden", "label": -1, "idx": 1}),  # GLUE hides test labels
    ]
    assert calls == [expected]


def test_real_class_labels_are_named() -> None:
    datasets = pytest.importorskip("datasets")
    from softcue.tasks.readers import _class_name

    feature = datasets.ClassLabel(names=["no", "yes"])
    assert [_class_name(feature, value) for value in (0, 1, -1, None)] == ["no", "yes", -1, None]
    tags = datasets.Features({"tags": datasets.Sequence(feature)})["tags"]
    assert _class_name(tags, [1, 0, -1]) == ["yes", "no", -1]
    assert _class_name(datasets.Features({"words": datasets.Sequence(datasets.Value("string"))})["words"], ["a"]) == [
        "a"
    ]


@pytest.mark.parametrize("address", ["hub:sst2", "hub:@train", "hub:sst2@"])
def test_incomplete_hub_address_shows_an_example(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    fake_hub(monkeypatch, None)
    message = message_of(address)
    assert message.startswith(f"hub data set: got '{address}'; expected hub:NAME@SPLIT or hub:NAME#CONFIG@SPLIT")
    assert "for example hub:stanfordnlp/sst2@train" in message


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ConnectionError("\nCouldn't reach the Hub\nmore"), "Couldn't reach the Hub"), (OSError(), "OSError")],
)
def test_hub_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    def load(*_: object, **__: object) -> None:
        raise error

    fake_hub(monkeypatch, load)
    message = message_of("hub:sst2@train")
    assert message.startswith("hub data set: got 'hub:sst2@train'; expected a data set that can be downloaded")
    assert message.endswith(f"check name and network, or pass a local file: {reason}")


def test_real_hub_package_offline_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    message = message_of("hub:softcue-tests/no-such-data@train")
    assert message.startswith("hub data set: got 'hub:softcue-tests/no-such-data@train'; expected a data set")
    assert "check name and network, or pass a local file: " in message


def test_hub_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"\[hub\]"):
        list(read_rows("hub:sst2@train"))


# --- large files ---


def test_parquet_that_repeats_a_large_value_is_read_in_small_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One value of a megabyte on each of 300 rows: a dictionary makes it a small file."""
    file = tmp_path / "rows.parquet"
    table = pyarrow.table({"text": pyarrow.array(["x" * 1_000_000] * 300)})
    pyarrow.parquet.write_table(table, file, compression="zstd")
    assert file.stat().st_size < 10_000
    monkeypatch.setattr(readers, "memory_limit", lambda: 20 << 20)
    before = pyarrow.total_allocated_bytes()
    largest = 0
    for _ in read_rows(file):
        largest = max(largest, pyarrow.total_allocated_bytes() - before)
    assert largest < 100 << 20  # of 300
    monkeypatch.setattr(readers, "SIZE_LIMIT", 50 << 20)
    with pytest.raises(DataError, match="once decompressed"):
        list(read_rows(file))


def test_json_is_capped_by_memory_and_read_in_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.json"
    file.write_text("[" + ",".join(["[]"] * 400_000) + "]")
    began = time.process_time()
    location, first = next(read_rows(file))
    assert isinstance(first, DataError)
    assert "entry 1" in location
    assert time.process_time() - began < 2
    assert gc.isenabled()
    monkeypatch.setattr(readers, "memory_limit", lambda: 20 << 20)
    with pytest.raises(DataError, match="half of the available memory"):
        next(read_rows(file))


def test_wide_files_are_read_in_linear_time(tmp_path: Path) -> None:
    file = tmp_path / "wide.csv"
    names = [f"column {number}" for number in range(30_000)]
    file.write_text(",".join(names) + "\n" + ",".join(["1"] * len(names)) + "\n")
    began = time.process_time()
    assert len(list(read_rows(file))) == 1
    assert time.process_time() - began < 2


def test_many_labels_are_collected_in_linear_time() -> None:
    rows = [Example((str(number),), f"label {number}") for number in range(30_000)]
    began = time.process_time()
    assert len(with_labels(Task(name="many"), rows, {}).labels) == 30_000
    assert time.process_time() - began < 2
