"""The notebook runs from top to bottom in a fresh kernel, and what is committed with it is what it shows."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def read() -> nbformat.NotebookNode:
    notebook: nbformat.NotebookNode = nbformat.read(PAGE, as_version=4)  # type: ignore[no-untyped-call]
    return notebook


def cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: nbformat.NotebookNode) -> list[str]:
    """Return what a cell shows: streams by name, results by their richest form."""
    shown = []
    for output in cell.outputs:
        data = output.get("data", {})
        shown.append(
            next((kind for kind in ("image/png", "text/html", "text/plain") if kind in data), output.get("name"))
        )
    return [kind for kind in shown if kind != "stderr"]


def test_the_notebook_runs_and_shows_what_is_committed(tmp_path: Path) -> None:
    committed, fresh = read(), read()
    for cell in cells(fresh):
        cell.outputs, cell.execution_count = [], None
    NotebookClient(fresh, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [kinds(cell) for cell in cells(fresh)] == [kinds(cell) for cell in cells(committed)]
    assert any("image/png" in kinds(cell) for cell in cells(fresh))
    assert list(tmp_path.iterdir()) == []


def test_the_committed_notebook_is_small_and_names_no_machine() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(text) < 200_000
    for word in (*(f"/{folder}/" for folder in ("tmp", "home", "root")), "stderr"):
        assert word not in text, word
    counts = [cell.execution_count for cell in cells(read())]
    assert counts == [*range(1, 1 + len(counts))]
