from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from softcue.studies.study import list_studies

ROOT = Path(__file__).parents[1]


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("studies_docs", ROOT / "scripts" / "studies_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_studies_is_what_the_script_writes() -> None:
    script = load_script()
    assert script.PAGE.read_text("utf-8") == script.make_page()


def test_the_page_has_every_study() -> None:
    page = load_script().PAGE.read_text("utf-8")
    assert all(f"| `{name}` |" in page for name in list_studies())
