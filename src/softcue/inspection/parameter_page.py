"""The page and the picture of parameters by method and model size (Lester et al. 2021, figure 4)."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from math import log10

from softcue.drawing import curves_chart, curves_legend, html_table, side_by_side
from softcue.drawing.charts import short_number
from softcue.inspection.page import html_page
from softcue.inspection.parameter_sizes import ParameterSizes
from softcue.inspection.pictures import line_style, make_figures, png_bytes

PANELS = {"task parameters": False, "task parameters, % of the model's": True}  # title -> as share
MIN_NAME_GAP = 0.25  # between models, in powers of ten


def parameter_page(sizes: ParameterSizes) -> str:
    """The page: two charts with logarithmic axes, a legend and a table.

    Example:
        page = parameter_page(figure_4())
    """
    charts = [
        curves_chart(
            title,
            sizes.curves(as_share),
            "parameters of the model",
            is_log_x=True,
            is_log=True,
            bands=sizes.bands(as_share),
            has_legend=False,
        )
        for title, as_share in PANELS.items()
    ]
    parts = [
        f"<h1>{escape(sizes.title[:1].upper() + sizes.title[1:])}</h1>",
        side_by_side(charts),
        curves_legend(list(sizes.curves())),
        "<h2>Numbers</h2>",
        html_table(*sizes.table()),
        *(f'<p class="quiet">{escape(note)}</p>' for note in sizes.notes),
    ]
    return html_page(sizes.title, parts)


def parameter_picture(sizes: ParameterSizes) -> bytes:
    """The two charts as PNG; it needs matplotlib.

    Example:
        Path("parameters.png").write_bytes(parameter_picture(figure_4()))
    """
    figure, panels = make_figures(12.0, max(4.6, 1.2 + 0.24 * len(sizes.lines)), len(PANELS))
    for axes, (title, as_share) in zip(panels, PANELS.items(), strict=True):
        bands = sizes.bands(as_share)
        for number, (name, points) in enumerate(sizes.curves(as_share).items()):
            style = line_style(number)
            axes.plot(*zip(*points, strict=True), label=name, markersize=5, linewidth=1.6, **style)
            if name in bands:
                axes.fill_between(*zip(*bands[name], strict=True), color=style["color"], alpha=0.18, linewidth=0)
        axes.set_xscale("log")
        axes.set_yscale("log")
        if _has_room_for_names(sizes):
            axes.set_xticks(
                [model.parameters for model in sizes.models],
                [f"{short_number(model.parameters)}\n{model.name}" for model in sizes.models],
                fontsize=8,
            )
            axes.set_xticks([], minor=True)
        else:
            axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
            axes.xaxis.set_minor_formatter(lambda value, _: short_number(value) if f"{value:e}"[0] in "25" else "")
            axes.tick_params(axis="x", which="both", labelsize=8)
        if as_share:
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        axes.set_xlabel("parameters of the model")
        axes.set_ylabel(title)
        axes.grid(alpha=0.25)
    panels[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    figure.suptitle(sizes.title, fontsize=11)
    return png_bytes(figure)


def _has_room_for_names(sizes: ParameterSizes) -> bool:
    """Whether the sizes of the models are far enough apart to write their names below the axis."""
    powers = sorted(log10(model.parameters) for model in sizes.models)
    return all(second - first >= MIN_NAME_GAP for first, second in pairwise(powers))
