"""Whether the data files in a folder are the published ones: every row read, rows and labels counted and compared."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from softcue.errors import SoftcueError
from softcue.tasks.catalogue import checked_folder, places
from softcue.tasks.rows import stream_examples
from softcue.tasks.task import Published, Task

DATA_SUFFIXES = {".csv", ".tsv", ".json", ".jsonl", ".gz", ".parquet"}
CONLL_PREFIX = "eng."  # CoNLL-2003's files: eng.train, eng.testa, eng.testb
SEMEVAL_SUFFIX = ".TXT"  # SemEval's; texts end in .txt


@dataclass(frozen=True)
class Checked:
    """What was found of one split of a task; of a task without files, that it is absent.

    `status` is one of: equal (to the published figures) · part of N (an extract with exactly the figures known of
    it) · uncounted (all rows could be read, but the task has no figures) · differs · unreadable · absent.
    """

    task: str
    status: str
    split: str = ""
    files: tuple[str, ...] = ()  # relative to the data folder
    rows: int = 0
    labels: dict[str, int] = field(default_factory=dict)  # rows per label; for tags: spans per label
    note: str = ""  # what differs, cannot be read or was left out

    @property
    def is_wrong(self) -> bool:
        """Whether somebody has to look at it.

        Example:
            >>> Checked("rte", "differs").is_wrong, Checked("rte", "absent").is_wrong
            (True, False)
        """
        return self.status in ("differs", "unreadable")


def check(folder: str | Path, tasks: Iterable[Task]) -> list[Checked]:
    """Every split of the tasks whose files lie below the folder, compared; tasks that name no files are left out.

    Example:
        >>> import tempfile
        >>> task = Task(name="toy", files={"train": ("toy.csv",)}, published={"train": Published(rows=2)})
        >>> with tempfile.TemporaryDirectory() as name:
        ...     _ = (Path(name) / "toy.csv").write_text("text,label\\nhello,a\\n")
        ...     check(name, [task])[0].note
        '1 rows instead of 2'
    """
    root = checked_folder(folder)
    found: list[Checked] = []
    for task in tasks:
        if not task.files:
            continue
        there = places(task, root)
        if not there:
            found.append(Checked(task.name, "absent"))
        found += [_split(root, task, split, place, files) for split, (place, files) in there.items()]
    return found


def unclaimed(folder: str | Path, checked: Iterable[Checked]) -> list[str]:
    """Data files below the folder that none of the checked splits has read.

    Example:
        >>> unclaimed(Path(__file__).parent / "samples", [Checked("tickets", "equal", files=("tickets/test.csv",))])[:2]
        ['same-request/test.csv', 'same-request/train.csv']
    """
    root = checked_folder(folder)
    read = {name for entry in checked for name in entry.files}
    paths = [path.relative_to(root) for path in root.rglob("*") if _is_data(path) and path.is_file()]
    names = [path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts)]
    return sorted(name for name in names if name not in read)


def _is_data(path: Path) -> bool:
    return (
        path.suffix.lower() in DATA_SUFFIXES or path.suffix == SEMEVAL_SUFFIX or path.name.startswith(CONLL_PREFIX)
    ) and path.stem != "README"


def _split(root: Path, task: Task, split: str, place: str, files: Sequence[Path]) -> Checked:
    names = tuple(path.relative_to(root).as_posix() for path in files)
    try:
        found, note = _counted(task, files)
    except SoftcueError as error:
        return Checked(task.name, "unreadable", split, names, note=_below(root, str(error)))
    status, differs = _compared(found, task.published.get(split), task.parts.get(place))
    note = "; ".join(part for part in (differs, _below(root, note)) if part)
    return Checked(task.name, status, split, names, found.rows, found.labels, note)


def _counted(task: Task, files: Sequence[Path]) -> tuple[Published, str]:
    """What is in the files, and a word about rows that are no examples."""
    rows, labels = 0, Counter(dict.fromkeys(task.labels, 0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Rows that cannot be used are missing from the count, and told of; they do not hide what is wrong elsewhere.
        for example in stream_examples(list(files), task, skip_bad_rows=True):
            rows += 1
            if task.kind == "tags":
                labels.update(span.label for span in example.spans)
            elif task.has_classes:
                labels[str(example.target)] += 1
    return Published(rows=rows, labels=dict(labels)), "; ".join(str(warning.message) for warning in caught)


def _compared(found: Published, whole: Published | None, part: Published | None) -> tuple[str, str]:
    """The status, and what differs. An extract may also turn out to be the whole."""
    if whole is None and part is None:
        return "uncounted", ""
    if whole is not None and not _differences(found, whole):
        return "equal", ""
    if part is not None and not _differences(found, part):
        return f"part of {whole.rows:,}" if whole else "part", ""
    expected = part or whole
    assert expected is not None
    return "differs", _differences(found, expected)


def _differences(found: Published, expected: Published) -> str:
    parts = [f"{found.rows:,} rows instead of {expected.rows:,}"] if found.rows != expected.rows else []
    if expected.labels:
        names = dict.fromkeys([*expected.labels, *found.labels])
        parts += [
            f"{name}: {found.labels.get(name, 0):,} instead of {expected.labels.get(name, 0):,}"
            for name in names
            if found.labels.get(name, 0) != expected.labels.get(name, 0)
        ]
    return ", ".join(parts)


def _below(root: Path, message: str) -> str:
    """A message with its paths as they are below the folder."""
    return message.replace(f"{root}/", "")
