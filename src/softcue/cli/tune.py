"""`softcue tune`: settings of a method searched on validation rows, and the best kept as a cue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from softcue.cli.completion import complete_backbone, complete_method
from softcue.cli.config import KindOfRecipe
from softcue.cli.options import (
    AllowPickle,
    BatchSize,
    Epochs,
    FewShot,
    InitFrom,
    LabelColumn,
    LearningRate,
    MaxLength,
    MultiLabel,
    NetworkLearningRate,
    PromptLength,
    Separator,
    ShotsPerClass,
    SkipBadRows,
    TaskName,
    TextColumns,
)


def tune(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG.yaml] [section.key=value ...]", help="A YAML file and settings that are not searched."
        ),
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", help="Where the cue with the best settings goes.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="A name from `softcue methods`.", autocompletion=complete_method)
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="A model folder, a hub id, or an alias.", autocompletion=complete_backbone)
    ] = None,
    recipe: Annotated[KindOfRecipe | None, typer.Option(help="The first trial: the preset, or the paper's.")] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=LOW..HIGH or KEY=A,B,C, such as training.learning_rate=0.001..0.1; may be repeated. Without it: "
            "learning rates, prompt length and layers."
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(min=0, help="Settings to try, the preset included; 0: the whole grid of lists.")
    ] = 20,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each trial; their mean counts.")] = 1,
    seconds: Annotated[float | None, typer.Option(help="Begin no trial after this many seconds of trials.")] = None,
    keep_trials: Annotated[bool, typer.Option("--keep-trials", help="Leave the cues of all trials.")] = False,
    task: TaskName = None,
    data: Annotated[Path | None, typer.Option(help="A folder with the task's published files.")] = None,
    train: Annotated[str | None, typer.Option(help="Training rows.")] = None,
    validation: Annotated[
        str | None, typer.Option(help="Validation rows, which choose; without them, a share of the training rows.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Test rows, scored once at the end.")] = None,
    text: TextColumns = None,
    label: LabelColumn = None,
    multi_label: MultiLabel = False,
    separator: Separator = None,
    epochs: Epochs = None,
    learning_rate: LearningRate = None,
    network_learning_rate: NetworkLearningRate = None,
    batch_size: BatchSize = None,
    prompt_length: PromptLength = None,
    max_length: MaxLength = None,
    few_shot: FewShot = None,
    shots_per_class: ShotsPerClass = None,
    seed: Annotated[int | None, typer.Option(help="The first seed.")] = None,
    init_from: InitFrom = None,
    allow_pickle: AllowPickle = False,
    skip_bad_rows: SkipBadRows = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew, and replace the cue of --output-dir.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Search learning rates, prompt length and layers of a method on validation rows, and keep the best as a cue.

    The first trial is the method's preset. Started again, a search goes on where it was.
    """
    from softcue.cli.output import print_json, print_table
    from softcue.cli.train import split_words
    from softcue.errors import ConfigurationError
    from softcue.studies.tune import tune as search_settings

    if output_dir is None:
        raise ConfigurationError(
            setting="output_dir", got=None, expected="a folder for the cue", fix="pass `output_dir=cues/NAME`"
        )
    config, overrides = split_words(words or [])
    options = {
        "method": method,
        "backbone": backbone,
        "recipe": recipe and recipe.value,
        "space": parse_searches(search or []) or None,
        "seconds": seconds,
        "task": task,
        "data": data,
        "train": train,
        "validation": validation,
        "test": test,
        "text": text,
        "label": label,
        "multi_label": multi_label or None,
        "separator": separator,
        "epochs": epochs,
        "learning_rate": learning_rate,
        "network_learning_rate": network_learning_rate,
        "batch_size": batch_size,
        "prompt_length": prompt_length,
        "max_length": max_length,
        "few_shot": few_shot,
        "shots_per_class": shots_per_class,
        "seed": seed,
        "init_from": init_from,
        "allow_pickle": allow_pickle or None,
        "skip_bad_rows": skip_bad_rows or None,
        "config": config,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    tuning = search_settings(
        output_dir,
        trials=trials,
        seeds=seeds,
        keep_trials=keep_trials,
        overrides=overrides,
        overwrite=overwrite,
        **given,
    )
    if as_json:
        print_json(tuning.as_dict())
        return
    print_table(tuning.title, *tuning.shown())
    for line in (*tuning.sentences, *tuning.notes, "Train it again:", tuning.command):
        typer.echo(line)


def parse_searches(words: list[str]) -> dict[str, str]:
    """Split words KEY=VALUES of `--search` into keys and values.

    Example:
        >>> parse_searches(["training.learning_rate=0.001..0.1", "method.prompt_length=5,10"])
        {'training.learning_rate': '0.001..0.1', 'method.prompt_length': '5,10'}
    """
    from softcue.errors import ConfigurationError

    space: dict[str, str] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals or key in space:
            raise ConfigurationError(
                setting="search",
                got=word,
                expected="KEY=LOW..HIGH or KEY=A,B,C, each key once",
                fix="write, for example, training.learning_rate=0.001..0.1",
            )
        space[key] = values
    return space
