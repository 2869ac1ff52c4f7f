"""How near the two sentences of a pair are, with and without prompts (Wu et al. 2022, section 4.5.5, figures 4 and 8).

Every sentence is read alone, with a prompt of its own. Pairs are sorted by the cosine of their two sentence vectors,
the nearest first. The study counts how many pairs of each group (a range of scores, or a label) are among the first k.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from softcue.backbones import Pooling
from softcue.cue.cue import Cue
from softcue.errors import ConfigurationError, CueError
from softcue.evaluation import read_evaluation_set
from softcue.evaluation.metrics import spearman
from softcue.inputs.collate import batch_by_length, collate
from softcue.inputs.formatter import InputFormatter
from softcue.sentence_vectors import plain_rows, sentence_vectors_of
from softcue.tasks import Source, Task, find_task
from softcue.tasks.columns import rename_columns
from softcue.tasks.pair_lengths import PairLengths, check_pair_task, measure_pairs
from softcue.types import Example, TokenizedRow

TOPS = (100, 200, 300)  # k of the paper's figures 8a, 4 and 8b
PAIRS_OF_PAPER = 1500  # in the dev set of STS-B
NUM_GROUPS = 5  # for scores; on STS-B from 0 to 5 a group for each point
WITHOUT_PROMPTS = "without prompts"
SENTENCE = Task(name="sentence")  # a text that is read alone


@dataclass(frozen=True)
class PairCosines:
    """The cosine of the two sentence vectors of every pair, as one model reads them."""

    name: str
    cosines: list[float]

    def nearest(self, count: int) -> list[int]:
        """The numbers of the nearest pairs, from 0; of equal pairs the first in the file comes first.

        Example:
            >>> PairCosines("toy", [0.1, 0.9, 0.5, 0.9]).nearest(3)
            [1, 3, 2]
        """
        return sorted(range(len(self.cosines)), key=lambda number: (-self.cosines[number], number))[:count]


@dataclass(frozen=True)
class PairStudy:
    """Which pairs are nearest with and without prompts.

    Example:
        >>> models = [PairCosines("without prompts", [0.9, 0.8, 0.1]), PairCosines("mine", [0.2, 0.8, 0.9])]
        >>> study = PairStudy("toy", "mean", ["far", "near"], [0, 1, 1], [2], models)
        >>> [study.counts(model, 2) for model in models], study.by_chance(3)
        ([[1, 1], [0, 2]], [1.0, 2.0])
    """

    name: str  # of the rows
    pooling: Pooling
    groups: list[str]  # ranges of scores from low to high, or labels
    group_numbers: list[int]  # the group of each pair
    tops: list[int]  # values of k
    models: list[PairCosines]  # the first is the frozen backbone without prompts
    scores: list[float] = field(default_factory=list)  # of each pair; empty for labels
    lengths: PairLengths | None = None
    num_truncated: int = 0  # sentences that were cut

    @property
    def num_pairs(self) -> int:
        """The number of pairs."""
        return len(self.group_numbers)

    @property
    def group_sizes(self) -> list[int]:
        """The number of pairs of each group."""
        return [self.group_numbers.count(number) for number in range(len(self.groups))]

    def counts(self, model: PairCosines, top: int) -> list[int]:
        """The number of pairs of each group among the nearest pairs."""
        chosen = [self.group_numbers[number] for number in model.nearest(top)]
        return [chosen.count(number) for number in range(len(self.groups))]

    def by_chance(self, top: int) -> list[float]:
        """The number of pairs of each group among so many pairs that are drawn at random."""
        return [top * size / self.num_pairs for size in self.group_sizes]

    def mean_cosines(self, model: PairCosines) -> list[float | None]:
        """The mean cosine of the pairs of each group; None for a group without pairs."""
        members: list[list[float]] = [[] for _ in self.groups]
        for number, cosine in zip(self.group_numbers, model.cosines, strict=True):
            members[number].append(cosine)
        return [fmean(cosines) if cosines else None for cosines in members]

    def correlation(self, model: PairCosines) -> float | None:
        """Spearman's correlation of cosines and scores in percent; None for labels."""
        return spearman(model.cosines, self.scores) if self.scores else None

    def as_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {
            "data": self.name,
            "pairs": self.num_pairs,
            "pooling": self.pooling,
            "truncated": self.num_truncated,
            "groups": dict(zip(self.groups, self.group_sizes, strict=True)),
            "top_by_chance": {str(top): dict(zip(self.groups, self.by_chance(top), strict=True)) for top in self.tops},
            "models": [
                {
                    "name": model.name,
                    "top": {
                        str(top): dict(zip(self.groups, self.counts(model, top), strict=True)) for top in self.tops
                    },
                    "mean_cosine": dict(zip(self.groups, self.mean_cosines(model), strict=True)),
                    "spearman": self.correlation(model),
                }
                for model in self.models
            ],
            "lengths": None if self.lengths is None else self.lengths.as_dict(),
        }


def pair_study(
    cues: Cue | Sequence[Cue],
    data: Source | None = None,
    task: str | Task = "",
    tops: Sequence[int] = (),
    num_groups: int = NUM_GROUPS,
    pooling: Pooling | None = None,
    columns: Mapping[str, str] | None = None,
    skip_bad_rows: bool = False,
    batch_size: int = 64,
) -> PairStudy:
    """Compare the cosines of sentence pairs with and without the prompts of one cue, or of several on one backbone.

    `data` are rows with two texts and a target, or a folder with published files; `task` says which columns they have
    (unset: the cue's own task), and `columns` gives {name in the file: name the task reads}. Scores are grouped in
    `num_groups` equal ranges of the task's scale, else of the rows; labels are groups themselves. `tops` are the
    numbers of nearest pairs to look at (unset: 100, 200 and 300, on fewer pairs the same shares as in the paper).
    `pooling` makes states to a sentence vector (unset: as the first cue's head reads them).

    Example:
        study = pair_study(softcue.load("cues/stsb"), "STS-B/dev.tsv")
        study.counts(study.models[1], 200)              # pairs of 0 to 1, 1 to 2, ... among the 200 nearest
    """
    cues = [cues] if isinstance(cues, Cue) else list(cues)
    _check_backbones(cues)
    row_task = (find_task(task) if task else cues[0].task) if isinstance(task, str) else task
    row_task = _with_columns(row_task, columns or {}, data)
    _check_task(row_task)
    rows = read_evaluation_set(row_task, data, skip_bad_rows=skip_bad_rows)
    row_task, examples = rows.labels.task, rows.examples
    groups, group_numbers = group_pairs(row_task, examples, num_groups)
    chosen_tops = _check_tops(tops, len(examples)) if tops else default_tops(len(examples))
    pairs = [row_task.for_encoder(example.texts) for example in examples]
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))  # a sentence of several pairs is read once
    numbers = {text: number for number, text in enumerate(texts)}
    first = torch.tensor([numbers[pair[0]] for pair in pairs])
    second = torch.tensor([numbers[pair[1]] for pair in pairs])
    pooling = pooling or head_pooling(cues[0])
    models, num_truncated = [], 0
    for name, cue in [(WITHOUT_PROMPTS, None), *zip(_names(cues), cues, strict=True)]:
        read_rows = _tokenize(cue or cues[0], texts, with_prompts=cue is not None)
        num_truncated = max(num_truncated, sum(row.is_truncated for row in read_rows))
        vectors = _read(cue or cues[0], read_rows, pooling, cue is not None, batch_size).double()  # [N D]
        cosines = functional.cosine_similarity(vectors[first], vectors[second], dim=1)
        models.append(PairCosines(name, cosines.tolist()))
    return PairStudy(
        rows.name,
        pooling,
        groups,
        group_numbers,
        chosen_tops,
        models,
        [float(example.target or 0.0) for example in examples] if row_task.kind == "regression" else [],
        measure_pairs(rows.name, row_task, examples),
        num_truncated,
    )


def text_vectors(
    cue: Cue,
    texts: Sequence[str],
    pooling: Pooling | None = None,
    with_prompts: bool = True,
    batch_size: int = 64,
) -> Tensor:
    """One vector for each text that is read alone, pooled over its tokens with the cue's prompts beside them. [N D]

    A method that reads the input makes a prompt for each text. Without prompts the frozen backbone reads the text.
    Adapters and fine-tuned weights count as prompts here.

    Example:
        text_vectors(softcue.load("cues/stsb"), ["A man plays a flute."])
    """
    rows = _tokenize(cue, texts, with_prompts)
    return _read(cue, rows, pooling or head_pooling(cue), with_prompts, batch_size)


def head_pooling(cue: Cue) -> Pooling:
    """The pooling that the head of a cue reads; a head that compares two texts reads the mean of each.

    A cue without a head, or with one that reads the state of a mask, has the pooling of its backbone.
    """
    summary = cue.model.readout.summary
    if summary is None or summary == "mask":
        return cue.backbone.default_pooling
    return "mean" if summary == "compared" else summary


def _tokenize(cue: Cue, texts: Sequence[str], with_prompts: bool = True) -> list[TokenizedRow]:
    """Tokenize texts that are read alone. Rows carry M(x) of the text if the cue's method reads it."""
    method, backbone = cue.model.method, cue.backbone
    if with_prompts and method.insert_at == "around":
        raise CueError(
            setting="cue",
            got=cue.name,
            expected="prompts that stand beside the text",
            fix="these stand around a mask that asks for the label, so a sentence has no vector of its own",
        )
    # Between two texts, a prompt stands behind the separator of the first. A text alone has it there too.
    insert_at = "appended" if method.insert_at == "second-start" else method.insert_at
    formatter = InputFormatter(
        SENTENCE,
        backbone.tokenizer,
        backbone.kind,
        cue.model.max_length - method.prompt_length,
        insert_at if with_prompts else "start",
    )
    examples = [Example((text,)) for text in texts]
    rows = [formatter.source(example) for example in examples]
    if not with_prompts or method.representation is None:
        return rows
    if not cue.model.reads_stored_vectors:  # of a tuned backbone: computed in the pass
        plain = plain_rows(backbone, SENTENCE, examples)
        rows = [replace(row, plain=plain_row) for row, plain_row in zip(rows, plain, strict=True)]
    else:
        vectors = sentence_vectors_of(method.representation, backbone, SENTENCE, examples)  # [N R]
        rows = [replace(row, representation=vector) for row, vector in zip(rows, vectors, strict=True)]
    return rows


@torch.no_grad()
def _read(cue: Cue, rows: Sequence[TokenizedRow], pooling: Pooling, with_prompts: bool, batch_size: int) -> Tensor:
    """The sentence vector of each row. [N D]"""
    method, backbone = cue.model.eval().method, cue.backbone
    view = method.view_of(backbone) if with_prompts else backbone
    vectors = torch.zeros(len(rows), backbone.hidden_width)
    lengths = [len(row.ids) + method.prompt_length for row in rows]
    for numbers in batch_by_length(lengths, batch_size, backbone.tokens_at_once):
        batch = collate([rows[number] for number in numbers], backbone.tokenizer.pad_token_id).to(backbone.device)
        embeds = view.input_states(batch)  # [B T D]
        prompt = cue.model.prompt(view, batch, embeds) if with_prompts else None
        vectors[numbers] = view.read(batch, prompt, embeds).features(pooling).cpu()
    return vectors


def default_tops(num_pairs: int) -> list[int]:
    """The paper's numbers of nearest pairs; on fewer pairs than 300 the same shares of them, at least one pair.

    Example:
        >>> default_tops(1500), default_tops(1000), default_tops(150), default_tops(7)
        ([100, 200, 300], [100, 200, 300], [10, 20, 30], [1])
    """
    if num_pairs > TOPS[-1]:
        return list(TOPS)
    return sorted({max(1, round(top * num_pairs / PAIRS_OF_PAPER)) for top in TOPS})


def group_pairs(task: Task, examples: Sequence[Example], num_groups: int = NUM_GROUPS) -> tuple[list[str], list[int]]:
    """The names of the groups and the group of each pair: ranges of the score, from low to high, or labels.

    A score between two ranges belongs to the higher one, the highest score to the highest range.

    Example:
        >>> task = Task(name="toy", kind="regression", text=("a", "b"), scale=(0, 5, 0.2))
        >>> group_pairs(task, [Example(("x", "y"), score) for score in (0.0, 0.9, 1.0, 5.0)])
        (['0 to 1', '1 to 2', '2 to 3', '3 to 4', '4 to 5'], [0, 0, 1, 4])
    """
    if task.kind != "regression":
        labels = list(task.label_names) or sorted({str(example.target) for example in examples})
        return labels, [labels.index(str(example.target)) for example in examples]
    scores = [float(example.target or 0.0) for example in examples]
    low, high = task.scale[:2] if task.scale else (min(scores), max(scores))
    if low == high:
        return [f"{low:.4g}"], [0] * len(scores)
    edges = [low + (high - low) * number / num_groups for number in range(num_groups + 1)]
    names = [f"{start:.4g} to {end:.4g}" for start, end in pairwise(edges)]
    return names, [bisect_right(edges[1:-1], score) for score in scores]


def _with_columns(task: Task, columns: Mapping[str, str], data: Source | None) -> Task:
    """The task as it reads a file with other names of columns."""
    if columns and (data is None or (isinstance(data, (str, Path)) and Path(data).is_dir())):
        raise ConfigurationError(
            setting="column",
            got=next(iter(columns)),
            expected="a file with pairs",
            fix="leave it out for a task's own rows",
        )
    [renamed] = rename_columns([task], columns)
    return renamed


def _check_task(task: Task) -> None:
    check_pair_task(task)
    if not task.has_classes and task.kind != "regression":
        raise ConfigurationError(
            setting="task",
            got=f"{task.name} ({task.kind})",
            expected="pairs with a score or a label, which are grouped by it",
            fix="name a task of classification or regression",
        )


def _check_tops(tops: Sequence[int], num_pairs: int) -> list[int]:
    for top in tops:
        if not 1 <= top <= num_pairs:
            raise ConfigurationError(
                setting="tops", got=top, expected=f"1 to {num_pairs}, the number of pairs", fix="choose fewer pairs"
            )
    return sorted(set(tops))


def _check_backbones(cues: Sequence[Cue]) -> None:
    for cue in cues[1:]:
        if cue.backbone is not cues[0].backbone and cue.backbone.fingerprint != cues[0].backbone.fingerprint:
            raise CueError(
                setting="cues",
                got=f"{cue.name} on {cue.backbone.name}",
                expected=f"cues on {cues[0].backbone.name}, as {cues[0].name}",
                fix="study cues of one backbone together",
            )


def _names(cues: Sequence[Cue]) -> list[str]:
    """A name for each cue, with its method."""
    names = [cue.name for cue in cues]
    if len(set(names)) < len(names):
        names = [str(cue.path or cue.name) for cue in cues]
    methods = [str(cue.cue_file.method["name"]) for cue in cues]
    return [name if method in name else f"{name} ({method})" for name, method in zip(names, methods, strict=True)]
