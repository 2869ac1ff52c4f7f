"""The notebooks of docs/notebooks: stored without outputs, listed on their page, and each of them runs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
notebooks = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)


def cells_of(notebook: Path, kind: str) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


@notebooks
def test_notebooks_are_stored_without_outputs_and_compile(notebook: Path) -> None:
    code = cells_of(notebook, "code")
    assert code and cells_of(notebook, "markdown")
    for cell in code:
        assert cell["outputs"] == [] and cell["execution_count"] is None
        ast.parse("".join(cell["source"]))


def test_the_page_of_notebooks_names_all_of_them() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    assert len(NOTEBOOKS) == 4
    assert all(f"({notebook.name})" in page for notebook in NOTEBOOKS)


@pytest.mark.processes
@pytest.mark.timeout(900)  # on a busy machine
@notebooks
def test_notebooks_run(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    content = nbformat.read(notebook, as_version=4)
    NotebookClient(content, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [output for cell in content.cells if cell.cell_type == "code" for output in cell.outputs]
    assert printed and not any(output.output_type == "error" for output in printed)
