"""Parameters by method and model size, and figure 4 of Lester et al. 2021."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from command import check_error, run

from softcue.backbones.loading.shapes import backbone_like
from softcue.inspection.parameter_page import parameter_page, parameter_picture
from softcue.inspection.parameter_sizes import FIGURE_METHODS, count_by_size, count_methods, figure_4, sizes_named
from softcue.methods import METHODS

PNG = b"\x89PNG\r\n\x1a\n"


def test_mean_and_deviation_are_those_of_every_length() -> None:
    figure = figure_4()
    lines = {line.name: line for line in figure.lines}
    backbone = backbone_like("t5-small")
    for name in ("prompt tuning", "prefix tuning (infer)", "prefix tuning (train)"):
        method, values = FIGURE_METHODS[name]
        rows = {str(length): (method, {**values, "prompt_length": length}) for length in range(1, 101, 9)}
        counts, _ = count_methods(backbone, rows, "paper")
        stored = {int(length): count.stored for length, count in counts.items()}
        slope = (stored[100] - stored[1]) / 99
        every = [stored[1] + slope * (length - 1) for length in range(1, 101)]
        assert all(every[length - 1] == pytest.approx(value) for length, value in stored.items())
        deviations = lines[name].deviations
        assert deviations is not None
        assert lines[name].means[0] == pytest.approx(fmean(every))
        assert deviations[0] == pytest.approx(pstdev(every))
    assert lines["prompt design"].means == [1250.0] * 5
    assert lines["WARP"].means[1] == (50.5 + 2) * 768
    assert lines["model tuning"].deviations is None


def test_the_figure_shows_what_the_paper_says_about_it() -> None:
    shares = figure_4().curves(as_share=True)
    assert all(share == pytest.approx(100) for _, share in shares["model tuning"])
    assert all(0.05 < share < 1 for _, share in shares["prefix tuning (infer)"])
    assert all(share < 0.1 for _, share in shares["WARP"])
    assert all(share < 0.01 for size, share in shares["prompt tuning"] if size > 1e9)
    for infer, train in zip(shares["prefix tuning (infer)"], shares["prefix tuning (train)"], strict=True):
        assert train[1] > infer[1]


def test_sizes_and_counts_are_those_of_the_single_backbones() -> None:
    sizes = count_by_size(["t5-base", "roberta-large"], {"vip": ("vip", {}), "pt": ("prompt-tuning", {})}, "paper")
    assert [model.parameters for model in sizes.models] == [247_577_856, 354_310_144]
    assert [count and count.stored for count in sizes.counts["pt"]] == [76_800, 5_120]
    assert sizes.curves()["vip"][0] == (247_577_856, 911_840)
    assert sizes.curves(as_share=True)["vip"][0][1] == pytest.approx(0.3683, abs=1e-4)


def test_a_method_that_fits_some_models_only_has_gaps() -> None:
    rows = {"prefix": ("prefix-tuning", {}), "no-prompt": ("no-prompt", {})}
    sizes = count_by_size(["deberta-v3-base", "roberta-base"], rows, "default")
    assert sizes.counts["prefix"][0] is None and sizes.counts["prefix"][1] is not None
    assert any(note.startswith("prefix cannot be built on deberta-v3-base") for note in sizes.notes)
    assert any("besides a head: no-prompt" in note for note in sizes.notes)
    assert "no-prompt" not in sizes.curves()
    assert sizes.table()[1][0][1] == "-"


def test_models_of_different_families_are_not_connected() -> None:
    sizes = count_by_size(["gpt2-xl", "t5-small", "gpt2"], {"pt": ("prompt-tuning", {})}, "default")
    points = sizes.curves()["pt"]
    assert [size for size, _ in points if not isnan(size)] == [124_439_808, 1_557_611_200, 76_961_152]
    assert isnan(points[2][0])
    assert parameter_page(sizes).count("<polyline") == 4  # two families in two charts
    assert parameter_picture(sizes).startswith(PNG)


def test_equal_lines_are_drawn_once() -> None:
    sizes = count_by_size(["t5-small"], {"x": ("fine-tuning", {}), "y": ("efl", {})}, "default")
    assert list(sizes.curves()) == ["x, y"]
    assert list(sizes.counts) == ["x", "y"]


def test_families_and_lists_name_sizes() -> None:
    assert sizes_named("t5") == ["t5-small", "t5-base", "t5-large", "t5-xl", "t5-xxl"]
    assert sizes_named("gpt2") == ["gpt2"]
    assert sizes_named("gpt2, gpt2-xl,gpt2") == ["gpt2", "gpt2-xl"]


def test_params_draws_all_methods_by_size(tmp_path: Path) -> None:
    shown = run("params", "--recipe", "paper", "--plot", tmp_path / "new" / "sizes.PNG")
    assert shown.code == 0, shown.err
    assert "t5-xxl (11,135,332,352)" in shown.out
    assert (tmp_path / "new" / "sizes.PNG").read_bytes().startswith(PNG)
    printed = run("params", "--like", "roberta", "--method", "prompt-tuning,vip", "--json").json
    assert [model["name"] for model in printed["backbones"]] == ["roberta-base", "roberta-large"]
    assert [row["name"] for row in printed["methods"]] == ["prompt-tuning", "vip"]
    assert printed["methods"][0]["counts"][1] == {"gradient": 20_480, "ema": 0, "stored": 20_480, "head": 2_050}
    everything = run("params", "--like", "t5-small,t5-base", "--json").json
    takes_t5 = [name for name, method in METHODS.items() if "encoder-decoder" in method.kinds]
    assert [row["name"] for row in everything["methods"]] == takes_t5


def test_params_writes_the_paper_figure_as_page_and_picture(tmp_path: Path) -> None:
    words = ["params", "--figure-4", "--output-dir", tmp_path / "page"]
    shown = run(*words)
    assert shown.code == 0, shown.err
    assert "prompt design" in shown.out and "saved: " in shown.out
    page = (tmp_path / "page" / "index.html").read_text("utf-8")
    assert page.count("<polyline") == 12  # six lines in two charts
    assert page.count("<polygon") == 10  # model tuning has no band
    assert (tmp_path / "page" / "parameters.png").read_bytes().startswith(PNG)
    printed = run(*words, "--json").json
    assert len(printed["lines"]) == 6
    json.dumps(printed)


def test_one_method_with_settings_is_counted_by_size(tmp_path: Path) -> None:
    words = ["params", "--method", "prompt-tuning", "method.prompt_length=7", "--like", "t5-small,t5-xl", "--json"]
    counts = run(*words).json["methods"][0]["counts"]
    assert [count["gradient"] for count in counts] == [7 * 512, 7 * 2048]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--plot", "sizes.jpg"], ["--plot", ".png"]),
        (["--figure-4", "--like", "t5"], ["--like", "--figure-4"]),
        (["--figure-4", "--method", "vip"], ["--method"]),
        (["--like", "t6,t5-small"], ["t6"]),
        (["--method", "vip,nothing"], ["nothing"]),
        (["--method", "vip,vip-c", "method.prompt_length=3"], ["--method NAME"]),
    ],
)
def test_what_cannot_be_drawn_is_an_error(words: list[str], parts: list[str]) -> None:
    check_error(run("params", *words), *parts)
