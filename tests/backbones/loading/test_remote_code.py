"""Code in a model folder is never run: neither that of its model, its configuration nor its tokenizer."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from softcue.backbones import load_backbone
from softcue.errors import BackboneError

CODE = """
from pathlib import Path
Path({marker!r}).write_text("it ran")
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast
class OwnConfig(BertConfig):
    model_type = "own"
class OwnModel(BertForMaskedLM):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
AUTO_MAPS = {
    "config.json": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel", "AutoModelForMaskedLM": "own.OwnModel"},
    "tokenizer_config.json": {"AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizer"]},
}


@pytest.mark.parametrize("model_type", ["bert", "own"])
@pytest.mark.parametrize("file", [*AUTO_MAPS, "both"])
def test_code_of_a_model_folder_is_not_run(
    tmp_path: Path, model_folders: dict[str, Path], file: str, model_type: str
) -> None:
    folder, marker = tmp_path / "model", tmp_path / "marker"
    shutil.copytree(model_folders["bert"], folder)
    (folder / "own.py").write_text(CODE.format(marker=str(marker)))
    for name, auto_map in AUTO_MAPS.items():
        if file in (name, "both"):
            values = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({**values, "auto_map": auto_map}))
    if model_type == "own":
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**values, "model_type": "own"}))
    with suppress(BackboneError):  # a model that nobody else knows is refused
        assert load_backbone(str(folder)).kind == "encoder"
    assert not marker.exists()
