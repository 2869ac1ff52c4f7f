"""`softcue import`: a PEFT folder becomes a cue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softcue.cli.completion import complete_backbone, complete_task
from softcue.cli.options import AllowPickle, split_names

if TYPE_CHECKING:
    from softcue.readouts import ReadoutConfig
    from softcue.tasks import Task


def import_peft(
    folder: Annotated[Path, typer.Argument(help="A PEFT folder: adapter_config.json and adapter_model.safetensors.")],
    output_dir: Annotated[Path, typer.Argument(help="A new folder for the cue.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[readout.key=value ...]", help="How predictions are read, such as the answer prefix."),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="The model it was trained on: a folder, a hub id, an alias.", autocompletion=complete_backbone
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="A name from `softcue tasks`, or a task file (.yaml): texts, labels, template.",
            autocompletion=complete_task,
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Without --task: the column to read, or several: COL,COL.")] = None,
    label: Annotated[str | None, typer.Option(help="Without --task: the column with the target.")] = None,
    labels: Annotated[
        str | None, typer.Option(help="Without --task: the labels, A,B,...; none: it writes text.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="Without --task: the text that the model reads, such as 'Tweet: {text}'.")
    ] = None,
    task_id: Annotated[int | None, typer.Option("--task-id", help="The task of a multitask prompt, from 0.")] = None,
    allow_pickle: AllowPickle = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a cue from a PEFT folder: prompt tuning, P-tuning, multitask prompt tuning, prefix tuning or LoRA."""
    from softcue.backbones import BackboneConfig, load_backbone
    from softcue.cli.output import print_json
    from softcue.errors import ConfigurationError
    from softcue.interop import import_peft as make_cue

    readout = _readout(words or [])
    if backbone is None:
        advice = "pass `backbone=FOLDER`: what a stranger's folder names is not loaded"
        raise ConfigurationError(setting="backbone", got=None, expected="the model it was trained on", fix=advice)
    chosen = _task(output_dir.name, task, text, label, labels, template)
    loaded = load_backbone(BackboneConfig(name=backbone, allow_pickle=allow_pickle))
    cue = make_cue(folder, output_dir, backbone=loaded, task=chosen, readout=readout, task_id=task_id)
    facts = {"method": cue.model.method.config.name, "parameters": cue.counts.stored, "task": cue.task.name}
    if as_json:
        print_json({"cue": str(output_dir), **facts})
        return
    for name, value in facts.items():
        typer.echo(f"{name}: {value}")
    typer.echo(f"saved: {output_dir}; it has no scores: softcue evaluate {output_dir} --data FILE")


def _readout(words: list[str]) -> ReadoutConfig:
    """The readout that words such as readout.answer_prefix=... describe."""
    from pydantic import ValidationError

    from softcue.configuration import parse_overrides
    from softcue.errors import ConfigurationError, as_configuration_error
    from softcue.readouts import ReadoutConfig

    settings = parse_overrides(words)
    if others := sorted(settings.keys() - {"readout"}):
        raise ConfigurationError(
            setting=others[0],
            got=", ".join(settings[others[0]]),
            expected="settings of the readout alone",
            fix="leave it out: the PEFT folder says the rest",
        )
    try:
        return ReadoutConfig.model_validate(settings.get("readout", {}))
    except ValidationError as error:
        raise as_configuration_error("readout", error) from error


def _task(
    name: str, task: str | None, text: str | None, label: str | None, labels: str | None, template: str | None
) -> Task:
    """The task of that name or file, or one with these columns and labels."""
    from pydantic import ValidationError

    from softcue.errors import ConfigurationError, as_configuration_error
    from softcue.tasks import Label, Task, find_task

    columns = {"text": text, "label": label, "labels": labels, "template": template}
    given = {key: value for key, value in columns.items() if value is not None}
    if task is not None:
        if given:
            key, value = next(iter(given.items()))
            advice = "the task has it; leave one of the two out"
            raise ConfigurationError(setting=key, got=value, expected=f"no `{key}` beside `task`", fix=advice)
        return find_task(task)
    values: dict[str, object] = {
        **given,
        "name": name,
        "kind": "classification" if labels else "generation",
        "text": tuple(split_names(text or "text")),
        "labels": {part: Label(words=part) for part in split_names(labels or "")},
    }
    try:
        return Task.model_validate(values)
    except ValidationError as error:
        raise as_configuration_error("task", error) from error
