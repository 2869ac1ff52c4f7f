"""`softcue predict`: one cue or several, in one mixed pass, each for itself or as a vote."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from softcue.cue import Cue
    from softcue.types import Prediction


ANSWER_KEYS = (
    "label",
    "value",
    "scores",
    "spans",
    "cues",
    "votes",
)  # a text column of such a name is shown as input.NAME


def predict(
    cues: Annotated[list[Path], typer.Argument(help="Cue folders; several are answered in one mixed pass.")],
    source: Annotated[str, typer.Option("--input", help="Rows to read; - takes lines or JSON lines from stdin.")],
    output: Annotated[Path | None, typer.Option(help="Write here (.jsonl or .csv) instead of printing.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per pass.")] = 64,
    by_vote: Annotated[bool, typer.Option("--vote", help="One answer per row: what most of the cues say.")] = False,
    by_mean: Annotated[bool, typer.Option("--mean", help="One answer per row, by the cues' mean scores.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Answer rows with one or more cues that share a backbone."""
    from softcue.cli.output import print_json
    from softcue.errors import ConfigurationError
    from softcue.evaluation import predict as answer
    from softcue.evaluation import votes
    from softcue.files import writable, write_whole

    if output is not None:
        if output.suffix not in (".jsonl", ".csv") or output.is_dir():
            raise ConfigurationError("--output", output, "a file name ending in .jsonl or .csv", "rename it")
        if not output.parent.is_dir():
            raise ConfigurationError("--output", output, "a file in an existing folder", f"make {output.parent}")
    join = chosen_ensemble(by_vote, by_mean)
    loaded = loaded_together(cues, backbone, is_one_answer=join is not None)
    names = [cue.name for cue in loaded]
    if len(set(names)) < len(names) and join is None:
        raise ConfigurationError("cues", ", ".join(names), "cues with different folder names", "rename one")
    typed = _standard_input() if source == "-" else []
    per_cue = [_examples(cue, source, typed) for cue in loaded]
    requests = [(cue.model, example) for cue, examples in zip(loaded, per_cue, strict=True) for example in examples]
    found = answer(loaded[0].backbone, requests, batch_size)
    num_rows = len(per_cue[0])
    lines: list[dict[str, Any]] = []
    for row in range(num_rows):
        # texts by column name; cues of one file read columns of the same rows
        line: dict[str, Any] = {}
        for number, cue in enumerate(loaded):
            columns = (f"input.{name}" if name in ANSWER_KEYS else name for name in cue.task.text)
            line |= dict(zip(columns, per_cue[number][row].texts, strict=True))
        answers = found.answers[row::num_rows]  # one per cue
        if join is not None:
            line |= join(answers).as_dict() | ({"votes": counts} if (counts := votes(answers)) else {})
        elif len(names) == 1:
            line |= answers[0].as_dict()
        else:
            line["cues"] = {name: answer.as_dict() for name, answer in zip(names, answers, strict=True)}
        lines.append(line)
    if found.num_truncated:
        typer.echo(f"{found.num_truncated} texts were cut to the backbone's length", err=True)
    if output is not None:
        with writable("--output", output):
            write_whole(output, (_csv(lines) if output.suffix == ".csv" else _jsonl(lines)).encode())
    elif as_json:
        print_json({"rows": lines})
    else:
        sys.stdout.write(_jsonl(lines))


def chosen_ensemble(by_vote: bool, by_mean: bool) -> Callable[[Sequence[Prediction]], Prediction] | None:
    """How several cues' answers become one, if they do."""
    from softcue.errors import ConfigurationError
    from softcue.evaluation import mean, vote

    if by_vote and by_mean:
        raise ConfigurationError("--vote", "--mean", "one of the two", "leave one out")
    return vote if by_vote else mean if by_mean else None


def loaded_together(paths: list[Path], backbone: str | None, is_one_answer: bool) -> list[Cue]:
    """Cues on one backbone; those that give one answer are of one task, and none of them counts twice.

    Example:
        tickets, urgency = loaded_together([Path("cues/tickets"), Path("cues/urgency")], None, is_one_answer=False)
    """
    from softcue.cue import load
    from softcue.errors import ConfigurationError
    from softcue.evaluation import check_one_task
    from softcue.record import read_record

    if is_one_answer:
        check_one_task({str(path): read_record(path).task for path in paths})
        if len({path.resolve() for path in paths}) < len(paths):
            raise ConfigurationError("cues", ", ".join(map(str, paths)), "every cue once", "leave out the copy")
    first = load(paths[0], backbone)
    return [first, *(load(path, first.backbone) for path in paths[1:])]


def _examples(cue: Cue, source: str, typed: list[Any]) -> list[Any]:
    if source != "-":
        from softcue.tasks import examples_from

        return examples_from(source, cue.task, needs_target=False)
    num_texts = len(cue.task.text)
    return cue.examples([
        tuple(row.split("\t")) if isinstance(row, str) and num_texts == 2 else row for row in typed
    ])  # fmt: skip


def _standard_input() -> list[Any]:
    """JSON objects if the first line looks like one, otherwise one text per line (two parted by a tab)."""
    from softcue.errors import DataError
    from softcue.tasks.readers import decoded

    text = decoded(sys.stdin.buffer.read(), "standard input")
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise DataError("standard input", "", "at least one line", "pipe texts or JSON lines into it")
    if not lines[0][1].lstrip().startswith("{"):
        return [line for _, line in lines]
    rows: list[Any] = []
    for number, line in lines:
        place, next_step = f"standard input, line {number}", "write {...} on every line, or plain texts only"
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise DataError(place, line[:60], "a JSON object", next_step) from error
        if not isinstance(rows[-1], dict):
            raise DataError(place, line[:60], "a JSON object", next_step)
    return rows


def _jsonl(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _csv(lines: list[dict[str, Any]]) -> str:
    """Texts, then label, its score and its votes per cue or for all."""
    flat = []
    for line in lines:
        answers = line.pop("cues", None)
        row = {key: value for key, value in line.items() if key not in ANSWER_KEYS}
        for prefix, answer in (answers or {"": line}).items():
            dot = f"{prefix}." if prefix else ""
            for key in ("label", "value"):
                if key in answer:
                    row[f"{dot}{key}"] = answer[key]
            if "scores" in answer:
                row[f"{dot}score"] = round(answer["scores"][answer["label"]], 6)
            if "votes" in answer:
                row[f"{dot}votes"] = answer["votes"][answer["label"]]
        flat.append(row)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()
