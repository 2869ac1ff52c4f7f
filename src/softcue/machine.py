"""What the machine and the installation offer: packages, extras, processor, memory, GPUs and caches."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
import threading
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from softcue.errors import MissingExtraError
from softcue.files import cache_folder

CORE_PACKAGES = ("torch", "transformers", "accelerate", "safetensors")
# flags of /proc/cpuinfo -> the number format that the processor multiplies by itself
NUMBER_FORMATS = {
    "avx512_bf16": "bfloat16 (AVX-512)",
    "amx_bf16": "bfloat16 (AMX)",
    "bf16": "bfloat16 (ARM)",
    "avx512_fp16": "float16 (AVX-512)",
    "fphp": "float16 (ARM)",
    "avx512_vnni": "int8 (AVX-512 VNNI)",
    "avx_vnni": "int8 (AVX VNNI)",
    "amx_int8": "int8 (AMX)",
}
ORPHAN_SECONDS = 0.5  # between two looks whether the parent process is alive
GIGABYTE = 2**30


@dataclass(frozen=True)
class Extra:
    """An optional part of softcue: its packages with their versions, None for a missing one."""

    name: str
    packages: dict[str, str | None]

    @property
    def is_installed(self) -> bool:
        """Whether all its packages are there."""
        return None not in self.packages.values()

    @property
    def how_to_install(self) -> str:
        """The command that installs it."""
        return MissingExtraError("", self.name).fix.partition(": ")[2]


@dataclass(frozen=True)
class Memory:
    """Main memory in gigabytes; `limit` is that of the container, if there is one."""

    total: float | None
    available: float | None
    limit: float | None


@dataclass(frozen=True)
class Cache:
    """A folder of files that can be fetched or computed again."""

    content: str
    path: Path
    megabytes: float


def package_version(package: str) -> str | None:
    """The installed version of a package, or None.

    Example:
        >>> package_version("no-such-package") is None
        True
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def list_extras() -> list[Extra]:
    """The extras of softcue as its metadata names them, without those that only gather others.

    Example:
        >>> "serve" in [extra.name for extra in list_extras()]
        True
    """
    from packaging.requirements import Requirement

    try:
        lines = requires("softcue") or []
    except PackageNotFoundError:  # a checkout that is not installed
        return []
    packages: dict[str, dict[str, str | None]] = {}
    for line in lines:
        requirement = Requirement(line)
        marker = str(requirement.marker or "")
        extra = marker.partition("extra == ")[2].strip("\"')( ")
        is_for_this_machine = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if extra and requirement.name != "softcue" and is_for_this_machine:
            packages.setdefault(extra, {})[requirement.name] = package_version(requirement.name)
    return [Extra(name, versions) for name, versions in sorted(packages.items())]


def read_memory() -> Memory:
    """Main memory, as far as the system tells.

    Example:
        >>> memory = read_memory()
        >>> memory.total is None or memory.total > 0
        True
    """
    total = available = None
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not every system tells
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIGABYTE
    for line in _read_lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024 / GIGABYTE
    limit = None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        for line in _read_lines(path):
            if line.strip().isdigit() and (total is None or int(line) / GIGABYTE < total):
                limit = int(line) / GIGABYTE
    return Memory(total, available, limit)


def reset_peak_memory() -> None:
    """Let the peak memory of this process be counted from now on. Where the system cannot, it stays as it is.

    A worker takes many runs one after the other. Without this, each would report the peak of those before it.

    Example:
        reset_peak_memory()     # before a run; softcue.training.loop.peak_megabytes after it
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)  # what earlier runs have freed goes back to the system
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # 5: the peak of the resident memory (man 5 proc)


def usable_cores() -> int:
    """The cores that this process may use.

    Example:
        >>> usable_cores() >= 1
        True
    """
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def processor_name() -> str:
    """The name of the processor."""
    for line in _read_lines("/proc/cpuinfo"):
        if line.lower().startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def number_formats() -> list[str]:
    """The short number formats that the processor multiplies by itself, as far as the system tells.

    Example:
        >>> isinstance(number_formats(), list)
        True
    """
    for line in _read_lines("/proc/cpuinfo"):
        if line.lower().startswith(("flags", "features")):
            flags = set(line.partition(":")[2].split())
            return [name for flag, name in NUMBER_FORMATS.items() if flag in flags]
    return []


def list_caches() -> list[Cache]:
    """The cache folders of softcue and of the hub, with their sizes."""
    home = cache_folder()
    hub = Path(
        os.environ.get("HF_HUB_CACHE")
        or Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface").expanduser() / "hub"
    ).expanduser()
    below = sorted(path for path in home.iterdir() if path.is_dir()) if home.is_dir() else []
    caches = [Cache("softcue (SOFTCUE_HOME)", home, _megabytes(home))]
    caches += [Cache(f"softcue: {path.name}", path, _megabytes(path)) for path in below]
    return [*caches, Cache("models and data of the hub (HF_HOME)", hub, _megabytes(hub))]


def _megabytes(folder: Path) -> float:
    """The size of all files below a folder. Links are not followed; files that vanish meanwhile do not count."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total / 2**20


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def end_with_parent(parent: int) -> None:
    """End this process when its parent is gone, even if that was killed: nobody would know of its work.

    Example:
        end_with_parent(parent)  # the parent has given its os.getpid()
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="softcue-parent", daemon=True).start()
