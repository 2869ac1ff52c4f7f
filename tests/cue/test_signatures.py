"""Signed cues: keys, signatures in minisign's format, and everything that is refused."""

from __future__ import annotations

import base64
import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import check_error, run
from serving_cues import save_cue
from tiny import tiny

import softcue
from softcue.cue.cue_file import cue_file_digest
from softcue.cue.signatures import read_public_keys, sign_cue, write_new_key
from softcue.errors import ConfigurationError, CueError, MissingExtraError, RunError

needs_minisign = pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign is not installed")


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with team.key, team.pub, other.pub and the signed cue cues/topics."""
    folder = tmp_path_factory.mktemp("signed")
    save_cue(folder / "cues" / "topics")
    write_new_key(folder / "team.key")
    write_new_key(folder / "other.key")
    sign_cue(folder / "cues" / "topics", folder / "team.key")
    return folder


@pytest.fixture
def copy(signed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(signed, tmp_path / "copy")


def load(folder: Path, keys: str = "team.pub") -> softcue.Cue:
    return softcue.load(folder / "cues" / "topics", tiny("bert"), require_signature=folder / keys)


def test_a_signed_cue_is_loaded(signed: Path) -> None:
    assert load(signed).predict("My invoice is wrong.")[0].label in ("a", "b", "c")


def test_the_secret_key_is_for_its_owner_alone(signed: Path) -> None:
    assert stat.S_IMODE((signed / "team.key").stat().st_mode) == 0o600


def test_one_of_several_keys_is_enough(copy: Path) -> None:
    both = (copy / "other.pub").read_text() + (copy / "team.pub").read_text()
    (copy / "both.pub").write_text(both)
    assert len(read_public_keys(copy / "both.pub").keys) == 2
    load(copy, "both.pub")


def test_a_signature_by_another_key_is_refused(signed: Path) -> None:
    with pytest.raises(CueError, match=r"a signature by a key of other\.pub"):
        load(signed, "other.pub")


def _change_record(cue: Path) -> None:
    """Change cue.json as an attacker would: with a digest that fits."""
    values = json.loads((cue / "cue.json").read_text())
    values["scores"] = {"test": {"accuracy": 1.0}}
    values["record_sha256"] = cue_file_digest(values)
    (cue / "cue.json").write_text(json.dumps(values))


def _change_parameters(cue: Path) -> None:
    data = bytearray((cue / "cue.safetensors").read_bytes())
    data[-1] ^= 1
    (cue / "cue.safetensors").write_bytes(data)


def _edit_signature(edit: Callable[[list[str]], object]) -> Callable[[Path], None]:
    def change(cue: Path) -> None:
        lines = (cue / "cue.json.minisig").read_text().splitlines()
        edit(lines)
        (cue / "cue.json.minisig").write_text("\n".join(lines))

    return change


def _flip(lines: list[str], number: int) -> None:
    data = bytearray(base64.b64decode(lines[number]))
    data[-1] ^= 1
    lines[number] = base64.b64encode(data).decode()


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no signature": (lambda cue: (cue / "cue.json.minisig").unlink(), "no signature"),
    "another record": (_change_record, "other content than cue.json has"),
    "other parameters": (_change_parameters, "other content than cue.json records"),
    "another signature": (_edit_signature(lambda lines: _flip(lines, 1)), "other content than cue.json has"),
    "another comment": (
        _edit_signature(lambda lines: lines.__setitem__(2, "trusted comment: timestamp:1")),
        "other content than cue.json has",
    ),
    "another second signature": (_edit_signature(lambda lines: _flip(lines, 3)), "other content than cue.json has"),
    "too few lines": (_edit_signature(lambda lines: lines.pop()), "another format"),
    "no base64": (_edit_signature(lambda lines: lines.__setitem__(1, "!")), "another format"),
    "an empty file": (lambda cue: (cue / "cue.json.minisig").write_bytes(b""), "another format"),
    "no text": (lambda cue: (cue / "cue.json.minisig").write_bytes(b"\xff\xfe"), "a readable file"),
}


@pytest.mark.parametrize(("change", "reason"), CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_cue_is_refused(copy: Path, change: Callable[[Path], object], reason: str) -> None:
    change(copy / "cues" / "topics")
    with pytest.raises((CueError, ConfigurationError), match=reason):
        load(copy)


def test_without_the_option_a_signature_is_not_read(copy: Path) -> None:
    (copy / "cues/topics/cue.json.minisig").write_text("nothing")
    softcue.load(copy / "cues" / "topics", tiny("bert"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [("", "at least one public key"), ("untrusted comment: x\nRWQ=\n", "public keys of minisign"), (None, "readable")],
)
def test_a_file_without_public_keys_is_an_error(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "keys.pub").write_text(content)
    with pytest.raises(ConfigurationError, match=reason):
        read_public_keys(tmp_path / "keys.pub")


def test_a_damaged_secret_key_signs_nothing(copy: Path) -> None:
    comment, content = (copy / "team.key").read_text().splitlines()
    data = bytearray(base64.b64decode(content))
    data[80] ^= 1  # of the seed
    (copy / "team.key").write_text(f"{comment}\n{base64.b64encode(data).decode()}\n")
    with pytest.raises(ConfigurationError, match="undamaged"):
        sign_cue(copy / "cues" / "topics", copy / "team.key")
    data[80] ^= 1
    data[2:4] = b"Sc"
    (copy / "team.key").write_text(f"{comment}\n{base64.b64encode(data).decode()}\n")
    with pytest.raises(ConfigurationError, match="a password"):
        sign_cue(copy / "cues" / "topics", copy / "team.key")
    with pytest.raises(ConfigurationError, match="a secret key"):
        sign_cue(copy / "cues" / "topics", copy / "team.pub")


def test_only_cues_are_signed_and_keys_are_never_replaced(copy: Path) -> None:
    with pytest.raises(CueError, match=r"cue\.json"):
        sign_cue(copy, copy / "team.key")
    with pytest.raises(ConfigurationError, match="does not exist yet"):
        write_new_key(copy / "team.key")
    with pytest.raises(ConfigurationError, match=r"does not end in \.pub"):
        write_new_key(copy / "fourth.pub")
    with pytest.raises(RunError, match="new_key"):
        write_new_key(copy / "missing" / "a.key")
    (copy / "third.pub").touch()
    with pytest.raises(ConfigurationError, match="does not exist yet"):
        write_new_key(copy / "third.key")
    assert not (copy / "third.key").exists()


def test_a_cue_whose_files_do_not_belong_together_is_not_signed(copy: Path) -> None:
    _change_parameters(copy / "cues" / "topics")
    with pytest.raises(CueError, match="a whole cue"):
        sign_cue(copy / "cues" / "topics", copy / "team.key")


def test_evaluate_reads_no_file_that_an_unsigned_cue_names(copy: Path) -> None:
    cue = copy / "cues" / "topics"
    values = json.loads((cue / "cue.json").read_text())
    values["task"]["test"] = str(copy / "no-such-rows.csv")
    values["record_sha256"] = cue_file_digest(values)
    (cue / "cue.json").write_text(json.dumps(values))
    refused = run("evaluate", cue, "--split", "test", "--require-signature", copy / "team.pub")
    check_error(refused, "a signature by a key of team.pub")


def test_a_missing_package_is_named(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(MissingExtraError, match=r"\[sign\]"):
        load(signed)


def test_the_server_loads_only_signed_cues(copy: Path) -> None:
    save_cue(copy / "cues" / "unsigned")
    with softcue.Engine(tiny("bert"), copy / "cues", require_signature=copy / "team.pub") as engine:
        assert [cue.name for cue in engine.registry.loaded()] == ["topics"]
        assert "a signature by a key of team.pub" in str(engine.registry.broken()["unsigned"])


def test_the_commands_sign_and_check(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy)
    printed = run("sign", "cues/topics", "--new-key", "mine.key")
    assert printed.code == 0 and "signed: cues/topics/cue.json.minisig" in printed.out
    load(copy, "mine.pub")
    refused = run("predict", "cues/topics", "hello", "--require-signature", "other.pub")
    check_error(refused, "a signature by a key of other.pub", "softcue sign")
    check_error(run("sign", "cues/topics"), "--key", "--new-key")
    check_error(
        run("serve", "cues", "--backbone", "x", "--require-signature", "none.pub"), "none.pub", "check the path"
    )


@needs_minisign
def test_minisign_itself_checks_our_signatures_and_makes_its_own(copy: Path) -> None:
    cue = copy / "cues" / "topics"
    check = ["minisign", "-V", "-p", copy / "team.pub", "-m", cue / "cue.json"]
    assert b"verified" in subprocess.run(check, check=True, capture_output=True).stdout
    subprocess.run(
        ["minisign", "-G", "-W", "-p", copy / "real.pub", "-s", copy / "real.key"], check=True, capture_output=True
    )
    subprocess.run(["minisign", "-S", "-s", copy / "real.key", "-m", cue / "cue.json"], check=True, capture_output=True)
    load(copy, "real.pub")
    sign_cue(cue, copy / "real.key")
    load(copy, "real.pub")
    check[3] = copy / "real.pub"
    assert b"verified" in subprocess.run(check, check=True, capture_output=True).stdout
