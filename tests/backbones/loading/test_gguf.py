"""GGUF files: by folder or by path, and the begin and end tokens that they say are added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import write_tiny_gguf
from tiny import tiny_tokenizer
from tokenizers import processors

import softcue
from softcue.backbones import load_backbone
from softcue.backbones.loading.gguf_tokens import add_gguf_special_tokens
from softcue.errors import BackboneError

pytest.importorskip("gguf")
BEGIN, END = 2, 1  # of the tiny files


def ids_of(tokenizer: Any, *texts: str, **options: bool) -> list[int]:
    return list(tokenizer(*texts, **options)["input_ids"])


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_file_is_the_same_backbone_as_its_folder(tmp_path: Path, architecture: str) -> None:
    write_tiny_gguf(tmp_path / "model.gguf", architecture)
    by_folder, by_file = load_backbone(str(tmp_path)), load_backbone(str(tmp_path / "model.gguf"))
    assert by_file.fingerprint == by_folder.fingerprint
    assert by_file.model.config.model_type == architecture
    assert by_file.kind == "decoder"


def test_one_of_two_files_in_a_folder_can_be_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tiny_gguf(tmp_path / f"{name}.gguf")
    with pytest.raises(BackboneError, match="name the file itself"):
        load_backbone(str(tmp_path))
    assert load_backbone(str(tmp_path / "b.gguf")).kind == "decoder"


def test_a_cue_records_the_full_path_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_gguf(tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"my order {number}", "label": number % 2} for number in range(4)]
    cue = softcue.train(
        "cue",
        backbone="model.gguf",
        train=rows,
        validation=rows,
        text="text",
        label="label",
        overrides={"training.steps": 1, "method.prompt_length": 2},
        progress=False,
    )
    assert cue.cue_file.backbone.name == str(tmp_path / "model.gguf")
    monkeypatch.chdir("/")
    assert softcue.load(tmp_path / "cue").predict("my order")


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match=r"existing model folder or \.gguf file"):
        load_backbone(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model" * 9, b"GGUF\x03\x00\x00\x00" + b"\xff" * 40])
def test_a_broken_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(BackboneError) as caught:
        load_backbone(str(tmp_path / "model.gguf"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False}, {"add_bos_token": False, "add_eos_token": False}])
def test_a_file_that_asks_for_no_token_changes_nothing(tmp_path: Path, flags: dict[str, bool]) -> None:
    file = tmp_path / "model.gguf"
    write_tiny_gguf(file, **flags)
    tokenizer = tiny_tokenizer("llama")
    before = tokenizer.backend_tokenizer.to_str()
    add_gguf_special_tokens(tokenizer, file)
    assert tokenizer.backend_tokenizer.to_str() == before


@pytest.mark.parametrize(
    ("flags", "first", "last"),
    [
        ({"add_bos_token": True}, [BEGIN], []),
        ({"add_bos_token": True, "add_eos_token": False}, [BEGIN], []),
        ({"add_bos_token": False, "add_eos_token": True}, [], [END]),
        ({"add_bos_token": True, "add_eos_token": True}, [BEGIN], [END]),
    ],
)
def test_the_loaded_tokenizer_adds_the_tokens_that_the_file_asks_for(
    tmp_path: Path, flags: dict[str, bool], first: list[int], last: list[int]
) -> None:
    write_tiny_gguf(tmp_path / "model.gguf", **flags)
    tokenizer = load_backbone(str(tmp_path)).tokenizer
    bare = ids_of(tokenizer, "my order", add_special_tokens=False)
    other = ids_of(tokenizer, "never came", add_special_tokens=False)
    assert ids_of(tokenizer, "my order") == [*first, *bare, *last]
    assert ids_of(tokenizer, "my order", "never came") == [*first, *bare, *last, *first, *other, *last]


def test_a_token_that_is_added_already_is_not_added_twice(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_tiny_gguf(file, add_bos_token=True)
    tokenizer = load_backbone(str(tmp_path)).tokenizer
    before = tokenizer.backend_tokenizer.to_str()
    add_gguf_special_tokens(tokenizer, file)
    assert tokenizer.backend_tokenizer.to_str() == before


def test_a_processor_that_trims_offsets_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_tiny_gguf(file, add_bos_token=True)
    tokenizer = load_backbone(str(tmp_path)).tokenizer
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    add_gguf_special_tokens(tokenizer, file)
    encoded = tokenizer("my order", return_offsets_mapping=True)
    assert encoded["input_ids"][0] == BEGIN
    assert encoded["input_ids"].count(BEGIN) == 1
    starts = [start for start, end in encoded["offset_mapping"] if end > start]
    assert all("my order"[start] != " " for start in starts)


def test_a_model_from_a_gguf_file_can_be_saved_as_a_folder_and_stays_what_it_was(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "model.gguf")
    backbone, other = (load_backbone(str(tmp_path / "model.gguf")) for _ in range(2))
    backbone.save(tmp_path / "saved")
    assert backbone.fingerprint == other.fingerprint  # made after the configuration was changed for the file
    again = load_backbone(str(tmp_path / "saved"))
    ids = torch.arange(1, 9).unsqueeze(0)
    assert torch.equal(again.model(ids).logits, backbone.model(ids).logits)
