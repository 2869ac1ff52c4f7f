"""Where a study keeps its runs: a folder, or with fsspec any place it can reach, such as s3://bucket/study.

study.yaml                 the study as it is run, with all choices made on the command line
runs/ID/result.json        written last: a run without it is not finished, and does not count
runs/ID/failures.json      why attempts failed, with times
runs/ID/cue                the cue, as `softcue train` writes it
runs/ID/log.txt            what the run printed
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from softcue.errors import ConfigurationError, MissingExtraError, RunError
from softcue.files import TEMPORARY_SUFFIX, convert_write_errors, lock_folder, remove, write_atomically, write_json
from softcue.studies.result_file import parse_failures, parse_result
from softcue.studies.runs import Result, StudyRun
from softcue.studies.study import SCALES, Study, make_study
from softcue.yaml_text import parse_yaml

RESULT, FAILURES, LOG, STUDY = "result.json", "failures.json", "log.txt", "study.yaml"
Failure = dict[str, Any]  # time, reason


class StudyFolder:
    """A study in a folder of this machine, or of a file system that all workers share.

    Example:
        folder = StudyFolder("studies/quick")
        folder.results()
    """

    def __init__(self, place: str | Path) -> None:
        self.path = Path(place)
        self.runs = self.path / "runs"

    def __str__(self) -> str:
        return str(self.path)

    def read_study(self) -> Study:
        """The study of the folder."""
        return _parse_study(self, self._read_text(STUDY))

    def begin(self, study: Study) -> None:
        """Write the study. A folder of another study is an error; more seeds, methods or tasks are welcome."""
        text = self._read_text(STUDY)
        if text is not None and (before := _parse_study(self, text)).name != study.name:
            raise RunError(
                setting="output_dir",
                got=self,
                expected=f"the folder of the study '{study.name}', or a new one",
                fix=f"it holds the study '{before.name}': choose another folder",
            )
        self._write_text(STUDY, yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False, allow_unicode=True))

    def results(self) -> dict[str, Result]:
        """The results of all finished runs by their ids. A damaged file is no result."""
        results = {run: parse_result(data) for run, data in self._files_of_runs(RESULT)}
        return {run: result for run, result in results.items() if result is not None}

    def result_of(self, run: str) -> Result | None:
        """The result of a run, if it is finished."""
        data = self._read_file(run, RESULT)
        return None if data is None else parse_result(data)

    def failures(self) -> dict[str, list[Failure]]:
        """The failed attempts of each run."""
        return {run: attempts for run, data in self._files_of_runs(FAILURES) if (attempts := parse_failures(data))}

    def add_failure(self, run: StudyRun, reason: str) -> None:
        """Keep the reason of a failed attempt."""
        attempts = self.failures_of(run.id)
        attempts.append({"time": time.strftime("%Y-%m-%d %H:%M:%S"), "reason": reason, "digest": run.digest})
        with convert_write_errors("output_dir", self.path):
            self._folder(run.id).mkdir(parents=True, exist_ok=True)
            write_json(self._folder(run.id) / FAILURES, {"attempts": attempts})

    def failures_of(self, run: str) -> list[Failure]:
        """The failed attempts of a run."""
        data = self._read_file(run, FAILURES)
        return [] if data is None else parse_failures(data)

    def log_of(self, run: str) -> Path:
        """The file with what a run prints."""
        return self._folder(run) / LOG

    @contextmanager
    def claim(self, run: StudyRun) -> Iterator[Path]:
        """Hold the folder of a run; FolderInUseError if another process does. The claim ends with the process."""
        folder = self._folder(run.id)
        with lock_folder(folder):
            folder.mkdir(parents=True, exist_ok=True)
            yield folder

    def finish(self, run: StudyRun, result: Result) -> None:
        """Write a result: from now on the run counts."""
        write_json(self._folder(run.id) / RESULT, result)

    def _folder(self, run: str) -> Path:
        return self.runs / run

    def _read_file(self, run: str, name: str) -> bytes | None:
        """The content of a file of a run; None if it cannot be read."""
        try:
            return (self._folder(run) / name).read_bytes()
        except OSError:
            return None

    def _files_of_runs(self, name: str) -> Iterator[tuple[str, bytes]]:
        """Each run that has a file of this name, and its content."""
        for path in sorted(self.runs.rglob(name)):
            run = path.parent.relative_to(self.runs).as_posix()
            if (data := self._read_file(run, name)) is not None:
                yield run, data

    def _read_text(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(
                setting="output_dir", got=self.path, expected="a study folder that can be read", fix=str(error)
            ) from error

    def _write_text(self, name: str, text: str) -> None:
        with convert_write_errors("output_dir", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / name, text.encode())


class RemoteStudyFolder(StudyFolder):
    """A study at an fsspec URL. Runs work in a folder of their machine, and are copied when they are finished.

    A run that loses its worker starts again elsewhere: its checkpoints were on that machine. Runs are handed out by the
    process that started the study, so only that process may run it at a time.

    Example:
        folder = RemoteStudyFolder("s3://bucket/studies/quick")
    """

    def __init__(self, place: str) -> None:
        try:
            import fsspec
        except ImportError as error:  # it comes with torch
            raise MissingExtraError("fsspec", "ray") from error
        self.url = place.rstrip("/")
        try:
            self._files, root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(
                setting="output_dir", got=place, expected="a folder or an fsspec URL", fix=str(error)
            ) from error
        self._root = str(root).rstrip("/")
        # `path` is the working folder of this machine; what is finished is at the URL.
        name = self.url.replace("/", "_").replace(":", "")
        super().__init__(Path(tempfile.gettempdir()) / f"softcue-studies-{os.getuid()}" / name)

    def __str__(self) -> str:
        return self.url

    @contextmanager
    def claim(self, run: StudyRun) -> Iterator[Path]:
        """Hold the working folder of a run, with the finished runs that it needs beside it."""
        with super().claim(run) as folder:
            for needed in run.needs:
                self._fetch(needed)
            yield folder

    def _fetch(self, run: str) -> None:
        """Copy a finished run to this machine, unless it is here already; what another study left there is replaced."""
        folder, result = self._folder(run), self._read_file(run, RESULT)
        if result is not None and super()._read_file(run, RESULT) == result:
            return
        temporary = folder.with_name(f"{folder.name}{TEMPORARY_SUFFIX}")
        remove(temporary)
        self._files.get(self._remote(run), str(temporary), recursive=True)
        remove(folder)
        temporary.rename(folder)

    def finish(self, run: StudyRun, result: Result) -> None:
        """Copy the folder of a run, its result last."""
        folder = self._folder(run.id)
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            self._put(f"{run.id}/{file.relative_to(folder).as_posix()}", file.read_bytes())
        data = json.dumps(result).encode()
        self._put(f"{run.id}/{RESULT}", data)
        if run.kind == "adapt":  # its runs on this machine need not fetch it
            write_atomically(folder / RESULT, data)
        else:
            shutil.rmtree(folder, ignore_errors=True)

    def add_failure(self, run: StudyRun, reason: str) -> None:
        """Keep the reason of a failed attempt."""
        super().add_failure(run, reason)
        self._put(f"{run.id}/{FAILURES}", (self._folder(run.id) / FAILURES).read_bytes())

    def _remote(self, run: str) -> str:
        return f"{self._root}/runs/{run}"

    def _put(self, name: str, data: bytes) -> None:
        path = f"{self._root}/runs/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self._files.open(path, "wb") as handle:
            handle.write(data)

    def _read_file(self, run: str, name: str) -> bytes | None:
        """The content of a file of a run at the URL, where also those of other machines are."""
        path = f"{self._remote(run)}/{name}"
        return self._files.cat_file(path) if self._files.exists(path) else None

    def _files_of_runs(self, name: str) -> Iterator[tuple[str, bytes]]:
        prefix = f"{self._root}/runs/"
        if not self._files.exists(prefix.rstrip("/")):
            return
        for path in sorted(self._files.find(prefix)):
            if path.endswith(f"/{name}"):
                yield path.partition("/runs/")[2].removesuffix(f"/{name}"), self._files.cat_file(path)

    def _read_text(self, name: str) -> str | None:
        path = f"{self._root}/{name}"
        return self._files.cat_file(path).decode() if self._files.exists(path) else None

    def _write_text(self, name: str, text: str) -> None:
        self._files.makedirs(self._root, exist_ok=True)
        with self._files.open(f"{self._root}/{name}", "wb") as handle:
            handle.write(text.encode())


def open_study(place: str | Path) -> StudyFolder:
    """Open the folder of a study: a path, or an fsspec URL.

    Example:
        >>> str(open_study("studies/quick"))
        'studies/quick'
    """
    return RemoteStudyFolder(str(place)) if "://" in str(place) else StudyFolder(place)


def _parse_study(folder: StudyFolder, text: str | None) -> Study:
    if text is None:
        raise RunError(
            setting="study folder",
            got=folder,
            expected="a folder that `softcue study run` has made",
            fix="check the path",
        )
    try:
        values = parse_yaml(text)
    except ValueError:
        values = None
    if not isinstance(values, dict) or values.get("scale") not in SCALES:
        raise RunError(
            setting="study folder",
            got=folder,
            expected=f"a {STUDY} as `softcue study run` writes it",
            fix=f"it is damaged: remove {STUDY} and run the study again, which keeps all finished runs",
        )
    # It was written at its scale already; what that scale replaced is kept for reports.
    kept = {"scale": values["scale"], "small": values.get("small") or {}}
    return make_study({**values, "small": {}}).model_copy(update=kept)
