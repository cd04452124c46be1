from pathlib import Path

import pytest
from examples import demo

from siltstone.lake import Lake
from tests.unit.cli.page_steps import blocks_of
from tests.unit.cli.test_commands_page import masked

README = Path(__file__).parents[3] / "README.md"

pytestmark = pytest.mark.usefixtures("without_spark")


def test_the_demo_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.play(tmp_path)
    told = capsys.readouterr().out
    assert "stays out: its sort key is older" in told
    assert "delete on city, status" in told
    assert "revenue" in told
    (shown,) = (block for language, block in blocks_of(README) if language == "text")
    assert masked(shown, tmp_path) in masked(told, tmp_path)
    table = Lake(tmp_path / "lake").table(demo.NAME)
    assert [delta.stream_position for delta in table.deltas()] == [*range(1, 11)]
    assert [round_.bucket_actions for round_ in table.rounds()] == [{"major": 1}, {"minor": 1}, {"minor": 1}]
    (row,) = table.lookup({"order_id": demo.WATCHED_ORDER})
    assert row["status"] == "returned"
    assert table.fsck(deep=True) == []


def test_the_demo_leaves_nothing_behind_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    demo.main(keep=False)
    assert list(tmp_path.iterdir()) == []
    demo.main(keep=True)
    assert len(list(tmp_path.iterdir())) == 1
