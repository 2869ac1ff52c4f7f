"""Atomic writes and locks: a file or folder is complete or absent, even if the process is killed while it writes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from softcue.errors import FolderInUseError, RunError

if TYPE_CHECKING:
    from torch import Tensor
TEMPORARY_SUFFIX = ".partial"
METADATA_LIMIT = 64 << 20  # bytes of a JSON file that softcue itself has written


@contextmanager
def convert_write_errors(setting: str, path: Path) -> Iterator[None]:
    """Turn an OSError of the body into a RunError that names the setting and the path."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            setting=setting, got=path, expected="a place that can be written to", fix=f"choose another: {reason}"
        ) from error


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.EACCES, errno.EPERM)


@contextmanager
def convert_disk_errors(folder: Path) -> Iterator[None]:
    """Turn the error of a disk that is full, over its quota or read-only, or of a removed folder, into a RunError.

    Whatever was written before is whole: the run can be resumed. Any other OSError is a bug and stays what it is.
    """
    try:
        yield
    except OSError as error:
        is_of_folder = str(error.filename or "").startswith(str(folder))
        if error.errno not in DISK_ERRORS and not (error.errno == errno.ENOENT and is_of_folder):
            raise
        raise RunError(
            setting="output_dir",
            got=folder,
            expected="a disk with room that can be written to",
            fix=f"{error.strerror}; what was saved before is whole: make room, then continue with `resume=True`",
        ) from error


def write_atomically(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file atomically: to a temporary name, fsync, rename, then fsync the folder.

    `data` is the content, or an iterable of its chunks.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> write_atomically(target, b"hello")
        >>> target.read_bytes()
        b'hello'
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("wb") as handle:
            for chunk in (data,) if isinstance(data, bytes) else data:
                handle.write(chunk)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON with its keys in the given order. NaN raises ValueError, because JSON has none."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def serialize_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Serialize tensors in the safetensors format, in a fixed order: equal tensors give equal bytes."""
    from safetensors.torch import save
    from torch import contiguous_format

    # Cloned: safetensors rejects tensors that share memory, and the best parameters of a run may be its current ones.
    on_cpu = {name: tensors[name].detach().cpu() for name in sorted(tensors)}
    return bytes(save({name: value.clone(memory_format=contiguous_format) for name, value in on_cpu.items()}))


def tensor_shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shapes of tensors by name, to compare what a file holds with what is expected.

    Example:
        >>> import torch
        >>> tensor_shapes({"prompt": torch.zeros(20, 4)})
        {'prompt': (20, 4)}
    """
    return {name: tuple(value.shape) for name, value in tensors.items()}


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. A pipe, a device or a folder, also behind a link, raises OSError at once.

    Example:
        >>> open_regular(Path("/dev/zero"))
        Traceback (most recent call last):
        OSError: [Errno 22] not a regular file: '/dev/zero'
    """
    _check_regular(path, os.stat(path))  # before it is opened, because opening a device may already have an effect
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer does not block
    try:
        _check_regular(path, os.fstat(descriptor))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_within(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes; a larger one raises OSError before it is read.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> write_atomically(target, b"hello")
        >>> read_within(target, 5)
        b'hello'
    """
    with open_regular(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        data = handle.read(size + 1) if size <= limit else b""  # one more, in case it grows meanwhile
    if size > limit or len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit:,} bytes", str(path))
    return data


def sha256(path: Path) -> str:
    """The SHA-256 of a regular file as hexadecimal text; the file is read in chunks."""
    digest = hashlib.sha256()
    with open_regular(path) as handle:
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that renames inside it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_folder_atomically(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files atomically, with a manifest of their SHA-256 digests.

    The folder is filled under a temporary name and renamed last: a reader sees the complete folder or none.
    """
    temporary = folder.with_name(f"{folder.name}{TEMPORARY_SUFFIX}")
    remove(temporary)
    temporary.mkdir(parents=True)
    for name, data in files.items():
        write_atomically(temporary / name, data)
    manifest = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    write_json(temporary / "manifest.json", manifest)
    remove(folder)
    os.replace(temporary, folder)
    sync_folder(folder.parent)


def remove(path: Path) -> None:
    """Remove a folder or a file, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_complete_folder(folder: Path) -> bool:
    """Whether all files of the folder's manifest exist with the recorded digests."""
    try:
        manifest = json.loads(read_within(folder / "manifest.json", METADATA_LIMIT).decode())
        return bool(manifest) and all(sha256(folder / name) == digest for name, digest in manifest.items())
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def cache_folder() -> Path:
    """The folder of downloaded backbones and caches: SOFTCUE_HOME, else ~/.cache/softcue."""
    return Path(os.environ.get("SOFTCUE_HOME") or Path.home() / ".cache" / "softcue").expanduser()


@contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Hold a lock file, after any other process that holds it.

    Where it cannot be written, nothing is held: the write that follows then says why.

    Example:
        with wait_for_lock(cache_folder() / "choices.lock"):
            ...
    """
    with ExitStack() as stack:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(path.open("w")), fcntl.LOCK_EX)
        yield


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep a second run out of an output folder. The lock ends with the process, even if it is killed."""
    path = folder.parent / f".{folder.name}.lock"
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError("a file has that name")
        folder.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("w")
    except (OSError, ValueError) as error:  # ValueError of a name with a null character
        raise RunError(
            setting="output_dir", got=folder, expected="a folder that can be made and written to", fix=str(error)
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # the previous holder may have removed the file between `open` and `flock`
            has_lock = path.exists() and os.fstat(handle.fileno()).st_ino == path.stat().st_ino
        except OSError:
            has_lock = False
        if not has_lock:
            raise FolderInUseError(
                setting="output_dir",
                got=folder,
                expected="a folder no other run is writing to",
                fix="wait for that run, or choose another folder",
            )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
