"""constraints/extras.txt pins every package of every extra, and says nothing of where packages come from."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pin_extras() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pin_extras", ROOT / "scripts" / "pin_extras.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_requirement_has_a_pin_that_fits(pin_extras: ModuleType) -> None:
    assert pin_extras.missing_pins() == [], "run `make constraints`"


def test_pins_agree_with_constraints(pin_extras: ModuleType) -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = pin_extras.read_pins()
    assert {name: pins[name] for name, _, _ in (line.partition("==") for line in lines)} == dict(
        line.split("==") for line in lines
    )


def test_pins_are_names_and_versions_alone(pin_extras: ModuleType) -> None:
    text = pin_extras.PINNED.read_text()
    assert "://" not in text and "@" not in text and "+" not in text
    assert len(pin_extras.read_pins()) > 150


def test_missing_or_unfit_pin_is_named(pin_extras: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = pin_extras.PINNED.read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("fastapi==", "peft=="))] + ["peft==0.1"]
    (tmp_path / "extras.txt").write_text("\n".join(kept))
    monkeypatch.setattr(pin_extras, "PINNED", tmp_path / "extras.txt")
    assert [line.split(">")[0] for line in pin_extras.missing_pins()] == ["fastapi", "peft"]
