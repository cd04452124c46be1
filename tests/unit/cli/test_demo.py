from pathlib import Path

import pytest
from examples import demo

from siltstone.lake import Lake


def test_the_demo_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.play(tmp_path)
    told = capsys.readouterr().out
    assert "delete on customer" in told
    assert [delta.stream_position for delta in Lake(tmp_path / "lake").table(demo.TABLE).deltas()] == [1, 2, 3]


def test_the_demo_leaves_nothing_behind_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    demo.main(keep=False)
    assert list(tmp_path.iterdir()) == []
    demo.main(keep=True)
    assert len(list(tmp_path.iterdir())) == 1
