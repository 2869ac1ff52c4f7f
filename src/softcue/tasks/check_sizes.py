"""Checks that the data files in a folder are the published ones: counts rows and labels and compares them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from softcue.errors import SoftcueError
from softcue.tasks.catalogue import check_folder, match_files
from softcue.tasks.rows import stream_examples
from softcue.tasks.task import Published, Task

DATA_SUFFIXES = {".csv", ".tsv", ".json", ".jsonl", ".gz", ".parquet"}
CONLL_PREFIX = "eng."  # the files of CoNLL-2003: eng.train, eng.testa, eng.testb
SEMEVAL_SUFFIX = ".TXT"  # the files of SemEval; other texts end in .txt


@dataclass(frozen=True)
class SplitCheck:
    """The result of checking one split of a task, or the absence of all files of a task.

    `status` is one of: equal (to the published sizes) · part of N (an extract with exactly its known sizes) ·
    uncounted (all rows can be read, but the task has no published sizes) · differs · unreadable · absent.
    """

    task: str
    status: str
    split: str = ""
    files: tuple[str, ...] = ()  # relative to the data folder
    rows: int = 0
    labels: dict[str, int] = field(default_factory=dict)  # rows per label; for tags: spans per label
    note: str = ""  # the differences, the read error or the skipped rows

    @property
    def is_wrong(self) -> bool:
        """Whether the files are not the published ones.

        Example:
            >>> SplitCheck("rte", "differs").is_wrong, SplitCheck("rte", "absent").is_wrong
            (True, False)
        """
        return self.status in ("differs", "unreadable")


def check(folder: str | Path, tasks: Iterable[Task]) -> list[SplitCheck]:
    """Check every split of the tasks with files below the folder. Tasks that name no files are left out.

    Example:
        >>> import tempfile
        >>> task = Task(name="toy", files={"train": ("toy.csv",)}, published={"train": Published(rows=2)})
        >>> with tempfile.TemporaryDirectory() as name:
        ...     _ = (Path(name) / "toy.csv").write_text("text,label\\nhello,a\\n")
        ...     check(name, [task])[0].note
        '1 rows instead of 2'
    """
    root = check_folder(folder)
    checks: list[SplitCheck] = []
    for task in tasks:
        if not task.files:
            continue
        matches = match_files(task, root)
        if not matches:
            checks.append(SplitCheck(task.name, "absent"))
        checks += [_check_split(root, task, split, pattern, files) for split, (pattern, files) in matches.items()]
    return checks


def unclaimed_files(folder: str | Path, checked: Iterable[SplitCheck]) -> list[str]:
    """The data files below the folder that belong to none of the checked splits.

    Example:
        >>> checked = SplitCheck("tickets", "equal", files=("tickets/test.csv",))
        >>> unclaimed_files(Path(__file__).parent / "samples", [checked])[:2]
        ['reply-form/test.csv', 'reply-form/train.csv']
    """
    root = check_folder(folder)
    read = {name for entry in checked for name in entry.files}
    paths = [path.relative_to(root) for path in root.rglob("*") if _is_data(path) and path.is_file()]
    names = [path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts)]
    return sorted(name for name in names if name not in read)


def _is_data(path: Path) -> bool:
    return (
        path.suffix.lower() in DATA_SUFFIXES or path.suffix == SEMEVAL_SUFFIX or path.name.startswith(CONLL_PREFIX)
    ) and path.stem != "README"


def _check_split(root: Path, task: Task, split: str, pattern: str, files: Sequence[Path]) -> SplitCheck:
    names = tuple(path.relative_to(root).as_posix() for path in files)
    try:
        size, warning = _count(task, files)
    except SoftcueError as error:
        return SplitCheck(task.name, "unreadable", split, names, note=_shorten_paths(root, str(error)))
    status, differences = _compare(size, task.published.get(split), task.parts.get(pattern))
    note = "; ".join(part for part in (differences, _shorten_paths(root, warning)) if part)
    return SplitCheck(task.name, status, split, names, size.rows, size.labels, note)


def _count(task: Task, files: Sequence[Path]) -> tuple[Published, str]:
    """The rows and labels of the files, and the warning about skipped rows."""
    rows, labels = 0, Counter(dict.fromkeys(task.labels, 0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Bad rows are not counted but reported, so they do not hide other differences.
        for example in stream_examples(list(files), task, skip_bad_rows=True):
            rows += 1
            labels.update(task.labels_of(example))
    return Published(rows=rows, labels=dict(labels)), "; ".join(str(warning.message) for warning in caught)


def _compare(size: Published, whole: Published | None, part: Published | None) -> tuple[str, str]:
    """The status and the differences. A file with the name of an extract may hold the complete split."""
    if whole is None and part is None:
        return "uncounted", ""
    if whole is not None and not _differences(size, whole):
        return "equal", ""
    if part is not None and not _differences(size, part):
        return f"part of {whole.rows:,}" if whole else "part", ""
    expected = part or whole
    assert expected is not None
    return "differs", _differences(size, expected)


def _differences(size: Published, expected: Published) -> str:
    parts = [f"{size.rows:,} rows instead of {expected.rows:,}"] if size.rows != expected.rows else []
    if expected.labels:
        names = dict.fromkeys([*expected.labels, *size.labels])
        parts += [
            f"{name}: {size.labels.get(name, 0):,} instead of {expected.labels.get(name, 0):,}"
            for name in names
            if size.labels.get(name, 0) != expected.labels.get(name, 0)
        ]
    return ", ".join(parts)


def _shorten_paths(root: Path, message: str) -> str:
    """The message on one line, with paths relative to the folder."""
    return " ".join(message.split()).replace(f"{root}/", "")
