"""Text -> passages -> chunks: nothing is lost, held-out text is never trained on, and a position can be restored."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from softcue.adaptation.chunks import ChunkStream, HeldOutRule, split_tokens
from softcue.adaptation.passages import PASSAGE_CHARACTERS, TextSources, cut_passages
from softcue.errors import DataError

TEXT = " ".join(f"word{number}" for number in range(2000))


def numbers_of(passage: str) -> list[int]:
    return [int(word.removeprefix("word")) for word in passage.split()]


def test_passages_of_a_document_join_to_it_and_end_between_words(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    passages = list(TextSources(tmp_path / "a.txt"))
    assert "".join(passages) == TEXT
    assert len(passages) > 5
    assert max(map(len, passages)) <= PASSAGE_CHARACTERS
    assert [number for passage in passages for number in numbers_of(passage)] == list(range(2000))


def test_a_text_without_spaces_is_cut_too() -> None:
    assert [len(passage) for passage in cut_passages(["x" * 5000])] == [2000, 2000, 1000]


def test_files_folders_and_rows_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("\ufeffsecond")
    (tmp_path / "sub").mkdir()
    with gzip.open(tmp_path / "sub" / "c.txt.gz", "wt") as handle:
        handle.write("third")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("first", "and more")))
    (tmp_path / "picture.png").write_bytes(b"\xff")
    assert list(TextSources(tmp_path)) == ["first", "and more", "second", "third"]
    assert list(TextSources([tmp_path / "b.txt", tmp_path / "b.txt"])) == ["second", "second"]


def test_a_hub_data_set_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(name: str, configuration: str | None, split: str, streaming: bool) -> list[dict[str, str]]:
        calls.append((name, configuration, split, streaming))
        return [{"page": "one"}, {"page": "two"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert list(TextSources("hub:allenai/c4#en@train", "page")) == ["one", "two"]
    assert calls == [("allenai/c4", "en", "train", True)]
    with pytest.raises(DataError, match=r"row 1: got 'page'; expected a text in column 'text'.*text_column"):
        list(TextSources("hub:allenai/c4#en@train"))
    with pytest.raises(DataError, match="expected hub:NAME@SPLIT"):
        list(TextSources("hub:allenai/c4"))


def test_wrong_texts_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="text: got '/no/such'"):
        TextSources("/no/such")
    with pytest.raises(DataError, match=r"files ending in \.txt"):
        TextSources(tmp_path)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match="expected UTF-8 text"):
        list(TextSources(tmp_path))
    (tmp_path / "latin.txt").unlink()
    (tmp_path / "broken.txt.gz").write_bytes(gzip.compress(b"text " * 1000)[:-10])
    with pytest.raises(DataError, match="undamaged"):
        list(TextSources(tmp_path))


def make_stream(every: int = 0, shuffle_chunks: int = 7) -> ChunkStream:
    rule = HeldOutRule(every, 100) if every else (lambda number: False)
    return ChunkStream(list(cut_passages([TEXT])), numbers_of, 10, shuffle_chunks, 0, rule)


def test_a_pass_gives_every_token_once_in_another_order() -> None:
    stream = make_stream()
    drawn = [stream.draw() for _ in range(393)]
    counts = Counter(token for chunk in [*drawn, *stream.state()["buffer"]] for token in chunk.tolist())
    assert counts == dict.fromkeys(range(2000), 2)  # two passes
    assert drawn[0].tolist() != list(range(10)) or drawn[1].tolist() != list(range(10, 20))
    assert all(chunk.diff().eq(1).sum() >= 8 for chunk in drawn)  # text that stands together stays together


def test_held_out_passages_are_never_drawn() -> None:
    passages = list(cut_passages([TEXT]))
    held_out = {token for number in range(0, len(passages), 3) for token in numbers_of(passages[number])}
    stream = make_stream(every=3)
    drawn = {token for _ in range(500) for token in stream.draw().tolist()}
    assert drawn == set(range(2000)) - held_out


@pytest.mark.parametrize("num_drawn", [0, 1, 30, 333])
def test_a_restored_stream_goes_on_as_if_nothing_had_happened(num_drawn: int) -> None:
    stream, restored = make_stream(every=4), make_stream(every=4)
    for _ in range(num_drawn):
        stream.draw()
    restored.restore(stream.state())
    for _ in range(300):
        assert torch.equal(stream.draw(), restored.draw())


def test_a_text_shorter_than_a_chunk_is_an_error() -> None:
    with pytest.raises(DataError, match="got '2 tokens to train on'; expected at least 10"):
        ChunkStream(["word1 word2"], numbers_of, 10, 4, 0).draw()


def test_the_rest_of_the_held_out_text_is_left_out() -> None:
    assert [chunk.tolist() for chunk in split_tokens([[1, 2, 3, 4, 5]], 2)] == [[1, 2], [3, 4]]
