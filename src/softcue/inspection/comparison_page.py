"""The page about several cues: scores, validation curves and the similarity of their prompts."""

from __future__ import annotations

from html import escape

from softcue.drawing import curves_chart, html_table, value_table
from softcue.inspection.comparison import CueComparison
from softcue.inspection.page import html_page
from softcue.inspection.similarity import Matrix, PromptSimilarity

EXPLAINED = (
    "Best match: for each vector of one prompt the highest cosine with a vector of the other, averaged over both "
    "directions. 1 is the same prompt, in any order."
)
MIN_CURVE_SPAN = 10.0  # points of a score: small differences look small
CHART_WIDTH = 36  # rem


def comparison_page(comparison: CueComparison) -> str:
    """The page about several cues.

    Example:
        page = comparison_page(compare_cues([Path("cues/tickets"), Path("cues/urgency")]))
    """
    title = ", ".join(cue.name for cue in comparison.cues)
    parts = [
        f"<h1>{len(comparison.cues)} cues</h1>",
        "<h2>Scores</h2>",
        html_table(*comparison.score_rows()),
        *(f'<p class="quiet">{escape(note)}</p>' for note in comparison.notes),
        "<h2>Validation score by step</h2>",
    ]
    charts = [
        curves_chart(title, curves, "step", min_span=MIN_CURVE_SPAN)
        for title, curves in (
            ("validation score", comparison.validation_curves),
            ("mean of the tasks that were trained together", comparison.mean_curves),
        )
    ]
    shown = [
        f'<div style="max-width: {CHART_WIDTH}rem; margin-bottom: 1.2rem">{chart}</div>' for chart in charts if chart
    ]
    parts += shown or ["<p>no curve was recorded</p>"]
    parts += ["<h2>Similarity of the prompts</h2>", *_similarity_parts(comparison.similarity)]
    return html_page(title, parts)


def _similarity_parts(similarity: PromptSimilarity) -> list[str]:
    notes = [f'<p class="quiet">{escape(note)}</p>' for note in similarity.notes]
    if similarity.is_empty:
        return ["<p>No two prompts can be compared.</p>", *notes]
    parts = [f'<p class="quiet">{escape(EXPLAINED)}</p>', _heat_map(similarity, similarity.best_match)]
    others = {
        "Best match if one of the two prompts is random vectors": similarity.random,
        "Cosine of the mean vectors (SPoT)": similarity.mean_vector,
        "Mean cosine of all pairs of vectors (SPoT)": similarity.all_pairs,
    }
    tables = "".join(f"<h3>{escape(title)}</h3>{_heat_map(similarity, matrix)}" for title, matrix in others.items())
    return [*parts, *notes, f"<details><summary>control and other measures</summary>{tables}</details>"]


def _heat_map(similarity: PromptSimilarity, matrix: Matrix) -> str:
    return value_table(similarity.names, matrix, (0.0, 1.0))
