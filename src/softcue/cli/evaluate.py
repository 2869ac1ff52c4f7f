"""`softcue evaluate`: one cue, or several as one beside each of them, on its own rows or another task's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from softcue.evaluation import Evaluation


def evaluate(
    cues: Annotated[list[Path], typer.Argument(help="A cue folder, or several with --vote or --mean.")],
    data: Annotated[
        str | None, typer.Option(help="Rows with answers, or a folder with a task's published files.")
    ] = None,
    task: Annotated[str, typer.Option(help="Read the rows of this other task: out of domain.")] = "",
    split: Annotated[str, typer.Option(help="Of a task: train, validation or test.")] = "",
    rows: Annotated[int, typer.Option(min=0, help="Score a sample of this many rows only; 0 scores all.")] = 0,
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    by_vote: Annotated[bool, typer.Option("--vote", help="Score what most cues say, and each cue.")] = False,
    by_mean: Annotated[bool, typer.Option("--mean", help="Score their mean probabilities, and each cue.")] = False,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a cue, or several together, on rows with known answers: its own task's or another's."""
    from softcue.cli.predict import chosen_ensemble, loaded_together
    from softcue.cue.cue_file import read_cue_file
    from softcue.errors import ConfigurationError
    from softcue.evaluation.evaluation_set import evaluation_set
    from softcue.inference import predict

    join = chosen_ensemble(by_vote, by_mean)
    if len(cues) > 1 and join is None:
        raise ConfigurationError(
            setting="cues",
            got=", ".join(map(str, cues)),
            expected="one cue",
            fix="pass --vote or --mean to score them together",
        )
    test = evaluation_set(read_cue_file(cues[0]).task, data, task, split, rows, skip_bad_rows)
    loaded = loaded_together(cues, backbone, is_one_answer=join is not None)
    found = predict(loaded[0].backbone, [(cue.model, example) for cue in loaded for example in test.examples])
    num_rows = len(test.examples)
    each = {
        str(path): test.transfer.score(found.answers[number * num_rows : (number + 1) * num_rows], test.examples)
        for number, path in enumerate(cues)
    }
    name = "vote" if by_vote else "mean"
    if join is not None:
        join_prompts = [join(found.answers[row::num_rows]) for row in range(num_rows)]
        each[name] = test.transfer.score(join_prompts, test.examples)
    if as_json:
        _print_json(test.name, each, name if join else None, found.num_truncated)
    else:
        _print(test.name, each, num_rows)
    if not as_json and found.num_truncated:
        typer.echo(f"{found.num_truncated} texts were cut to {loaded[0].model.formatter.limit} tokens", err=True)


def _print_json(data: str, each: dict[str, Evaluation], join_prompts: str | None, num_truncated: int) -> None:
    from softcue.cli.output import print_json

    rows = next(iter(each.values())).num_rows
    if join_prompts is None:
        [(cue, found)] = each.items()
        print_json({"cue": cue, "data": data, "rows": rows, "truncated": num_truncated, **_shown(found)})
        return
    print_json(
        {
            "data": data,
            "rows": rows,
            join_prompts: _shown(each.pop(join_prompts)),
            "truncated": num_truncated,
            "cues": {path: _shown(found) for path, found in each.items()},
        }
    )


def _print(data: str, each: dict[str, Evaluation], num_rows: int) -> None:
    from softcue.cli.output import print_table

    metrics = list(next(iter(each.values())).scores)
    if len(each) == 1:
        [(cue, found)] = each.items()
        print_table(f"{cue} on {data}", ["rows", *metrics], [[num_rows, *found.scores.values()]])
    else:
        rows = [[name, num_rows, *found.scores.values()] for name, found in each.items()]
        print_table(f"{len(each) - 1} cues on {data}", ["answers of", "rows", *metrics], rows)
    for name, found in each.items():
        if found.num_illegal:
            share = f"{found.num_illegal} answers of {name} ({100 * found.illegal_share:.1f} %)"
            typer.echo(f"{share} are none the task allows and count as wrong", err=True)
        if found.has_collapsed:
            typer.echo(f"every row got the same label from {name}: this cue has learned nothing", err=True)


def _shown(found: Evaluation) -> dict[str, Any]:
    return {
        "scores": found.scores,
        "main": found.main,
        "illegal": found.num_illegal,
        "illegal_share": found.illegal_share,
        "predicted_labels": found.predicted_labels,
    }
