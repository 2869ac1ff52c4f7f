"""Tiny cues of every kind for the serving tests, saved untrained: that their numbers are visible is enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny import tiny
from toy import make_model

from softcue.backbones import Backbone
from softcue.configuration import method_config
from softcue.cue.cue import Cue
from softcue.cue.cue_file import CueBackbone, CueFile
from softcue.tasks import Label, Task

TWO = {"a": Label(words="account"), "b": Label(words="billing")}
THREE = {**TWO, "c": Label(words="my order")}
TOPICS = Task(name="topics", labels=THREE)
TONE = Task(name="tone", labels=TWO)
SUBJECTS = Task(name="subjects", kind="multi-label", labels=THREE)
PAIRS = Task(name="pairs", text=("first", "second"), labels={"same": Label(words="yes"), "other": Label(words="no")})
STARS = Task(name="stars", kind="regression", scale=(1.0, 5.0, 1.0))
QUESTIONS = Task(name="questions", kind="span", text=("question", "context"))
NAMES = Task(name="names", kind="tags", labels={"PER": Label(words="person"), "LOC": Label(words="place")})
TITLES = Task(name="titles", kind="generation")
CASES: dict[str, tuple[Task, str]] = {  # cue -> task and method
    "topics": (TOPICS, "prompt-tuning"),
    "topics-idpg": (TOPICS, "m-idpg-phm"),
    "tone-vip": (TONE, "vip"),
    "tone-late": (TONE, "prompt-tuning late"),
    "tone-adapter": (TONE, "adapter"),
    "pairs": (PAIRS, "prompt-tuning"),
    "stars": (STARS, "prefix-tuning"),
    "questions": (QUESTIONS, "prompt-tuning"),
    "names": (NAMES, "prompt-tuning"),
    "subjects": (SUBJECTS, "prompt-tuning"),
}
WRITING: dict[str, tuple[Task, str]] = {
    "titles": (TITLES, "prompt-tuning"),
    "titles-idpg": (TITLES, "s-idpg-phm"),
    "topics": (TOPICS, "prompt-tuning"),
    "stars": (STARS, "prompt-tuning"),
    "names": (NAMES, "prompt-tuning"),
    "subjects": (SUBJECTS, "prompt-tuning"),
}
LONG = "the parcel from Ann in Rome is late and nobody answers the phone " * 12
TEXTS = ["My invoice is wrong.", "Where is it", "ok", "I cannot sign in to my account since this morning", LONG[:130]]


def save_cue(
    folder: Path,
    task: Task = TOPICS,
    case: str = "prompt-tuning",
    model_type: str = "bert",
    seed: int = 0,
    readout: dict[str, Any] | None = None,
    backbone: Backbone | None = None,
    **method: object,
) -> Cue:
    """A cue folder, as training would leave it; on a tiny backbone unless another is given."""
    backbone = backbone or tiny(model_type)
    writes = task.kind in ("generation", "tags") and model_type != "bert"
    settings_of_readout = {**({"max_new_tokens": 6} if writes else {}), **(readout or {})}
    model = make_model(backbone, case, task, settings_of_readout, seed, **method)
    settings = model.method.config.model_dump(mode="json")
    record = CueFile(
        format=1,
        task=task,
        method=method_config(settings).model_dump(mode="json"),
        readout=model.readout.config,
        tensors_sha256="",
        backbone=CueBackbone(
            name=backbone.name,
            kind=backbone.kind,
            dtype=str(backbone.dtype).removeprefix("torch."),
            max_length=model.max_length,
            fingerprint=dict(vars(backbone.fingerprint)),
        ),
    )
    cue = Cue(model, backbone, record)
    cue.save(folder)
    return cue


def items(cues: dict[str, Cue], num: int) -> list[tuple[str, Any]]:
    """So many inputs of all cues in turn, of many lengths."""
    names = list(cues)
    inputs: list[tuple[str, Any]] = []
    for number in range(num):
        round_number, place = divmod(number, len(names))
        name, text = names[place], TEXTS[(round_number + place) % len(TEXTS)] + f" {number}"
        inputs.append((name, text if len(cues[name].task.text) == 1 else [f"Who {number}?", text]))
    return inputs
