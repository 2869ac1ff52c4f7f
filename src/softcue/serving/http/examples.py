"""Examples for the page: messages with their right labels for the sample tasks, checked against the loaded cues.

The messages come with softcue. Rows that a cue was trained on are never shown: a cue does not hold them, and they may
be private. So cues of other tasks have no example, and the page starts with an empty field.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

from softcue.serving.engine.engine import Engine
from softcue.serving.engine.registry import LoadedCue
from softcue.serving.engine.requests import Item, Options, Result, ServedPrediction
from softcue.tasks import Task, library_task

NUM_WANTED = 3  # examples that are enough
MAX_CUES = 32  # more cues are not checked: the page would show too many predictions at once
Checked = dict[str, object]


@dataclass(frozen=True)
class LabelledMessage:
    """One or two texts, and their right label for each sample task that can read them."""

    texts: tuple[str, ...]
    labels: dict[str, str]  # name of a sample task -> right label


@cache
def labelled_messages() -> tuple[LabelledMessage, ...]:
    """The messages that come with softcue.

    Example:
        >>> labelled_messages()[0].labels["tickets"]
        'hardware'
    """
    content = (files("softcue.serving.http") / "examples.yaml").read_text("utf-8")
    return tuple(LabelledMessage(tuple(entry["texts"]), entry["labels"]) for entry in yaml.safe_load(content))


class ExampleChecker:
    """Finds messages for which every loaded cue of a sample task predicts the right label.

    The result is kept until other cues, or other versions of them, are loaded.
    """

    def __init__(self) -> None:
        self._versions: tuple[tuple[str, str], ...] = ()
        self._examples: list[Checked] = []
        self._lock = asyncio.Lock()

    async def examples(self, engine: Engine, seconds: float) -> list[Checked]:
        """Up to three messages with the labels that the cues predict; none if no cue is of a sample task."""
        cues = [loaded_cue for loaded_cue in engine.registry.loaded() if is_of_sample_task(loaded_cue.task)]
        if not 1 <= len(cues) <= MAX_CUES:
            return []
        versions = tuple((loaded_cue.name, loaded_cue.version) for loaded_cue in cues)
        async with self._lock:
            if versions != self._versions:
                self._examples = await _check_messages(engine, cues, seconds)
                self._versions = versions
            return self._examples


def is_of_sample_task(task: Task) -> bool:
    """Whether a task is one of the sample tasks, and not only has its name.

    Example:
        >>> is_of_sample_task(library_task("tickets")), is_of_sample_task(Task(name="tickets"))
        (True, False)
    """
    if task.name not in {name for message in labelled_messages() for name in message.labels}:
        return False
    sample_task = library_task(task.name)
    return (task.text, task.label_names) == (sample_task.text, sample_task.label_names)


async def _check_messages(engine: Engine, cues: list[LoadedCue], seconds: float) -> list[Checked]:
    """The first messages that all cues predict right."""
    checked: list[Checked] = []
    for message in labelled_messages():
        if any(loaded_cue.task.name not in message.labels for loaded_cue in cues):
            continue
        items: list[Item] = [(loaded_cue.name, _texts_for(loaded_cue, message)) for loaded_cue in cues]
        requests = engine.submit(items, Options(), seconds)
        results = await asyncio.gather(*(asyncio.wrap_future(request.result) for request in requests))
        labels = {loaded_cue.name: message.labels[loaded_cue.task.name] for loaded_cue in cues}
        if [_predicted_label(result) for result in results] == list(labels.values()):
            num_texts = max(len(loaded_cue.task.text) for loaded_cue in cues)
            checked.append({"texts": list(message.texts[:num_texts]), "labels": labels})
        if len(checked) == NUM_WANTED:
            break
    return checked


def _texts_for(loaded_cue: LoadedCue, message: LabelledMessage) -> str | list[str]:
    texts = list(message.texts[: len(loaded_cue.task.text)])
    return texts[0] if len(texts) == 1 else texts


def _predicted_label(result: Result) -> str:
    """The label of a result. An error is raised, so that examples that could not be checked are not kept."""
    if not isinstance(result, ServedPrediction):
        raise result.copy()
    return str(result.prediction.label)
