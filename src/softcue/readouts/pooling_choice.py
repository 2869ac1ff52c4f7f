"""Which vector of a text a head should read: measured on training rows, not only read from a model's files."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from softcue.backbones import Backbone, Summary
from softcue.readouts.closed_form import probe_scores
from softcue.readouts.readout import Readout, ReadoutConfig
from softcue.sentence_vectors import SentenceVector, sentence_vectors_of
from softcue.tasks import Task
from softcue.types import Example, TokenizedRow

MAX_ROWS = 512  # training rows on which poolings are compared


def choose_pooling(
    readout: Readout, backbone: Backbone, examples: Sequence[Example], limit: int, may_compare: bool = True
) -> ReadoutConfig:
    """Return a head's configuration with the pooling on which a linear probe scores best on training rows.

    Scores are cross-validated. The head has the pooling that the backbone's files say or that is usual. It stays
    unless another one is better by more than the standard error of the difference between folds, or if there are too
    few rows to compare. Of two texts, their comparison is a candidate too, unless `may_compare` is false.

    Example:
        choose_pooling(readout, backbone, splits.train, limit=128).pooling
    """
    config, task = readout.config, readout.task
    assert config.pooling != "auto" and config.pooling != "measured", "make_readout replaces them"
    assert readout.linear is not None
    usual: Summary = "compared" if config.pairs == "compare" else config.pooling
    sample = examples[:: math.ceil(len(examples) / MAX_ROWS)]
    empty = TokenizedRow((), None, insert_at=0)
    labels = [label for example in sample if (label := readout.with_target(empty, example).label) is not None]
    num_outputs = readout.linear.out_features
    folds: dict[Summary, Tensor] = {}
    for summary in _candidates(task, backbone, usual, may_compare):
        features = sentence_vectors_of(SentenceVector("backbone", summary), backbone, task, sample, limit)  # [N R]
        is_finite = bool(features.isfinite().all())
        folds[summary] = probe_scores(features, labels, num_outputs) if is_finite else features.new_zeros(0)
        if not len(folds[summary]):
            return config
    best = max(folds, key=lambda summary: float(folds[summary].mean()))
    gain = folds[best] - folds[usual]
    is_better = float(gain.mean()) > float(gain.std()) / len(gain) ** 0.5
    if not is_better:
        return config
    if best == "compared":
        return config.model_copy(update={"pooling": "mean", "pairs": "compare"})
    return config.model_copy(update={"pooling": best, "pairs": "joint"})


def _candidates(task: Task, backbone: Backbone, usual: Summary, may_compare: bool) -> list[Summary]:
    """Return the poolings to compare, the usual one first."""
    single: dict[str, list[Summary]] = {"encoder": ["cls", "mean"], "decoder": ["last", "mean"]}
    has_comparison = may_compare and backbone.kind == "encoder" and task.num_sentences == 2
    comparison: list[Summary] = ["compared"] if has_comparison else []
    return list(dict.fromkeys([usual, *single.get(backbone.kind, []), *comparison]))
