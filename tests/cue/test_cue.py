from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from safetensors.torch import load_file, save_file
from serving_cues import save_cue
from tiny import tiny, tiny_model, tiny_tokenizer
from torch.utils._python_dispatch import TorchDispatchMode

import softcue
from softcue import Cue
from softcue.backbones import Backbone
from softcue.cue.cue_file import cue_file_digest, read_cue_file
from softcue.cue.model_card import model_card
from softcue.cue.training_curve import read_json_lines
from softcue.errors import BackboneError, ConfigurationError, CueError, DataError, RunError, SoftcueError
from softcue.methods import METHODS
from softcue.readouts import ReadoutConfig
from softcue.selection.record import record_of_cue

TEXTS = [
    "My invoice is wrong.",
    "Where is my parcel?",
    "ok",
    "I was charged twice for the same order, please help.",
]
ROWS = [
    {"text": f"{text} {number}", "label": label, "stars": number, "first": text, "second": f"order {number}"}
    for number in range(5)
    for text, label in [("my invoice is wrong", "billing"), ("the parcel is late", "delivery")]
]
FILES = ["README.md", "config.yaml", "cue.json", "cue.safetensors", "metrics.json", "metrics.jsonl"]


def train(folder: Path, model_type: str = "bert", backbone: Backbone | str | None = None, **settings: Any) -> Cue:
    overrides = {"training.epochs": 1, **settings.pop("overrides", {})}
    if settings.get("method") != "no-prompt":
        overrides.setdefault("method.prompt_length", 3)
    columns = {"text": "text", "label": "label"}
    given = {"method": "prompt-tuning", "train": ROWS, "validation": ROWS, **columns, **settings}
    return softcue.train(folder, backbone=backbone or tiny(model_type), overrides=overrides, progress=False, **given)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Cue:
    """A cue of two labels on the tiny BERT; tests copy its folder before they damage it."""
    torch.set_num_threads(1)
    return train(tmp_path_factory.mktemp("cues") / "tickets", test=ROWS)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Cue:
    return train(tmp_path_factory.mktemp("cues") / "pairs", text=["first", "second"])


@pytest.fixture
def folder(trained: Cue, tmp_path: Path) -> Path:
    assert trained.path is not None
    return shutil.copytree(trained.path, tmp_path / "tickets")


def other_bert(weights: bool = False, tokenizer: bool = False, **config: Any) -> Backbone:
    """The tiny BERT with one thing changed."""
    model, words = tiny_model("bert"), tiny_tokenizer("bert")
    if weights:
        model.bert.encoder.layer[0].output.dense.weight.data.mul_(1.5)
    if tokenizer:
        words.add_tokens(["invoice wrong"])
    model.config.update(config)
    return Backbone(model, words, "other-bert")


def check_message(error: SoftcueError) -> str:
    message = str(error)
    assert "\n" not in message
    assert error.setting
    assert error.expected
    assert error.fix
    assert f"{error.setting}: got " in message
    assert f"expected {error.expected}; {error.fix}" in message
    return message


def load_error(folder: Path | str, kind: type[SoftcueError] = CueError, backbone: Any = None) -> str:
    with pytest.raises(kind) as caught:
        softcue.load(folder, backbone or tiny("bert"))
    return check_message(caught.value)


def rewrite(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change cue.json and its own digest with it, as a program with a bug would."""
    values = json.loads((folder / "cue.json").read_text())
    edit(values)
    content = {key: value for key, value in values.items() if key != "record_sha256"}
    values["record_sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (folder / "cue.json").write_text(json.dumps(values))


def rewrite_tensors(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change cue.safetensors and the digests of it."""
    tensors = {name: value.clone() for name, value in load_file(folder / "cue.safetensors").items()}
    edit(tensors)
    save_file(tensors, folder / "cue.safetensors")
    digest = hashlib.sha256((folder / "cue.safetensors").read_bytes()).hexdigest()
    rewrite(folder, lambda values: values.update(tensors_sha256=digest))


# Saving and loading


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("bert", {}),
        ("bert", {"method": "no-prompt"}),
        ("bert", {"text": ["first", "second"], "overrides": {"readout.head": "mlp"}}),
        ("bert", {"label": "stars", "overrides": {"task.kind": "regression"}}),
        ("t5", {}),
        ("gpt2", {}),
        ("gpt2", {"overrides": {"readout.name": "classifier", "method.insert_at": "front"}}),
        ("t5", {"overrides": {"task.kind": "generation", "readout.max_new_tokens": 4}}),
    ],
)
def test_loaded_cue_predicts_the_same_bit_for_bit(tmp_path: Path, model_type: str, settings: dict[str, Any]) -> None:
    cue = train(tmp_path / "cue", model_type, **settings)
    again = softcue.load(tmp_path / "cue", tiny(model_type))
    texts = TEXTS if len(cue.task.text) == 1 else [(text, "more") for text in TEXTS]
    assert again.predict(texts) == cue.predict(texts)
    for name, value in cue.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)
    assert again.cue_file == cue.cue_file
    assert again.counts == cue.counts
    assert (again.name, again.path) == ("cue", tmp_path / "cue")


def test_cue_finds_its_own_backbone(model_folders: dict[str, Path], tmp_path: Path) -> None:
    cue = train(tmp_path / "cue", backbone=str(model_folders["bert"]))
    assert softcue.load(tmp_path / "cue").predict(TEXTS) == cue.predict(TEXTS)
    moved = model_folders["bert"]
    assert softcue.load(tmp_path / "cue", backbone=moved).predict(TEXTS) == cue.predict(TEXTS)
    assert softcue.load(tmp_path / "cue", backbone=str(moved)).predict(TEXTS) == cue.predict(TEXTS)


def test_cue_whose_backbone_is_gone_says_so(folder: Path) -> None:
    with pytest.raises(BackboneError) as caught:
        softcue.load(folder)
    assert "tiny-bert" in check_message(caught.value)


def test_two_cues_share_a_backbone(trained: Cue, pairs: Cue) -> None:
    assert pairs.path is not None
    again = softcue.load(pairs.path, trained.backbone)
    assert again.backbone is trained.backbone
    assert again.predict([("a", "b")]) == pairs.predict([("a", "b")])


def test_folder_holds_the_documented_files_only(trained: Cue) -> None:
    assert trained.path is not None
    assert sorted(file.name for file in trained.path.iterdir()) == FILES
    assert [file.name for file in trained.path.parent.iterdir()] == ["tickets"]
    metrics = json.loads((trained.path / "metrics.json").read_text())
    assert metrics["scores"] == trained.scores
    assert set(trained.scores) == {"validation", "test"}


def test_saved_tensors_are_float32(trained: Cue) -> None:
    assert trained.path is not None
    tensors = load_file(trained.path / "cue.safetensors")
    assert tensors.keys() == trained.model.state_dict().keys()
    assert {value.dtype for value in tensors.values()} == {torch.float32}


def test_equal_cues_give_equal_bytes(trained: Cue, tmp_path: Path) -> None:
    assert trained.path is not None
    train(tmp_path / "one" / "tickets", test=ROWS)
    softcue.load(trained.path, tiny("bert")).save(tmp_path / "two" / "tickets")
    for name in ("cue.json", "cue.safetensors", "README.md"):
        wanted = (trained.path / name).read_bytes()
        assert (tmp_path / "one" / "tickets" / name).read_bytes() == wanted
        assert (tmp_path / "two" / "tickets" / name).read_bytes() == wanted


def test_other_seeds_give_other_bytes(trained: Cue, tmp_path: Path) -> None:
    assert trained.path is not None
    train(tmp_path / "cue", seed=1)
    assert (tmp_path / "cue" / "cue.safetensors").read_bytes() != (trained.path / "cue.safetensors").read_bytes()


def test_saving_where_a_file_stands_is_refused(trained: Cue, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    cue = Cue(trained.model, trained.backbone, trained.cue_file)
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunError) as caught:
            cue.save(target)
        check_message(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_not_saved(folder: Path, tmp_path: Path, value: float) -> None:
    cue = softcue.load(folder, tiny("bert"))
    next(cue.model.parameters()).data[0] = value
    with pytest.raises(CueError, match="NaN or infinity") as caught:
        cue.save(tmp_path / "new")
    check_message(caught.value)
    assert not (tmp_path / "new").exists()


def test_loading_leaves_the_random_state_alone(folder: Path) -> None:
    before = torch.random.get_rng_state()
    softcue.load(folder, tiny("bert"))
    assert torch.equal(torch.random.get_rng_state(), before)


# The card


def test_card_tells_task_method_backbone_scores_and_labels(trained: Cue) -> None:
    assert trained.path is not None
    card = (trained.path / "README.md").read_text("utf-8")
    assert card.startswith("---\n") and "\n---\n# tickets\n" in card
    for word in ("task `task`", "`prompt-tuning`", "`tiny-bert`", "| billing |", "| delivery |", "`text`"):
        assert word in card
    for split, scores in trained.scores.items():
        row = next(line for line in card.splitlines() if line.startswith(f"| {split} |"))
        assert all(f" {score:.1f} " in row for score in scores.values())
        assert row.startswith(f"| {split} | 10 (few) | prompt-tuning |")
        assert f"| {split} | 10 (few) | majority class | 50.0 |" in card
        assert f"| {split} | 10 (few) | zero-shot |" in card
    assert "fewer than 30 rows" in card
    assert trained.backbone.fingerprint.weights in card
    assert torch.__version__ in card


def test_table_cells_of_the_card_hold_whatever_a_label_is(trained: Cue) -> None:
    label = next(iter(trained.task.labels.values()))
    odd = label.model_copy(update={"words": "a | b", "description": "two\nlines"})
    task = trained.task.model_copy(update={"labels": {"x|y": odd, "plain": label}})
    scores = {"validation": {"accuracy": 50.0}, "test": {"macro_f1": 25.0}}
    card = model_card(trained.cue_file.model_copy(update={"task": task, "scores": scores}), "odd")
    assert "| x\\|y | a \\| b | two lines |" in card
    assert "| validation | 10 (few) | prompt-tuning | 50.0 | - |" in card
    assert "| test | 10 (few) | prompt-tuning | - | 25.0 |" in card


def test_card_names_data_and_licence_where_known(trained: Cue) -> None:
    task = trained.task.model_copy(update={"citation": "", "licence": "CC0", "description": "Sorts messages."})
    card = model_card(trained.cue_file.model_copy(update={"task": task, "scores": {}}), "x")
    assert "Data: Licence: CC0" in card
    assert "Sorts messages." in card
    assert "## Scores" not in card


def test_the_card_of_a_fine_tuned_cue_says_that_it_holds_the_weights(trained: Cue) -> None:
    without = "on the frozen backbone", "The backbone's weights are not in this folder"
    with_weights = "on the backbone", "This folder holds a trained copy of the backbone's weights"
    for method, sentences in [
        ({"name": "prompt-tuning"}, without),
        ({"name": "prompt-tuning", "tune_backbone": True}, with_weights),
        ({"name": "fine-tuning"}, with_weights),
        ({"name": "efl"}, with_weights),
    ]:
        card = model_card(trained.cue_file.model_copy(update={"method": method}), "x")
        assert all(sentence in card for sentence in sentences)


# Another backbone


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"weights": True}, "weights"),
        ({"tokenizer": True}, "tokenizer"),
        ({"layer_norm_eps": 0.01}, "config"),
    ],
)
def test_another_backbone_of_the_same_shape_is_refused(folder: Path, change: dict[str, Any], part: str) -> None:
    other = other_bert(**change)
    message = load_error(folder, backbone=other)
    assert f"{part} differ" in message
    for fingerprint in (other.fingerprint, tiny("bert").fingerprint):
        for digest in vars(fingerprint).values():
            assert digest in message
    assert "other-bert" in message
    assert "tiny-bert" in message


def test_both_fingerprints_are_shown_for_long_names_too(folder: Path) -> None:
    other = other_bert(weights=True)
    other.name = "/models/" + "long-" * 60
    message = load_error(folder, backbone=other)
    assert other.fingerprint.weights in message
    assert tiny("bert").fingerprint.weights in message


@pytest.mark.parametrize("model_type", ["roberta", "t5", "gpt2"])
def test_another_family_is_refused(folder: Path, model_type: str) -> None:
    load_error(folder, backbone=tiny(model_type))


def test_same_backbone_in_bfloat16_is_accepted(trained: Cue, folder: Path) -> None:
    backbone = Backbone(tiny_model("bert").to(torch.bfloat16), tiny_tokenizer("bert"), "tiny-bert")
    assert len(softcue.load(folder, backbone).predict(TEXTS)) == len(TEXTS)


# Damage


def test_path_without_a_cue_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "none", tmp_path / "file", str(tmp_path / ("x" * 300)), "\0"):
        assert "cue.json" in load_error(path)


def test_unfinished_run_is_to_be_resumed(folder: Path) -> None:
    (folder / "cue.json").unlink()
    (folder / "checkpoints").mkdir()
    assert "`resume=True`" in load_error(folder)


def test_interrupted_overwrite_is_noticed(folder: Path, tmp_path: Path) -> None:
    train(tmp_path / "second", seed=1)
    shutil.copy(tmp_path / "second" / "cue.safetensors", folder)  # cue.json would have come last
    assert "`resume=True`" in load_error(folder)


def _set(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(values: dict[str, Any]) -> None:
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = value

    return edit


def test_half_of_a_character_in_a_cue_is_an_error(folder: Path) -> None:
    rewrite(folder, _set("task", "description", value="\ud800"))
    assert "half of a character" in load_error(folder)


def _rename(values: dict[str, Any], old: str, new: str) -> None:
    values[new] = values.pop(old)


RECORDS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "unknown format": (_set("format", value=2), "newer softcue"),
    "format of another type": (_set("format", value="one"), "format 1"),
    "no format": (lambda values: values.pop("format"), "format"),
    "extra key": (_set("mood", value="good"), "mood"),
    "extra key of the backbone": (_set("backbone", "mood", value="good"), "mood"),
    "extra key of the method": (_set("method", "mood", value="good"), "mood"),
    "extra key of the readout": (_set("readout", "mood", value="good"), "mood"),
    "no task": (lambda values: values.pop("task"), "task"),
    "unknown method": (_set("method", "name", value="magic"), "magic"),
    "method setting out of range": (_set("method", "prompt_length", value=0), "prompt_length"),
    "method that is no mapping": (_set("method", value=[1]), "method"),
    "longer prompt": (_set("method", "prompt_length", value=4), "shape"),
    "prompt without room": (_set("method", "prompt_length", value=95), "room"),
    "length without room": (_set("backbone", "max_length", value=-5), "room"),
    "unknown readout": (_set("readout", "name", value="magic"), "readout"),
    "readout for another kind": (_set("readout", "name", value="regression"), "readout"),
    "more labels": (_set("task", "labels", "third", value={"words": "third"}), "shape"),
    "no labels": (_set("task", "labels", value={}), "shape"),
    "fingerprint without a part": (
        lambda values: values["backbone"]["fingerprint"].pop("config"),
        "fingerprint",
    ),
    "fingerprint with another part": (_set("backbone", "fingerprint", "mood", value="good"), "fingerprint"),
    "fingerprint misspelt": (
        lambda values: _rename(values["backbone"]["fingerprint"], "config", "konfig"),
        "fingerprint",
    ),
    "fingerprint of another type": (_set("backbone", "fingerprint", value="abc"), "fingerprint"),
    "digest of other tensors": (_set("tensors_sha256", value="0" * 64), "sha256"),
}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(("edit", "word"), RECORDS.values(), ids=RECORDS.keys())
def test_record_that_does_not_fit_is_refused(folder: Path, edit: Callable[[Any], object], word: str) -> None:
    rewrite(folder, edit)
    assert word in load_error(folder)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b"{}",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"format": 1}',
        b'{"format": NaN}',
    ],
)
def test_cue_json_that_is_no_record_is_refused(folder: Path, data: bytes) -> None:
    (folder / "cue.json").write_bytes(data)
    assert "cue.json" in load_error(folder)


def test_folder_in_place_of_a_file_is_refused(folder: Path) -> None:
    (folder / "cue.safetensors").unlink()
    (folder / "cue.safetensors").mkdir()
    load_error(folder)
    (folder / "cue.json").unlink()
    (folder / "cue.json").mkdir()
    load_error(folder)


@pytest.mark.parametrize("old", ["billing", "prompt-tuning", '"insert_at": "start"', '"max_length": 96'])
def test_edited_cue_json_is_refused(folder: Path, old: str) -> None:
    """Each of these would load, and some would answer other than trained."""
    new = {"billing": "refund", "prompt-tuning": "no-prompt"}.get(old) or old.replace("start", "end").replace(
        "96", "90"
    )
    file = folder / "cue.json"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    assert "changed" in load_error(folder)


def test_other_layout_of_the_same_record_is_accepted(trained: Cue, folder: Path) -> None:
    file = folder / "cue.json"
    file.write_text(json.dumps(json.loads(file.read_text()), sort_keys=False, indent=None) + "\n\n")
    assert softcue.load(folder, tiny("bert")).predict(TEXTS) == trained.predict(TEXTS)


def _first(tensors: dict[str, torch.Tensor]) -> str:
    return sorted(tensors)[0]


TENSORS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "NaN": (lambda tensors: tensors[_first(tensors)].view(-1)[0:1].fill_(float("nan")), "NaN or infinity"),
    "infinity": (
        lambda tensors: tensors[_first(tensors)].view(-1)[0:1].fill_(float("-inf")),
        "NaN or infinity",
    ),
    "missing": (lambda tensors: tensors.pop(_first(tensors)), "no tensor"),
    "none at all": (lambda tensors: tensors.clear(), "no tensor"),
    "extra": (lambda tensors: tensors.update(extra=torch.zeros(1)), "tensor 'extra'"),
    "shape": (lambda tensors: tensors.update({_first(tensors): torch.zeros(2, 2)}), "shape"),
    "half precision": (lambda tensors: tensors.update({k: v.half() for k, v in tensors.items()}), "float32"),
    "double precision": (
        lambda tensors: tensors.update({k: v.double() for k, v in tensors.items()}),
        "float32",
    ),
    "complex": (
        lambda tensors: tensors.update({k: v.to(torch.complex64) for k, v in tensors.items()}),
        "float32",
    ),
}


@pytest.mark.parametrize(("edit", "word"), TENSORS.values(), ids=TENSORS.keys())
def test_tensors_that_do_not_fit_are_refused(folder: Path, edit: Callable[[Any], object], word: str) -> None:
    rewrite_tensors(folder, edit)
    assert word in load_error(folder)


@pytest.mark.parametrize("which", [0, -1])
def test_large_finite_numbers_are_accepted_unless_predictions_are_not_finite(folder: Path, which: int) -> None:
    def fill(value: float) -> Callable[[dict[str, Any]], None]:
        def edit(tensors: dict[str, Any]) -> None:
            tensor = tensors[sorted(tensors)[which]]
            tensor.copy_(value * torch.linspace(-1, 1, tensor.numel()).view_as(tensor))

        return edit

    rewrite_tensors(folder, fill(1e5))
    assert all(math.isfinite(answer.scores["billing"]) for answer in softcue.load(folder, tiny("bert")).predict(TEXTS))
    rewrite_tensors(folder, fill(3e38))
    assert "predictions are not finite" in load_error(folder)


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, b"\x08\0\0\0\0\0\0\0{}      "])
def test_file_of_other_content_is_refused_even_if_its_digest_fits(folder: Path, data: bytes) -> None:
    (folder / "cue.safetensors").write_bytes(data)
    assert "sha256" in load_error(folder)
    rewrite(folder, _set("tensors_sha256", value=hashlib.sha256(data).hexdigest()))
    assert "cue.safetensors" in load_error(folder)


@pytest.mark.parametrize("change", ["missing", "truncated", "changed"])
def test_damaged_tensor_file_is_refused(folder: Path, change: str) -> None:
    file = folder / "cue.safetensors"
    if change == "missing":
        file.unlink()
    elif change == "truncated":
        os.truncate(file, file.stat().st_size - 1)
    else:
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    assert "cue.safetensors" in load_error(folder)


def test_what_was_checked_is_what_is_loaded(
    trained: Cue, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file takes the name of the tensors as soon as their digest is known."""
    recorded, plain = trained.cue_file.tensors_sha256, hashlib.sha256
    other = shutil.copytree(folder, tmp_path / "other")
    rewrite_tensors(other, lambda tensors: tensors[_first(tensors)].add_(1))

    class Digest:
        def __init__(self, data: bytes = b"") -> None:
            self._digest = plain(data)

        def update(self, data: bytes) -> None:
            self._digest.update(data)

        def hexdigest(self) -> str:
            if self._digest.hexdigest() == recorded and (other / "cue.safetensors").exists():
                (other / "cue.safetensors").rename(folder / "cue.safetensors")
            return self._digest.hexdigest()

    monkeypatch.setattr(hashlib, "sha256", Digest)
    cue = softcue.load(folder, tiny("bert"))
    assert not (other / "cue.safetensors").exists()
    assert cue.predict(TEXTS) == trained.predict(TEXTS)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_file_that_is_not_regular_is_refused_without_waiting(folder: Path, kind: str) -> None:
    for name in ("cue.safetensors", "metrics.json", "metrics.jsonl"):
        (folder / name).unlink()
        os.mkfifo(folder / name) if kind == "pipe" else (folder / name).symlink_to("/dev/zero")
    assert "not a regular file" in load_error(folder)
    assert record_of_cue(folder) is None
    assert read_json_lines(folder / "metrics.jsonl") == []


def test_large_cue_json_is_refused_before_it_is_read(folder: Path) -> None:
    os.truncate(folder / "cue.json", 1 << 40)
    assert "larger than" in load_error(folder)


class LargestTensor(TorchDispatchMode):
    """Measures the largest tensor with memory that is made."""

    num_values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not result.is_meta:
            self.num_values = max(self.num_values, result.numel())
        return result


def test_method_that_the_tensors_do_not_fit_is_refused_before_it_is_built(folder: Path) -> None:
    method = {"name": "adapter", "bottleneck": 8192, "dropout": 0.1, "init_std": 0.02, "up_std": 0.0}
    rewrite(folder, _set("method", value=method))
    assert tiny("bert").fingerprint  # computed once, from tensors larger than those of the cue
    with LargestTensor() as largest:
        assert "no tensor" in load_error(folder)
    assert largest.num_values < 8192
    rewrite(folder, _set("method", "bottleneck", value=1_000_000))
    assert "method.bottleneck" in load_error(folder)


def test_tensors_larger_than_the_method_are_refused_before_they_are_read(folder: Path) -> None:
    os.truncate(folder / "cue.safetensors", 1 << 40)
    assert "larger than" in load_error(folder)


def test_every_size_that_a_cue_may_name_is_bounded() -> None:
    configs = [ReadoutConfig, *(method.Config for method in METHODS.built_in.values())]
    for config in configs:
        for name, setting in config.model_json_schema()["properties"].items():
            if setting.get("type") == "integer":
                assert "maximum" in setting, f"{config.__name__}.{name}"


def test_random_corruption_is_refused_or_harmless(trained: Cue, folder: Path) -> None:
    draws = random.Random(2024)
    wanted = trained.predict(TEXTS)
    num_refused = 0
    for number in range(60):
        file = folder / ("cue.json", "cue.safetensors")[number % 2]
        whole = file.read_bytes()
        at = draws.randrange(len(whole))
        if number % 6 < 4:
            file.write_bytes(whole[:at] + bytes([whole[at] ^ draws.randrange(1, 256)]) + whole[at + 1 :])
        else:
            file.write_bytes(whole[:at])
        try:
            assert softcue.load(folder, tiny("bert")).predict(TEXTS) == wanted
        except SoftcueError as error:
            check_message(error)
            num_refused += 1
        file.write_bytes(whole)
    assert num_refused > 50
    assert softcue.load(folder, tiny("bert")).predict(TEXTS) == wanted


# Predicting


def test_every_kind_of_input_gives_the_same_answers(trained: Cue, tmp_path: Path) -> None:
    wanted = trained.predict(TEXTS)
    assert [answer.label in ("billing", "delivery") for answer in wanted] == [True] * 4
    rows = [{"text": text, "more": 1} for text in TEXTS]
    frame = pandas.DataFrame(rows)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_csv(tmp_path / "ROWS.TSV", index=False, sep="\t")
    frame.to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inputs = {
        "tuple": tuple(TEXTS),
        "one-tuples": [(text,) for text in TEXTS],
        "lists": [[text] for text in TEXTS],
        "generator": (text for text in TEXTS),
        "rows": rows,
        "frame": frame,
        "series": frame["text"],
        "array": frame["text"].to_numpy(),
        "mixed": [TEXTS[0], rows[1], (TEXTS[2],), TEXTS[3]],
        "csv": tmp_path / "rows.csv",
        "csv name": str(tmp_path / "rows.csv"),
        "parquet": tmp_path / "rows.parquet",
        "TSV name": str(tmp_path / "ROWS.TSV"),
        "jsonl name": str(tmp_path / "rows.jsonl"),
    }
    for name, texts in inputs.items():
        assert trained.predict(texts) == wanted, name


def test_one_text_or_one_row_gives_one_answer(trained: Cue) -> None:
    [wanted] = trained.predict([TEXTS[0]])
    assert trained.predict(TEXTS[0]) == [wanted]
    assert trained.predict({"text": TEXTS[0]}) == [wanted]
    assert wanted.scores is not None
    assert sum(wanted.scores.values()) == pytest.approx(1.0)


def test_pairs_are_read_as_pairs(pairs: Cue, tmp_path: Path) -> None:
    couples = [(text, "order 7") for text in TEXTS]
    wanted = pairs.predict(couples)
    frame = pandas.DataFrame(couples, columns=["first", "second"])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    for texts in (
        [list(couple) for couple in couples],
        frame,
        tmp_path / "rows.csv",
        frame.to_dict("records"),
    ):
        assert pairs.predict(texts) == wanted
    assert pairs.predict(couples[0]) == pairs.predict([couples[0]])


@pytest.mark.parametrize("texts", ["no such file.csv", "x" * 400 + ".csv", "a\0b.csv", "hub:nothing@train"])
def test_text_that_looks_like_a_file_is_a_text(trained: Cue, texts: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of them is long enough to be cut
        assert len(trained.predict(texts)) == 1


def test_no_texts_give_no_answers(trained: Cue) -> None:
    assert trained.predict([]) == []


@pytest.mark.parametrize(
    "texts",
    [
        [("a", "b")],
        [("a", "b", "c")],
        [()],
        [TEXTS[0], ["a", "b"]],
        [None],
        [3],
        [b"bytes"],
        [{"other": "a"}],
        [{}],
        [{"text": None}],
        [""],
        "",
        "  ",
        [float("nan")],
        [["a", 3]],
        [[3]],
        None,
        7,
        b"bytes",
        {"other": "a"},
        pandas.DataFrame({"other": ["a"]}),
        pandas.DataFrame({"text": []}),
        ["\ud800"],
        Path("/no/such/file.csv"),
        Path("/no/such/file"),
    ],
    ids=repr,
)
def test_input_that_cannot_be_read_is_a_data_error(trained: Cue, texts: Any) -> None:
    with pytest.raises(DataError) as caught:
        trained.predict(texts)
    check_message(caught.value)


@pytest.mark.parametrize("texts", ["one", ["one", "two"], [("one",)], [("one", "two", "three")], ("one",)])
def test_wrong_number_of_texts_for_a_pair_is_a_data_error(pairs: Cue, texts: Any) -> None:
    with pytest.raises(DataError, match="first, second") as caught:
        pairs.predict(texts)
    check_message(caught.value)


def test_error_names_the_row(trained: Cue) -> None:
    with pytest.raises(DataError, match="row 3"):
        trained.predict(["one", "two", ("three", "four")])
    with pytest.raises(DataError, match="row 2"):
        trained.predict(["one", None])


def test_evaluation_of_a_loaded_cue_gives_the_recorded_scores(trained: Cue, folder: Path) -> None:
    evaluation = softcue.load(folder, tiny("bert")).evaluate(ROWS)
    assert evaluation.scores == trained.scores["test"]


# Nothing is pickled


def test_no_file_of_a_cue_is_a_pickle(trained: Cue) -> None:
    assert trained.path is not None
    for file in trained.path.rglob("*"):
        data = file.read_bytes()
        assert not data.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK"))
        if file.suffix != ".safetensors":
            data.decode("utf-8")


def test_a_loaded_backbone_takes_no_other_settings(tmp_path: Path) -> None:
    save_cue(tmp_path / "cue")
    with pytest.raises(ConfigurationError, match="dtype: got 'bfloat16'; expected no such setting beside a backbone"):
        softcue.load(tmp_path / "cue", tiny("bert"), dtype="bfloat16")
    with pytest.raises(ConfigurationError, match=r"backbone.quantization: got 'int3'"):
        softcue.load(tmp_path / "cue", quantization="int3")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"backbone.dtype: got 'int3'"):
        softcue.load(tmp_path / "cue", dtype="int3")  # type: ignore[arg-type]


def test_a_cue_without_a_quantization_was_trained_on_plain_weights(tmp_path: Path) -> None:
    folder = save_cue(tmp_path / "cue").path
    assert folder is not None
    values = json.loads((folder / "cue.json").read_text())
    del values["backbone"]["quantization"]  # as cues of version 0.1
    values["record_sha256"] = cue_file_digest(values)
    (folder / "cue.json").write_text(json.dumps(values))
    assert read_cue_file(folder).backbone.quantization == "none"
