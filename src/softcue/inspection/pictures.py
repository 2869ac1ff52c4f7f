"""Pictures of a cue as PNG bytes: the codebook's map, and how its use went in training."""

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

# told apart also by people who see fewer colours (Okabe and Ito)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


def code_map(found: CodesByLabel, codebook: Tensor) -> bytes:
    """A t-SNE map of all codes [K D], coloured by the label each speaks for; larger ones are taken more often.

    Where each vector has codes of its own, they are shown around their mean: else the map shows vectors, not labels.

    Example:
        Path("codes.png").write_bytes(code_map(codes_by_label(cue, examples), codebook))
    """
    from sklearn.manifold import TSNE

    title = f"{found.num_codes} codes by the label they speak for (t-SNE)"
    if found.owners is not None:
        owners = torch.tensor(found.owners)
        for owner in owners.unique():
            own = owners == owner
            codebook = torch.where(own.unsqueeze(1), codebook - codebook[own].mean(0), codebook)
        title += "\neach around the mean of its vector's codes"
    if len(codebook) < 4:
        places = codebook.numpy()[:, :2]
    else:
        reach = min(30.0, (len(codebook) - 1) / 3)
        # codes in one point have no principal axes to start from
        start = "pca" if float(codebook.double().std(0).max()) > 1e-9 else "random"
        places = TSNE(2, perplexity=reach, init=start, random_state=0).fit_transform(codebook.numpy())
    figure, axes = _figure(7.0, 5.5)
    groups = {
        "idle": ([code for code in found.codes if code.is_idle], "#cccccc", "."),
        "any label": ([code for code in found.codes if not code.is_idle and not code.label], "#777777", "."),
    }
    for position, label in enumerate(found.rows):
        own = [code for code in found.codes if code.label == label]
        groups[f"label {label}"] = own, COLOURS[position % len(COLOURS)], MARKS[position % len(MARKS)]
    for name, (codes, colour, mark) in groups.items():
        numbers = [code.number for code in codes]
        sizes = [min(150.0, 15 + 20 * code.share * found.num_codes) for code in codes]
        style = {"color": colour, "marker": mark, "linewidths": 0}
        axes.scatter(places[numbers, 0], places[numbers, 1], s=sizes, alpha=0.75, **style)
        axes.scatter([], [], s=40, label=f"{name} ({len(codes)})", **style)  # the legend's marks are of one size
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=10)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return _png(figure)


def training_curves(metrics: Path) -> bytes | None:
    """Codes in use and the prompt's reading over the steps of a run, from its metrics.jsonl; None if it has neither.

    Example:
        training_curves(Path("cues/mine/metrics.jsonl"))
    """
    if not metrics.is_file():
        return None
    lines = []
    for line in metrics.read_text("utf-8").splitlines():
        with contextlib.suppress(ValueError):  # a run that was killed may leave half a line
            lines.append(json.loads(line))
    panels = {
        "codes drawn in the epoch, and perplexity": ("codes_drawn", "perplexity"),
        "size of P^q beside P, and variation over inputs": ("prompt_ratio", "prompt_variation"),
    }
    found = {
        title: {name: [(line["step"], line[name]) for line in lines if name in line] for name in names}
        for title, names in panels.items()
    }
    found = {title: {name: points for name, points in series.items() if points} for title, series in found.items()}
    found = {title: series for title, series in found.items() if series}
    if not found:
        return None
    figure, first = _figure(4.5 * len(found), 3.0, columns=len(found))
    for axes, (title, series) in zip(first if len(found) > 1 else [first], found.items(), strict=True):
        for colour, (name, points) in zip(COLOURS, series.items(), strict=False):
            axes.plot(
                *zip(*points, strict=True), color=colour, label=name.replace("_", " "), marker="." * (len(points) < 20)
            )
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        if "prompt_variation" in series:  # a share of a percent beside one half
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
