"""Pictures as PNG bytes: the nearest sentence pairs by group, and length differences of tasks. They need matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from softcue.drawing.bars import BAR_SHARE, SERIES_COLOURS
from softcue.inspection.pictures import make_figure, make_figures, png_bytes
from softcue.inspection.sentence_pairs import PairStudy
from softcue.tasks.pair_lengths import PairLengths

MANY_CHARACTERS = 48  # of all groups' names together: more are turned
LEGEND_CHARACTERS = 120  # that fit above two panels
MOST_LETTERS = 40  # of a name beside its bar; a path is told by its end
MAX_COUNTS = 20  # bars of a panel that have their counts written on them


def pair_picture(study: PairStudy) -> bytes:
    """A panel for each number of nearest pairs (figures 8a, 4 and 8b of IDPG), and one for the mean cosines.

    Example:
        Path("pairs.png").write_bytes(pair_picture(pair_study(cue, "STS-B/dev.tsv")))
    """
    num_panels = len(study.tops) + 1
    num_columns = 1 if num_panels == 1 else 2
    num_lines = -(-num_panels // num_columns)
    figure, panels = make_figures(5.2 * num_columns, 3.1 * num_lines + 0.6, num_columns, num_lines)
    for panel in panels[num_panels:]:
        panel.set_visible(False)
    for panel, top in zip(panels, study.tops, strict=False):
        for number, model in enumerate(study.models):
            bars = _draw_bars(panel, number, len(study.models), list(study.counts(model, top)), model.name)
            if len(study.groups) * len(study.models) <= MAX_COUNTS:
                panel.bar_label(bars, fontsize=7 if len(study.models) <= 3 else 5.5, padding=1)
        half = BAR_SHARE / 2 + 0.03
        for number, value in enumerate(study.by_chance(top)):
            panel.plot([number - half, number + half], [value, value], color="black", linestyle="--", linewidth=1)
        panel.set_title(f"the {top:,} nearest of {study.num_pairs:,} pairs", fontsize=10)
        panel.set_ylabel("pairs")
    cosines = panels[num_panels - 1]
    for number, model in enumerate(study.models):
        _draw_bars(cosines, number, len(study.models), study.mean_cosines(model), model.name)
    cosines.set_title(f"mean cosine of all {study.num_pairs:,} pairs", fontsize=10)
    cosines.set_ylabel("cosine")
    cosines.axhline(0, color="black", linewidth=0.8)
    is_turned = sum(map(len, study.groups)) > MANY_CHARACTERS
    for panel in panels[:num_panels]:
        panel.set_xticks(range(len(study.groups)), study.groups, rotation=30 if is_turned else 0)
        if is_turned:
            for name in panel.get_xticklabels():
                name.set_horizontalalignment("right")
        panel.set_xlabel("score of the pair" if study.scores else "label of the pair")
        panel.spines[["top", "right"]].set_visible(False)
    handles, names = panels[0].get_legend_handles_labels()
    handles += panels[0].plot([], [], color="black", linestyle="--", linewidth=1)
    names.append("by chance")
    num_keys = max(1, LEGEND_CHARACTERS // (max(map(len, names)) + 8))  # in a line
    figure.legend(handles, names, loc="outside upper center", ncols=min(num_keys, len(names)), frameon=False)
    return png_bytes(figure)


def length_picture(lengths: Sequence[PairLengths]) -> bytes:
    """The mean of the length of the first text less that of the second, for each task (figure 5 of IDPG).

    The thin lines show the middle half of the pairs.

    Example:
        Path("lengths.png").write_bytes(length_picture([pair_lengths(library_task("same-request"))]))
    """
    figure, axes = make_figure(7.0, 1.0 + 0.36 * len(lengths))
    places = list(range(len(lengths)))[::-1]  # the first is on top
    means = [entry.mean_difference for entry in lengths]
    axes.barh(places, means, height=0.6, color=SERIES_COLOURS[1])
    for place, entry in zip(places, lengths, strict=True):
        axes.plot(entry.middle_half, [place, place], color="black", linewidth=1.2, marker="|", markersize=7)
        edge = max(0.0, entry.mean_difference, entry.middle_half[1])
        text = f"{entry.mean_difference:+.1f}"
        axes.annotate(text, (edge, place), (6, 0), textcoords="offset points", va="center", fontsize=9)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(x=0.12)
    names = [entry.name if len(entry.name) <= MOST_LETTERS else f"…{entry.name[-MOST_LETTERS:]}" for entry in lengths]
    axes.set_yticks(places, [f"{name} ({entry.num_pairs:,})" for name, entry in zip(names, lengths, strict=True)])
    axes.set_xlabel(f"{lengths[0].unit} of the first text less those of the second")
    axes.set_title("bars: mean of all pairs; thin lines: middle half of the pairs", fontsize=10)
    axes.set_ylim(-0.6, len(lengths) - 0.4)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return png_bytes(figure)


def _draw_bars(axes: Any, number: int, num_series: int, values: Sequence[float | None], name: str) -> Any:
    """The bars of one of several series, beside those of the others."""
    width = BAR_SHARE / num_series
    shift = (number - (num_series - 1) / 2) * width
    heights = [0.0 if value is None else value for value in values]
    colour = SERIES_COLOURS[0] if number == 0 else SERIES_COLOURS[1:][(number - 1) % (len(SERIES_COLOURS) - 1)]
    return axes.bar([place + shift for place in range(len(heights))], heights, width * 0.94, color=colour, label=name)
