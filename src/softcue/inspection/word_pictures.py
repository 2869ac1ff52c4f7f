"""A picture as PNG bytes: how tight the nearest words of prompt vectors are, beside random vectors."""

from __future__ import annotations

import numpy

from softcue.inspection.clusters import WordClusters
from softcue.inspection.pictures import COLOURS, make_figure, png_bytes

NUM_BARS = 20


def words_picture(title: str, clusters: WordClusters) -> bytes:
    """A histogram of the tightness of the prompt's clusters, of random vectors' and of words'; it needs matplotlib.

    Example:
        Path("words.png").write_bytes(words_picture("tickets", word_clusters(cue)))
    """
    figure, axes = make_figure(7.0, 4.2)
    everything = [value for values in clusters.groups.values() for value in values]
    edges = numpy.linspace(min(everything), max(everything) + 1e-9, NUM_BARS + 1)
    for number, (name, values) in enumerate(clusters.groups.items()):
        shares = numpy.full(len(values), 100 / len(values))
        style = {"bins": edges, "weights": shares, "color": COLOURS[number]}
        label = f"{name} ({len(values):,}, median {numpy.median(values):.2f})"
        axes.hist(values, histtype="stepfilled", alpha=0.25, **style)
        axes.hist(values, histtype="step", linewidth=1.8, label=label, **style)
    threshold = f"95th percentile of the random vectors ({clusters.threshold:.2f})"
    axes.axvline(clusters.threshold, color="#555555", linestyle="--", linewidth=1, label=threshold)
    axes.set_xlabel("tightness: mean cosine between the nearest words of a vector")
    axes.set_ylabel("vectors, %")
    axes.set_title(f"{title}: nearest words of prompt vectors and of random vectors", fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    return png_bytes(figure)
