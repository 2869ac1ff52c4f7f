"""`softcue train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softcue.cli.completion import complete_backbone, complete_method_or_auto, complete_task, complete_tasks
from softcue.cli.config import KindOfRecipe
from softcue.cli.options import AllowPickle, SkipBadRows

if TYPE_CHECKING:
    from softcue.cue.cue import Cue


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CONFIG.yaml] [section.key=value ...]", help="A YAML file and dotted overrides."),
    ] = None,
    output_dir: Annotated[Path | None, typer.Option("--output-dir", help="Where the cue folder goes.")] = None,
    backbone: Annotated[
        str | None, typer.Option(help="A model folder, a hub id, or an alias.", autocompletion=complete_backbone)
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="A name from `softcue methods`; auto tries several and keeps the best. Default: p-tuning-v2 on "
            "encoders, prompt-tuning on other backbones.",
            autocompletion=complete_method_or_auto,
        ),
    ] = None,
    recipe: Annotated[
        KindOfRecipe | None,
        typer.Option(help="default: the method's preset. paper: its paper's settings. What you set lies on top."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="A name from `softcue tasks`, or a task file (.yaml).", autocompletion=complete_task),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="Several tasks, A,B,...: one shared prompt, a cue for each.", autocompletion=complete_tasks),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A folder with the tasks' published files.")] = None,
    train: Annotated[
        str | None, typer.Option(help="Training rows: csv, tsv, json, jsonl (or .gz), parquet, hub:NAME@SPLIT.")
    ] = None,
    validation: Annotated[
        str | None, typer.Option(help="Validation rows; without them, a share of the training rows.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Test rows, scored once at the end.")] = None,
    text: Annotated[
        str | None, typer.Option(help="The column to read, or several: COL,COL, or the option repeated.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The column with the target.")] = None,
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="A row has a set of labels: none, one or several.")
    ] = False,
    separator: Annotated[
        str | None, typer.Option(help="What stands between the labels of a row (multi-label); usually ;")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training rows.")] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", help="Of the prompt vectors; fine-tuning: of all weights."),
    ] = None,
    network_learning_rate: Annotated[
        float | None,
        typer.Option("--network-learning-rate", help="Of heads, generators and adapters."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Rows per step.")] = None,
    prompt_length: Annotated[int | None, typer.Option("--prompt-length", help="Number of prompt vectors.")] = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", help="Cut inputs to this many tokens, prompt included.")
    ] = None,
    allow_pickle: AllowPickle = False,
    few_shot: Annotated[int | None, typer.Option("--few-shot", help="Train on this many rows only (seeded).")] = None,
    shots_per_class: Annotated[
        int | None, typer.Option("--shots-per-class", help="Train on this many rows of each class or label only.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness.")] = None,
    init_from: Annotated[
        Path | None, typer.Option("--init-from", help="Start from the parameters of this cue.")
    ] = None,
    skip_bad_rows: SkipBadRows = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the content of --output-dir.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a cue: small learned prompts for one task on a frozen backbone.

    Every other setting is a word section.key=value, such as training.patience=3; `softcue config` lists them all.
    A setting that is not given comes from the recipe: by default the method's preset for this kind of backbone.
    """
    from softcue.api import train as run
    from softcue.cli.output import print_json
    from softcue.cli.scores import print_scores, print_selection
    from softcue.errors import ConfigurationError
    from softcue.training import Processes

    config, overrides = split_words(words or [])
    if output_dir is None:
        raise ConfigurationError(
            setting="output_dir", got=None, expected="a folder for the cue", fix="pass `output_dir=cues/NAME`"
        )
    arguments: dict[str, Any] = {
        "backbone": backbone,
        "method": method,
        "recipe": recipe and recipe.value,
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
        "allow_pickle": allow_pickle or None,
        "few_shot": few_shot,
        "shots_per_class": shots_per_class,
        "seed": seed,
        "init_from": init_from,
        "skip_bad_rows": skip_bad_rows or None,
        "config": config,
        "overrides": overrides,
        "resume": resume,
        "overwrite": overwrite,
        "progress": not as_json,
    }
    if tasks is None:
        cues = [run(output_dir, **arguments)]
    else:
        names = [name.strip() for name in tasks.split(",")]
        cues = list(run(output_dir, tasks=names, **arguments).values())
    if Processes.is_first():
        summaries = [_summarise(cue) for cue in cues]
        if as_json:
            print_json(summaries[0] if tasks is None else {"cues": summaries})
        for cue in cues if not as_json else ():
            print_scores(cue)
            print_selection(cue)
    Processes.end()


def _summarise(cue: Cue) -> dict[str, Any]:
    from softcue.cli.scores import score_facts

    cue_file = cue.cue_file
    selection = cue.selection
    chosen = {} if selection is None else {"method": selection.winner, "selection": selection.as_dict()}
    return {
        "cue": str(cue.path),
        **chosen,
        **score_facts(cue),
        "counts": cue_file.counts,
        "best_step": cue_file.training["best_step"],
        "steps": cue_file.training["steps_done"],
    }


def split_words(words: list[str]) -> tuple[str | None, list[str]]:
    """Split words into the configuration file, if there is one, and the overrides.

    Example:
        >>> split_words(["run.yaml", "training.epochs=3"])
        ('run.yaml', ['training.epochs=3'])
    """
    if words and "=" not in words[0]:
        return words[0], words[1:]
    return None, words
