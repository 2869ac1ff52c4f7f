"""Layers divided over two processes: losses and scores are those of one process, and each holds half of the weights."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import TORCHRUN
from sharded_runs import CASES, FAMILIES, make_backbone, train
from toy import make_model

from softcue.backbones import BackboneConfig, load_backbone
from softcue.errors import ConfigurationError

SCRIPT = Path(__file__).parents[1] / "sharded_runs.py"


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sharded")
    paths = [str(SCRIPT.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [*TORCHRUN, str(SCRIPT), str(folder)]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=580)
    assert result.returncode == 0, result.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_divided_layers_give_the_losses_and_scores_of_one_process(two_processes: list[dict[str, Any]]) -> None:
    cases = [*CASES, *((family, "m-idpg-phm", "whole") for family in FAMILIES)]
    names = [" ".join(case) for case in CASES] + [f"{family} checkpointed" for family in FAMILIES]
    backbones = {family: make_backbone(family) for family in FAMILIES}
    for name, (family, method, batches) in zip(names, cases, strict=True):
        alone = train(backbones[family], method, batches)
        first, second = (result[name] for result in two_processes)
        assert first == second, name
        assert first["losses"] == pytest.approx(alone["losses"], rel=1e-3), name
        assert first["scores"] == alone["scores"], name
        assert first["losses"][-1] != first["losses"][0], name


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_process_keeps_half_of_the_layers_weights(two_processes: list[dict[str, Any]], family: str) -> None:
    for result in two_processes:
        assert 0.45 < result[family] < 0.6  # rows are not cut, so parts are not quite equal


def test_layers_are_divided_only_between_several_processes(model_folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigurationError, match="shard_layers: got True; expected several processes"):
        load_backbone(BackboneConfig(name=str(model_folders["bert"]), shard_layers=True, dtype="float32"))


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("fine-tuning", "expected a method that leaves the backbone's weights and dropout as they are"),
        ("prompt-tuning late", "expected prompts that enter at the first layer; set method.insert_layer=0"),
    ],
)
def test_methods_that_need_whole_weights_are_refused(method: str, reason: str) -> None:
    backbone = make_backbone("bert")
    backbone.is_sharded = True
    with pytest.raises(ConfigurationError, match=f"backbone.shard_layers: got True; {reason}"):
        make_model(backbone, method).method.view_of(backbone)


def test_compiled_layers_are_not_divided() -> None:
    with pytest.raises(ValueError, match="either compile or shard_layers"):
        BackboneConfig(name="minilm", compile=True, shard_layers=True)
