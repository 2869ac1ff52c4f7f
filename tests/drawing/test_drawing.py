"""Charts and tables are well-formed, whatever they are given, and say what they show."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from softcue.drawing import (
    LabelledPoint,
    MarkedCell,
    bar_chart,
    curves_chart,
    heat_table,
    histogram,
    histograms,
    html_table,
    legend,
    line_chart,
    marked_table,
    points_chart,
    scatter_chart,
    side_by_side,
    sparkline,
    value_table,
)

SERIES = [
    [(1, 2.0)],
    [(1, 2.0), (2, 2.0), (3, 2.0)],
    [(1, -5.0), (2, 0.0), (10, 1e9)],
    [(1, 1e-9), (2, 2e-9)],
    [(step, math.sin(step)) for step in range(5000)],
    [(1, math.nan), (2, 1.0), (3, math.inf), (4, 3.0)],
]


@pytest.mark.parametrize("points", SERIES)
@pytest.mark.parametrize("is_log", [False, True])
def test_any_curve_stays_inside_its_picture(points: list[tuple[int, float]], is_log: bool) -> None:
    chart = line_chart("a < b & c", points, "step", is_log=is_log)
    ElementTree.fromstring(chart)
    [line] = re.findall(r'<polyline points="([^"]*)"', chart)
    for place in line.split():
        x, y = map(float, place.split(","))
        assert 0 <= x <= 400 and 0 <= y <= 240
    assert len(line.split()) <= 200
    assert "a &lt; b &amp; c" in chart


def test_a_curve_without_a_finite_value_is_no_chart() -> None:
    assert line_chart("loss", [(1, math.nan)], "step") == ""
    assert line_chart("loss", [], "step") == scatter_chart("x", [], "a", "b") == histogram("x", [], "a") == ""
    assert side_by_side(["", ""]) == ""


def test_the_best_point_is_named_below_the_chart() -> None:
    assert "step (circle: best, 90 at 4)" in line_chart("validation f1", [(2, 80.0), (4, 90.0)], "step", best=(4, 90.0))


def test_points_and_bars_are_well_formed() -> None:
    points = [(float(number), number * 1.1) for number in range(4000)]
    chart = scatter_chart("values", points, "true", "predicted")
    ElementTree.fromstring(chart)
    assert 1000 <= chart.count("<circle") <= 1500
    bars = histogram("errors", [0.0, 0.0, 1.0], "error", num_bars=4)
    ElementTree.fromstring(bars)
    assert [re.search(r": (\d+)<", bar)[1] for bar in bars.split("<rect")[1:]] == ["2", "0", "0", "1"]  # type: ignore[index]


def test_charts_take_the_colour_of_the_text_around_them() -> None:
    chart = line_chart("loss", [(1, 2.0), (2, 1.0)], "step")
    assert "currentColor" in chart
    assert "#000" not in chart and "#fff" not in chart


def test_tables_escape_and_align() -> None:
    table = html_table(["name", "score"], [["<b>", "87.5"], ["x", "-"]])
    ElementTree.fromstring(table)
    assert "&lt;b&gt;" in table
    assert table.count("text-align: right") == 3
    matrix = heat_table("true", ["<a>", "b"], ["<a>", "b"], [[3, 1], [0, 0]])
    ElementTree.fromstring(matrix)
    assert "true &lt;a&gt;, predicted b: 1 of 4" in matrix


def test_sparklines_have_at_most_their_width() -> None:
    assert len(sparkline(list(range(1000)), width=40)) == 40
    assert sparkline([]) == sparkline([math.nan]) == ""
    assert sparkline([3.0, 1.0]) == "█▁"


def test_several_curves_have_a_legend_bands_and_logarithmic_axes() -> None:
    curves = {"a<b": [(1e8, 1e3), (1e10, 1e5)], "zero": [(1e8, 0.0)], "late": [(1e9, 7.0), (math.nan, 1.0)]}
    bands = {"a<b": [(1e8, 5e2, 2e3), (1e10, 5e4, 2e5)], "nobody": [(1.0, 1.0, 1.0)]}
    chart = curves_chart("sizes", curves, "parameters", is_log_x=True, is_log=True, bands=bands)
    ElementTree.fromstring(chart)
    assert chart.count("<polyline") == 2 and chart.count("<polygon") == 1
    assert "a&lt;b" in chart and "zero" not in chart
    assert ">1B</text>" in chart
    for line in re.findall(r'<poly(?:line|gon) points="([^"]*)"', chart):
        for place in line.split():
            x, y = map(float, place.split(","))
            assert 0 <= x <= 400 and 0 <= y <= 240
    assert "late" not in curves_chart("sizes", curves, "x", has_legend=False).rsplit("</svg>", 1)[1]
    assert curves_chart("sizes", {"zero": [(1.0, 0.0)]}, "x", is_log=True) == ""


def test_more_curves_than_colours_differ_by_their_dashes() -> None:
    chart = curves_chart("many", {str(number): [(1.0, number), (2.0, number)] for number in range(12)}, "step")
    styles = re.findall(r'stroke="(#\w+)" stroke-width="2" stroke-linejoin="round" stroke-dasharray="([^"]*)"', chart)
    assert len(styles) == len(set(styles)) == 12


def test_curves_differ_by_the_shape_of_their_points_too() -> None:
    chart = curves_chart("few", {name: [(1.0, 1.0), (2.0, 3.0)] for name in "abcde"}, "step")
    picture, legend_of_curves = chart.split("</svg>", 1)
    shapes = {"<circle": 2, "<rect": 2, "<path": 6}
    assert {shape: picture.count(shape) for shape in shapes} == shapes
    assert {shape: legend_of_curves.count(shape) for shape in shapes} == {s: n // 2 for s, n in shapes.items()}
    long = curves_chart("long", {"a": [(float(step), 0.0) for step in range(500)]}, "step")
    assert 1 < long.split("</svg>")[0].count("<circle") <= 10


@pytest.mark.parametrize(
    ("points", "ticks"),
    [
        ([(100, 1.0), (500, 1.0), (1000, 2.0)], ["100", "200", "500", "1K"]),
        ([(384, 1.0), (23e6, 2.0)], ["1K", "10K", "100K", "1M", "10M"]),
    ],
)
def test_logarithmic_axes_have_round_numbers(points: list[tuple[float, float]], ticks: list[str]) -> None:
    chart = curves_chart("x", {"a": points}, "rows", is_log_x=True)
    assert re.findall(r'text-anchor="middle"[^>]*>([^<]*)<', chart)[:-1] == ticks


LABEL = re.compile(r'<text x="([\d.-]+)" y="([\d.-]+)" font-size="11" text-anchor="(\w+)"[^>]*>(method[^<]*)<')


def label_boxes(chart: str) -> list[tuple[float, float, float, float]]:
    boxes = []
    for x, y, anchor, text in LABEL.findall(chart):
        width = 6.2 * len(text)
        left = float(x) - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        boxes.append((left, float(y) - 9, left + width, float(y) + 2))
    return boxes


def test_names_of_points_are_inside_the_picture_and_do_not_cover_each_other() -> None:
    points = [LabelledPoint(10.0 ** (3 + number % 3), 80 + number * 0.3, f"method {number}") for number in range(9)]
    chart = points_chart("a < b", {"minilm": points}, "trainable parameters", is_log_x=True)
    ElementTree.fromstring(chart)
    boxes = label_boxes(chart)
    assert len(boxes) == 9
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert left >= 0 and right <= 400 and top >= 0 and bottom <= 240
        for other in boxes[:number]:
            is_beside = right <= other[0] or other[2] <= left
            assert is_beside or bottom <= other[1] + 0.5 or other[3] <= top + 0.5


def test_points_have_a_shape_per_series_lines_for_their_spread_and_no_impossible_place() -> None:
    series = {
        "minilm": [LabelledPoint(0.0, 80.0, "free"), LabelledPoint(100.0, 80.0, "a & b", 79.0, 81.0)],
        "t5": [LabelledPoint(100.0, 70.0, "method"), LabelledPoint(math.nan, 70.0, "nowhere")],
    }
    chart = points_chart("cost", series, "seconds", is_log_x=True)
    ElementTree.fromstring(chart)
    assert "a &amp; b" in chart and "free" not in chart and "nowhere" not in chart
    assert chart.count('stroke-opacity=".6"') == 1  # the line of the spread
    picture, legend_of_series = chart.split("</svg>", 1)
    assert picture.count("<circle") == picture.count("<rect") == 1
    assert "minilm" in legend_of_series and "t5" in legend_of_series
    assert "minilm" not in points_chart("cost", {"minilm": series["minilm"]}, "seconds")
    assert points_chart("cost", {"minilm": series["minilm"][:1]}, "seconds", is_log_x=True) == ""


def test_an_axis_of_names_cuts_those_that_do_not_fit() -> None:
    names = ["labels", "a very long name of an initial value & more", "words", "uniform"]
    points = [LabelledPoint(float(number), 80.0 + number, "here") for number in range(4)]
    chart = points_chart("init", {"vip": points}, "init", x_names=names)
    ElementTree.fromstring(chart)
    assert re.findall(r'text-anchor="middle"[^>]*>([^<]*)</text>', chart)[:4] == [
        "labels",
        "a very long…",
        "words",
        "uniform",
    ]


def test_marked_tables_are_bold_and_underlined_with_quiet_rows_last() -> None:
    cells = [MarkedCell("90.1", "± 0.4", "best"), MarkedCell("<b>", mark="second")]
    table = marked_table(
        [MarkedCell("a < b", below="126 rows"), MarkedCell("c")], [("vip", cells)], [("majority", cells)], "method"
    )
    ElementTree.fromstring(table)
    assert '<b title="best">90.1</b>' in table and '<u title="second">&lt;b&gt;</u>' in table
    assert table.index(">vip<") < table.index("font-style: italic") < table.index(">majority<")


def test_histograms_of_groups_show_shares() -> None:
    chart = histograms("x", {"few": [0.0, 1.0], "many": [0.0] * 30 + [1.0] * 10, "nobody": []}, "value", num_bars=2)
    ElementTree.fromstring(chart)
    assert [float(share) for share in re.findall(r": ([\d.]+) %<", chart)] == [50, 50, 75, 25]
    assert "many (40)" in chart and "nobody" not in chart
    assert histograms("x", {"none": [math.nan]}, "value") == ""


def test_a_heat_map_of_values_shades_by_them_and_leaves_gaps() -> None:
    table = value_table(["<a>", "b"], [[1.0, 0.5], [None, 7.0]], (0.0, 1.0))
    ElementTree.fromstring(table)
    shades = [float(alpha) for alpha in re.findall(r"rgba\(59, 130, 196, ([\d.]+)\)", table)]
    assert shades[0] > shades[1] and shades[0] == shades[2]
    assert "b and &lt;a&gt;: not compared" in table


@pytest.mark.parametrize("values", [[3.0, 0.0], [-2.0, 5.0], [-1.0, -1.0], [0.0, 0.0], [None, 1.0]])
@pytest.mark.parametrize("names", [["a", "b < c"], ["a very long name of a task", "another very long name of a task"]])
def test_bars_stay_inside_their_picture(values: list[float | None], names: list[str]) -> None:
    chart = bar_chart("a < b", names, {"one": values, "two": values}, "group", marks=[1.0, -1.0])
    root = ElementTree.fromstring(chart)
    height = float(root.attrib["viewBox"].split()[3])
    bars = re.findall(r'<rect x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)"', chart)
    assert len(bars) == 2 * sum(value is not None for value in values)
    for bar in bars:
        x, y, width, tall = map(float, bar)
        assert x >= 0 and x + width <= 400 and y >= 0 and y + tall <= 240 <= height
    assert "a &lt; b" in chart
    assert ("rotate" in chart) == (len(names[0]) > 10)  # long names are turned


def test_no_bars_are_no_chart_and_the_legend_names_all_series() -> None:
    assert bar_chart("x", ["a"], {"one": [None]}, "group") == ""
    line = legend(["one", "<two>"], "by chance")
    ElementTree.fromstring(line)
    assert "&lt;two&gt;" in line and "by chance" in line
    assert len(set(re.findall(r"background: (#\w+)", legend([str(number) for number in range(6)])))) == 6
