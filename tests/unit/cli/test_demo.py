from pathlib import Path

import pytest
from examples import demo

from siltstone.lake import Lake

pytestmark = pytest.mark.usefixtures("without_spark")


def test_the_demo_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.play(tmp_path)
    told = capsys.readouterr().out
    assert "delete on customer" in told
    table = Lake(tmp_path / "lake").table(demo.TABLE)
    assert [delta.stream_position for delta in table.deltas()] == [*range(1, 8)]
    first, second = table.rounds()
    assert (first.bucket_actions, second.bucket_actions) == ({"major": 1}, {"minor": 1})
    assert second.accounting.superseded_rows > 0
    assert second.live_rows == first.live_rows - 300 == table.to_arrow().num_rows


def test_the_demo_leaves_nothing_behind_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    demo.main(keep=False)
    assert list(tmp_path.iterdir()) == []
    demo.main(keep=True)
    assert len(list(tmp_path.iterdir())) == 1
