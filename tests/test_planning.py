"""`softcue plan`: the memory of a step from a configuration, and what to set so that it fits."""

from __future__ import annotations

import json

import pytest
from command import check_error, run
from typer.testing import CliRunner

from softcue.cli.app import app
from softcue.errors import ConfigurationError
from softcue.planning import MemoryLayout, MemoryPlan, parse_size


@pytest.fixture(scope="module")
def plan() -> MemoryPlan:
    return MemoryPlan("minilm", "prompt-tuning", rows=8, length=32)


def test_smaller_pieces_packed_weights_and_more_gpus_need_less(plan: MemoryPlan) -> None:
    start = plan.memory(MemoryLayout(8))
    assert plan.memory(MemoryLayout(4)).activations < 0.6 * start.activations
    assert plan.memory(MemoryLayout(8, checkpoints_layers=True)).activations < 0.7 * start.activations
    weights = [plan.memory(MemoryLayout(8, quantization=packing)).weights for packing in ("none", "int8", "int4")]
    assert weights[0] > weights[1] > weights[2]
    assert plan.memory(MemoryLayout(8, gpus=2)).peak < start.peak
    full = plan.memory(MemoryLayout(8, dtype="float32")).weights
    assert full == pytest.approx(2 * start.weights, rel=1e-3)  # numbers of positions are integers


def test_the_first_layout_that_fits_changes_as_little_as_possible(plan: MemoryPlan) -> None:
    start = MemoryLayout(8)
    peak = plan.memory(start).peak
    assert plan.fitting(start, 2.0 * peak) == start
    smaller = plan.fitting(start, 0.95 * peak)
    assert smaller is not None
    assert smaller.settings(start) == [f"training.micro_batch_size={smaller.rows}"]
    assert plan.fitting(start, 1000.0) is None


def test_sizes_are_numbers_with_a_unit() -> None:
    assert parse_size("1.5 gb") == 3 * 2**29
    with pytest.raises(ConfigurationError, match="--gpu: got 'a lot'"):
        parse_size("a lot")


def test_a_prompt_that_enters_later_is_not_planned() -> None:
    late = MemoryPlan("minilm", "prompt-tuning", 2, 8, {"insert_layer": 1})
    with pytest.raises(ConfigurationError, match=r"method\.insert_layer: got '?1"):
        late.memory(MemoryLayout(2))


def test_the_command_prints_parts_and_what_to_set() -> None:
    arguments = ["plan", "--backbone", "minilm", "--rows", "4", "--length", "16"]
    result = CliRunner().invoke(app, [*arguments, "--gpu", "1GB"])
    assert result.exit_code == 0, result.output
    for words in ("weights", "activations", "optimizer", "peak", "fits into 1GB"):
        assert words in result.output
    result = CliRunner().invoke(app, [*arguments, "--gpu", "1MB"])
    assert "one row does not fit into 1MB" in result.output
    result = CliRunner().invoke(app, [*arguments, "--gpu", "45MB", "--json"])
    values = json.loads(result.output)
    assert values["fits"] is False and values["set"]
    assert values["peak_then"] <= 0.92 * 45 * 2**20 < values["bytes"]["peak"]


def test_settings_of_other_sections_are_refused() -> None:
    result = CliRunner().invoke(app, ["plan", "training.epochs=3"])
    assert isinstance(result.exception, ConfigurationError)
    assert "expected method.key=value" in str(result.exception)


@pytest.mark.slow
def test_foreseen_memory_is_the_measured_one_within_a_tenth() -> None:
    benchmark = pytest.importorskip("benchmarks.step_memory")
    figures = benchmark.memory_figures([("encoder", "prompt-tuning"), ("encoder", "p-tuning-v2"), ("decoder", "lora")])
    assert all(figure["met"] for figure in figures.values()), figures


def test_a_plan_names_its_method_in_one_place() -> None:
    assert MemoryPlan("minilm", None, 2, 8).method == "p-tuning-v2"
    assert MemoryPlan("minilm", None, 2, 8, {"name": "vip"}).method == "vip"
    words = ["plan", "--rows", "2", "--length", "8", "method.name=prompt-tuning", "method.init=vocabulary", "--json"]
    assert run(*words).json["method"] == "prompt-tuning"
    check_error(run("plan", "--method", "vip", "method.name=warp"), "method.name", "vip, as --method says")
