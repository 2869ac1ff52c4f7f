from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from softcue.errors import ConfigurationError
from softcue.sentence_vectors import store as module
from softcue.sentence_vectors.store import VectorStore, key_of, open_store

WIDTH = 384
MEGABYTE = 1 << 20
NUM_DAMAGED_FILES = 30
processes = multiprocessing.get_context("fork")  # without importing torch once more for each


def vector_of(key: str, width: int = WIDTH) -> Tensor:
    data = hashlib.shake_256(key.encode()).digest(2 * width)
    return torch.frombuffer(bytearray(data), dtype=torch.int16) / 1024


def keys_of(numbers: range) -> list[str]:
    return [key_of("test", str(number)) for number in numbers]


def vectors_of(keys: Sequence[str], width: int = WIDTH) -> dict[str, Tensor]:
    return {key: vector_of(key, width) for key in keys}


def assert_right(vectors: dict[str, Tensor], width: int = WIDTH) -> None:
    for key, vector in vectors.items():
        assert torch.equal(vector, vector_of(key, width))


def assert_usable(store: VectorStore) -> None:
    wanted = vectors_of(keys_of(range(100_000, 100_020)))
    store.put(wanted)
    stored = store.get(list(wanted))
    assert stored.keys() == wanted.keys()
    assert_right(stored)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not look like a loss."""
    monkeypatch.setattr(module, "TIMEOUT", 100.0)


@pytest.fixture
def store(tmp_path: Path) -> VectorStore:
    return VectorStore(tmp_path / "below" / "vectors.sqlite", 8 * MEGABYTE)


def test_vectors_come_back_bit_for_bit(store: VectorStore) -> None:
    bits = torch.randint(-(2**31), 2**31, (WIDTH,), dtype=torch.int64).to(torch.int32)
    bits[:4] = torch.tensor([0x7FC00001, -0x80000000, 1, 0x7F800000])  # NaN with a payload, -0.0, subnormal, infinity
    store.put({"a": bits.view(torch.float32), "b": torch.zeros(0)})
    stored = store.get(["a", "b", "c"])
    assert stored.keys() == {"a", "b"}
    assert torch.equal(stored["a"].view(torch.int32), bits)
    assert stored["b"].shape == (0,)
    stored["a"][0] = 1.0  # the caller's own


def test_other_types_and_layouts_are_kept_as_float32(store: VectorStore) -> None:
    across = torch.randn(5, 7, requires_grad=True)
    store.put({"half": torch.tensor([0.1], dtype=torch.bfloat16), "column": across[:, 3], "whole": torch.tensor([3])})
    stored = store.get(["half", "column", "whole"])
    assert {vector.dtype for vector in stored.values()} == {torch.float32}
    assert torch.equal(stored["column"], across[:, 3].detach())
    assert stored["half"].item() == torch.tensor(0.1, dtype=torch.bfloat16).item()


def test_only_vectors_are_taken(store: VectorStore) -> None:
    with pytest.raises(ValueError, match=r"\[2, 2\]"):
        store.put({"a": torch.zeros(2, 2)})


def test_a_later_put_replaces(store: VectorStore) -> None:
    store.put({"a": torch.ones(3)})
    store.put({"a": torch.zeros(5)})
    assert torch.equal(store.get(["a"])["a"], torch.zeros(5))


def test_looking_creates_nothing(store: VectorStore) -> None:
    assert store.get(["a"]) == {}
    store.put({})
    assert not store.path.parent.exists()


def test_thousands_of_keys_in_one_call(tmp_path: Path) -> None:
    store = VectorStore(tmp_path / "vectors.sqlite", 64 * MEGABYTE)
    keys = keys_of(range(5000))
    store.put(vectors_of(keys[::2], 32))
    stored = store.get(keys * 7)  # more than SQLite has variables
    assert stored.keys() == set(keys[::2])
    assert_right(stored, 32)


def test_keys_are_unambiguous_and_take_any_text() -> None:
    parts = ["", "a", "b", "ab", "\0", "\ud800", "1", "\n"]
    tuples = [some for length in range(4) for some in itertools.product(parts, repeat=length)]
    assert len({key_of(*some) for some in tuples}) == len(tuples)


@pytest.mark.parametrize("width", [50, 384, 768, 1024, 5000])
def test_the_file_stays_below_its_bound_and_is_well_filled(tmp_path: Path, width: int) -> None:
    bound = 2 * MEGABYTE
    store = VectorStore(tmp_path / "vectors.sqlite", bound)
    row_bytes = width * 4 + module.ROW_BYTES
    keys = keys_of(range(int(2 * bound / row_bytes)))
    step = max(1, len(keys) // 12)
    for start in range(0, len(keys), step):
        store.put(vectors_of(keys[start : start + step], width))
        assert store.path.stat().st_size <= bound
    stored = store.get(keys)
    assert_right(stored, width)
    assert list(stored) and set(stored) == set(keys[-len(stored) :])
    assert len(stored) * row_bytes > 0.7 * bound


def test_a_put_above_the_bound_keeps_its_last_ones(tmp_path: Path) -> None:
    store = VectorStore(tmp_path / "vectors.sqlite", MEGABYTE)
    keys = keys_of(range(2000))
    store.put(vectors_of(keys))
    stored = store.get(keys)
    assert len(stored) > 400 and set(stored) == set(keys[-len(stored) :])
    assert store.path.stat().st_size <= MEGABYTE


def test_a_smaller_bound_shrinks_the_file_at_the_next_put(tmp_path: Path) -> None:
    path = tmp_path / "vectors.sqlite"
    VectorStore(path, 4 * MEGABYTE).put(vectors_of(keys_of(range(1800))))
    assert path.stat().st_size > 2 * MEGABYTE
    VectorStore(path, MEGABYTE).put({"new": torch.ones(3)})
    assert path.stat().st_size <= MEGABYTE
    assert VectorStore(path, MEGABYTE).get(["new"])


@pytest.mark.parametrize("bound", [1, 5000, 40_000, 100_000])
def test_a_bound_with_hardly_any_room_does_no_harm(tmp_path: Path, bound: int) -> None:
    store = VectorStore(tmp_path / "vectors.sqlite", bound)
    for key in keys_of(range(20)):
        store.put(vectors_of([key]))
    assert_right(store.get(keys_of(range(20))))


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    store = VectorStore(tmp_path / "vectors.sqlite", 2 * MEGABYTE)
    old, used, new = keys_of(range(400)), keys_of(range(400, 800)), keys_of(range(800, 1300))
    for keys in (used, old):
        store.put(vectors_of(keys))
    assert len(store.get(used)) == 400  # put first, but used last
    store.put(vectors_of(new))
    assert len(store.get(used)) == 400
    assert len(store.get(new)) == 500
    assert len(store.get(old)) < 300
    assert_right(store.get(old + used + new))


def test_looking_again_writes_nothing(tmp_path: Path) -> None:
    store = VectorStore(tmp_path / "vectors.sqlite", MEGABYTE)
    keys = keys_of(range(400))
    store.put(vectors_of(keys))
    store.get(keys)
    before = store.path.stat().st_mtime_ns
    store.get(keys[:10])
    store.get(keys)
    assert store.path.stat().st_mtime_ns == before


def work(path: Path, seed: int) -> None:
    store = VectorStore(path, 32 * MEGABYTE)
    draws = random.Random(seed)
    keys = keys_of(range(400))
    draws.shuffle(keys)
    for start in range(0, len(keys), 40):
        store.put(vectors_of(keys[start : start + 40]))
        stored = store.get(draws.sample(keys, 50))
        assert_right(stored)
        assert len(store.get(keys[: start + 40])) == start + 40


def run_at_once(target: Callable[..., None], *arguments: tuple[object, ...]) -> None:
    children = [processes.Process(target=target, args=some, daemon=True) for some in arguments]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0] * len(children)


def test_processes_at_once_lose_nothing_and_see_only_right_vectors(tmp_path: Path) -> None:
    path = tmp_path / "vectors.sqlite"
    run_at_once(work, *((path, seed) for seed in range(4)))
    stored = VectorStore(path, 32 * MEGABYTE).get(keys_of(range(400)))
    assert len(stored) == 400
    assert_right(stored)


def repair(path: Path, seed: int) -> None:
    store = VectorStore(path, 32 * MEGABYTE)
    keys = keys_of(range(seed * 10, seed * 10 + 10))
    store.put(vectors_of(keys))
    assert len(store.get(keys)) == 10


def test_processes_that_find_the_file_damaged_at_once_replace_it_once(tmp_path: Path) -> None:
    path = tmp_path / "vectors.sqlite"
    for _ in range(3):
        path.write_bytes(random.Random(0).randbytes(100_000))
        run_at_once(repair, *((path, seed) for seed in range(4)))
        assert len(VectorStore(path, 32 * MEGABYTE).get(keys_of(range(40)))) == 40


def test_threads_share_a_store_and_may_fork_meanwhile(store: VectorStore) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def hammer(seed: int) -> None:
        draws = random.Random(seed)
        try:
            while not stop.is_set():
                keys = draws.sample(keys_of(range(200)), 20)
                store.put(vectors_of(keys))
                assert len(store.get(keys)) == 20
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            run_at_once(assert_usable, (store,))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert_right(store.get(keys_of(range(200))))


def put_and_die(path: Path) -> None:
    store = VectorStore(path, 16 * MEGABYTE)
    store.put(vectors_of(keys_of(range(2000))))
    # A program stopped right behind its insert, most of which SQLite's memory had no room for.
    VectorStore._make_room = lambda self, connection, num_bytes: num_bytes or os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    store.put(vectors_of(keys_of(range(1000, 4000))))


def test_killed_inside_a_put_all_is_as_before(tmp_path: Path) -> None:
    path = tmp_path / "vectors.sqlite"
    child = processes.Process(target=put_and_die, args=(path,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert Path(f"{path}-journal").stat().st_size
    store = VectorStore(path, 16 * MEGABYTE)
    stored = store.get(keys_of(range(4000)))
    assert stored.keys() == set(keys_of(range(2000)))
    assert_right(stored)
    assert_usable(store)


def put_forever(path: Path) -> None:
    store = VectorStore(path, 2 * MEGABYTE)
    for start in itertools.count(step=300):
        store.put(vectors_of(keys_of(range(start, start + 300))))


def test_killed_at_any_time_leaves_a_usable_store(tmp_path: Path) -> None:
    path = tmp_path / "vectors.sqlite"
    waits = random.Random(3)
    for _ in range(5):
        child = processes.Process(target=put_forever, args=(path,), daemon=True)
        child.start()
        time.sleep(waits.uniform(0.02, 0.15))
        child.kill()
        child.join()
        store = VectorStore(path, 2 * MEGABYTE)
        assert_right(store.get(keys_of(range(3000))))
        assert_usable(store)
        assert path.stat().st_size <= 2 * MEGABYTE


def test_a_changed_byte_costs_one_row_until_it_is_put_again(store: VectorStore) -> None:
    vectors = vectors_of(keys_of(range(50)))
    store.put(vectors)
    hit = list(vectors)[20]
    data = bytearray(store.path.read_bytes())
    data[data.index(vectors[hit].numpy().tobytes()) + 100] ^= 1
    store.path.write_bytes(data)
    stored = store.get(list(vectors))
    assert stored.keys() == vectors.keys() - {hit}
    assert_right(stored)
    store.put({hit: vectors[hit]})
    assert store.get(list(vectors)).keys() == vectors.keys()


def test_a_vector_under_another_key_is_not_found(store: VectorStore) -> None:
    store.put(vectors_of(["a", "b"]))
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE entries SET place = 3 - place")
    connection.close()
    assert store.get(["a", "b"]) == {}
    assert_usable(store)


def _other_database(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE entries (name TEXT)")
        connection.execute("CREATE VIEW vectors AS SELECT 1")
    connection.close()


def _other_layout(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE entries RENAME COLUMN used TO last_used")
        connection.execute("PRAGMA user_version = 7")
    connection.close()


def _garbage_behind_the_first_page(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as handle:
        handle.seek(module.PAGE_BYTES)
        handle.write(random.Random(1).randbytes(size - module.PAGE_BYTES))


def _huge_clock(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE entries SET used = {2**63 - 1}")
    connection.close()


def _header_that_forbids_writing(path: Path) -> None:
    with path.open("r+b") as handle:
        handle.seek(18)
        handle.write(b"\x09")


def _schema_that_is_not_text(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"CREATE INDEX by_use ON", b"CREATE INDEX by_u\xc4e ON"))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: os.truncate(path, 0),
    "header torn": lambda path: os.truncate(path, 50),
    "first page torn": lambda path: os.truncate(path, 1000),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "last byte gone": lambda path: os.truncate(path, path.stat().st_size - 1),
    "garbage": lambda path: path.write_bytes(random.Random(0).randbytes(200_000)),
    "text": lambda path: path.write_text("not a database\n" * 1000),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "garbage behind the first page": _garbage_behind_the_first_page,
    "garbage as journal": lambda path: Path(f"{path}-journal").write_bytes(random.Random(0).randbytes(9000)),
    "garbage as write-ahead log": lambda path: Path(f"{path}-wal").write_bytes(random.Random(0).randbytes(9000)),
    "header that forbids writing": _header_that_forbids_writing,
    "schema that is not text": _schema_that_is_not_text,
    "another database": _other_database,
    "another layout": _other_layout,
    "clock at its end": _huge_clock,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file_is_started_anew(store: VectorStore, damage: Callable[[Path], object]) -> None:
    keys = keys_of(range(1000))
    store.put(vectors_of(keys))
    damage(store.path)
    assert_right(store.get(keys))
    assert_usable(store)
    assert_right(store.get(keys))


@pytest.mark.parametrize("which", [0, 1])
def test_an_index_that_does_not_fit_its_table_does_not_keep_us_for_ever(tmp_path: Path, which: int) -> None:
    store = VectorStore(tmp_path / "vectors.sqlite", MEGABYTE)
    keys = keys_of(range(400))
    store.put(vectors_of(keys))
    data = bytearray(store.path.read_bytes())
    for key in keys:  # each is in the table and in the index
        places = [data.find(key.encode())]
        places.append(data.find(key.encode(), places[0] + 1))
        data[places[which]] ^= 0x40
    store.path.write_bytes(data)
    for start in range(400, 1600, 400):
        store.put(vectors_of(keys_of(range(start, start + 400))))
    assert len(store.get(keys_of(range(1200, 1600)))) == 400
    assert_right(store.get(keys))


def test_bytes_changed_anywhere_never_give_an_error_or_a_wrong_vector(tmp_path: Path) -> None:
    store = VectorStore(tmp_path / "vectors.sqlite", MEGABYTE)
    keys = keys_of(range(80))
    draws = random.Random(0)
    store.put(vectors_of(keys[:60], 64))
    whole = store.path.read_bytes()
    store.max_bytes = len(whole)  # so that rows are marked and dropped
    for _ in range(NUM_DAMAGED_FILES):
        data = bytearray(whole)
        for _ in range(draws.choice([1, 1, 5, 50])):
            page = draws.randrange(len(data) // module.PAGE_BYTES) * module.PAGE_BYTES
            # pages are mostly vectors; what is at their start and end tells where things are
            data[page + draws.choice([draws.randrange(200), draws.randrange(module.PAGE_BYTES)])] = draws.randrange(256)
        store.path.write_bytes(data)
        assert_right(store.get(keys), 64)
        store.put(vectors_of(keys[40:], 64))
        assert_right(store.get(keys), 64)


def test_a_locked_file_counts_as_a_miss(store: VectorStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put({"a": torch.ones(2)})
    monkeypatch.setattr(module, "TIMEOUT", 0.05)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert store.get(["a"]) == {}
    store.put({"b": torch.ones(2)})
    other.close()
    assert store.get(["a", "b"]).keys() == {"a"}


def test_a_writer_does_not_keep_readers_from_finding(tmp_path: Path) -> None:
    store = VectorStore(tmp_path / "vectors.sqlite", MEGABYTE)
    keys = keys_of(range(400))
    store.put(vectors_of(keys))
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert len(store.get(keys)) == 400  # though none could be marked
    other.close()


def assert_only_warns_once(store: VectorStore) -> None:
    with pytest.warns(RuntimeWarning, match=r"no sentence vectors are kept in .*vectors.sqlite"):
        store.put({"a": torch.ones(2)})
    store.put({"a": torch.ones(2)})  # a second warning would be an error
    assert store.get(["a"]) == {}
    assert VectorStore(store.path, store.max_bytes).get(["a"]) == {}


def test_a_folder_in_the_files_place_is_left_alone(store: VectorStore) -> None:
    store.path.mkdir(parents=True)
    (store.path / "mine").write_text("x")
    assert_only_warns_once(store)
    assert (store.path / "mine").read_text() == "x"


def test_a_file_in_the_folders_place(store: VectorStore) -> None:
    store.path.parent.write_text("x")
    assert_only_warns_once(store)


@pytest.fixture
def others_folder() -> Iterator[Path]:
    """A folder we may look into but not write to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_a_stranger(folder: Path, call: Callable[[], None]) -> None:
    """Permissions bind everybody but root."""
    folder.chmod(0o555)
    if os.geteuid() != 0:
        call()
        return
    os.seteuid(65534)
    try:
        call()
    finally:
        os.seteuid(0)


def test_a_read_only_folder(others_folder: Path) -> None:
    store = VectorStore(others_folder / "vectors.sqlite", MEGABYTE)
    as_a_stranger(others_folder, lambda: assert_only_warns_once(store))
    below = VectorStore(others_folder / "below" / "vectors.sqlite", MEGABYTE)
    as_a_stranger(others_folder, lambda: assert_only_warns_once(below))


def test_a_read_only_store_can_be_read(others_folder: Path) -> None:
    store = VectorStore(others_folder / "vectors.sqlite", MEGABYTE)
    keys = keys_of(range(400))
    store.put(vectors_of(keys))
    store.path.chmod(0o444)

    def read() -> None:
        assert len(store.get(keys)) == 400
        with pytest.warns(RuntimeWarning, match="no sentence vectors are kept"):
            store.put({"a": torch.ones(2)})
        assert len(store.get(keys)) == 400

    as_a_stranger(others_folder, read)


def test_a_full_disk(store: VectorStore) -> None:
    store.put(vectors_of(keys_of(range(100))))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (store.path.stat().st_size + 20_000, limits[1]))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            store.put(vectors_of(keys_of(range(100, 1000))))
            store.put(vectors_of(keys_of(range(100, 1000))))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [warning.category for warning in caught] == [RuntimeWarning]
    assert len(store.get(keys_of(range(1000)))) == 100
    assert_usable(store)


@pytest.mark.parametrize(("text", "megabytes"), [(None, 1024), ("", 1024), ("5", 5), (" 7 ", 7), ("0", 0)])
def test_the_bound_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, megabytes: int
) -> None:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SOFTCUE_CACHE_MB", raising=False)
    if text is not None:
        monkeypatch.setenv("SOFTCUE_CACHE_MB", text)
    store = open_store()
    assert store.path == tmp_path / "home" / "representations.sqlite"
    assert store.max_bytes == megabytes * MEGABYTE


@pytest.mark.parametrize("text", ["-1", "1.5", "1GB", "nan", "9" * 5000])
def test_a_bad_bound_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SOFTCUE_CACHE_MB", text)
    with pytest.raises(ConfigurationError, match=r"SOFTCUE_CACHE_MB: got .*a whole number of megabytes"):
        open_store()


def test_zero_switches_the_store_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path))
    open_store().put({"a": torch.ones(2)})
    monkeypatch.setenv("SOFTCUE_CACHE_MB", "0")
    store = open_store()
    assert store.get(["a"]) == {}
    store.put({"b": torch.ones(2)})
    monkeypatch.delenv("SOFTCUE_CACHE_MB")
    assert open_store().get(["a", "b"]).keys() == {"a"}
