"""Whether the nearest words of prompt vectors belong together, beside random vectors (Lester et al. 2021, section 7).

The tightness of a vector's nearest words is the mean cosine between all pairs of them. Two controls tell what it says:

- random vectors "drawn from the embedding space": from the normal distribution with the mean and the covariance of
  the word vectors, with the lengths of the prompt's vectors. Rare words that pre-training hardly moved lie close
  together in many vocabularies, so random vectors have some tight neighbourhoods too. A cluster is tight if it is
  tighter than those of 95 % of the random vectors.
- words of the vocabulary: what a vector that stands on a word shows. Prompts that start from words start there.

A cluster is also named if its words are alike, as Technology, technology and technologies are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

from softcue.cue.cue import Cue
from softcue.inspection.nearest import WORDS_AT_ONCE, nearest_ids, prompt_vectors, word_of
from softcue.types import WordVectors

PERCENTILE = 0.95  # of the random vectors' tightness: a cluster above it is tight
MIN_CONTROLS = 200  # random vectors and words; of fewer, the 95th percentile would be one or two of them
MIN_ALIKE = 3  # words that are alike make a named cluster
MIN_STEM, STEM_SHARE = 4, 0.55  # characters that alike words have in common, and their share of the longer word


@dataclass(frozen=True)
class WordCluster:
    """The nearest words of one prompt vector, as a group."""

    position: int
    name: str  # the word that is nearest to the others
    words: list[str]
    tightness: float  # mean cosine between the words
    is_tight: bool  # tighter than those of 95 % of the random vectors
    alike: list[str]  # the largest group of words with one stem; empty if no two are alike

    @property
    def is_named(self) -> bool:
        """Whether the words belong together: by their vectors, or by how they are written."""
        return self.is_tight or len(self.alike) >= MIN_ALIKE


@dataclass(frozen=True)
class ClusterSummary:
    """What the nearest words of several vectors are like."""

    vectors: str  # which ones
    num_vectors: int
    nearest_cosine: float  # median cosine with the nearest word
    tightness: float  # median
    share_tight: float  # of the vectors, 0 to 1
    share_alike: float  # of the vectors: at least three of the words are alike
    tightnesses: list[float]  # of each vector


@dataclass(frozen=True)
class WordClusters:
    """The clusters of all prompt vectors of a cue, beside those of the controls."""

    clusters: list[WordCluster]
    threshold: float  # tightness from which a cluster is tight
    prompt: ClusterSummary
    random: ClusterSummary
    words: ClusterSummary

    @property
    def summaries(self) -> list[ClusterSummary]:
        """The prompt and the two controls."""
        return [self.prompt, self.random, self.words]

    @property
    def groups(self) -> dict[str, list[float]]:
        """The tightness of each vector, by what the vectors are: for charts."""
        return {summary.vectors: summary.tightnesses for summary in self.summaries}

    def named(self) -> list[tuple[str, list[WordCluster]]]:
        """The clusters that belong together, by name, the tightest first; vectors with the same name together."""
        by_name: dict[str, list[WordCluster]] = {}
        for cluster in sorted(self.clusters, key=lambda cluster: -cluster.tightness):
            if cluster.is_named:
                by_name.setdefault(cluster.name, []).append(cluster)
        return list(by_name.items())


def summary_rows(clusters: WordClusters) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the table that compares the prompt with the controls.

    Example:
        columns, rows = summary_rows(word_clusters(cue))
    """
    columns = ["vectors", "number", "cosine with nearest word", "tightness", "tight, %", f"{MIN_ALIKE} words alike, %"]
    rows = [
        [
            summary.vectors,
            f"{summary.num_vectors:,}",
            f"{summary.nearest_cosine:.2f}",
            f"{summary.tightness:.2f}",
            f"{100 * summary.share_tight:.0f}",
            f"{100 * summary.share_alike:.0f}",
        ]
        for summary in clusters.summaries
    ]
    return columns, rows


def named_rows(clusters: WordClusters) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the table of named clusters.

    Example:
        columns, rows = named_rows(word_clusters(cue))
    """
    columns = ["cluster", "vectors", "tightness", "why", "words"]
    rows = []
    for name, members in clusters.named():
        words = list(dict.fromkeys(word for cluster in members for word in cluster.words))
        reasons = ["tight"] if any(cluster.is_tight for cluster in members) else []
        if max(len(cluster.alike) for cluster in members) >= MIN_ALIKE:
            reasons.append("alike")
        positions = ", ".join(str(cluster.position) for cluster in sorted(members, key=lambda member: member.position))
        tightness = max(cluster.tightness for cluster in members)
        rows.append([name, positions, f"{tightness:.2f}", " and ".join(reasons), ", ".join(words)])
    return columns, rows


def explain(clusters: WordClusters) -> str:
    """What the two tables mean, in one paragraph.

    Example:
        explain(word_clusters(cue))
    """
    return (
        "Tightness is the mean cosine between the nearest words of a vector; cosine and tightness are medians. A "
        f"cluster is tight above {clusters.threshold:.2f}, the 95th percentile of random vectors with the mean and "
        "covariance of the word vectors. Words of the vocabulary show what a vector that stands on a word has: prompts "
        "that start from words start there."
    )


@torch.no_grad()
def word_clusters(cue: Cue, top: int = 5, seed: int = 0) -> WordClusters | None:
    """Measure the nearest words of each prompt vector as a group, and those of random vectors and of words.

    None if there are no two neighbours to compare. The seed draws the controls.

    Example:
        clusters = word_clusters(softcue.load("cues/tickets"))
        clusters.prompt.tightness, clusters.random.tightness
    """
    view = cue.model.method.view_of(cue.backbone)
    table, prompts = view.word_input_states, prompt_vectors(cue).float()  # [P D]
    if min(top, len(table)) < 2:
        return None
    num_controls = max(MIN_CONTROLS, len(prompts))
    random = random_vectors(table, num_controls, prompts.norm(dim=1), seed)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(len(table), generator=generator)[:num_controls].to(prompts.device)
    words = table[drawn].to(prompts)
    ids, cosines = nearest_ids(table, torch.cat([prompts, random, words]), top)  # [N top]
    tightness, centres = measure_tightness(table, ids)  # [N]
    sizes = [len(prompts), len(random), len(words)]
    threshold = float(tightness[sizes[0] : sizes[0] + sizes[1]].quantile(PERCENTILE))
    texts = [[word_of(view, token) for token in row] for row in ids.tolist()]
    alike = [alike_words(row) for row in texts]
    summaries, start = [], 0
    for name, size in zip(("prompt vectors", "random vectors", "words of the vocabulary"), sizes, strict=True):
        rows = slice(start, start + size)
        summaries.append(
            ClusterSummary(
                name,
                size,
                median(cosines[rows, 0].tolist()),
                median(tightness[rows].tolist()),
                sum(value > threshold for value in tightness[rows].tolist()) / size,
                sum(len(group) >= MIN_ALIKE for group in alike[rows]) / size,
                tightness[rows].tolist(),
            )
        )
        start += size
    clusters = [
        WordCluster(position, words_of[centre], words_of, value, value > threshold, group)
        for position, (words_of, centre, value, group) in enumerate(
            zip(texts[: sizes[0]], centres.tolist(), tightness.tolist(), alike, strict=False)
        )
    ]
    return WordClusters(clusters, threshold, *summaries)


def random_vectors(table: WordVectors, count: int, norms: Tensor, seed: int) -> Tensor:
    """Draw vectors from the normal distribution with the mean and covariance of the word vectors. [n D]

    They have the given norms [P], in turn. A random sum of the words' deviations from their mean has their
    covariance, so no matrix [D D] is needed.

    Example:
        >>> random_vectors(torch.eye(4), 2, torch.tensor([3.0, 5.0]), seed=0).norm(dim=1).round().tolist()
        [3.0, 5.0]
    """
    generator = torch.Generator().manual_seed(seed)
    total, mean, weight_sum = norms.new_zeros(()), norms.new_zeros(()), norms.new_zeros(count, 1)
    for numbers in torch.arange(len(table), device=norms.device).split(WORDS_AT_ONCE):
        vectors = table[numbers].to(norms)  # [v D]
        weights = torch.randn(count, len(numbers), generator=generator).to(norms)  # [n v]
        total = total + weights @ vectors  # [n D]
        mean = mean + vectors.sum(0) / len(table)  # [D]
        weight_sum += weights.sum(1, keepdim=True)
    drawn = mean + (total - weight_sum * mean) / len(table) ** 0.5
    lengths = norms.repeat(-(-count // len(norms)))[:count]  # [n]
    return functional.normalize(drawn, dim=1) * lengths.unsqueeze(1)


def measure_tightness(table: WordVectors, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The mean cosine between all pairs of words of each row of ids [N k], and which word is nearest to the others.

    Example:
        >>> table = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        >>> tightness, centres = measure_tightness(table, torch.tensor([[0, 1, 2]]))
        >>> round(float(tightness), 3), int(centres)
        (0.471, 1)
    """
    vectors = functional.normalize(table[ids.flatten()].float(), dim=1).view(*ids.shape, -1)  # [N k D]
    count = ids.shape[1]
    with_others = (vectors @ vectors.transpose(1, 2)).sum(2) - 1  # [N k]
    return with_others.sum(1) / (count * (count - 1)), with_others.argmax(1)


def alike_words(words: Sequence[str]) -> list[str]:
    """The largest group of words that are written alike, without regard to case and signs; empty if no two are.

    Two words are alike if they are the same, or begin with the same letters: at least four, and 55 % of the longer.

    Example:
        >>> alike_words(["Technology", "science", "##technology", "TECHNOLOGIES", "tech"])
        ['Technology', '##technology', 'TECHNOLOGIES']
        >>> alike_words(["entirely", "totally"])
        []
    """
    plain = [re.sub(r"[\W_]+", "", word.casefold()) for word in words]
    groups = [[word for word, other in zip(words, plain, strict=True) if _is_alike(stem, other)] for stem in plain]
    largest = max(groups, key=len, default=[])
    return largest if len(largest) > 1 else []


def _is_alike(first: str, second: str) -> bool:
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    is_same = bool(first) and first == second
    return is_same or (shared >= MIN_STEM and shared >= STEM_SHARE * max(len(first), len(second)))
