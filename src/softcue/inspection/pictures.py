"""Pictures of a cue as PNG bytes: a map of the codebook, and curves of the training run."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softcue.errors import MissingExtraError
from softcue.inspection.codes import CodesByLabel

# colours that people with colour blindness can tell apart (Okabe and Ito)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
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
    figure, axes = _figure(7.0, 5.5)
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
    return _png(figure)


def training_curves(metrics: Path) -> bytes | None:
    """Curves of codes in use and of the prompt's dependence on the input, from metrics.jsonl; None if it has neither.

    Example:
        training_curves(Path("cues/mine/metrics.jsonl"))
    """
    if not metrics.is_file():
        return None
    lines = []
    for line in metrics.read_text("utf-8").splitlines():
        with contextlib.suppress(ValueError):  # a killed run may leave an incomplete line
            lines.append(json.loads(line))
    panels = {
        "codes drawn in the epoch, and perplexity": ("codes_drawn", "perplexity"),
        "size of P^q beside P, and variation over inputs": ("prompt_ratio", "prompt_variation"),
    }
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for title, names in panels.items():
        series = {name: [(line["step"], line[name]) for line in lines if name in line] for name in names}
        if series := {name: points for name, points in series.items() if points}:
            curves[title] = series
    if not curves:
        return None
    figure, all_axes = _figure(4.5 * len(curves), 3.0, columns=len(curves))
    for axes, (title, series) in zip(all_axes if len(curves) > 1 else [all_axes], curves.items(), strict=True):
        for colour, (name, points) in zip(COLOURS, series.items(), strict=False):
            axes.plot(
                *zip(*points, strict=True), color=colour, label=name.replace("_", " "), marker="." * (len(points) < 20)
            )
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        if "prompt_variation" in series:  # values from a fraction of a percent to one half
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=8)
    return _png(figure)


def _figure(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
