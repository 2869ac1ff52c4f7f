"""Sentence vectors on disk, shared by all runs and tasks, and by several processes at once.

A lost vector can be computed again, so no problem with the file may fail a run. Rows have checksums. A damaged file is
replaced. Where nothing can be written, the store stays empty.
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
MARK_TIMEOUT = 100  # milliseconds to wait before recording which rows were used; it is not worth more
DEFAULT_MEGABYTES = 1024
BATCH = 500  # keys per query; old builds of SQLite allow 999 variables
PAGE_BYTES = 16384  # several vectors fit on a page, so little of it stays empty
ROW_BYTES = 250  # of a row besides its vector: its key twice, checksum, numbers
LAYOUT = 1
TABLES = (
    # Separate from the vectors: recording a use then rewrites a few bytes, not kilobytes.
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
    sqlite3.SQLITE_MISMATCH,  # tables of another program
}

Result = TypeVar("Result")
Work = Callable[[sqlite3.Connection], Result]


class _BusyError(Exception):
    """Another process holds the file for longer than the timeout."""


class _DamagedError(Exception):
    """The file is not a sentence-vector database, or it is damaged."""


# One connection at a time, and none during a fork: a child would inherit it without its file locks.
_connection_lock = threading.Lock()
os.register_at_fork(
    before=_connection_lock.acquire, after_in_parent=_connection_lock.release, after_in_child=_connection_lock.release
)
_warned: set[Path] = set()


def key_of(*parts: str) -> str:
    """Return one key for several texts. The borders between the texts matter.

    Example:
        >>> key_of("ab", "c") == key_of("a", "bc")
        False
        >>> len(key_of("model", "text"))
        64
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")  # texts of damaged files may have lone surrogates
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def open_store(use_disk_cache: bool = True) -> VectorStore:
    """Return the user's store, at most SOFTCUE_CACHE_MB megabytes; 0 or `use_disk_cache=False` switches it off.

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
    """Vectors by key in one SQLite file of limited size. The least recently used vectors are dropped first.

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
        """Return the stored vectors, as float32 on the CPU. Rows with a wrong checksum are left out."""
        if not keys or self.max_bytes <= 0 or not os.path.exists(self.path):
            return {}
        return self._run(lambda connection: self._read(connection, keys)) or {}

    def put(self, vectors: Mapping[str, Tensor]) -> None:  # each [R]
        """Store vectors, all or none, and drop the least recently used ones above the size limit."""
        rows: list[tuple[str, bytes]] = []
        room = self.max_bytes
        for key in reversed(list(vectors)):
            vector = vectors[key].detach().to("cpu", torch.float32)
            if vector.dim() != 1:
                raise ValueError(f"expected one vector per key, got the shape {list(vector.shape)}")
            data = vector.contiguous().numpy().tobytes()
            room -= len(data) + ROW_BYTES
            if room < 0:  # earlier ones would be dropped again at once
                break
            rows.append((key, data))
        if rows:
            self._run(lambda connection: self._write(connection, rows[::-1]))

    def _read(self, connection: sqlite3.Connection, keys: Sequence[str]) -> dict[str, Tensor]:
        vectors: dict[str, Tensor] = {}
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
                    vectors[key] = torch.from_numpy(numpy.frombuffer(data, numpy.float32).copy())  # [R]
                    if used != now:
                        stale.append(key)
        # If the file is at most half full, nothing is dropped soon, and a read does not write.
        if stale and _used_bytes(connection) > self.max_bytes // 2:
            _mark_used(connection, stale, now)
        return vectors

    def _write(self, connection: sqlite3.Connection, rows: Sequence[tuple[str, bytes]]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        for start in range(0, len(rows), BATCH):
            batch = [key for key, _ in rows[start : start + BATCH]]
            chosen = f"FROM entries WHERE {_is_one_of(batch)}"
            connection.execute(f"DELETE FROM vectors WHERE place IN (SELECT place {chosen})", batch)
            connection.execute(f"DELETE {chosen}", batch)
        # Before the insert, so that it uses the freed pages; and after it, because vectors do not fill pages exactly.
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
            connection.execute("PRAGMA incremental_vacuum(1)")  # Python's module does only the first of several
        connection.execute("COMMIT")

    def _make_room(self, connection: sqlite3.Connection, num_bytes: int) -> None:
        """Drop the least recently used rows until `num_bytes` are free below the size limit."""
        while (excess := _used_bytes(connection) + num_bytes - self.max_bytes) > 0:
            # The cast: in a damaged file the size may have any type.
            number = "CAST(coalesce(size, 0) AS INTEGER)"
            query = f"SELECT key, place, {number} FROM entries ORDER BY used, place LIMIT {BATCH}"
            oldest = connection.execute(query).fetchall()
            if not oldest:
                connection.execute("DELETE FROM vectors")  # in a damaged file some may have no entry
                return
            for key, place, size in oldest:
                if not connection.execute("DELETE FROM entries WHERE key = ?", [key]).rowcount:
                    raise _DamagedError("the index leads to rows that are not there")  # the loop would never end
                connection.execute("DELETE FROM vectors WHERE place = ?", [place])
                excess -= size + ROW_BYTES
                if excess <= 0:
                    break

    def _run(self, work: Work[Result]) -> Result | None:
        """Return the result of the work, on a new file if this one is damaged; None if no file can be used."""
        try:
            with _connection_lock:
                try:
                    with self._locked(fcntl.LOCK_SH):
                        return self._connect(work)
                except _DamagedError:
                    return self._replace_damaged_file(work)
        except _BusyError:
            return None
        except (OSError, _DamagedError) as error:
            if self.path not in _warned:
                _warned.add(self.path)
                warnings.warn(f"no sentence vectors are kept in {self.path}: {error}", RuntimeWarning, stacklevel=3)
            return None

    def _replace_damaged_file(self, work: Work[Result]) -> Result:
        """Do the work on a new file, unless another process has replaced the damaged one."""
        with self._locked(fcntl.LOCK_EX):
            try:
                return self._connect(work)
            except _DamagedError:  # no other process has replaced it
                # The database first: SQLite ignores a lone journal, but trusts a database without its journal.
                for suffix in ("", "-journal", "-wal", "-shm"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
                return self._connect(work)

    def _connect(self, work: Work[Result]) -> Result:
        try:
            with closing(sqlite3.connect(self.path, timeout=TIMEOUT, isolation_level=None)) as connection:
                # SQLite's default rollback journal: a write-ahead log needs memory shared by all processes, which
                # network file systems do not have.
                connection.execute("PRAGMA synchronous = NORMAL")
                if _number(connection, "PRAGMA user_version") != LAYOUT:
                    _create(connection)
                return work(connection)
        except (OverflowError, UnicodeDecodeError) as error:  # a damaged number or message
            raise _DamagedError(str(error)) from error
        except sqlite3.Error as error:
            # Details are in the upper bits. No code at all: the text is not UTF-8.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            # A damaged header can make a writable file read-only for SQLite.
            is_forbidden = code == sqlite3.SQLITE_READONLY and os.access(self.path, os.W_OK, effective_ids=True)
            if code in DAMAGE or is_forbidden:
                raise _DamagedError(str(error)) from error
            if code in BUSY:
                raise _BusyError from error
            raise OSError(str(error)) from error

    @contextmanager
    def _locked(self, mode: int) -> Iterator[None]:
        """Hold the file lock: shared to use the file, exclusive to replace it."""
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
    # Both settings work only in an empty file, and the second one writes. So they are not set for every connection.
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("BEGIN IMMEDIATE")
    for statement in TABLES:
        connection.execute(statement)
    connection.execute("COMMIT")


def _mark_used(connection: sqlite3.Connection, keys: Sequence[str], now: int) -> None:
    try:
        connection.execute(f"PRAGMA busy_timeout = {MARK_TIMEOUT}")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("UPDATE entries SET used = ? WHERE key = ?", [(now, key) for key in keys])
        connection.execute("COMMIT")
    except sqlite3.OperationalError:  # busy or read-only: the vectors are read all the same
        pass


def _newest(connection: sqlite3.Connection) -> int:
    """Return the latest time of use. Even: a put. Odd: a get after it; further gets then record nothing."""
    return _number(connection, "SELECT CAST(coalesce(max(used), 0) AS INTEGER) FROM entries")


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages = _number(connection, "PRAGMA page_count") - _number(connection, "PRAGMA freelist_count")
    return pages * PAGE_BYTES


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def _is_one_of(keys: Sequence[str]) -> str:
    return f"key IN ({','.join('?' * len(keys))})"


def _checksum(key: str, data: bytes) -> bytes:
    """Return the checksum of key and vector: a right vector under a wrong key is wrong."""
    return hashlib.blake2b(key.encode() + b"\0" + data, digest_size=16).digest()
