"""What a server is asked in a benchmark, and what it should answer: sample cues under many names, and their offline
answers, worked out without engine or batcher."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from softcue.api import train
from softcue.backbones import Backbone
from softcue.benchmarks.load import Reply
from softcue.benchmarks.texts import real_rows
from softcue.cue.cue import Cue
from softcue.errors import RunError
from softcue.inference import predict

Popularity = Literal["identical", "uniform", "skewed", "distinct"]
Verdict = Literal["right", "wrong", "crossed", "lost", "refused"]
SAMPLES = {"tickets": "prompt-tuning", "urgency": "m-idpg-phm", "same-request": "vip"}  # task -> method
TOLERANCE = 1e-4  # of a score, between a row in a server's batch and the same row offline
TASK_FILES = ("cue.json", "cue.safetensors")


@dataclass(frozen=True)
class Sizes:
    """How much is asked. The defaults take about ten minutes; tests ask little."""

    cues: tuple[int, ...] = (8, 64, 1000)  # loads go to so many; all are loaded
    steps: int = 32  # of training: enough that answers differ between texts
    texts: int = 333  # of each sample cue
    seconds: float = 6.0  # of a turn, at the offline engine's speed
    latency_seconds: float = 15.0  # of a turn in open loop
    overload_seconds: float = 12.0
    clients: int = 128  # in closed loop: they fill several batches, as the offline engine's queue does
    few_clients: int = 32  # where cues are switched
    several: int = 8  # questions of a request, where it has several
    warm_cycles: int = 100
    cycles: int = 1000  # of unloading and loading a cue
    meanwhile: int = 200  # questions to other cues


class Asked(NamedTuple):
    """A question, and the answer it should get; None where any answer will do (another product's server)."""

    task: str
    text: str | list[str]
    wanted: Mapping[str, Any] | None


class Sample(NamedTuple):
    """Texts that a sample cue reads, with its answers."""

    texts: Sequence[str | list[str]]
    wanted: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Stock:
    """Sample cues under many names. Copy number n is of sample n modulo their number, and questions take turns between
    samples whatever the popularity: loads differ in names only, not in work."""

    samples: Sequence[Sample]
    names: Sequence[str]

    def questions(
        self, popularity: Popularity, num_cues: int, num_questions: int, only: int | None = None
    ) -> list[Asked]:
        """So many questions to the first cues, all of them or those of one sample.

        Example:
            >>> stock = Stock([Sample(["x"], [{}]), Sample(["y"], [{}])], ["a-0", "b-1", "a-2", "b-3"])
            >>> [asked.task for asked in stock.questions("distinct", 4, 4)]
            ['a-0', 'b-1', 'a-2', 'b-3']
            >>> [asked.task for asked in stock.questions("identical", 4, 3, only=1)]
            ['b-1', 'b-1', 'b-1']
        """
        draws = random.Random(0)
        found = []
        for number in range(num_questions):
            turn, kind = divmod(number, len(self.samples)) if only is None else (number, only)
            names = self.names[kind : num_cues : len(self.samples)] or [self.names[kind]]
            match popularity:
                case "identical":  # one cue of each sample
                    name = names[0]
                case "skewed":  # Zipf's law
                    [name] = draws.choices(names, [1 / rank for rank in range(1, len(names) + 1)])
                case "uniform":
                    name = draws.choice(names)
                case "distinct":
                    name = names[turn % len(names)]
            place = turn % len(self.samples[kind].texts)
            found.append(Asked(name, self.samples[kind].texts[place], self.samples[kind].wanted[place]))
        return found


def sample_cues(folder: Path, backbone: Backbone, steps: int) -> list[Cue]:
    """The sample cues of unlike methods, trained for a moment; those that are there already are kept.

    Example:
        sample_cues(Path("runs/bench/serving/samples"), softcue.load_backbone("minilm"), steps=32)
    """

    def trained(task: str, method: str, overwrite: bool = False) -> Cue:
        return train(
            folder / task,
            task=task,
            method=method,
            backbone=backbone,
            progress=False,
            overrides={"training.steps": steps},
            resume=not overwrite,
            overwrite=overwrite,
        )

    found = []
    for task, method in SAMPLES.items():
        try:
            found.append(trained(task, method))
        except RunError:  # there is one of other settings
            found.append(trained(task, method, overwrite=True))
    return found


def copied(cues: Sequence[Cue], folder: Path, num_copies: int) -> list[str]:
    """So many copies of cues, in turn, in a new folder; their names. They share their files with the originals.

    Example:
        copied(cues, Path("runs/bench/serving/many"), 1000)     # tickets-0000, urgency-0001, same-request-0002, ...
    """
    shutil.rmtree(folder, ignore_errors=True)
    names = []
    for number in range(num_copies):
        cue = cues[number % len(cues)]
        assert cue.path is not None
        names.append(f"{cue.name}-{number:04d}")
        (folder / names[-1]).mkdir(parents=True)
        for file in TASK_FILES:
            os.link(cue.path / file, folder / names[-1] / file)
    return names


def answered_offline(cue: Cue, texts: Sequence[str]) -> Sample:
    """Texts as a cue reads them (in pairs, where it reads two), and its answers to them."""
    num_texts = len(cue.task.text)
    read = [
        [texts[(first + more) % len(texts)] for more in range(num_texts)] if num_texts > 1 else texts[first]
        for first in range(len(texts))
    ]
    found = predict(cue.backbone, [(cue.model, example) for example in cue.examples(read)], 64).predictions
    return Sample(read, [answer.as_dict() for answer in found])


def real_texts(data: Path | None, num_texts: int) -> list[str]:
    """Different texts of published files, else of the samples.

    Example:
        >>> len(set(real_texts(None, 20)))
        20
    """
    texts = dict.fromkeys(example.texts[0] for example in real_rows(data).train)
    return list(texts)[:num_texts]


# --- answers that came back ---


@dataclass(frozen=True)
class Outcome:
    """The replies to a load, and how many of each one's answers are right."""

    replies: Sequence[Reply]
    num_right: Sequence[int]

    @property
    def seconds(self) -> float:
        """From the first request to the last answer."""
        return max(reply.ended for reply in self.replies) - min(reply.due for reply in self.replies)

    @property
    def rate(self) -> float:
        """Right answers a second."""
        return sum(self.num_right) / self.seconds

    @property
    def latencies(self) -> list[float]:
        """Seconds that requests with an answer took."""
        return [reply.latency for reply, right in zip(self.replies, self.num_right, strict=True) if right]

    def rate_between(self, start: float, end: float) -> float:
        """Right answers a second that came between two moments of the load.

        Example:
            >>> replies = [Reply(200, 0.0, ended, 1, []) for ended in (0.5, 1.5, 2.5, 9.0)]
            >>> Outcome(replies, [1, 1, 1, 1]).rate_between(1.0, 3.0)
            1.0
        """
        came = zip(self.replies, self.num_right, strict=True)
        return sum(right for reply, right in came if start <= reply.ended < end) / (end - start)


def judged(
    groups: Sequence[Sequence[Asked]], replies: Sequence[Reply], statistics: Counter[str], may_refuse: bool = False
) -> Outcome:
    """Compare every answer with the offline one, and count what each is.

    A request told to come again as often as it tries is *refused* where that may be, otherwise *lost*, like every
    other question without an answer (504 among them).
    """
    everything = [asked for group in groups for asked in group]
    num_right = []
    for group, reply in zip(groups, replies, strict=True):
        if may_refuse and reply.status == 429:
            verdicts: list[Verdict] = ["refused"] * len(group)
        elif len(reply.results) == len(group):
            verdicts = [verdict(*pair, everything) for pair in zip(group, reply.results, strict=True)]
        else:
            verdicts = ["lost"] * len(group)
        statistics.update(verdicts)
        num_right.append(verdicts.count("right"))
    return Outcome(replies, num_right)


def verdict(asked: Asked, result: Mapping[str, Any], others: Sequence[Asked]) -> Verdict:
    """What an answer is: right, that of another question (crossed), or simply wrong.

    Example:
        >>> first, second = Asked("a", "x", {"label": "one"}), Asked("b", "y", {"label": "two"})
        >>> verdict(first, {"task": "a", "label": "two"}, [first, second])
        'crossed'
    """
    if "error" in result:
        return "lost"
    is_own_task = result.get("task") == asked.task
    if is_own_task and (asked.wanted is None or _is_alike(result, asked.wanted)):
        return "right"
    is_others = any(other.wanted is not None and _is_alike(result, other.wanted) for other in others)
    return "crossed" if is_others else "wrong"


def _is_alike(result: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether labels are the same and numbers nearly so."""
    ours, theirs = ({None: one.get("value") or 0.0, **(one.get("scores") or {})} for one in (result, wanted))
    is_same_label = result.get("label") == wanted.get("label") and ours.keys() == theirs.keys()
    return is_same_label and all(abs(ours[name] - theirs[name]) <= TOLERANCE for name in ours)
