"""Pictures as PNG bytes: a map of the codebook, and a confusion matrix. They need matplotlib."""

from __future__ import annotations

import io
from typing import Any

import numpy
import torch
from torch import Tensor

from softcue.errors import MissingExtraError
from softcue.evaluation import Evaluation, count_rows
from softcue.inspection.codes import CodesByLabel

# colours that people with colour blindness can tell apart (Okabe and Ito)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
LINES = ("-", "--", ":", "-.")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


def code_map(codes: CodesByLabel, codebook: Tensor) -> bytes:
    """A t-SNE map of all codes [K D], coloured by the label each indicates; larger ones are assigned more often.

    If each prompt vector has codes of its own, they are shown relative to their mean. Otherwise the map would show
    the vectors instead of the labels.

    Example:
        Path("codes.png").write_bytes(code_map(codes_by_label(cue, examples), codebook))
    """
    from sklearn.manifold import TSNE

    title = f"{codes.num_codes} codes by the label they indicate (t-SNE)"
    if codes.owners is not None:
        owners = torch.tensor(codes.owners)
        for owner in owners.unique():
            is_owned = owners == owner
            codebook = torch.where(is_owned.unsqueeze(1), codebook - codebook[is_owned].mean(0), codebook)
        title += "\neach around the mean of its vector's codes"
    if len(codebook) < 4:
        points = codebook.numpy()[:, :2]
    else:
        tsne_perplexity = min(30.0, (len(codebook) - 1) / 3)
        # identical codes have no principal axes to start from
        start = "pca" if float(codebook.double().std(0).max()) > 1e-9 else "random"
        points = TSNE(2, perplexity=tsne_perplexity, init=start, random_state=0).fit_transform(codebook.numpy())
    figure, axes = make_figure(7.0, 5.5)
    groups = {
        "idle": ([code for code in codes.codes if code.is_idle], "#cccccc", "."),
        "any label": ([code for code in codes.codes if not code.is_idle and not code.label], "#777777", "."),
    }
    for position, label in enumerate(codes.rows):
        members = [code for code in codes.codes if code.label == label]
        groups[f"label {label}"] = members, COLOURS[position % len(COLOURS)], MARKS[position % len(MARKS)]
    for name, (members, colour, mark) in groups.items():
        numbers = [code.number for code in members]
        sizes = [min(150.0, 15 + 20 * code.share * codes.num_codes) for code in members]
        style = {"color": colour, "marker": mark, "linewidths": 0}
        axes.scatter(points[numbers, 0], points[numbers, 1], s=sizes, alpha=0.75, **style)
        axes.scatter([], [], s=40, label=f"{name} ({len(members)})", **style)  # the legend's marks have one size
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=10)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return png_bytes(figure)


def evaluation_picture(title: str, evaluation: Evaluation) -> bytes:
    """The confusion matrix; for regression, predicted against true values.

    Example:
        Path("matrix.png").write_bytes(evaluation_picture("tickets", cue.evaluate("held-out.csv")))
    """
    confusion, rows = evaluation.confusion, evaluation.scored_rows
    if confusion is None:
        figure, axes = make_figure(5.5, 5.0)
        assert rows is not None
        axes.scatter(rows.true_values, rows.values, s=18, alpha=0.6, color=COLOURS[0])
        ends = [min(*rows.true_values, *rows.values), max(*rows.true_values, *rows.values)]
        axes.plot(ends, ends, color="#888888", linestyle="--", linewidth=1)
        axes.set_xlabel("true")
        axes.set_ylabel("predicted")
    else:
        side = max(4.0, min(16.0, 2.0 + 0.55 * len(confusion.predicted)))
        figure, axes = make_figure(side + 0.6, side)
        counts = numpy.array(confusion.counts)  # [C P]
        shares = counts / numpy.maximum(1, counts.sum(axis=1, keepdims=True))
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (row, column), count in numpy.ndenumerate(counts):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=9)
        axes.set_xticks(range(len(confusion.predicted)), confusion.predicted, rotation=45, ha="right")
        axes.set_yticks(range(len(confusion.labels)), confusion.labels)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
    axes.set_title(f"{title}: {count_rows(evaluation.num_rows)}", fontsize=10)
    return png_bytes(figure)


def check_matplotlib() -> None:
    """Check that matplotlib is installed."""
    make_figure(1.0, 1.0)


def make_figure(width: float, height: float) -> tuple[Any, Any]:
    """A figure of this size in inches, and its axes; an error if matplotlib is not installed.

    Example:
        figure, axes = make_figure(7.0, 5.0)
    """
    figure, [axes] = make_figures(width, height, 1)
    return figure, axes


def make_figures(width: float, height: float, num_columns: int, num_lines: int = 1) -> tuple[Any, list[Any]]:
    """A figure of this size in inches, and the axes of its panels, line by line.

    Example:
        figure, [left, right] = make_figures(12.0, 5.0, 2)
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(num_lines, num_columns, squeeze=False).flatten())


def line_style(number: int) -> dict[str, str]:
    """The colour, line and mark of the curve with this number.

    Example:
        >>> line_style(0)["linestyle"], line_style(len(COLOURS))["linestyle"]
        ('-', '--')
    """
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": LINES[number // len(COLOURS) % len(LINES)],
        "marker": MARKS[number % len(MARKS)],
    }


def png_bytes(figure: Any) -> bytes:
    """The figure as PNG.

    Example:
        Path("chart.png").write_bytes(png_bytes(figure))
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
