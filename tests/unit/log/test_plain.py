"""The plain metadata log."""

from pathlib import Path

import pytest
from tests.unit.log.conftest import names

from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.log import JsonCodec, MetadataLog
from siltstone.objects import Objects, open_objects


def test_purging_deletes_the_batches_below_the_threshold(objects: Objects) -> None:
    log = MetadataLog(objects, "log", JsonCodec())
    for batch_id in range(3):
        log.add(batch_id, [batch_id])
    log.purge(2)
    assert names(objects) == ["2"]
    assert log.get_range() == [(2, [2])]


def test_purging_after_deletes_the_batches_above_the_threshold(objects: Objects) -> None:
    log = MetadataLog(objects, "log", JsonCodec())
    for batch_id in range(4):
        log.add(batch_id, [batch_id])
    log.purge_after(1)
    assert names(objects) == ["0", "1"]
    assert log.add(2, ["again"])


def test_opening_creates_nothing_and_adding_creates_the_folder(tmp_path: Path) -> None:
    log = MetadataLog(open_objects(tmp_path), "deep/log", JsonCodec())
    assert log.latest() is None
    assert not (tmp_path / "deep").exists()
    assert log.add(0, ["x"])
    assert log.latest() == (0, ["x"])


def test_a_folder_named_like_a_batch_is_none(tmp_path: Path) -> None:
    (tmp_path / "log/0").mkdir(parents=True)
    assert MetadataLog(open_objects(tmp_path), "log", JsonCodec()).latest() is None


def test_a_range_is_inclusive_and_without_gaps(objects: Objects) -> None:
    log = MetadataLog(objects, "log", JsonCodec())
    for batch_id in range(5):
        log.add(batch_id, [batch_id])
    assert log.get_range(1, 3) == [(1, [1]), (2, [2]), (3, [3])]
    assert log.get_range(3) == [(3, [3]), (4, [4])]
    assert log.get_range(None, 0) == [(0, [0])]
    with pytest.raises(InvalidInputError, match="range 3 to 1 ends before it starts"):
        log.get_range(3, 1)
    with pytest.raises(CorruptionError, match=r"batches \(5, 6\) don't exist"):
        log.get_range(4, 6)
    with pytest.raises(CorruptionError, match="batch 8 doesn't exist"):
        log.get_range(8, 9)


def test_an_empty_log_has_an_empty_range(objects: Objects) -> None:
    assert MetadataLog(objects, "log", JsonCodec()).get_range() == []


def test_a_log_may_lie_at_the_root_itself(objects: Objects) -> None:
    log = MetadataLog(objects, "", JsonCodec())
    log.add(0, ["x"])
    assert objects.read("0") == b'v1\n"x"'
    assert log.latest() == (0, ["x"])
