"""Where a backbone's name is found: an alias, a model folder or a hub id.

Aliases are packages that pip can fetch, so that softcue works without a model hub. Their files are pinned by sha256.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import yaml

from softcue.errors import BackboneError, MissingExtraError, near_matches
from softcue.files import cache_folder, remove, sha256, write_atomically


@dataclass(frozen=True)
class Alias:
    """A pip package that carries model weights."""

    kind: str
    description: str
    requirement: str
    module: str  # the package's import name
    folder: str  # the model's folder below the package
    weights: str  # the pinned file in that folder
    digest: str


def _read_aliases() -> dict[str, Alias]:
    """The aliases of aliases.yaml. Shell completion reads their names there without importing this package."""
    entries = yaml.safe_load(Path(__file__).with_name("aliases.yaml").read_text("utf-8"))
    return {name: Alias(**entry) for name, entry in entries.items()}


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
    spec = importlib.util.find_spec(alias.module)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / alias.folder
    return folder if (folder / alias.weights).is_file() else None


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
        if (folder / "adapter_config.json").is_file():  # transformers would load it together with its base
            raise BackboneError(
                setting="backbone.name",
                got=name,
                expected="a whole model rather than an adapter",
                fix="merge the adapter into its model and save that",
            )
        has_model = (folder / "config.json").is_file() or any(folder.glob("*.gguf"))
        if not has_model:
            raise BackboneError(
                setting="backbone.name",
                got=name,
                expected="a folder with config.json or one .gguf file",
                fix="point to the model folder itself",
            )
        return folder
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name or not name
    if looks_like_path or os.path.exists(path) or len(name) > 200:
        raise BackboneError(
            setting="backbone.name",
            got=name,
            expected=f"an existing model folder, a hub id or one of {', '.join(ALIASES)}",
            fix="check the path",
        )
    return None


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
    if (folder / "config.json").is_file():
        return None
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise BackboneError(
            setting="backbone.name",
            got=folder,
            expected="exactly one .gguf file in the folder",
            fix="leave only the one to load",
        )
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("gguf", "gguf") from error
    return files[0].name


def pull(name: str) -> Path:
    """Download the wheel of an alias with pip, without its dependencies, and keep its model folder.

    Example:
        folder = pull("minilm")
    """
    if name not in ALIASES:
        raise BackboneError(
            setting="backbone", got=name, expected="an alias that pip can fetch", fix=near_matches(name, ALIASES)
        )
    alias = ALIASES[name]
    target = cache_folder() / "backbones" / name
    if not (target / alias.weights).is_file():
        with tempfile.TemporaryDirectory() as folder:
            options = ["--quiet", "--no-deps", "--disable-pip-version-check", "-d", folder]
            command = [sys.executable, "-m", "pip", "download", *options, alias.requirement]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            wheels = sorted(Path(folder).glob("*.whl"))
            if result.returncode != 0 or not wheels:
                lines = [line for line in result.stderr.splitlines() if line.strip()]
                errors = [line for line in lines if line.startswith("ERROR")]
                reason = (errors or lines or ["no wheel was downloaded"])[-1]
                raise BackboneError(
                    setting="backbone",
                    got=name,
                    expected=f"pip to download {alias.requirement}",
                    fix=f"check the network: {reason}",
                )
            _unpack(wheels[0], name, target)
    else:
        _check_digest_once(name, target)
    return target


def _unpack(wheel: Path, name: str, target: Path) -> None:
    """Check the weights of a wheel's model folder and put the folder in place of an older one."""
    alias = ALIASES[name]
    prefix = "/".join(part for part in (alias.module, alias.folder) if part) + "/"
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        remove(partial)
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.namelist():
                inner = PurePosixPath(entry.removeprefix(prefix))
                is_outside = inner.is_absolute() or ".." in inner.parts
                if not entry.startswith(prefix) or entry.endswith(("/", ".py")) or is_outside:
                    continue
                (partial / inner).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(partial / inner, archive.read(entry))
        _check_digest(name, partial / alias.weights, f"nothing was kept; {alias.requirement} is not what it was")
        remove(target)
        os.replace(partial, target)
        _checked.add(target / alias.weights)
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        expected = f"a whole wheel of {alias.requirement} with {prefix}{alias.weights}"
        raise BackboneError(
            setting="backbone", got=name, expected=expected, fix=f"try again, or report it: {error}"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


_checked: set[Path] = set()


def _check_digest_once(name: str, folder: Path) -> None:
    """Check the digest of an alias' weights, once per process and file."""
    file = folder / ALIASES[name].weights
    if file not in _checked:
        _check_digest(name, file, f"remove {folder} and run: softcue backbones pull {name}")
        _checked.add(file)


def _check_digest(name: str, file: Path, fix: str) -> None:
    expected = ALIASES[name].digest
    if (digest := sha256(file)) != expected:
        setting = f"backbone.name '{name}', {file}"
        raise BackboneError(setting=setting, got=f"sha256 {digest}", expected=f"sha256 {expected}", fix=fix)
