"""Cues on the Hugging Face Hub: `hub:OWNER/NAME[@REVISION]` as the address of a cue, and uploads.

Only the files of a cue are uploaded or downloaded. Their sizes are checked before a download begins. A downloaded
cue is a folder like any other: loading checks it as if a stranger had sent it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import softcue
from softcue.configuration import method_config
from softcue.cue.cue_file import SIZE_LIMIT, CueFile, check_tensors, read_cue_file
from softcue.cue.model_card import model_card
from softcue.cue.signatures import SIGNATURE
from softcue.cue.signatures import SIZE_LIMIT as SIGNATURE_LIMIT
from softcue.errors import ConfigurationError, CueError, SoftcueError, first_line
from softcue.files import (
    METADATA_LIMIT,
    TEMPORARY_SUFFIX,
    cache_folder,
    convert_write_errors,
    read_within,
    remove,
    sync_folder,
    write_atomically,
)
from softcue.selection.record import record_of_cue
from softcue.tasks.readers import HUB_PREFIX

TENSORS = "cue.safetensors"
# Files of a cue with the largest size that is downloaded; for that of the tensors see `_largest_tensors`.
FILES = {
    "cue.json": SIZE_LIMIT,
    "README.md": METADATA_LIMIT,
    "metrics.json": METADATA_LIMIT,
    SIGNATURE: SIGNATURE_LIMIT,
    TENSORS: None,
}
REQUIRED = (TENSORS, "cue.json")
BYTES_PER_NUMBER = 4  # parameters are stored in float32
TENSORS_OVERHEAD = 64 << 20  # bytes of cue.safetensors besides the counted parameters: solved heads, names, shapes
TENSORS_LIMIT = 1 << 30  # bytes of cue.safetensors, unless the method trains the backbone
SHARE_OF_DISK = 0.5  # of the free space, which one download may take
MEGABYTE = 10**6
ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
LOGIN = "set HF_TOKEN, or log in with `hf auth login`"


@dataclass(frozen=True)
class HubAddress:
    """A repository on the hub, and one of its revisions: a branch, a tag or a commit.

    Example:
        >>> HubAddress.parse("hub:me/tickets@v2")
        HubAddress(repo_id='me/tickets', revision='v2')
    """

    repo_id: str
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> HubAddress:
        """Read `hub:OWNER/NAME` or `hub:OWNER/NAME@REVISION`."""
        repo_id, at, revision = text.removeprefix(HUB_PREFIX).partition("@")
        check_repo_id(repo_id, "cue", text)
        if at and not revision:
            raise ConfigurationError(
                setting="cue", got=text, expected="hub:OWNER/NAME@REVISION", fix="name a branch, a tag or a commit"
            )
        return cls(repo_id, revision or "main")

    @property
    def name(self) -> str:
        """The name of the repository without its owner, which is the name of the cue."""
        return self.repo_id.partition("/")[2]

    def __str__(self) -> str:
        return f"{HUB_PREFIX}{self.repo_id}" + ("" if self.revision == "main" else f"@{self.revision}")


def check_repo_id(repo_id: str, setting: str, got: str) -> None:
    """Raise an error unless a text is OWNER/NAME; it becomes a part of paths and URLs.

    Example:
        >>> check_repo_id("me/tickets", "repo_id", "me/tickets")
    """
    if not ID.fullmatch(repo_id) or ".." in repo_id or "--" in repo_id:
        raise ConfigurationError(
            setting=setting,
            got=got,
            expected="OWNER/NAME of a repository on the hub: letters, digits, '-', '_' and '.'",
            fix="check the name",
        )


def is_hub_address(address: str | Path) -> bool:
    """Whether the address of a cue is on the hub rather than a folder.

    Example:
        >>> is_hub_address("hub:me/tickets"), is_hub_address("cues/tickets")
        (True, False)
    """
    return str(address).startswith(HUB_PREFIX) and not os.path.exists(address)


def find_cue_folder(address: str | Path) -> Path:
    """The folder of a cue's address: the folder itself, or a download of `hub:OWNER/NAME[@REVISION]`.

    A revision that was downloaded before is not downloaded again. If the hub cannot be reached, the commit that the
    revision meant last time is taken, with a warning. The folder has the name of the repository.

    Example:
        find_cue_folder("hub:me/tickets@v2") / "cue.json"
    """
    if not is_hub_address(address):
        return Path(address)
    parsed = HubAddress.parse(str(address))
    home = cache_folder() / "hub" / parsed.repo_id.replace("/", "--")
    known_commit = home / f"revision-{quote(parsed.revision, safe='')}"
    try:
        with _explain_errors(parsed):
            commit, sizes = _list_files(parsed)
    except _UnreachableError as error:
        folder = _kept_folder(home, known_commit, parsed.name)
        if folder is None:
            raise
        warnings.warn(f"{parsed} may have changed: {error.problem}; using the copy on this machine", stacklevel=2)
        return folder
    folder = home / commit / parsed.name
    with convert_write_errors("SOFTCUE_HOME", home):
        if not (folder / "cue.json").is_file():
            _download(parsed, commit, sizes, folder)
    with suppress(OSError):  # a cache that may only be read serves what it has
        write_atomically(known_commit, commit.encode())
    return folder


def push_folder(
    folder: Path,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
) -> str:
    """Upload the files of a cue folder in one commit, and return the address of the commit's page.

    Example:
        push_folder(Path("cues/tickets"), "me/tickets", private=True)
    """
    check_repo_id(repo_id, "repo_id", repo_id)
    address = HubAddress(repo_id, revision or "main")
    files = files_to_push(folder, address)
    _warn_of_size(read_cue_file(folder), _size(files), f"uploading to {address}")
    with _explain_errors(address), _quiet_hub():
        from huggingface_hub import CommitOperationAdd

        api = _api(token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        if revision is not None and not revision.startswith("refs/"):
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        commit = api.create_commit(
            repo_id,
            [CommitOperationAdd(path_in_repo=name, path_or_fileobj=content) for name, content in files.items()],
            commit_message=commit_message or f"Upload cue {folder.name}",
            revision=revision,
        )
    return str(commit.commit_url)


def files_to_push(folder: Path, address: HubAddress) -> dict[str, bytes | Path]:
    """What a push uploads: the cue's own files, if they are whole, with a model card for the address.

    Example:
        list(files_to_push(Path("cues/tickets"), HubAddress("me/tickets")))
    """
    cue_file = read_cue_file(folder)
    check_tensors(folder, cue_file)
    if Path(cue_file.backbone.name).is_absolute():
        warnings.warn(
            f"cue.json names the backbone by its folder here, {cue_file.backbone.name}: whoever loads the cue must "
            "pass another place of the same model as `backbone`",
            stacklevel=3,
        )
    files: dict[str, bytes | Path] = {
        "README.md": model_card(cue_file, address.name, record_of_cue(folder), address=str(address)).encode()
    }
    files |= {name: folder / name for name in ("metrics.json", SIGNATURE) if (folder / name).is_file()}
    return {**files, TENSORS: folder / TENSORS, "cue.json": folder / "cue.json"}


def _size(files: Mapping[str, bytes | Path]) -> int:
    return sum(len(content) if isinstance(content, bytes) else content.stat().st_size for content in files.values())


def _warn_of_size(cue_file: CueFile, size: int, what: str) -> None:
    """Say the size of a cue that holds a backbone, before it is transferred."""
    if method_config(cue_file.method).tunes_backbone:
        warnings.warn(
            f"{what}: {size / MEGABYTE:,.0f} MB, because this cue holds a trained copy of its backbone", stacklevel=3
        )


def _list_files(address: HubAddress) -> tuple[str, dict[str, int]]:
    """The commit of a revision, and the sizes of the cue's files in it."""
    info = _api().model_info(address.repo_id, revision=address.revision, files_metadata=True)
    commit = str(info.sha)
    sizes = {
        file.rfilename: sys.maxsize if file.size is None else int(file.size)  # a size that is not said is too large
        for file in info.siblings or []
        if file.rfilename in FILES
    }
    missing = [name for name in REQUIRED if name not in sizes]
    if missing or not COMMIT.fullmatch(commit):
        raise CueError(
            setting="cue",
            got=str(address),
            expected="a repository with cue.json and cue.safetensors",
            fix=f"it has no {missing[0]}; is it a cue of softcue?" if missing else "its commit has no valid name",
        )
    pinned = address.revision.lower()
    if COMMIT.fullmatch(pinned) and commit != pinned:
        raise CueError(
            setting="cue",
            got=f"commit {commit}",
            expected=f"the commit of {address}",
            fix="the hub answered with another one: check HF_ENDPOINT",
        )
    return commit, sizes


def _download(address: HubAddress, commit: str, sizes: Mapping[str, int], folder: Path) -> None:
    """Download the files of a commit; the folder appears when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Of its own for each download: other threads and machines may download the same commit into this cache.
    temporary = Path(tempfile.mkdtemp(TEMPORARY_SUFFIX, f"{commit}.", folder.parent.parent))
    downloaded = temporary / folder.name  # only the user may read `temporary`; a cache may be shared
    try:
        downloaded.mkdir()
        for name, limit in FILES.items():
            if name not in sizes:
                continue
            if limit is None:
                cue_file = read_cue_file(downloaded)
                limit = _largest_tensors(cue_file, shutil.disk_usage(downloaded).free)
                _warn_of_size(cue_file, sizes[name], f"downloading {address}")
            _check_size(address, name, sizes[name], limit)
            with _explain_errors(address), _quiet_hub():
                _api().hf_hub_download(address.repo_id, name, revision=commit, local_dir=downloaded)
            _check_size(address, name, (downloaded / name).stat().st_size, limit)  # the list may have been wrong
        remove(downloaded / ".cache")  # records of huggingface_hub
        try:
            os.replace(downloaded, folder)
        except OSError:
            if not (folder / "cue.json").is_file():  # else it was downloaded elsewhere meanwhile
                raise
        sync_folder(folder.parent)
    finally:
        remove(temporary)


def _check_size(address: HubAddress, name: str, size: int, limit: int) -> None:
    if size > limit:
        raise CueError(
            setting=f"{name} of {address}",
            got=f"{size:,} bytes",
            expected=f"at most {limit:,} bytes",
            fix="it was not kept; ask its owner",
        )


def _largest_tensors(cue_file: CueFile, free: int) -> int:
    """The largest size of cue.safetensors: what cue.json describes, within limits that a stranger does not set."""
    num_parameters = cue_file.counts.get("stored", 0) + cue_file.counts.get("head", 0)
    described = TENSORS_OVERHEAD + BYTES_PER_NUMBER * max(num_parameters, 0)
    limit = min(described, int(SHARE_OF_DISK * free))
    return limit if method_config(cue_file.method).tunes_backbone else min(limit, TENSORS_LIMIT)


def _kept_folder(home: Path, known_commit: Path, name: str) -> Path | None:
    """The folder of the commit that a revision meant when the hub was reached last."""
    try:
        commit = read_within(known_commit, 100).decode()
    except (OSError, ValueError):
        return None
    folder = home / commit / name
    return folder if COMMIT.fullmatch(commit) and (folder / "cue.json").is_file() else None


def _api(token: str | None = None) -> Any:
    from huggingface_hub import HfApi

    return HfApi(token=token, library_name="softcue", library_version=softcue.__version__)


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Hide the progress bars of huggingface_hub while active: a cue is a few kilobytes."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


class _UnreachableError(CueError):
    """The hub does not answer, so that a copy on this machine may serve instead."""

    def __init__(self, address: HubAddress, problem: str, fix: str) -> None:
        super().__init__(setting="hub", got=str(address), expected=f"the hub to answer ({problem})", fix=fix)
        self.problem = problem


def _hub_error(address: HubAddress, expected: str, fix: str) -> CueError:
    return CueError(setting="hub", got=str(address), expected=expected, fix=fix)


@contextmanager
def _explain_errors(address: HubAddress) -> Iterator[None]:
    """Turn the errors of huggingface_hub into one line that says what to do."""
    from huggingface_hub import errors

    try:
        yield
    except SoftcueError:
        raise
    except errors.OfflineModeIsEnabled as error:
        raise _UnreachableError(address, "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE") from error
    except errors.GatedRepoError as error:
        fix = f"ask for access on its page, then {LOGIN}"
        raise _hub_error(address, "a repository that you have access to: it is gated", fix) from error
    except errors.RevisionNotFoundError as error:
        raise _hub_error(address, "a branch, a tag or a commit of it", "check the part after @") from error
    except errors.RepositoryNotFoundError as error:
        fix = f"check the name; if it is private, {LOGIN}"
        raise _hub_error(address, "a repository that exists and that you may read", fix) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            expected = "a token that may do this" if status == 403 else "a valid token"
            raise _hub_error(address, expected, f"{LOGIN}; the token needs the right to write for a push") from error
        if status >= 500 or status == 429:
            raise _UnreachableError(address, f"status {status}", "try again later") from error
        raise _hub_error(address, "the hub to accept it", f"status {status}: {first_line(error)[:200]}") from error
    except Exception as error:  # of the network: connections, certificates, proxies, time-outs
        reason = first_line(error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error)
        raise _UnreachableError(address, reason[:200].rstrip("."), "check the network") from error
