"""`softcue adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softcue.cli.completion import complete_backbone

if TYPE_CHECKING:
    from softcue.adaptation import AdaptedModel


def adapt(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT... [setting=value ...]", help="Files, folders or hub:NAME@SPLIT, and further settings."
        ),
    ],
    output_dir: Annotated[Path, typer.Option("--output-dir", help="Where the model folder goes.")],
    backbone: Annotated[
        str | None,
        typer.Option(help="The model to continue: a folder or a hub id.", autocompletion=complete_backbone),
    ] = None,
    new: Annotated[
        str | None, typer.Option(help="A fresh T5 instead: tiny, mini or small; its tokenizer learns from the text.")
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="prefix-lm (LM adaptation) or span-corruption (T5's pre-training).")
    ] = None,
    held_out: Annotated[
        str | None, typer.Option("--held-out", help="Texts for the perplexity; without them, a part of TEXT.")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option("--text-column", help="The column with the text, in files of rows.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps (100,000).")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Rows per step (128).")] = None,
    micro_batch_size: Annotated[
        int | None, typer.Option("--micro-batch-size", help="Rows in memory at once (8).")
    ] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a source (512).")] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="Adafactor's, before it falls (0.01).")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Less memory, more time.")
    ] = False,
    evaluate_every: Annotated[
        int | None, typer.Option("--evaluate-every", help="Steps between perplexities; unset: twenty in all.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the content of --output-dir.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train all weights of an encoder-decoder on plain text, once, before cues are trained on it.

    prefix-lm is the LM adaptation of Lester et al. (2021): the model learns to continue texts. The result is an
    ordinary model folder for `softcue train --backbone`.
    """
    from softcue.adaptation import adapt as run
    from softcue.cli.output import print_json
    from softcue.training import Processes

    texts, settings = split_settings(words)
    options: dict[str, Any] = {
        "objective": objective,
        "text_column": text_column,
        "steps": steps,
        "batch_size": batch_size,
        "micro_batch_size": micro_batch_size,
        "length": length,
        "learning_rate": learning_rate,
        "dtype": dtype,
        "gradient_checkpointing": gradient_checkpointing or None,
        "evaluate_every": evaluate_every,
        "seed": seed,
    }
    settings |= {name: value for name, value in options.items() if value is not None}
    adapted = run(
        output_dir,
        text=texts,
        backbone=backbone,
        new=new,
        held_out=held_out,
        resume=resume,
        overwrite=overwrite,
        progress=not as_json,
        **settings,
    )
    if Processes.is_first():
        if as_json:
            print_json(_summarise(adapted))
        else:
            _print_result(adapted)
    Processes.end()


def split_settings(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Split words into texts and settings of `AdaptationConfig`.

    Example:
        >>> split_settings(["books", "mean_span=5"])
        (['books'], {'mean_span': '5'})
    """
    from softcue.adaptation import AdaptationConfig

    texts: list[str] = []
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and (name in AdaptationConfig.model_fields or name.isidentifier()) and not Path(word).exists():
            settings[name] = value
        else:
            texts.append(word)
    return texts, settings


def _summarise(adapted: AdaptedModel) -> dict[str, Any]:
    return {
        "model": str(adapted.path),
        "objective": adapted.objective,
        "steps": adapted.steps,
        "perplexity": adapted.perplexity,
        "history": adapted.history,
    }


def _print_result(adapted: AdaptedModel) -> None:
    from softcue.cli.output import print_table

    rows = [[_end(sample.source), sample.written, _begin(sample.target)] for sample in adapted.samples]
    if rows:
        print_table("what it writes on held-out text", ["source", "written", "text"], rows)
    before, after = adapted.history[0]["perplexity"], adapted.perplexity
    typer.echo(f"held-out perplexity {before:.1f} -> {after:.1f} after {adapted.steps:,} steps of {adapted.objective}")
    typer.echo(f"next: softcue train --backbone {adapted.path} --task tickets --output-dir cues/tickets")


def _end(text: str, size: int = 200) -> str:
    return text if len(text) <= size else "..." + text[-size:]


def _begin(text: str, size: int = 200) -> str:
    return text if len(text) <= size else text[:size] + "..."
