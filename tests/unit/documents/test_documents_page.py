"""The page that explains documents is run, and must tell the truth; so must the example."""

import doctest
import runpy
from pathlib import Path

import pytest

from siltstone.documents.merge import run_here

HOME = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run the tasks of rounds in this process."""
    monkeypatch.setattr("siltstone.spark.session.local_session", lambda: None)
    monkeypatch.setattr("siltstone.spark.tasks.spark_engine", lambda *_: run_here)
    monkeypatch.chdir(tmp_path)


def test_the_page_prints_what_it_says() -> None:
    text = (HOME / "docs/documents.md").read_text(encoding="utf-8")
    lines = ["" if line.startswith("```") else line for line in text.splitlines()]
    test = doctest.DocTestParser().get_doctest("\n".join(lines), {}, "documents.md", "documents.md", 0)
    assert len(test.examples) > 20
    told: list[str] = []
    options = doctest.ELLIPSIS
    result = doctest.DocTestRunner(optionflags=options).run(test, out=told.append)
    assert not result.failed, "".join(told)


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["documents.py", "lake"])
    runpy.run_path(str(HOME / "examples/documents.py"), run_name="__main__")
    told = capsys.readouterr().out
    assert "r17 is version 3 before compaction and after it" in told
    assert "1 record, 0 deletions" in told
    assert "0 records, 3 deletions" in told
