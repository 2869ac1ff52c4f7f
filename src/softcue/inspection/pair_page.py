"""Parts of HTML pages: the nearest sentence pairs by group, and length differences of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from softcue.drawing import bar_chart, histogram, html_table, legend, side_by_side
from softcue.inspection.page import html_page
from softcue.inspection.sentence_pairs import PairStudy
from softcue.tasks.pair_lengths import PairLengths, length_table

MAX_HISTOGRAMS = 12
MAX_BARS = 25  # of a histogram


def pair_parts(study: PairStudy) -> list[str]:
    """The part of a cue's page about sentence pairs.

    Example:
        cue_page(cue, None, None, {}, 5, more_parts=pair_parts(pair_study(cue, "STS-B/dev.tsv")))
    """
    group_kind = "score" if study.scores else "label"
    charts = [
        bar_chart(
            f"the {top:,} nearest of {study.num_pairs:,} pairs",
            study.groups,
            {model.name: study.counts(model, top) for model in study.models},
            group_kind,
            study.by_chance(top),
        )
        for top in study.tops
    ]
    cosines = {model.name: study.mean_cosines(model) for model in study.models}
    charts.append(bar_chart(f"mean cosine of all {study.num_pairs:,} pairs", study.groups, cosines, group_kind))
    explained = (
        "Each sentence is read alone, with a prompt of its own. Pairs are sorted by the cosine of their two sentence "
        f"vectors ({study.pooling} pooling); the bars count the pairs of each {group_kind} among the nearest. Without "
        "prompts the frozen backbone reads the sentences."
    )
    parts = [
        f"<h2>Sentence pairs of {escape(study.name)}</h2>",
        f'<p class="quiet">{explained}</p>',
        legend([model.name for model in study.models], "by chance"),
        side_by_side(charts),
    ]
    columns, rows = pair_table(study)
    parts.append(f"<details><summary>All numbers</summary>{html_table(columns, rows)}</details>")
    if study.scores:
        correlations = [[model.name, study.correlation(model)] for model in study.models]
        parts.append(html_table(["sentence vectors", "Spearman's correlation of cosine and score"], correlations))
    if study.num_truncated:
        parts.append(f'<p class="quiet">{study.num_truncated:,} sentences were cut to the length the cue reads.</p>')
    if study.lengths is not None:
        parts += ["<h3>Lengths of the two sentences</h3>", *_length_parts([study.lengths])]
    return parts


def pair_table(study: PairStudy) -> tuple[list[str], list[list[object]]]:
    """Columns and rows of a table with all counts and mean cosines: a row for each k and model.

    Example:
        columns, rows = pair_table(pair_study(cue, "STS-B/dev.tsv"))
    """
    rows: list[list[object]] = []
    for top in study.tops:
        rows += [[f"nearest {top:,}", model.name, *study.counts(model, top)] for model in study.models]
        rows.append([f"nearest {top:,}", "by chance", *(f"{value:.1f}" for value in study.by_chance(top))])
    rows += [
        ["mean cosine", model.name, *("-" if value is None else f"{value:.3f}" for value in study.mean_cosines(model))]
        for model in study.models
    ]
    rows.append(["all pairs", "", *study.group_sizes])
    return ["pairs", "sentence vectors", *study.groups], rows


def length_page(lengths: Sequence[PairLengths]) -> str:
    """The page about the length differences of pair tasks (figure 5 of IDPG).

    Example:
        page = length_page([pair_lengths(library_task("same-request"))])
    """
    title = "Length differences of pair tasks"
    return html_page(title, [f"<h1>{title}</h1>", *_length_parts(lengths)])


def _length_parts(lengths: Sequence[PairLengths]) -> list[str]:
    unit = lengths[0].unit
    explained = f"Lengths are in {unit}. The difference is the length of the first text less that of the second."
    parts = [f'<p class="quiet">{explained}</p>', html_table(*length_table(lengths))]
    charts = []
    if len(lengths) > 1:
        means = {"mean difference": [entry.mean_difference for entry in lengths]}
        names = [entry.name for entry in lengths]
        charts.append(bar_chart("mean difference", names, means, unit, colours=("#3b82c4",)))
    for entry in lengths[:MAX_HISTOGRAMS]:
        title = "difference of each pair"
        title = title if len(lengths) == 1 else f"{entry.name}: {title}"
        num_bars, limits = whole_bars(entry.differences)
        charts.append(histogram(title, entry.differences, unit, num_bars=num_bars, limits=limits))
    return [*parts, side_by_side(charts)]


def whole_bars(values: Sequence[int]) -> tuple[int, tuple[float, float]]:
    """The number of bars and the limits of a histogram of whole numbers: each bar covers as many of them.

    Example:
        >>> whole_bars([-1, 0, 3]), whole_bars([0, 99])
        ((5, (-1.5, 3.5)), (25, (-0.5, 99.5)))
    """
    num_values = max(values) - min(values) + 1
    width = -(-num_values // MAX_BARS)
    num_bars = -(-num_values // width)
    low = min(values) - 0.5
    return num_bars, (low, low + width * num_bars)
