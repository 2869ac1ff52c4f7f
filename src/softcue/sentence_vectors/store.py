"""Sentence vectors on disk, shared by all runs and tasks and by several processes at once.

A vector that is lost is only worked out again, so nothing that happens to the file may fail a run: rows carry
checksums, a damaged file is started anew, and where nothing can be written the store finds and keeps nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import numpy
import torch
from torch import Tensor

from softcue.errors import ConfigurationError
from softcue.files import cache_folder

TIMEOUT = 30.0  # seconds to wait for another process
MARK_TIMEOUT = 100  # milliseconds: the order of use is not worth more
DEFAULT_MEGABYTES = 1024
BATCH = 500  # keys per query; old builds of SQLite allow 999 variables
PAGE_BYTES = 16384  # several vectors share a page, so little of it stays empty
ROW_BYTES = 250  # what a row needs besides its vector: its key twice, checksum, numbers
LAYOUT = 1
TABLES = (
    # Apart from the vectors: marking a row as used then rewrites a few bytes, not kilobytes.
    "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, used INTEGER, place INTEGER, size INTEGER)"
    " WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS by_use ON entries (used, place)",
    "CREATE TABLE IF NOT EXISTS vectors (place INTEGER PRIMARY KEY, checksum BLOB, data BLOB)",
    f"PRAGMA user_version = {LAYOUT}",
)
BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
DAMAGE = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,  # tables that are not ours
}

Result = TypeVar("Result")
Work = Callable[[sqlite3.Connection], Result]


class _BusyError(Exception):
    """Another process holds the file for longer than the timeout."""


class _DamagedError(Exception):
    """The file is not a database of ours, or no longer."""


# One connection at a time and none during a fork: a child that inherits one believes in locks it does not have.
_one_at_a_time = threading.Lock()
os.register_at_fork(
    before=_one_at_a_time.acquire, after_in_parent=_one_at_a_time.release, after_in_child=_one_at_a_time.release
)
_warned: set[Path] = set()


def key_of(*parts: str) -> str:
    """One key for several texts; where one ends and the next begins matters.

    Example:
        >>> key_of("ab", "c") == key_of("a", "bc")
        False
        >>> len(key_of("model", "text"))
        64
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")  # texts of broken files are still texts
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def open_store(use_disk_cache: bool = True) -> VectorStore:
    """The user's store, bounded by SOFTCUE_CACHE_MB; 0 switches it off, and so does `use_disk_cache=False`.

    Example:
        store = open_store()
    """
    text = os.environ.get("SOFTCUE_CACHE_MB") or str(DEFAULT_MEGABYTES)
    try:
        megabytes = int(text)
    except ValueError:
        megabytes = -1
    if megabytes < 0:
        raise ConfigurationError(
            setting="SOFTCUE_CACHE_MB",
            got=text,
            expected="a whole number of megabytes, 0 for no cache",
            fix=f"leave it unset for {DEFAULT_MEGABYTES}",
        )
    return VectorStore(cache_folder() / "representations.sqlite", megabytes << 20 if use_disk_cache else 0)


class VectorStore:
    """Vectors by key in one SQLite file that stays below a size; the least recently used ones go first.

    Example:
        >>> import tempfile
        >>> store = VectorStore(Path(tempfile.mkdtemp()) / "vectors.sqlite", 1 << 20)
        >>> store.put({key_of("hello"): torch.tensor([1.0, 2.0])})
        >>> list(store.get([key_of("hello"), key_of("world")]).values())
        [tensor([1., 2.])]
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path, self.max_bytes = path, max_bytes

    def get(self, keys: Sequence[str]) -> dict[str, Tensor]:
        """The vectors that are there, as float32 on the CPU. A row whose checksum does not fit is not there."""
        if not keys or self.max_bytes <= 0 or not os.path.exists(self.path):
            return {}
        return self._run(lambda connection: self._read(connection, keys)) or {}

    def put(self, vectors: Mapping[str, Tensor]) -> None:  # each [R]
        """Keep vectors, all or none; then drop the least recently used ones above the bound."""
        rows: list[tuple[str, bytes]] = []
        room = self.max_bytes
        for key in reversed(list(vectors)):
            vector = vectors[key].detach().to("cpu", torch.float32)
            if vector.dim() != 1:
                raise ValueError(f"expected one vector per key, got the shape {list(vector.shape)}")
            data = vector.contiguous().numpy().tobytes()
            room -= len(data) + ROW_BYTES
            if room < 0:  # the first ones would be dropped again at once
                break
            rows.append((key, data))
        if rows:
            self._run(lambda connection: self._write(connection, rows[::-1]))

    def _read(self, connection: sqlite3.Connection, keys: Sequence[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        stale: list[str] = []
        now = _newest(connection) | 1
        for start in range(0, len(keys), BATCH):
            batch = keys[start : start + BATCH]
            query = (
                f"SELECT key, used, checksum, data FROM entries JOIN vectors USING (place) WHERE {_is_one_of(batch)}"
            )
            for key, used, checksum, data in connection.execute(query, batch):
                is_typed = isinstance(key, str) and isinstance(data, bytes)
                if is_typed and checksum == _checksum(key, data):
                    found[key] = torch.from_numpy(numpy.frombuffer(data, numpy.float32).copy())  # [R]
                    if used != now:
                        stale.append(key)
        # Half empty, nothing will be dropped soon, and reading stays without writing.
        if stale and _used_bytes(connection) > self.max_bytes // 2:
            _mark(connection, stale, now)
        return found

    def _write(self, connection: sqlite3.Connection, rows: Sequence[tuple[str, bytes]]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        for start in range(0, len(rows), BATCH):
            batch = [key for key, _ in rows[start : start + BATCH]]
            chosen = f"FROM entries WHERE {_is_one_of(batch)}"
            connection.execute(f"DELETE FROM vectors WHERE place IN (SELECT place {chosen})", batch)
            connection.execute(f"DELETE {chosen}", batch)
        # Before the insert, so that it fills the pages that become free; after it, because pages are not vectors.
        self._make_room(connection, sum(len(data) + ROW_BYTES for _, data in rows))
        used = (_newest(connection) // 2 + 1) * 2
        place = _number(connection, "SELECT coalesce(max(place), 0) FROM vectors") + 1
        vectors = [(place + i, _checksum(key, data), data) for i, (key, data) in enumerate(rows)]
        connection.executemany("INSERT INTO vectors VALUES (?, ?, ?)", vectors)
        entries = [(key, used, place + i, len(data)) for i, (key, data) in enumerate(rows)]
        connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", entries)
        self._make_room(connection, 0)
        too_many = _number(connection, "PRAGMA page_count") - self.max_bytes // PAGE_BYTES
        for _ in range(too_many):
            connection.execute("PRAGMA incremental_vacuum(1)")  # of more than one Python's module would not do the rest
        connection.execute("COMMIT")

    def _make_room(self, connection: sqlite3.Connection, num_bytes: int) -> None:
        """Drop the least recently used rows until so many bytes are free below the bound."""
        while (excess := _used_bytes(connection) + num_bytes - self.max_bytes) > 0:
            # the cast because damage may have made the size anything
            number = "CAST(coalesce(size, 0) AS INTEGER)"
            query = f"SELECT key, place, {number} FROM entries ORDER BY used, place LIMIT {BATCH}"
            oldest = connection.execute(query).fetchall()
            if not oldest:
                connection.execute("DELETE FROM vectors")  # damage may leave some that no entry leads to
                return
            for key, place, size in oldest:
                if not connection.execute("DELETE FROM entries WHERE key = ?", [key]).rowcount:
                    raise _DamagedError("the index leads to rows that are not there")  # and would for ever
                connection.execute("DELETE FROM vectors WHERE place = ?", [place])
                excess -= size + ROW_BYTES
                if excess <= 0:
                    break

    def _run(self, work: Work[Result]) -> Result | None:
        """The work's result, on a new file if need be; None if there is no file to work on."""
        try:
            with _one_at_a_time:
                try:
                    with self._held(fcntl.LOCK_SH):
                        return self._connected(work)
                except _DamagedError:
                    return self._on_a_sound_file(work)
        except _BusyError:
            return None
        except (OSError, _DamagedError) as error:
            if self.path not in _warned:
                _warned.add(self.path)
                warnings.warn(f"no sentence vectors are kept in {self.path}: {error}", RuntimeWarning, stacklevel=3)
            return None

    def _on_a_sound_file(self, work: Work[Result]) -> Result:
        with self._held(fcntl.LOCK_EX):
            try:
                return self._connected(work)
            except _DamagedError:  # still, so no other process was here before us
                # The database first: SQLite ignores a journal without one, but would trust one without a journal.
                for suffix in ("", "-journal", "-wal", "-shm"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
                return self._connected(work)

    def _connected(self, work: Work[Result]) -> Result:
        try:
            with closing(sqlite3.connect(self.path, timeout=TIMEOUT, isolation_level=None)) as connection:
                # The rollback journal of SQLite's default: write-ahead logs need memory shared by all processes,
                # which homes on network file systems do not have.
                connection.execute("PRAGMA synchronous = NORMAL")
                if _number(connection, "PRAGMA user_version") != LAYOUT:
                    _create(connection)
                return work(connection)
        except (OverflowError, UnicodeDecodeError) as error:  # a number or a message made up of garbage
            raise _DamagedError(str(error)) from error
        except sqlite3.Error as error:
            # Details are in the upper bits. No code at all: Python found text that is not UTF-8.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            # One byte in the header tells SQLite to write nothing.
            is_forbidden = code == sqlite3.SQLITE_READONLY and os.access(self.path, os.W_OK, effective_ids=True)
            if code in DAMAGE or is_forbidden:
                raise _DamagedError(str(error)) from error
            if code in BUSY:
                raise _BusyError from error
            raise OSError(str(error)) from error

    @contextmanager
    def _held(self, mode: int) -> Iterator[None]:
        """Shared by all who use the file; alone for the one who replaces it, under nobody's feet."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        access = os.O_RDWR if mode == fcntl.LOCK_EX else os.O_RDONLY
        descriptor = os.open(f"{self.path}.lock", access | os.O_CREAT, 0o666)
        deadline = time.monotonic() + TIMEOUT
        try:
            while True:
                try:
                    fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise _BusyError from None
                    time.sleep(0.01)
            yield
        finally:
            os.close(descriptor)


def _create(connection: sqlite3.Connection) -> None:
    # Both only take effect in an empty file, and the second one writes: hence not for every connection.
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("BEGIN IMMEDIATE")
    for statement in TABLES:
        connection.execute(statement)
    connection.execute("COMMIT")


def _mark(connection: sqlite3.Connection, keys: Sequence[str], now: int) -> None:
    try:
        connection.execute(f"PRAGMA busy_timeout = {MARK_TIMEOUT}")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("UPDATE entries SET used = ? WHERE key = ?", [(now, key) for key in keys])
        connection.execute("COMMIT")
    except sqlite3.OperationalError:  # busy or read-only: the vectors were found all the same
        pass


def _newest(connection: sqlite3.Connection) -> int:
    """The clock of use. Even: the last put. Odd: a get after it; further gets then have nothing to mark."""
    return _number(connection, "SELECT CAST(coalesce(max(used), 0) AS INTEGER) FROM entries")


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages = _number(connection, "PRAGMA page_count") - _number(connection, "PRAGMA freelist_count")
    return pages * PAGE_BYTES


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def _is_one_of(keys: Sequence[str]) -> str:
    return f"key IN ({','.join('?' * len(keys))})"


def _checksum(key: str, data: bytes) -> bytes:
    """Over the key too: a right vector under a wrong key is a wrong vector."""
    return hashlib.blake2b(key.encode() + b"\0" + data, digest_size=16).digest()
