"""`softcue evaluate`: one cue, or the vote of several beside each of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from softcue.evaluation import Evaluation


def evaluate(
    cues: Annotated[list[Path], typer.Argument(help="A cue folder, or several with --vote.")],
    data: Annotated[str | None, typer.Option(help="Rows with answers; a bundled task has its own test rows.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    by_vote: Annotated[bool, typer.Option("--vote", help="Score what most cues say, and each cue.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a cue, or the vote of several, on rows with known answers."""
    from softcue.errors import ConfigurationError
    from softcue.record import read_record
    from softcue.tasks import library_names, library_task

    if len(cues) > 1 and not by_vote:
        raise ConfigurationError("cues", ", ".join(map(str, cues)), "one cue", "pass --vote to score them together")
    name = read_record(cues[0]).task.name
    if data is None and name in library_names():
        data = library_task(name).test
    if not data:
        raise ConfigurationError("--data", data, "a file with answers", "pass --data FILE")
    if by_vote:
        _evaluate_vote(cues, data, backbone, as_json)
    else:
        _evaluate_one(cues[0], data, backbone, as_json)


def _evaluate_one(cue: Path, data: str, backbone: str | None, as_json: bool) -> None:
    from softcue.cli.output import print_json, print_table
    from softcue.cue import load

    loaded = load(cue, backbone)
    found = loaded.evaluate(data)
    if as_json:
        print_json({"cue": str(cue), "data": data, "rows": found.num_rows, "scores": found.scores,
                    "truncated": found.num_truncated, "illegal": found.num_illegal,
                    "predicted_labels": found.predicted_labels})  # fmt: skip
        return
    print_table(f"{cue} on {data}", ["rows", *found.scores], [[found.num_rows, *found.scores.values()]])
    if found.num_truncated:
        typer.echo(f"{found.num_truncated} texts were cut to {loaded.model.wording.limit} tokens", err=True)
    if found.num_illegal:
        typer.echo(f"{found.num_illegal} answers are no label and count as wrong", err=True)
    if found.has_collapsed:
        typer.echo("every row got the same label: this cue has learned nothing", err=True)


def _evaluate_vote(cues: list[Path], data: str, backbone: str | None, as_json: bool) -> None:
    from softcue.cli.output import print_json, print_table
    from softcue.cli.predict import loaded_together
    from softcue.evaluation import predict, score, vote
    from softcue.tasks import examples_from

    loaded = loaded_together(cues, backbone, by_vote=True)
    task = loaded[0].task
    examples = examples_from(data, task)
    found = predict(loaded[0].backbone, [(cue.model, example) for cue in loaded for example in examples])
    num_rows = len(examples)
    voted = score(task, [vote(found.answers[row::num_rows]) for row in range(num_rows)], examples)
    each = {
        str(path): score(task, found.answers[number * num_rows : (number + 1) * num_rows], examples)
        for number, path in enumerate(cues)
    }
    if as_json:
        print_json({"data": data, "rows": num_rows, "vote": _shown(voted), "truncated": found.num_truncated,
                    "cues": {path: _shown(evaluation) for path, evaluation in each.items()}})  # fmt: skip
        return
    rows = [[name, num_rows, *one.scores.values()] for name, one in [*each.items(), ("vote", voted)]]
    print_table(f"vote of {len(cues)} cues on {data}", ["answers of", "rows", *voted.scores], rows)
    if found.num_truncated:
        typer.echo(f"{found.num_truncated} texts were cut to the backbone's length", err=True)
    for name, one in each.items():
        if one.num_illegal:
            typer.echo(f"{one.num_illegal} answers of {name} are no label and count as wrong", err=True)
        if one.has_collapsed:
            typer.echo(f"every row got the same label from {name}: this cue has learned nothing", err=True)


def _shown(found: Evaluation) -> dict[str, Any]:
    return {"scores": found.scores, "illegal": found.num_illegal, "predicted_labels": found.predicted_labels}
