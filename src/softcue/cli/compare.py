"""`softcue compare`: finished cues of one task on the same rows, or methods that are trained for it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from softcue.cli.completion import complete_backbone, complete_method
from softcue.cli.config import KindOfRecipe
from softcue.cli.options import (
    AllowPickle,
    Columns,
    Epochs,
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
    split_names,
)


def compare(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CUE CUE ...] [section.key=value ...]",
            help="Finished cues of one task; or, with --methods, settings for all runs.",
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Train these methods, A,B,..., and compare them.", autocompletion=complete_method)
    ] = None,
    backbones: Annotated[
        str | None, typer.Option(help="On these backbones, A,B,...", autocompletion=complete_backbone)
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each method, with seeds 0, 1, ...; 3 if not given.")
    ] = None,
    recipe: Annotated[KindOfRecipe | None, typer.Option(help="default: presets. paper: the papers' settings.")] = None,
    task: TaskName = None,
    data: Annotated[
        str | None,
        typer.Option(help="Rows with targets for finished cues; with --methods, a folder with the task's files."),
    ] = None,
    train: Annotated[str | None, typer.Option(help="Training rows.")] = None,
    validation: Annotated[str | None, typer.Option(help="Validation rows.")] = None,
    test: Annotated[str | None, typer.Option(help="Test rows, on which methods are compared.")] = None,
    text: TextColumns = None,
    label: LabelColumn = None,
    multi_label: MultiLabel = False,
    separator: Separator = None,
    epochs: Epochs = None,
    learning_rate: LearningRate = None,
    network_learning_rate: NetworkLearningRate = None,
    prompt_length: PromptLength = None,
    max_length: MaxLength = None,
    few_shot: Annotated[
        int | None, typer.Option("--few-shot", help="Train on this many rows only; each seed has its own sample.")
    ] = None,
    shots_per_class: ShotsPerClass = None,
    split: Annotated[str, typer.Option(help="Finished cues: a split of the task's own rows.")] = "",
    rows: Annotated[int, typer.Option(min=0, help="Finished cues: a sample of this many rows; 0 takes all.")] = 0,
    columns: Columns = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Rows per forward pass; with --methods, rows of a training step.")
    ] = None,
    allow_pickle: AllowPickle = False,
    skip_bad_rows: SkipBadRows = False,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", help="A folder for index.html, tables and, with --methods, the cues.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="With --methods: train finished runs of --output-dir again.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare finished cues on the same rows, or train methods and compare those (--methods)."""
    from softcue.cli.output import print_json, print_table
    from softcue.studies import Comparison
    from softcue.studies.compare import compare as compare_all
    from softcue.tasks.columns import parse_columns

    options = {
        "data": data,
        "split": split or None,
        "rows": rows or None,
        "columns": parse_columns(columns or []) or None,
        "seeds": seeds,
        "backbones": None if backbones is None else split_names(backbones),
        "recipe": recipe and recipe.value,
        "task": task,
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
        "prompt_length": prompt_length,
        "max_length": max_length,
        "few_shot": few_shot,
        "shots_per_class": shots_per_class,
        "overwrite": overwrite or None,
        "batch_size": batch_size,
        "skip_bad_rows": skip_bad_rows or None,
        "allow_pickle": allow_pickle or None,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    comparison: Comparison
    if methods is None:
        comparison = compare_all(words or [], **given)
    else:
        given |= {} if output_dir is None else {"output_dir": output_dir}
        comparison = compare_all(methods=split_names(methods), overrides=words or [], **given)
    files = [] if output_dir is None else comparison.save(output_dir, shlex.join(["softcue", *sys.argv[1:]]))
    if as_json:
        print_json(comparison.as_dict())
        return
    print_table(comparison.title, *comparison.shown(), numbers_from=comparison.num_text_columns)
    if comparison.differences:
        print_table("", *comparison.pairs.shown(), numbers_from=comparison.pairs.num_text_columns)
    for sentence in (*comparison.sentences, *comparison.notes):
        typer.echo(sentence)
    if files:
        typer.echo(f"saved: {', '.join(map(str, files))}")
