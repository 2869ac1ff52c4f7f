"""Parts of a cue's page: clusters of nearest words beside random vectors, and labels in the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from softcue.drawing import histograms, html_table, side_by_side
from softcue.inspection.clusters import WordClusters, explain, named_rows, summary_rows
from softcue.inspection.kept_labels import LabelPlace, label_rows_of, summarise_labels

HISTOGRAM_TITLE = "tightness of the nearest words, % of the vectors"


def word_parts(clusters: WordClusters | None, places: Sequence[LabelPlace]) -> list[str]:
    """The part of a cue's page about the words near to its prompt vectors.

    Example:
        cue_page(cue, nearest_words(cue), None, {}, 5, more_parts=word_parts(word_clusters(cue), label_places(cue)))
    """
    parts = []
    if clusters is not None:
        parts += [
            "<h3>Clusters of words, beside random vectors</h3>",
            f'<p class="quiet">{escape(explain(clusters))}</p>',
            html_table(*summary_rows(clusters)),
            side_by_side([histograms(HISTOGRAM_TITLE, clusters.groups, "mean cosine between the words")]),
        ]
        columns, rows = named_rows(clusters)
        parts += ["<h3>Clusters by name</h3>", html_table(columns, rows) if rows else "<p>none</p>"]
    if places:
        parts += [
            "<h3>Labels in the prompt</h3>",
            f'<p class="quiet">{escape(summarise_labels(places))}</p>',
            html_table(*label_rows_of(places)),
        ]
    return parts
