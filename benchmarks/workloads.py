"""Questions for a server under load: sample cues under many names, with predictions made offline.

The offline predictions use neither the engine nor its batcher.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

import softcue
from benchmarks.load import Input, LoadResponse
from benchmarks.texts import real_splits
from softcue.backbones import Backbone
from softcue.cue import Cue
from softcue.errors import RunError
from softcue.inference import predict

Popularity = Literal["identical", "uniform", "skewed", "distinct"]
Verdict = Literal["right", "wrong", "crossed", "lost", "rejected"]
SAMPLES = {"tickets": "prompt-tuning", "urgency": "m-idpg-phm", "same-request": "vip"}  # task -> method
FLOAT32_TOLERANCE = 1e-4  # of a score, between a row in a server's batch and the same row offline
BFLOAT16_TOLERANCE = 0.03  # its rounding depends on the other rows of a batch
CUE_FILES = ("cue.json", "cue.safetensors")


@dataclass(frozen=True)
class Sizes:
    """The size of the benchmark. The defaults take about ten minutes; tests use small values."""

    cues: tuple[int, ...] = (8, 64, 1000)  # numbers of cues that loads use; all of them are loaded
    steps: int = 32  # of training: enough that predictions differ between texts
    texts: int = 333  # of each sample cue
    seconds: float = 6.0  # of a turn, at the offline engine's speed
    latency_seconds: float = 15.0  # of a turn in open loop
    overload_seconds: float = 12.0
    clients: int = 128  # in closed loop: they fill several batches, like the offline engine's queue
    few_clients: int = 32  # against servers that switch between cues
    inputs_per_request: int = 8  # in requests with several inputs
    warm_cycles: int = 100
    cycles: int = 1000  # of unloading and loading a cue
    questions_while_reloading: int = 200  # to other cues


class Question(NamedTuple):
    """An input for a cue, and the expected result; None if any result will do (another product's server)."""

    task: str
    text: str | list[str]
    expected: Mapping[str, Any] | None
    tolerance: float = FLOAT32_TOLERANCE  # of a score


class Sample(NamedTuple):
    """Texts for a sample cue, and its results offline."""

    texts: Sequence[str | list[str]]
    expected: Sequence[Mapping[str, Any]]
    tolerance: float = FLOAT32_TOLERANCE  # of a score


@dataclass(frozen=True)
class QuestionPool:
    """Sample cues under many names. Name number n belongs to sample n modulo the number of samples.

    Questions alternate between the samples for every popularity: loads differ in names, not in work.
    """

    samples: Sequence[Sample]
    names: Sequence[str]

    def draw(
        self, popularity: Popularity, num_cues: int, num_questions: int, only_sample: int | None = None
    ) -> list[Question]:
        """Draw questions to the first cues, to all of them or to those of one sample.

        Example:
            >>> pool = QuestionPool([Sample(["x"], [{}]), Sample(["y"], [{}])], ["a-0", "b-1", "a-2", "b-3"])
            >>> [question.task for question in pool.draw("distinct", 4, 4)]
            ['a-0', 'b-1', 'a-2', 'b-3']
            >>> [question.task for question in pool.draw("identical", 4, 3, only_sample=1)]
            ['b-1', 'b-1', 'b-1']
        """
        generator = random.Random(0)
        questions = []
        for number in range(num_questions):
            turn, index = divmod(number, len(self.samples)) if only_sample is None else (number, only_sample)
            names = self.names[index : num_cues : len(self.samples)] or [self.names[index]]
            match popularity:
                case "identical":  # one cue of each sample
                    name = names[0]
                case "skewed":  # Zipf's law
                    [name] = generator.choices(names, [1 / rank for rank in range(1, len(names) + 1)])
                case "uniform":
                    name = generator.choice(names)
                case "distinct":
                    name = names[turn % len(names)]
            sample = self.samples[index]
            text_index = turn % len(sample.texts)
            expected = sample.expected[text_index]
            questions.append(Question(name, sample.texts[text_index], expected, sample.tolerance))
        return questions


def train_sample_cues(folder: Path, backbone: Backbone, steps: int) -> list[Cue]:
    """Train the sample cues, each with another method, for a few steps. Finished cues are loaded instead.

    Example:
        train_sample_cues(Path("runs/bench/serving/samples"), softcue.load_backbone("minilm"), steps=32)
    """

    def train(task: str, method: str, overwrite: bool = False) -> Cue:
        return softcue.train(
            folder / task,
            task=task,
            method=method,
            backbone=backbone,
            progress=False,
            overrides={"training.steps": steps},
            resume=not overwrite,
            overwrite=overwrite,
        )

    cues = []
    for task, method in SAMPLES.items():
        try:
            cues.append(train(task, method))
        except RunError:  # the folder holds a cue with other settings
            cues.append(train(task, method, overwrite=True))
    return cues


def copy_cues(cues: Sequence[Cue], folder: Path, num_copies: int) -> list[str]:
    """Copy cues in turn to a new folder and return the names. Copies are hard links to the original files.

    Example:
        copy_cues(cues, Path("runs/bench/serving/many"), 1000)     # tickets-0000, urgency-0001, same-request-0002, ...
    """
    shutil.rmtree(folder, ignore_errors=True)
    names = []
    for number in range(num_copies):
        cue = cues[number % len(cues)]
        assert cue.path is not None
        names.append(f"{cue.name}-{number:04d}")
        (folder / names[-1]).mkdir(parents=True)
        for file in CUE_FILES:
            os.link(cue.path / file, folder / names[-1] / file)
    return names


def make_sample(cue: Cue, texts: Sequence[str]) -> Sample:
    """Texts in the form that a cue takes (pairs, if it takes two), with its results offline."""
    num_texts = len(cue.task.text)
    inputs = [
        [texts[(first + offset) % len(texts)] for offset in range(num_texts)] if num_texts > 1 else texts[first]
        for first in range(len(texts))
    ]
    predictions = predict(cue.backbone, [(cue.model, example) for example in cue.examples(inputs)], 64).predictions
    tolerance = FLOAT32_TOLERANCE if cue.backbone.dtype == torch.float32 else BFLOAT16_TOLERANCE
    return Sample(inputs, [prediction.as_dict() for prediction in predictions], tolerance)


def real_texts(data: Path | None, num_texts: int) -> list[str]:
    """Different texts of published files, or of the samples.

    Example:
        >>> len(set(real_texts(None, 20)))
        20
    """
    texts = dict.fromkeys(example.texts[0] for example in real_splits(data).train)
    return list(texts)[:num_texts]


def as_requests(groups: Sequence[Sequence[Question]]) -> list[list[Input]]:
    """The inputs of each request, without the expected results."""
    return [[(question.task, question.text) for question in group] for group in groups]


# --- comparing the responses ---


@dataclass(frozen=True)
class LoadResult:
    """The responses to a load, and the number of right results in each."""

    responses: Sequence[LoadResponse]
    num_right: Sequence[int]

    @property
    def seconds(self) -> float:
        """Seconds from the first request to the last response."""
        return max(response.ended for response in self.responses) - min(response.due for response in self.responses)

    @property
    def rate(self) -> float:
        """Right results per second."""
        return sum(self.num_right) / self.seconds

    @property
    def latencies(self) -> list[float]:
        """Seconds of each request with a right result."""
        return [response.latency for response, right in zip(self.responses, self.num_right, strict=True) if right]

    def rate_between(self, start: float, end: float) -> float:
        """Right results per second that arrived between two moments of the load.

        Example:
            >>> responses = [LoadResponse(200, 0.0, ended, 1, []) for ended in (0.5, 1.5, 2.5, 9.0)]
            >>> LoadResult(responses, [1, 1, 1, 1]).rate_between(1.0, 3.0)
            1.0
        """
        pairs = zip(self.responses, self.num_right, strict=True)
        return sum(right for response, right in pairs if start <= response.ended < end) / (end - start)


def compare_responses(
    groups: Sequence[Sequence[Question]],
    responses: Sequence[LoadResponse],
    verdict_counts: Counter[str],
    may_reject: bool = False,
) -> LoadResult:
    """Compare every result with the offline one and count the verdicts.

    A request that got 429 at each attempt is *rejected* if `may_reject`, otherwise *lost*. Every other question without
    a result (504, for example) is lost, too.
    """
    questions = [question for group in groups for question in group]
    num_right = []
    for group, response in zip(groups, responses, strict=True):
        if may_reject and response.status == 429:
            verdicts: list[Verdict] = ["rejected"] * len(group)
        elif len(response.results) == len(group):
            verdicts = [judge(*pair, questions) for pair in zip(group, response.results, strict=True)]
        else:
            verdicts = ["lost"] * len(group)
        verdict_counts.update(verdicts)
        num_right.append(verdicts.count("right"))
    return LoadResult(responses, num_right)


def judge(question: Question, result: Mapping[str, Any], others: Sequence[Question]) -> Verdict:
    """Tell whether a result is right, that of another question (crossed), or wrong.

    Example:
        >>> first, second = Question("a", "x", {"label": "one"}), Question("b", "y", {"label": "two"})
        >>> judge(first, {"task": "a", "label": "two"}, [first, second])
        'crossed'
    """
    if "error" in result:
        return "lost"
    is_same_task = result.get("task") == question.task
    if is_same_task and (question.expected is None or _is_close(result, question)):
        return "right"
    is_crossed = any(other.expected is not None and _is_close(result, other) for other in others)
    return "crossed" if is_crossed else "wrong"


def _is_close(result: Mapping[str, Any], question: Question) -> bool:
    """Whether the scores are within the tolerance, and the label is the expected one or as likely as that."""
    assert question.expected is not None
    scores, expected = (
        {None: values.get("value") or 0.0, **(values.get("scores") or {})} for values in (result, question.expected)
    )
    if scores.keys() != expected.keys():
        return False
    label, expected_label = result.get("label"), question.expected.get("label")
    if label != expected_label:
        if label not in expected or expected_label not in expected:
            return False
        if abs(expected[label] - expected[expected_label]) > 2 * question.tolerance:
            return False
    return all(abs(scores[name] - expected[name]) <= question.tolerance for name in scores)
