"""`softcue predict`: predictions of one cue, or of several in mixed batches, each by itself or as an ensemble."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from softcue.cue.cue import Cue
    from softcue.serving.engine.requests import Result, ServedPrediction
    from softcue.types import Example, Prediction

    Join = Callable[[Sequence[Prediction]], Prediction]

ROWS_AT_ONCE = 4096
# a text column with one of these names is printed as input.NAME
PREDICTION_KEYS = ("label", "value", "illegal", "scores", "spans", "cues", "votes")


def predict(
    cues: Annotated[list[Path], typer.Argument(help="Cue folders; several share forward passes.")],
    source: Annotated[str, typer.Option("--input", help="Rows to read; - takes lines or JSON lines from stdin.")],
    output: Annotated[Path | None, typer.Option(help="Write here (.jsonl or .csv) instead of printing.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per forward pass.")] = 64,
    by_vote: Annotated[
        bool, typer.Option("--vote", help="One prediction per row: the label most cues predict.")
    ] = False,
    by_mean: Annotated[bool, typer.Option("--mean", help="One prediction per row, by the cues' mean scores.")] = False,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict rows with one or more cues that share a backbone."""
    from softcue.cli.output import print_json
    from softcue.errors import ConfigurationError
    from softcue.files import convert_write_errors, write_atomically

    if output is not None:
        if output.suffix not in (".jsonl", ".csv") or output.is_dir():
            raise ConfigurationError(
                setting="output", got=output, expected="a file name ending in .jsonl or .csv", fix="rename it"
            )
        if not output.parent.is_dir():
            raise ConfigurationError(
                setting="output", got=output, expected="a file in an existing folder", fix=f"make {output.parent}"
            )
    join = choose_join(by_vote, by_mean)
    loaded = load_together(cues, backbone, is_ensemble=join is not None)
    names = [cue.name for cue in loaded]
    if len(set(names)) < len(names) and join is None:
        raise ConfigurationError(
            setting="cues", got=", ".join(names), expected="cues with different folder names", fix="rename one"
        )
    lines = _predict_lines(loaded, _rows(loaded, source, skip_bad_rows), join, batch_size)
    if output is not None:
        with convert_write_errors("output", output):
            write_atomically(output, (text.encode() for text in (_csv if output.suffix == ".csv" else _jsonl)(lines)))
    elif as_json:
        print_json({"rows": [line for chunk in lines for line in chunk]})
    else:
        for text in _jsonl(lines):
            sys.stdout.write(text)


def _rows(cues: Sequence[Cue], source: str, skip_bad_rows: bool) -> Iterator[tuple[Example, ...]]:
    """Each row as an example for each cue."""
    if source == "-":
        typed = _standard_input()
        return zip(*(_typed_examples(cue, typed) for cue in cues), strict=True)
    from softcue.tasks import stream_together

    return stream_together(source, [cue.task for cue in cues], skip_bad_rows)


def _predict_lines(
    cues: Sequence[Cue], rows: Iterator[tuple[Example, ...]], join: Join | None, batch_size: int
) -> Iterator[list[dict[str, Any]]]:
    """Lines of the output, in chunks, so that a file need not fit into memory. The server's engine predicts them."""
    from softcue.serving.engine.batcher import Limits
    from softcue.serving.engine.engine import Engine

    num_truncated = 0
    limits = Limits(max_in_flight=2048, max_rows=batch_size)
    named = {str(number): cue for number, cue in enumerate(cues)}
    with Engine(cues[0].backbone, named, limits, max_characters=sys.maxsize) as engine:
        while chunk := list(islice(rows, ROWS_AT_ONCE)):
            items = [(name, row[number]) for number, name in enumerate(named) for row in chunk]
            results = [_check_result(result) for result in engine.predict(items)]
            num_truncated += sum(result.is_truncated for result in results)
            predictions = [result.prediction for result in results]
            yield [_line(cues, row, predictions[number :: len(chunk)], join) for number, row in enumerate(chunk)]
    if num_truncated:
        typer.echo(f"{num_truncated} texts were cut to the backbone's length", err=True)


def _check_result(result: Result) -> ServedPrediction:
    """The prediction of the engine, or its error raised."""
    from softcue.errors import RunError
    from softcue.serving.engine.requests import ServedPrediction

    if isinstance(result, ServedPrediction):
        return result
    if result.code == "failed":
        raise RunError(
            setting="batch_size",
            got="a pass that failed twice",
            expected="a pass without an error",
            fix="the log above has the reason; for memory, lower it",
        )
    raise result


def _line(
    cues: Sequence[Cue], row: Sequence[Example], predictions: Sequence[Prediction], join: Join | None
) -> dict[str, Any]:
    """A row's texts by column name, and its predictions. All cues read columns of the same row."""
    from softcue.evaluation import votes
    from softcue.types import label_text

    line: dict[str, Any] = {}
    for cue, example in zip(cues, row, strict=True):
        columns = (f"input.{name}" if name in PREDICTION_KEYS else name for name in cue.task.text)
        line |= dict(zip(columns, example.texts, strict=True))
    if join is not None:
        counts = {label_text(label): count for label, count in votes(predictions).items()}
        return line | join(predictions).as_dict() | ({"votes": counts} if counts else {})
    if len(cues) == 1:
        return line | predictions[0].as_dict()
    by_cue = {cue.name: prediction.as_dict() for cue, prediction in zip(cues, predictions, strict=True)}
    return line | {"cues": by_cue}


def choose_join(by_vote: bool, by_mean: bool) -> Join | None:
    """The function that joins several cues' predictions, or None."""
    from softcue.errors import ConfigurationError
    from softcue.evaluation import mean, vote

    if by_vote and by_mean:
        raise ConfigurationError(setting="vote", got="--mean", expected="one of the two", fix="leave one out")
    return vote if by_vote else mean if by_mean else None


def load_together(paths: list[Path], backbone: str | None, is_ensemble: bool) -> list[Cue]:
    """Load cues on one backbone. The cues of an ensemble must have one task and differ from each other.

    Example:
        tickets, urgency = load_together([Path("cues/tickets"), Path("cues/urgency")], None, is_ensemble=False)
    """
    from softcue.cue.cue import load
    from softcue.cue.cue_file import read_cue_file
    from softcue.errors import ConfigurationError
    from softcue.evaluation import check_one_task

    if is_ensemble:
        check_one_task({str(path): read_cue_file(path).task for path in paths})
        if len({path.resolve() for path in paths}) < len(paths):
            raise ConfigurationError(
                setting="cues", got=", ".join(map(str, paths)), expected="every cue once", fix="leave out the copy"
            )
    first = load(paths[0], backbone)
    return [first, *(load(path, first.backbone) for path in paths[1:])]


def _typed_examples(cue: Cue, typed: list[Any]) -> list[Example]:
    num_texts = len(cue.task.text)
    return cue.examples([tuple(row.split("\t")) if isinstance(row, str) and num_texts > 1 else row for row in typed])


def _standard_input() -> list[Any]:
    """JSON objects if the first line looks like one, otherwise one text per line (two separated by a tab)."""
    from softcue.errors import DataError
    from softcue.tasks.readers import decoded

    text = decoded(sys.stdin.buffer.read(), "standard input")
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise DataError(
            setting="standard input", got="", expected="at least one line", fix="pipe texts or JSON lines into it"
        )
    if not lines[0][1].lstrip().startswith("{"):
        return [line for _, line in lines]
    rows: list[Any] = []
    for number, line in lines:
        place, advice = f"standard input, line {number}", "write {...} on every line, or plain texts only"
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise DataError(setting=place, got=line[:60], expected="a JSON object", fix=advice) from error
        if not isinstance(rows[-1], dict):
            raise DataError(setting=place, got=line[:60], expected="a JSON object", fix=advice)
    return rows


def _jsonl(chunks: Iterable[list[dict[str, Any]]]) -> Iterator[str]:
    for lines in chunks:
        yield "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _csv(chunks: Iterable[list[dict[str, Any]]]) -> Iterator[str]:
    """CSV lines: texts, then label, score, spans and votes, for each cue or for the ensemble."""
    fields: list[str] = []
    for lines in chunks:
        rows = [_flatten(line) for line in lines]
        is_first = not fields
        # Illegal predictions have other fields than the rest; the first chunk of rows shows all fields.
        fields = fields or list(dict.fromkeys(field for row in rows for field in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, fields, restval="", extrasaction="ignore", lineterminator="\n")
        if is_first:
            writer.writeheader()
        writer.writerows(rows)
        yield text.getvalue()


def _flatten(line: dict[str, Any]) -> dict[str, Any]:
    from softcue.types import label_text

    by_cue = line.pop("cues", None)
    row = {key: value for key, value in line.items() if key not in PREDICTION_KEYS}
    for cue_name, prediction in (by_cue or {"": line}).items():
        prefix = f"{cue_name}." if cue_name else ""
        label = label_text(prediction["label"]) if "label" in prediction else ""
        for key in ("label", "value", "illegal"):
            if key in prediction:
                row[f"{prefix}{key}"] = label if key == "label" else prediction[key]
        if "scores" in prediction:
            row[f"{prefix}score"] = round(prediction["scores"][label], 6)
        if "spans" in prediction:  # 0-7:PER 12-15:PER
            row[f"{prefix}spans"] = " ".join(
                f"{span['start']}-{span['end']}" + (f":{span['label']}" if "label" in span else "")
                for span in prediction["spans"]
            )
        if "votes" in prediction:
            row[f"{prefix}votes"] = prediction["votes"].get(label, 0)
    return row
