"""The cues that several replicas serve: a folder or an fsspec URL that all of them read, and a file of changes in it.

    NAME/cue.json, NAME/cue.safetensors    the cues
    served.json                            cue -> number of its last change, and whether it is loaded since

A replica that loads or unloads a cue for a client writes the change. The others read the file every few seconds, or
when they are told to, and do the same. A replica that starts later reads it too, so nothing is undone.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from softcue.errors import ConfigurationError, MissingExtraError
from softcue.files import write_atomically
from softcue.serving.engine.registry import FILES, NAME, Registry
from softcue.serving.errors import RequestError

CHANGES = "served.json"
LOCK = ".served.lock"
logger = logging.getLogger("softcue.serving")


class Change(NamedTuple):
    """The last change of a cue."""

    number: int  # grows with every change of any cue
    is_loaded: bool


def is_url(place: str) -> bool:
    """Whether cues are in object storage rather than in a folder.

    Example:
        >>> is_url("s3://bucket/cues"), is_url("cues")
        (True, False)
    """
    return "://" in place


class SharedCues:
    """The place of the cues of several replicas, as one of them sees it.

    Example:
        shared = SharedCues("s3://bucket/cues")
        engine = Engine(backbone, shared.folder)
        shared.apply(engine.registry)
    """

    def __init__(self, place: str) -> None:
        """Open the place; cues at a URL are copied to a folder of this machine."""
        self._applied: dict[str, int] = {}  # cue -> number of the change that this replica has made
        self._lock = threading.Lock()
        self._files: Any = None
        if not is_url(place):
            self.folder = Path(place)
            return
        try:
            import fsspec
        except ModuleNotFoundError as error:
            raise MissingExtraError("fsspec", "ray") from error
        try:
            self._files, self._root = fsspec.core.url_to_fs(place)
            names = sorted(path.rpartition("/")[2] for path in self._files.ls(self._root, detail=False))
        except (ImportError, ValueError, OSError) as error:
            raise ConfigurationError(
                setting="cues folder", got=place, expected="a folder or an fsspec URL that can be read", fix=str(error)
            ) from error
        self.folder = Path(tempfile.mkdtemp(prefix="softcue-cues-"))
        for name in names:
            if NAME.fullmatch(name) and name != CHANGES:
                self._fetch(name)

    def close(self) -> None:
        """Remove the copies of this machine."""
        if self._files is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def prepare(self, name: str) -> None:
        """Have the current files of a cue in `folder`, before it is loaded."""
        await asyncio.to_thread(self._fetch, name)

    async def publish(self, name: str, is_loaded: bool) -> None:
        """Tell all replicas that a cue was loaded or unloaded here."""
        await asyncio.to_thread(self._record, name, is_loaded)

    def apply(self, registry: Registry) -> None:
        """Do what other replicas have done: load and unload the cues that were changed since the last time."""
        with self._lock:
            for name, change in sorted(self._read().items()):
                if self._applied.get(name, 0) >= change.number:
                    continue
                try:
                    if change.is_loaded:
                        self._fetch(name)
                        registry.load(name)
                    else:
                        registry.unload(name)
                except RequestError as error:
                    if change.is_loaded:  # one that is not loaded here need not be unloaded
                        logger.warning("cue not loaded", extra={"facts": {"cue": name, **error.as_dict()}})
                self._applied[name] = change.number
                logger.info("cue changed", extra={"facts": {"cue": name, "loaded": change.is_loaded}})

    def _record(self, name: str, is_loaded: bool) -> None:
        with self._lock, self._locked_place():
            changes = self._read()
            number = 1 + max((change.number for change in changes.values()), default=0)
            changes[name] = Change(number, is_loaded)
            content = json.dumps({cue: change._asdict() for cue, change in sorted(changes.items())}).encode()
            try:
                if self._files is None:
                    write_atomically(self.folder / CHANGES, content)
                else:
                    self._files.pipe_file(f"{self._root}/{CHANGES}", content)
            except OSError as error:
                raise RequestError(
                    "failed",
                    setting="cues folder",
                    problem="the change was made in one replica, but the others cannot be told: the place of the cues "
                    "cannot be written to",
                    fix="let replicas write to it, or restart the server after changes",
                ) from error
            self._applied[name] = number

    def _read(self) -> dict[str, Change]:
        try:
            if self._files is None:
                content = (self.folder / CHANGES).read_bytes()
            else:
                self._files.invalidate_cache()
                content = self._files.cat_file(f"{self._root}/{CHANGES}")
            entries = json.loads(content)
            return {name: Change(int(entry["number"]), bool(entry["is_loaded"])) for name, entry in entries.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("changes of cues not read", extra={"facts": {"error": f"{type(error).__name__}: {error}"}})
            return {}

    @contextmanager
    def _locked_place(self) -> Iterator[None]:
        """One replica at a time, in a folder; at a URL the last of two changes at the same moment wins."""
        if self._files is not None:
            yield
            return
        try:
            lock = (self.folder / LOCK).open("w")
        except OSError:  # the write that follows says why
            yield
            return
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _fetch(self, name: str) -> None:
        """Copy the files of a cue from the URL; a cue that is not there loses its copy."""
        if self._files is None or not NAME.fullmatch(name):
            return
        copy = self.folder / name
        fetched = Path(tempfile.mkdtemp(prefix=".fetched-", dir=self.folder))
        try:
            for file in FILES:
                (fetched / file).write_bytes(self._files.cat_file(f"{self._root}/{name}/{file}"))
        except FileNotFoundError:
            shutil.rmtree(fetched)
            shutil.rmtree(copy, ignore_errors=True)
            return
        except OSError as error:
            shutil.rmtree(fetched)
            raise RequestError(
                "broken_cue", setting="cue", problem=f"its files could not be fetched: {error}", fix="try again"
            ) from error
        shutil.rmtree(copy, ignore_errors=True)
        fetched.rename(copy)
