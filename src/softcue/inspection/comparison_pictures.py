"""Pictures of several cues as PNG bytes: similarity of prompts, and validation curves. They need matplotlib."""

from __future__ import annotations

import numpy

from softcue.inspection.comparison import CueComparison
from softcue.inspection.pictures import line_style, make_figure, make_figures, png_bytes
from softcue.inspection.similarity import PromptSimilarity

MIN_SPAN = 10.0  # points of a score: small differences look small
MAX_MARKS = 40  # points of a curve that get a mark each
SMALL_TEXT_FROM = 10  # cues, from here on numbers in a heat map are small


def similarity_picture(similarity: PromptSimilarity) -> bytes:
    """A heat map of the best match between the prompts of cues.

    Example:
        Path("similarity.png").write_bytes(similarity_picture(compare_cues(paths).similarity))
    """
    count = len(similarity.names)
    side = max(4.2, min(16.0, 2.4 + 0.7 * count))
    figure, axes = make_figure(side + 1.2, side)
    values = numpy.array([[numpy.nan if value is None else value for value in row] for row in similarity.best_match])
    image = axes.imshow(values, cmap="Blues", vmin=0, vmax=1)
    for (row, column), value in numpy.ndenumerate(values):
        is_missing = bool(numpy.isnan(value))
        colour = "#888888" if is_missing else "white" if value > 0.6 else "black"
        size = 7 if count >= SMALL_TEXT_FROM else 9
        text = "-" if is_missing else f"{value:.2f}"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=size)
    axes.set_xticks(range(count), similarity.names, rotation=45, ha="right")
    axes.set_yticks(range(count), similarity.names)
    axes.set_title("similarity of prompts (mean cosine of best matches)", fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8)
    return png_bytes(figure)


def curves_picture(comparison: CueComparison) -> bytes:
    """The validation scores of several cues by step; of tasks trained together also their mean.

    The mean of the tasks is figure 5 of Bhardwaj et al. 2022.

    Example:
        Path("curves.png").write_bytes(curves_picture(compare_cues(paths)))
    """
    panels = [curves for curves in (comparison.validation_curves, comparison.mean_curves) if curves]
    height = 4.4 + 0.22 * max(map(len, panels))
    figure, all_axes = make_figures(7.5 * len(panels), height, len(panels))
    for axes, curves in zip(all_axes, panels, strict=True):
        for number, (name, points) in enumerate(curves.items()):
            steps, scores = [step for step, _ in points], [score for _, score in points]
            style = line_style(number)
            if len(points) > MAX_MARKS:
                del style["marker"]
            axes.plot(steps, scores, label=name, markersize=4, linewidth=1.6, **style)
        low, high = axes.get_ylim()
        missing = max(0.0, MIN_SPAN - (high - low)) / 2
        axes.set_ylim(low - missing, high + missing)
        axes.set_xlabel("step")
        axes.set_ylabel("validation score" if curves is panels[0] else "mean validation score")
        axes.grid(alpha=0.25)
        axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.14), frameon=False, fontsize=9)
    return png_bytes(figure)
