"""Signatures of cues: who made a folder that comes from elsewhere.

A signature is the file cue.json.minisig, in the format of minisign (Ed25519 over the BLAKE2b-512 digest of cue.json).
minisign itself can make and check it. cue.json holds the digest of the parameters, so they are signed with it. The
model card and metrics.json decide no prediction and are not signed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from softcue.errors import ConfigurationError, CueError, MissingExtraError
from softcue.files import convert_write_errors, read_within, write_atomically

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE = "cue.json.minisig"  # the file beside cue.json
SIZE_LIMIT = 64 << 10  # bytes of a key or a signature
UNTRUSTED, TRUSTED = "untrusted comment: ", "trusted comment: "
ALGORITHM, PREHASHED = b"Ed", b"ED"  # of a key, and of a signature over a digest
NO_PASSWORD, CHECKSUM = b"\0\0", b"B2"
ID_SIZE, SEED_SIZE, SECRET_SIZE, SIGNATURE_SIZE, DIGEST_SIZE = 8, 32, 64, 64, 32
PASSWORD_SIZE = 32 + 8 + 8  # salt and two limits, zeros in a key without a password


@dataclass(frozen=True)
class PublicKeys:
    """The keys whose signatures are accepted, by id."""

    path: Path
    keys: Mapping[bytes, bytes]  # id -> [32]


def write_new_key(path: Path) -> Path:
    """Write a secret key that only its owner can read, and beside it the public key, whose path is returned.

    Neither file may exist. The secret key has no password: its place has to protect it.

    Example:
        write_new_key(Path("team.key"))     # team.pub is for those who check signatures
    """
    public_path = path.with_suffix(".pub")
    if public_path == path:
        raise ConfigurationError(
            setting="new_key", got=path, expected="a name that does not end in .pub", fix="choose another name"
        )
    for file in (path, public_path):
        if file.exists():
            raise ConfigurationError(
                setting="new_key", got=file, expected="a file that does not exist yet", fix="choose another name"
            )
    seed, key_id = secrets.token_bytes(SEED_SIZE), secrets.token_bytes(ID_SIZE)
    public = _public_bytes(_secret_key(seed))
    unused = bytes(DIGEST_SIZE)  # minisign has a checksum only in keys with a password
    content = ALGORITHM + NO_PASSWORD + CHECKSUM + bytes(PASSWORD_SIZE) + key_id + seed + public + unused
    name = _readable(key_id)
    with convert_write_errors("new_key", path):
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file_object:
            file_object.write(_lines(f"{UNTRUSTED}softcue secret key {name}", content))
            file_object.flush()
            os.fsync(file_object.fileno())
        write_atomically(public_path, _lines(f"{UNTRUSTED}softcue public key {name}", ALGORITHM + key_id + public))
    return public_path


def sign_cue(folder: Path, key_file: Path) -> Path:
    """Sign a cue with a secret key; returns the path of the signature, which is part of the folder.

    Example:
        sign_cue(Path("cues/tickets"), Path("team.key"))
    """
    from softcue.cue.cue_file import SIZE_LIMIT as CUE_FILE_LIMIT
    from softcue.cue.cue_file import TRY_AGAIN, check_tensors, read_cue_file

    key_id, key = _read_secret_key(key_file)
    cue_file = read_cue_file(folder)  # only a whole cue is signed
    data = read_within(folder / "cue.json", CUE_FILE_LIMIT)
    check_tensors(folder, cue_file)
    if json.loads(data)["record_sha256"] != cue_file.record_sha256:  # it was replaced between the two reads
        raise CueError(
            setting=str(folder), got="files that do not belong together", expected="a whole cue", fix=TRY_AGAIN
        )
    signature = key.sign(_prehash(data))
    comment = f"timestamp:{int(time.time())}\tfile:cue.json\thashed"
    both = key.sign(signature + comment.encode())
    path = folder / SIGNATURE
    lines = [
        f"{UNTRUSTED}signature with the softcue key {_readable(key_id)}",
        base64.b64encode(PREHASHED + key_id + signature).decode(),
        f"{TRUSTED}{comment}",
        base64.b64encode(both).decode(),
    ]
    with convert_write_errors("signature", path):
        write_atomically(path, ("\n".join(lines) + "\n").encode())
    return path


def read_public_keys(path: str | Path) -> PublicKeys:
    """Read the keys whose signatures are accepted: one file of minisign or softcue, or several one after another.

    Example:
        softcue.load("cues/tickets", require_signature="team.pub")
    """
    file = Path(path)
    keys: dict[bytes, bytes] = {}
    for line in _read_text(file, "require_signature").splitlines():
        if not line.strip() or line.startswith(UNTRUSTED):
            continue
        content = _decode(line)
        if content is None or len(content) != len(ALGORITHM) + ID_SIZE + SEED_SIZE or content[:2] != ALGORITHM:
            raise ConfigurationError(
                setting="require_signature",
                got=f"{file}: {line[:20]}...",
                expected="public keys of minisign or `softcue sign --new-key`",
                fix="pass the .pub file",
            )
        keys[content[2 : 2 + ID_SIZE]] = content[2 + ID_SIZE :]
    if not keys:
        raise ConfigurationError(
            setting="require_signature", got=file, expected="at least one public key", fix="pass the .pub file"
        )
    for key in keys.values():
        _public_key(key)
    return PublicKeys(file, keys)


def check_signature(folder: Path, data: bytes, signers: PublicKeys) -> None:
    """Check that the content of cue.json, as it was read, is signed by one of the keys.

    Example:
        check_signature(folder, (folder / "cue.json").read_bytes(), read_public_keys("team.pub"))
    """
    from cryptography.exceptions import InvalidSignature

    file = folder / SIGNATURE
    expected, fix = (
        f"a signature by a key of {signers.path.name}",
        "sign it with `softcue sign`, or do not use this cue",
    )
    if not os.path.isfile(file):
        raise CueError(setting=str(folder), got="no signature", expected=expected, fix=fix)
    lines = _read_text(file, str(file)).splitlines()
    signature = _decode(lines[1]) if len(lines) >= 4 else None
    both = _decode(lines[3]) if len(lines) >= 4 else None
    has_form = (
        signature is not None
        and both is not None
        and len(signature) == len(PREHASHED) + ID_SIZE + SIGNATURE_SIZE
        and signature[:2] == PREHASHED
        and lines[2].startswith(TRUSTED)
    )
    if not has_form or signature is None or both is None:
        raise CueError(setting=str(file), got="another format", expected="a signature of minisign", fix=fix)
    key_id = signature[2 : 2 + ID_SIZE]
    if key_id not in signers.keys:
        raise CueError(setting=str(file), got=f"the key {_readable(key_id)}", expected=expected, fix=fix)
    key = _public_key(signers.keys[key_id])
    try:
        key.verify(signature[2 + ID_SIZE :], _prehash(data))
        key.verify(both, signature[2 + ID_SIZE :] + lines[2].removeprefix(TRUSTED).encode())
    except InvalidSignature as error:
        got = "a signature of other content than cue.json has"
        raise CueError(setting=str(file), got=got, expected=expected, fix=fix) from error


def _read_secret_key(file: Path) -> tuple[bytes, Ed25519PrivateKey]:
    """The id and the key of a file, whose two halves must belong together."""
    lines = _read_text(file, "key").splitlines()
    content = _decode(lines[1]) if len(lines) >= 2 else None
    start = len(ALGORITHM + NO_PASSWORD + CHECKSUM) + PASSWORD_SIZE
    size = start + ID_SIZE + SECRET_SIZE + DIGEST_SIZE
    if content is None or len(content) != size or content[:2] != ALGORITHM or content[4:6] != CHECKSUM:
        raise ConfigurationError(
            setting="key", got=file, expected="a secret key", fix="make one: softcue sign --new-key FILE"
        )
    if content[2:4] != NO_PASSWORD:
        raise ConfigurationError(
            setting="key",
            got=f"{file}, which has a password",
            expected="a key without one",
            fix="sign cue.json with minisign itself, or make a key: softcue sign --new-key FILE",
        )
    key_id, secret = content[start : start + ID_SIZE], content[start + ID_SIZE : -DIGEST_SIZE]
    key = _secret_key(secret[:SEED_SIZE])
    if _public_bytes(key) != secret[SEED_SIZE:]:
        raise ConfigurationError(setting="key", got=file, expected="an undamaged secret key", fix="restore the file")
    return key_id, key


def _secret_key(seed: bytes) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ModuleNotFoundError as error:
        raise MissingExtraError("cryptography", "sign") from error
    return Ed25519PrivateKey.from_private_bytes(seed)


def _public_key(data: bytes) -> Ed25519PublicKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ModuleNotFoundError as error:
        raise MissingExtraError("cryptography", "sign") from error
    return Ed25519PublicKey.from_public_bytes(data)


def _public_bytes(key: Ed25519PrivateKey) -> bytes:
    data: bytes = key.public_key().public_bytes_raw()
    return data


def _prehash(data: bytes) -> bytes:
    return hashlib.blake2b(data).digest()


def _readable(key_id: bytes) -> str:
    """The id of a key as minisign prints it."""
    return key_id[::-1].hex().upper()


def _lines(comment: str, content: bytes) -> bytes:
    return f"{comment}\n{base64.b64encode(content).decode()}\n".encode()


def _decode(line: str) -> bytes | None:
    try:
        return base64.b64decode(line.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None


def _read_text(file: Path, setting: str) -> str:
    try:
        return read_within(file, SIZE_LIMIT).decode()
    except (OSError, ValueError) as error:
        got = f"{file} ({getattr(error, 'strerror', None) or error})"
        raise ConfigurationError(setting=setting, got=got, expected="a readable file", fix="check the path") from error
