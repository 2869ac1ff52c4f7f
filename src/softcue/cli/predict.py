"""`softcue predict`: predictions of one cue, or of several in mixed batches, each by itself or as an ensemble."""

from __future__ import annotations

import csv
import difflib
import io
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softcue.cli.completion import complete_backbone
from softcue.cli.options import (
    AllowPickle,
    AttentionKind,
    Columns,
    Device,
    Dtype,
    QuantizationKind,
    RequireSignature,
    Runtime,
    RuntimeData,
    RuntimeDtype,
    SkipBadRows,
    VllmArguments,
    VllmPython,
    VllmUrl,
    vllm_settings,
)
from softcue.garbage_collection import collection_paused

if TYPE_CHECKING:
    from softcue.cue.cue import Cue
    from softcue.cue.signatures import PublicKeys
    from softcue.serving.engine.requests import Ensemble
    from softcue.serving.vllm.connect import VllmSettings
    from softcue.tasks.task import Task
    from softcue.types import Example, Prediction

    Join = Callable[[Sequence[Prediction]], Prediction]

BYTES_AT_ONCE = 1 << 20  # of standard input
ROWS_OF_SHARD = 20_000


class PredictionEngine(StrEnum):
    """The program that runs the backbone."""

    LOCAL = "local"
    VLLM = "vllm"
    PROCESSES = "processes"
    RAY = "ray"


def predict(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CUE... [TEXT...]",
            help="Cue folders or hub:OWNER/NAME (several share forward passes), then texts; a tab separates the texts "
            "of a pair.",
        ),
    ],
    source: Annotated[
        str | None, typer.Option("--input", help="Rows to read instead of texts; - takes lines or JSON lines.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write here (.jsonl or .csv) instead of printing.")] = None,
    with_scores: Annotated[
        bool, typer.Option("--scores", help="A column per label with its score, in csv files and tables.")
    ] = False,
    columns: Columns = None,
    backbone: Annotated[
        str | None, typer.Option(help="Load the backbone from here instead.", autocompletion=complete_backbone)
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    attention: AttentionKind = None,
    quantization: QuantizationKind = None,
    allow_pickle: AllowPickle = False,
    require_signature: RequireSignature = None,
    runtime: Runtime = "torch",
    runtime_dtype: RuntimeDtype = "auto",
    runtime_data: RuntimeData = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Most rows of a forward pass.")] = 256,
    by_vote: Annotated[
        bool, typer.Option("--vote", help="One prediction per row: the label most cues predict.")
    ] = False,
    by_mean: Annotated[bool, typer.Option("--mean", help="One prediction per row, by the cues' mean scores.")] = False,
    skip_bad_rows: SkipBadRows = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    engine: Annotated[
        PredictionEngine,
        typer.Option(
            help="local: this process; vllm: vLLM runs the backbone, a decoder; processes: shards of --input in "
            "several processes; ray: shards on a Ray cluster that runs already (extra ray)."
        ),
    ] = PredictionEngine.LOCAL,
    workers: Annotated[
        int | None, typer.Option(min=1, help="With --engine processes or ray; else one per GPU of machine or cluster.")
    ] = None,
    shard_rows: Annotated[
        int | None, typer.Option(min=1, help="With --engine processes or ray: rows of a shard; 20,000 unless set.")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="With --engine ray: HOST:PORT of the cluster, or auto (default).")
    ] = None,
    vllm_url: VllmUrl = None,
    vllm_python: VllmPython = None,
    vllm_arguments: VllmArguments = None,
) -> None:
    """Predict texts or rows with one or more cues that share a backbone.

    softcue predict cues/tickets "My invoice is wrong." prints a table;
    softcue predict cues/tickets --input rows.csv --output predictions.csv writes a file.
    """
    with collection_paused():  # torch and transformers are imported here
        from softcue.cli.output import print_json
        from softcue.cue.cue import backbone_settings
        from softcue.cue.signatures import read_public_keys
        from softcue.tasks.columns import parse_columns, rename_columns

    if output is not None:
        _check_output(output)
    paths, texts = split_words(words, source)
    renamed = parse_columns(columns or [])
    ensemble = choose_ensemble(by_vote, by_mean)
    signers = None if require_signature is None else read_public_keys(require_signature)
    settings = backbone_settings(device, dtype, attention, quantization)
    vllm = vllm_settings(engine is PredictionEngine.VLLM, vllm_url, vllm_python, vllm_arguments)
    _check_shard_options(engine, source, output, {"workers": workers, "shard_rows": shard_rows}, ray_address)
    _check_runtime(engine, runtime)
    if engine in (PredictionEngine.PROCESSES, PredictionEngine.RAY):
        assert source is not None and output is not None
        shards: dict[str, Any] = {
            "cues": [str(path.resolve()) for path in paths],
            "source": source,
            "backbone": str(Path(backbone).resolve()) if backbone and Path(backbone).exists() else backbone,
            "backbone_settings": settings,
            "columns": renamed,
            "ensemble": ensemble,
            "batch_size": batch_size,
            "shard_rows": shard_rows or ROWS_OF_SHARD,
            "allow_pickle": allow_pickle,
            "require_signature": None if require_signature is None else str(require_signature.resolve()),
        }
        address = (ray_address or "auto") if engine is PredictionEngine.RAY else None
        _predict_shards(shards, output, with_scores, skip_bad_rows, workers, address)
        return
    choice = (runtime, runtime_dtype, runtime_data)
    cues = load_together(paths, backbone, ensemble is not None, allow_pickle, signers, settings, choice)
    if vllm is not None:
        cues = _load_on_vllm(paths, cues, vllm, signers)
    names = [cue.name for cue in cues]
    _check_names(names, ensemble)
    tasks = rename_columns([cue.task for cue in cues], renamed, needs_target=False)
    if source is None:
        chunks = _in_chunks(_typed_rows(cues, _group_texts(tasks, texts)))
    else:
        from softcue.tasks import stream_together

        lines_in = StandardInput() if source == "-" else None
        given = source if lines_in is None else _input_rows(lines_in, tasks)
        rows = stream_together(given, tasks, skip_bad_rows, setting="input")
        chunks = _in_chunks(rows, (lambda: True) if lines_in is None else lines_in.has_more)
    lines = _predict_lines(cues, tasks, chunks, ensemble, batch_size)
    if output is not None:
        _write(output, lines, with_scores, dict(zip(names, (task.separator for task in tasks), strict=True)))
    elif as_json:
        print_json({"rows": [line for chunk in lines for line in chunk]})
    elif source is None:
        _print_predictions([line for chunk in lines for line in chunk], with_scores)
    else:
        for text in _jsonl(lines):
            sys.stdout.write(text)
            sys.stdout.flush()  # standard input may go on


def _check_output(output: Path) -> None:
    from softcue.errors import ConfigurationError

    if output.suffix not in (".jsonl", ".csv") or output.is_dir():
        raise ConfigurationError(
            setting="output", got=output, expected="a file name ending in .jsonl or .csv", fix="rename it"
        )
    if not output.parent.is_dir():
        raise ConfigurationError(
            setting="output", got=output, expected="a file in an existing folder", fix=f"make {output.parent}"
        )


def split_words(words: Sequence[str], source: str | None) -> tuple[list[Path], list[str]]:
    """Split the words of the command line into cue folders and texts.

    The first word is a cue folder, and so is every folder and every `hub:OWNER/NAME` behind it. The other words are
    texts, which come last. A word that may be a misspelt folder is an error: it has a slash and no space, or resembles
    a cue beside the given ones.

    Example:
        >>> split_words(["cues/tickets", "My invoice is wrong."], None)
        ([PosixPath('cues/tickets')], ['My invoice is wrong.'])
    """
    from softcue.errors import ConfigurationError

    is_text = [number > 0 and not (os.path.isdir(word) or _is_on_hub(word)) for number, word in enumerate(words)]
    num_cues = is_text.index(True) if True in is_text else len(words)
    cues, texts = [_folder(word) for word in words[:num_cues]], list(words[num_cues:])
    for word in texts:
        _check_is_text(word, cues)
    if source is not None and texts:
        raise ConfigurationError(
            setting="input",
            got=source,
            expected="either texts on the command line or a file with rows",
            fix=f"leave out --input, or the text '{texts[0]}'",
        )
    if source is None and not texts and (cues[0] / "cue.json").is_file():
        if other := next((cue for cue in cues if not (cue / "cue.json").is_file()), None):
            raise ConfigurationError(
                setting="cue",
                got=str(other),
                expected="a folder with cue.json, or a text",
                fix="this folder has none; a text with the name of a folder can be read with --input -",
            )
        raise ConfigurationError(
            setting="texts",
            got="none",
            expected="something to predict",
            fix=f'write a text: softcue predict {cues[0]} "a text"; or pass --input FILE',
        )
    return cues, texts


def _is_on_hub(word: str) -> bool:
    """Whether a word is the address of a cue on the hub; a text has spaces."""
    return word.startswith("hub:") and not any(character.isspace() for character in word)


def _folder(word: str) -> Path:
    """The folder of a cue's address. The module for the hub is imported only if a cue is there."""
    if not _is_on_hub(word):
        return Path(word)
    from softcue.cue.hub import find_cue_folder

    return find_cue_folder(word)


def _check_is_text(word: str, cues: Sequence[Path]) -> None:
    """Raise an error if a word was probably meant to be a cue folder."""
    from softcue.errors import ConfigurationError

    if os.path.isfile(os.path.join(word, "cue.json")):
        raise ConfigurationError(setting="cue", got=word, expected="all cue folders before the texts", fix="move it")
    if any(character.isspace() for character in word):
        return
    folders = {folder for folder in (*(cue.parent for cue in cues), Path(word).parent) if os.path.isdir(folder)}
    siblings = {file.parent.name: str(file.parent) for folder in folders for file in folder.glob("*/cue.json")}
    # Chinese or Japanese texts have no spaces, and may have a slash.
    is_path = "/" in word and (word.isascii() or os.path.isdir(Path(word).parent))
    close = difflib.get_close_matches(Path(word).name, siblings, 1, 0.75)
    if is_path or close:
        advice = f"did you mean '{siblings[close[0]]}'?" if close else "check the path."
        raise ConfigurationError(
            setting="cue",
            got=word,
            expected="a folder with cue.json, or a text",
            fix=f"{advice} A text like this can be read with --input -",
        )


def _group_texts(tasks: Sequence[Task], texts: list[str]) -> list[Any]:
    """Texts as rows. For a task that reads two texts, two words without a tab are one row."""
    from softcue.errors import DataError

    num_texts = max(len(task.text) for task in tasks)
    if any(len(task.text) != num_texts for task in tasks):
        reads = "; ".join(dict.fromkeys(", ".join(task.text) for task in tasks))
        raise DataError(
            setting="texts",
            got=f"cues that read different columns: {reads}",
            expected="cues that read the same number of texts",
            fix="pass a file with all these columns as --input, or ask one cue at a time",
        )
    if num_texts == 1 or all("\t" in text for text in texts):
        return list(texts)
    if len(texts) == num_texts and not any("\t" in text for text in texts):
        return ["\t".join(texts)]
    columns = next(task.text for task in tasks if len(task.text) == num_texts)
    raise DataError(
        setting="texts",
        got=next(text for text in texts if "\t" not in text),
        expected=f"{num_texts} texts for each row: {', '.join(columns)}",
        fix="write one row as separate words, or each row as a word with a tab between its texts",
    )


def _typed_rows(cues: Sequence[Cue], typed: list[Any]) -> Iterator[tuple[Example, ...]]:
    """Each typed row as an example for each cue."""
    return zip(*(cue.examples([_split_pair(cue.task, row) for row in typed]) for cue in cues), strict=True)


def _split_pair(task: Task, row: str) -> Any:
    return tuple(row.split("\t")) if len(task.text) > 1 else row


def _in_chunks(
    rows: Iterator[tuple[Example, ...]], has_more: Callable[[], bool] = lambda: True
) -> Iterator[list[tuple[Example, ...]]]:
    """Rows in chunks, so that a file need not fit into memory; `has_more` says whether the next row is there yet."""
    from softcue.serving.prediction_lines import ROWS_AT_ONCE

    for row in rows:
        chunk = [row]
        while len(chunk) < ROWS_AT_ONCE and has_more() and (following := next(rows, None)) is not None:
            chunk.append(following)
        yield chunk


def _print_predictions(lines: Sequence[dict[str, Any]], with_scores: bool) -> None:
    """Print a table: the texts, and the predictions of each cue or of the ensemble."""
    from softcue.cli.output import print_table
    from softcue.serving.prediction_lines import PREDICTION_KEYS

    rows = []
    for line in lines:
        texts = {key: value for key, value in line.items() if key not in PREDICTION_KEYS}
        for cue_name, prediction in line.get("cues", {"": line}).items():
            row = {**texts, **({"cue": cue_name} if cue_name else {})}
            row["prediction"] = _prediction_text(prediction, list(texts.values())[-1])
            if scores := chosen_scores(prediction):
                row["score"] = ", ".join(f"{score:.3f}" for score in scores)
            if with_scores:
                row |= {f"score.{label}": f"{score:.3f}" for label, score in (prediction.get("scores") or {}).items()}
            rows.append(row)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    print_table("", columns, [[row.get(column, "") for column in columns] for row in rows])
    if with_scores and not any("score" in row for row in rows):
        typer.echo("these predictions have no scores per label", err=True)


def _prediction_text(prediction: dict[str, Any], text: str) -> str:
    """A prediction in words: a label, a set of labels, a number, generated text, or the words of its spans."""
    from softcue.types import labels_text

    if "labels" in prediction:
        return labels_text(prediction["labels"])
    spans = prediction.get("spans") or []
    if any("label" in span for span in spans):
        return ", ".join(f"{text[span['start'] : span['end']]} ({span['label']})" for span in spans)
    value = prediction.get("label", prediction.get("value", ""))
    shown = f"{value:.3f}" if isinstance(value, float) else str(value)
    return f"{shown} (not allowed by the task)" if prediction.get("illegal") else shown


def chosen_scores(prediction: dict[str, Any]) -> list[float]:
    """The scores of the predicted label or labels, in their order; none if there are no scores.

    Example:
        >>> chosen_scores({"label": True, "scores": {"true": 0.9, "false": 0.1}})
        [0.9]
        >>> chosen_scores({"labels": ["a", "c"], "scores": {"a": 0.9, "b": 0.1, "c": 0.6}})
        [0.9, 0.6]
    """
    from softcue.types import label_text

    scores = prediction.get("scores")
    if not scores:
        return []
    labels = prediction["labels"] if "labels" in prediction else [prediction["label"]]
    return [float(scores[label_text(label)]) for label in labels]


def _predict_lines(
    cues: Sequence[Cue],
    tasks: Sequence[Task],
    chunks: Iterator[list[tuple[Example, ...]]],
    ensemble: Ensemble | None,
    batch_size: int,
) -> Iterator[list[dict[str, Any]]]:
    """Lines of the output, chunk by chunk. The server's engine predicts them."""
    from softcue.serving.prediction_lines import LinePredictor

    with LinePredictor(cues, tasks, ensemble, batch_size) as predictor:
        for chunk in chunks:
            yield predictor.lines(chunk)
    _tell_truncated(predictor.num_truncated)


def _tell_truncated(num_truncated: int) -> None:
    if num_truncated:
        typer.echo(f"{num_truncated} texts were cut to the backbone's length", err=True)


def _write(
    output: Path, lines: Iterable[list[dict[str, Any]]], with_scores: bool, separators: Mapping[str, str]
) -> None:
    """Write lines to a csv or jsonl file; `separators` are as in `_csv`."""
    from softcue.files import convert_write_errors, write_atomically

    chunks = _csv(lines, with_scores, separators) if output.suffix == ".csv" else _jsonl(lines)
    with convert_write_errors("output", output):
        write_atomically(output, (text.encode() for text in chunks))


def _check_runtime(engine: PredictionEngine, runtime: str) -> None:
    """Raise an error for another runtime than torch where the layers do not run in this process."""
    from softcue.errors import ConfigurationError

    if runtime != "torch" and engine is not PredictionEngine.LOCAL:
        raise ConfigurationError(
            setting="runtime", got=runtime, expected=f"torch with --engine {engine}", fix="leave one of the two out"
        )


def _check_shard_options(
    engine: PredictionEngine,
    source: str | None,
    output: Path | None,
    options: Mapping[str, int | None],
    ray_address: str | None,
) -> None:
    """Raise an error if shards lack a file to read or write, or an option belongs to another engine."""
    from softcue.errors import ConfigurationError

    has_shards = engine in (PredictionEngine.PROCESSES, PredictionEngine.RAY)
    for name, value in options.items():
        if value is not None and not has_shards:
            raise ConfigurationError(
                setting=name,
                got=value,
                expected=f"no such option with --engine {engine}",
                fix="pass --engine processes or --engine ray",
            )
    if ray_address is not None and engine is not PredictionEngine.RAY:
        raise ConfigurationError(
            setting="ray_address",
            got=ray_address,
            expected=f"no such option with --engine {engine}",
            fix="pass --engine ray",
        )
    if has_shards and (source is None or source == "-" or output is None):
        raise ConfigurationError(
            setting="engine",
            got=str(engine),
            expected="a file of rows and a file for predictions",
            fix="pass --input FILE and --output FILE",
        )


def _predict_shards(
    values: Mapping[str, Any],
    output: Path,
    with_scores: bool,
    skip_bad_rows: bool,
    num_workers: int | None,
    ray_address: str | None,
) -> None:
    """Predict shards of the input, in processes or on Ray, then join their lines to the output."""
    from softcue.cue.cue_file import check_each_once, read_cue_file
    from softcue.evaluation import check_one_task
    from softcue.files import lock_folder
    from softcue.serving.shards import ShardFolder, ShardSettings, predict_in_processes, predict_on_ray
    from softcue.tasks import stream_together
    from softcue.tasks.columns import rename_columns

    settings = ShardSettings.model_validate(values)
    paths = [Path(cue) for cue in settings.cues]
    cue_files = {str(path): read_cue_file(path, settings.signers) for path in paths}
    if settings.ensemble is not None:
        check_one_task({name: cue_file.task for name, cue_file in cue_files.items()})
        check_each_once(paths)
    _check_names([path.name for path in paths], settings.ensemble)
    tasks = rename_columns([cue_file.task for cue_file in cue_files.values()], settings.columns, needs_target=False)
    folder = ShardFolder(output.with_name(f"{output.name}.shards").resolve())

    def tell(num_finished: int, num_shards: int) -> None:
        typer.echo(f"shard {num_finished} of {num_shards}", err=True)

    with lock_folder(folder.path):
        folder.lay_out(settings, lambda: stream_together(settings.source, tasks, skip_bad_rows, setting="input"))
        if ray_address is None:
            num_truncated = predict_in_processes(folder, num_workers, tell)
        else:
            num_truncated = predict_on_ray(folder, num_workers, ray_address, tell)
        separators = {path.name: task.separator for path, task in zip(paths, tasks, strict=True)}
        _write(output, folder.lines(), with_scores, separators)
        folder.remove()
    _tell_truncated(num_truncated)


def _check_names(names: Sequence[str], ensemble: Ensemble | None) -> None:
    from softcue.errors import ConfigurationError

    if len(set(names)) < len(names) and ensemble is None:
        raise ConfigurationError(
            setting="cues", got=", ".join(names), expected="cues with different folder names", fix="rename one"
        )


def choose_ensemble(by_vote: bool, by_mean: bool) -> Ensemble | None:
    """How several cues' predictions are joined, or None."""
    from softcue.errors import ConfigurationError

    if by_vote and by_mean:
        raise ConfigurationError(setting="vote", got="--mean", expected="one of the two", fix="leave one out")
    return "vote" if by_vote else "mean" if by_mean else None


def choose_join(by_vote: bool, by_mean: bool) -> Join | None:
    """The function that joins several cues' predictions, or None."""
    from softcue.evaluation import mean, vote

    ensemble = choose_ensemble(by_vote, by_mean)
    return None if ensemble is None else vote if ensemble == "vote" else mean


def load_together(
    paths: list[Path],
    backbone: str | None,
    is_ensemble: bool,
    allow_pickle: bool = False,
    signers: PublicKeys | None = None,
    settings: Mapping[str, Any] | None = None,
    runtime: tuple[str, str, Path | None] = ("torch", "auto", None),
) -> list[Cue]:
    """Load cues on one backbone. The cues of an ensemble must have one task and differ from each other.

    `settings` are those of `softcue.load` for the backbone, such as its device.
    `runtime` is that of the frozen layers, with its number format and the rows to compare it on.

    Example:
        tickets, urgency = load_together([Path("cues/tickets"), Path("cues/urgency")], None, is_ensemble=False)
    """
    from softcue.cue.cue import load
    from softcue.cue.cue_file import check_each_once, read_cue_file
    from softcue.evaluation import check_one_task

    if is_ensemble:
        check_one_task({str(path): read_cue_file(path, signers).task for path in paths})
        check_each_once(paths)
    if runtime[0] != "torch":
        return _load_in_runtime(paths, backbone, allow_pickle, signers, settings or {}, runtime)
    first = load(paths[0], backbone, allow_pickle=allow_pickle, require_signature=signers, **(settings or {}))
    return [first, *(load(path, first.backbone, require_signature=signers) for path in paths[1:])]


def _load_on_vllm(
    paths: Sequence[Path], cues: Sequence[Cue], vllm: VllmSettings, signers: PublicKeys | None
) -> list[Cue]:
    """The same cues on their backbone as vLLM runs it. A vLLM that is started here ends with this process."""
    from softcue.cue.cue import load
    from softcue.serving.vllm.connect import check_cue, on_vllm

    for cue in cues:  # before vLLM starts, which takes a while
        check_cue(cue.name, cue.model, cue.backbone)
    served = on_vllm(cues[0].backbone, vllm)
    return [load(path, served, require_signature=signers) for path in paths]


class StandardInput:
    """The lines of standard input with their numbers, read as they come; blank ones are left out.

    Example:
        for number, line in StandardInput(): ...
    """

    def __init__(self) -> None:
        self._ready: deque[tuple[int, str]] = deque()
        self._unfinished = b""  # the beginning of a line
        self._num_lines = 0

    def has_more(self) -> bool:
        """Whether a line was read already: the next one comes without waiting for it."""
        return bool(self._ready)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield the lines."""
        while self._ready or self._read():
            while self._ready:
                yield self._ready.popleft()

    def _read(self) -> bool:
        """Read what is there, at least a part of a line; false at the end."""
        from softcue.tasks.readers import decoded

        stream: Any = sys.stdin.buffer  # buffered, though typed as any binary file
        data: bytes = stream.read1(BYTES_AT_ONCE)
        finished, line_end, unfinished = (self._unfinished + data).rpartition(b"\n")
        if not data:
            finished, line_end, unfinished = self._unfinished, b"", b""
        self._unfinished = unfinished
        if finished or line_end:
            lines = decoded(finished, "standard input", self._num_lines + 1).split("\n")
            for number, line in enumerate(lines, start=self._num_lines + 1):
                if line.strip():
                    self._ready.append((number, line.rstrip("\r")))
            self._num_lines += len(lines)
        return bool(data or self._ready)


def _input_rows(lines: StandardInput, tasks: Sequence[Task]) -> Iterator[dict[str, Any]]:
    """Rows of standard input: JSON objects if the first line looks like one, else a text (or several, with tabs)."""
    from softcue.errors import DataError

    are_objects: bool | None = None
    num_rows = 0
    for number, line in lines:
        num_rows += 1
        if are_objects is None:
            are_objects = line.lstrip().startswith("{")
        yield _json_object(number, line) if are_objects else _text_row(num_rows, line, tasks)
    if not num_rows:
        raise DataError(
            setting="standard input", got="", expected="at least one line", fix="pipe texts or JSON lines into it"
        )


def _json_object(number: int, line: str) -> dict[str, Any]:
    from softcue.errors import DataError

    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if isinstance(row, dict):
        return row
    raise DataError(
        setting=f"standard input, line {number}",
        got=line[:60],
        expected="a JSON object",
        fix="write {...} on every line, or plain texts only",
    )


def _text_row(number: int, line: str, tasks: Sequence[Task]) -> dict[str, Any]:
    """A line as a row with the columns that each task reads."""
    from softcue.errors import DataError

    row: dict[str, Any] = {}
    for task in tasks:
        parts = line.split("\t") if len(task.text) > 1 else [line]
        if len(parts) != len(task.text):
            raise DataError(
                setting=f"row {number}",
                got=line[:60],
                expected=f"{len(task.text)} text(s): {', '.join(task.text)}",
                fix="write the texts of a row on one line, with a tab between them",
            )
        row |= zip(task.text, parts, strict=True)
    return row


def _jsonl(chunks: Iterable[list[dict[str, Any]]]) -> Iterator[str]:
    encode = json.JSONEncoder(ensure_ascii=False).encode
    for lines in chunks:
        yield "".join([encode(line) + "\n" for line in lines])


def _csv(chunks: Iterable[list[dict[str, Any]]], with_scores: bool, separators: Mapping[str, str]) -> Iterator[str]:
    """CSV lines: texts, then label, score (of each label too), spans and votes, for each cue or for the ensemble.

    `separators` stand between the labels of a set, by the cue's name: as in the files that the cue was trained on.
    """
    fields: list[str] = []
    for lines in chunks:
        rows = [_flatten(line, with_scores, separators) for line in lines]
        is_first = not fields
        # Illegal predictions have other fields than the rest; the first chunk of rows shows all fields.
        fields = fields or list(dict.fromkeys(field for row in rows for field in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, fields, restval="", extrasaction="ignore", lineterminator="\n")
        if is_first:
            writer.writeheader()
        writer.writerows(rows)
        yield text.getvalue()


def _flatten(line: dict[str, Any], with_scores: bool, separators: Mapping[str, str]) -> dict[str, Any]:
    from softcue.serving.prediction_lines import PREDICTION_KEYS
    from softcue.types import label_text

    by_cue = line.pop("cues", None)
    row = {key: value for key, value in line.items() if key not in PREDICTION_KEYS}
    for cue_name, prediction in (by_cue or {"": line}).items():
        prefix = f"{cue_name}." if cue_name else ""
        separator = separators.get(cue_name) or next(iter(separators.values()))
        label = label_text(prediction["label"]) if "label" in prediction else ""
        for key in ("label", "value", "illegal"):
            if key in prediction:
                row[f"{prefix}{key}"] = label if key == "label" else prediction[key]
        if "labels" in prediction:
            row[f"{prefix}labels"] = separator.join(map(label_text, prediction["labels"]))
        elif "scores" in prediction:
            row[f"{prefix}score"] = round(chosen_scores(prediction)[0], 6)
        if "scores" in prediction and with_scores:
            row |= {f"{prefix}score.{name}": round(score, 6) for name, score in prediction["scores"].items()}
        if "spans" in prediction:  # 0-7:PER 12-15:PER
            row[f"{prefix}spans"] = " ".join(
                f"{span['start']}-{span['end']}" + (f":{span['label']}" if "label" in span else "")
                for span in prediction["spans"]
            )
        if "votes" in prediction and "labels" in prediction:  # billing=3;shipping=2
            row[f"{prefix}votes"] = separator.join(f"{name}={count}" for name, count in prediction["votes"].items())
        elif "votes" in prediction:
            row[f"{prefix}votes"] = prediction["votes"].get(label, 0)
    return row


def _load_in_runtime(
    paths: list[Path],
    backbone: str | None,
    allow_pickle: bool,
    signers: PublicKeys | None,
    settings: Mapping[str, str],
    runtime: tuple[str, str, Path | None],
) -> list[Cue]:
    """Load cues on a backbone in float32, then give it a runtime with graphs for all of them."""
    from softcue.backbones import load_backbone
    from softcue.backbones.runtimes import RuntimeChoice
    from softcue.cue.cue import backbone_config, load, settings_for_runtime
    from softcue.cue.cue_file import read_cue_file
    from softcue.cue.hub import find_cue_folder
    from softcue.cue.runtimes import start_runtime

    choice = RuntimeChoice.of(*runtime)
    cue_file = read_cue_file(find_cue_folder(paths[0]), signers)
    shared = load_backbone(backbone_config(cue_file, backbone, allow_pickle, settings_for_runtime(settings)))
    cues = [load(path, shared, require_signature=signers) for path in paths]
    start_runtime(shared, cues, choice)
    return cues
