"""`softcue.train`: turns its arguments into the settings of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from softcue.backbones import Backbone
from softcue.configuration import Settings, merged, override, parse_overrides, read_settings
from softcue.cue import Cue
from softcue.errors import ConfigurationError
from softcue.run import Run
from softcue.tasks import Source


@overload
def train(output_dir: str | Path, *, tasks: Sequence[str], **arguments: Any) -> dict[str, Cue]: ...
@overload
def train(output_dir: str | Path, **arguments: Any) -> Cue: ...


def train(  # type: ignore[misc]  # the overloads give the two result types; the arguments are declared once, here
    output_dir: str | Path,
    *,
    backbone: str | Backbone | None = None,
    method: str | None = None,
    task: str | None = None,
    tasks: Sequence[str] | None = None,
    data: str | Path | None = None,
    train: Source | None = None,
    validation: Source | None = None,
    test: Source | None = None,
    text: str | Sequence[str] | None = None,
    label: str | None = None,
    few_shot: int | None = None,
    seed: int | None = None,
    init_from: str | Path | None = None,
    skip_bad_rows: bool | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> Cue | dict[str, Cue]:
    """Train a task on a frozen backbone and write its cue folder; with `tasks`, one prompt for several tasks.

    Rows come from a known task (`task="tickets"`, or `task="rte"` with the folder of its published files as `data`) or
    from your own files, DataFrames, Datasets or lists of dictionaries with the columns `text` and `label`. A
    `datasets.DatasetDict` as `train` also gives its validation and test rows. Settings that are not given come from the
    method's preset for this kind of backbone; `overrides` sets any of them: `{"training.epochs": 3}`. With `few_shot`,
    only that many training rows are used. `init_from` starts from a finished cue of the same method and backbone.
    `skip_bad_rows` leaves out rows that cannot be used; without it they are an error.

    `tasks` names several tasks (or task files) that share one prompt. The run then writes a cue folder for each below
    `output_dir` and returns the cues by task name. `mixture.*` overrides set how rows are mixed. The run
    keeps the prompt with the best mean validation score over the tasks.

    Example:
        cue = softcue.train("cues/tickets", task="tickets")
        cue = softcue.train("cues/mine", train=frame, text="message", label="team", backbone="minilm")
        cues = softcue.train("cues/help-desk", tasks=["tickets", "urgency"])
    """
    rows = {"train": train, "validation": validation, "test": test}
    if tasks is not None:
        single_task_arguments = {"task": task, **rows, "text": text, "label": label}
        for argument, value in single_task_arguments.items():
            if value is not None:
                raise ConfigurationError(
                    setting=argument,
                    got=value,
                    expected="no argument of a single task beside `tasks`",
                    fix="leave it out",
                )
    files = {split: str(source) for split, source in rows.items() if isinstance(source, (str, Path))}
    tables = {split: source for split, source in rows.items() if source is not None and split not in files}
    arguments: Settings = {
        "backbone": {"name": backbone.name if isinstance(backbone, Backbone) else backbone},
        "method": {"name": method},
        "task": {
            "name": task,
            "data": _as_text(data),
            "text": text,
            "label": label,
            "few_shot": few_shot,
            "skip_bad_rows": skip_bad_rows,
            **files,
        },
        "mixture": {"tasks": list(tasks) if tasks else None},
        "training": {"seed": seed, "init_from": _as_text(init_from)},
    }
    run = Run(
        Path(output_dir),
        _merge_settings(config, arguments, overrides),
        backbone=backbone if isinstance(backbone, Backbone) else None,
        tables=tables,
        is_joint=tasks is not None,
    )
    cues = run.execute(resume=resume, overwrite=overwrite, progress=progress)
    return cues[0] if tasks is None else {cue.task.name: cue for cue in cues}


def _merge_settings(
    config: str | Path | Mapping[str, Any] | None,
    arguments: Settings,
    overrides: Mapping[str, Any] | Iterable[str],
) -> Settings:
    """Merge the configuration file, the given arguments and the overrides; later ones win."""
    given = {
        section: {key: value for key, value in values.items() if value is not None}
        for section, values in arguments.items()
    }
    base = read_settings(config) if isinstance(config, (str, Path)) else dict(config or {})
    if isinstance(overrides, Mapping):
        plain = {key: str(value) if isinstance(value, Path) else value for key, value in overrides.items()}
        override_settings = merged(*(override(key, value) for key, value in plain.items()))
    else:
        override_settings = parse_overrides(overrides)
    return merged(base, given, override_settings)


def _as_text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)
