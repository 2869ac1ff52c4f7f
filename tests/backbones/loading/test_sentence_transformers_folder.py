from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from softcue.backbones import load_backbone
from softcue.backbones.loading.sentence_transformers_folder import (
    SentenceTransformersFolder,
    read_sentence_transformers_folder,
)
from softcue.errors import BackboneError

OLD = "sentence_transformers.models."
NEW = "sentence_transformers.sentence_transformer.modules.pooling."
TRANSFORMER, POOLING, NORMALIZE = (
    {"idx": 0, "name": "0", "path": "", "type": f"{OLD}Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{OLD}Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{OLD}Normalize"},
)
MEAN = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


@pytest.fixture
def copied(model_folders: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda model_type: shutil.copytree(model_folders[model_type], tmp_path / model_type)


def test_a_folder_without_these_files_says_nothing(tmp_path: Path) -> None:
    assert read_sentence_transformers_folder(tmp_path) == SentenceTransformersFolder()


def test_all_files_are_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "modules.json": [TRANSFORMER, POOLING, NORMALIZE],
            "1_Pooling/config.json": MEAN,
            "sentence_bert_config.json": {"max_seq_length": 384, "do_lower_case": False},
            "config_sentence_transformers.json": {
                "prompts": {"query": "query: ", "passage": ""},
                "default_prompt_name": "query",
            },
        },
    )
    expected = SentenceTransformersFolder("mean", True, {"query": "query: ", "passage": ""}, "query", 384)
    assert read_sentence_transformers_folder(tmp_path) == expected
    assert expected.default_prompt == "query: "


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        (MEAN, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean"),
        ({"pooling_mode_mean_tokens": False}, "mean"),
        ({}, "mean"),
        ({"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode": "mean", "pooling_mode_cls_token": True}, "mean"),
    ],
)
def test_pooling_is_read_in_its_old_and_new_form(tmp_path: Path, config: dict[str, Any], pooling: str) -> None:
    folder = read_sentence_transformers_folder(write(tmp_path, {"1_Pooling/config.json": config}))
    assert (folder.pooling, folder.left_out) == (pooling, ())


def test_modules_may_lie_in_other_subfolders_and_have_newer_type_names(tmp_path: Path) -> None:
    modules = [
        {"path": "0_Transformer", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"path": "pool", "type": f"{NEW}Pooling"},
    ]
    files = {
        "modules.json": modules,
        "pool/config.json": {"pooling_mode": "cls"},
        "1_Pooling/config.json": MEAN,  # of no module
        "0_Transformer/sentence_bert_config.json": {"max_seq_length": 128},
    }
    folder = read_sentence_transformers_folder(write(tmp_path, files))
    assert (folder.pooling, folder.transformer, folder.max_length) == ("cls", "0_Transformer", 128)
    assert not folder.is_normalized


def test_the_real_package_writes_what_is_read(tmp_path: Path) -> None:
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    modules.Pooling(32, "lasttoken").save(write(tmp_path, {"1_Pooling/x": ""}) / "1_Pooling")
    assert read_sentence_transformers_folder(tmp_path).pooling == "last"


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"modules.json": [TRANSFORMER, POOLING, {"path": "2_Dense", "type": f"{OLD}Dense"}]}, ["Dense"]),
        (
            {"modules.json": [TRANSFORMER, {"path": "1", "type": f"{OLD}WeightedLayerPooling"}]},
            ["WeightedLayerPooling"],
        ),
        ({"modules.json": [TRANSFORMER, {"path": "1", "type": "my_code.Magic"}]}, ["Magic"]),
        ({"1_Pooling/config.json": {"pooling_mode": ["cls", "max"]}}, ["pooling max"]),
        ({"1_Pooling/config.json": {"pooling_mode_weightedmean_tokens": True}}, ["pooling weightedmean"]),
    ],
)
def test_what_softcue_does_not_compute_is_named_in_one_warning(
    copied: Callable[[str], Path], files: dict[str, Any], named: list[str]
) -> None:
    folder = write(copied("bert"), files)
    assert list(read_sentence_transformers_folder(folder).left_out) == named
    with pytest.warns(UserWarning, match=f"leaves out {', '.join(named)}") as caught:
        load_backbone(str(folder))
    assert len([warning for warning in caught if "leaves out" in str(warning.message)]) == 1


def test_a_usual_folder_gives_no_warning(copied: Callable[[str], Path]) -> None:
    dropout = {"path": "3_Dropout", "type": f"{OLD}Dropout"}
    folder = write(copied("bert"), {"modules.json": [TRANSFORMER, POOLING, NORMALIZE, dropout]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_backbone(str(folder))


def test_a_prompt_that_pooling_should_leave_out_is_named(tmp_path: Path) -> None:
    files = {
        "1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": False},
        "config_sentence_transformers.json": {"prompts": {"q": "Q: "}, "default_prompt_name": "q"},
    }
    assert read_sentence_transformers_folder(write(tmp_path, files)).left_out == (
        "pooling without the prompt's tokens",
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modules.json", "{not json"),
        ("modules.json", "{}"),
        ("modules.json", '[{"path": "1_Pooling"}]'),
        ("modules.json", '[{"path": 3, "type": "a.Pooling"}]'),
        ("modules.json", '[{"path": "../x", "type": "a.Pooling"}]'),
        ("modules.json", '[{"path": "/x", "type": "a.Transformer"}]'),
        ("modules.json", "\x00"),
        ("1_Pooling/config.json", "[]"),
        ("1_Pooling/config.json", ""),
        ("1_Pooling/config.json", '{"pooling_mode": "magic"}'),
        ("1_Pooling/config.json", '{"pooling_mode": 3}'),
        ("config_sentence_transformers.json", '{"prompts": []}'[:-1]),
        ("config_sentence_transformers.json", '{"prompts": ["a"]}'),
        ("config_sentence_transformers.json", '{"prompts": {"a": 1}}'),
        ("config_sentence_transformers.json", '{"prompts": {}, "default_prompt_name": "a"}'),
        ("sentence_bert_config.json", "3"),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(copied: Callable[[str], Path], name: str, content: str) -> None:
    folder = write(copied("bert"), {name: content})
    with pytest.raises(BackboneError) as caught:
        load_backbone(str(folder))
    assert str(folder / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_transformer_in_a_subfolder_is_the_model(copied: Callable[[str], Path], tmp_path: Path) -> None:
    model = copied("bert")
    folder = tmp_path / "whole"
    folder.mkdir()
    shutil.move(model, folder / "0_Transformer")
    write(folder, {"modules.json": [{**TRANSFORMER, "path": "0_Transformer"}, POOLING], "1_Pooling/config.json": MEAN})
    backbone = load_backbone(str(folder))
    assert (backbone.default_pooling, backbone.folder) == ("mean", folder)


@pytest.mark.parametrize(("model_type", "without"), [("t5", "mean"), ("gpt2", "last"), ("bert", "cls")])
def test_the_folder_decides_the_pooling_of_every_kind_of_backbone(
    copied: Callable[[str], Path], model_type: str, without: str
) -> None:
    folder = copied(model_type)
    assert load_backbone(str(folder)).default_pooling == without
    for pooling in ("mean", "cls"):
        write(folder, {"1_Pooling/config.json": {"pooling_mode": pooling}})
        assert load_backbone(str(folder)).default_pooling == pooling


def test_a_saved_backbone_keeps_pooling_and_prompts(copied: Callable[[str], Path], tmp_path: Path) -> None:
    files = {
        "modules.json": [TRANSFORMER, {**POOLING, "path": "pool"}],
        "pool/config.json": MEAN,
        "config_sentence_transformers.json": {"prompts": {"q": "Q: "}, "default_prompt_name": "q"},
    }
    load_backbone(str(write(copied("bert"), files))).save(tmp_path / "saved")
    saved = load_backbone(str(tmp_path / "saved")).sentence_transformers
    assert (saved.pooling, saved.default_prompt) == ("mean", "Q: ")
