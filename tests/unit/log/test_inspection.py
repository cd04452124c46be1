"""Looking into logs, and repairing oversized ones."""

import dataclasses
import itertools
import json
import os
from pathlib import Path

import pytest
from tests.unit.log.conftest import names, spelled

from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError
from siltstone.log import CompactibleLog, ObjectCodec, SinkEntry, SinkLog, SourceEntry, SourceLog
from siltstone.log.commit import CommitLog
from siltstone.log.inspect import files, open_log, show, verify
from siltstone.log.repair import compact
from siltstone.log.spark_logs import SINK_CODEC
from siltstone.objects import open_objects

_numbers = itertools.count()
NOW = 1_700_000_000_000


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "root") if request.param == "local" else f"memory://inspection-tests-{next(_numbers)}"


def fill_sink(root: str, batches: int, *, interval: int = 3, age_ms: int = 0) -> SinkLog:
    """One data file a batch; the entry of batch b is b seconds younger than that of batch 0."""
    log = SinkLog(root, default_interval=interval)
    for batch_id in range(batches):
        log.objects.create(f"k={batch_id % 2}/{batch_id} é.parquet", b"12345"[: batch_id % 5 + 1])
        entry = log.entry(f"k={batch_id % 2}/{batch_id} é.parquet")
        log.add(batch_id, [entry._replace(modified_ms=NOW - age_ms + batch_id * 1000)])
    return log


def fill_source(root: str, batches: int) -> SourceLog:
    log = SourceLog(root, default_interval=3)
    for batch_id in range(batches):
        log.add(batch_id, [SourceEntry(f"file:///in/{batch_id}", NOW, batch_id)])
    return log


def codes(root: str) -> list[str]:
    return [finding.code for finding in verify(root).findings]


def test_a_log_is_found_from_the_directory_it_belongs_to_and_from_its_own_folder(root: str) -> None:
    fill_sink(root, 4)
    for path in (root, f"{root}/", f"{root}/_spark_metadata"):
        opened = open_log(path)
        assert opened.kind == "sink"
        assert len(list(files(path))) == 4


def test_a_source_log_is_found_from_its_folder_and_from_the_checkpoint(tmp_path: Path) -> None:
    fill_source(str(tmp_path / "checkpoint/sources/0"), 4)
    for path in (tmp_path / "checkpoint", tmp_path / "checkpoint/sources/0"):
        assert open_log(path).kind == "source"
        assert [entry.batch_id for entry in files(path) if isinstance(entry, SourceEntry)] == [0, 1, 2, 3]


def test_the_kind_shows_in_the_entries_wherever_the_log_lies(tmp_path: Path) -> None:
    fill_source(str(tmp_path / "copied"), 2)
    fill_sink(str(tmp_path / "out"), 2)
    os.rename(tmp_path / "out/_spark_metadata", tmp_path / "moved")
    assert open_log(tmp_path / "copied").kind == "source"
    assert open_log(tmp_path / "moved").kind == "sink"


def test_a_log_of_our_own_shows_what_is_live(root: str) -> None:
    log = CompactibleLog(open_objects(root), "", ObjectCodec())
    log.add(0, [{"key": "a", "v": 1}, {"key": "b", "v": 1}])
    log.add(1, [{"key": "a", "removed": True}])
    assert open_log(root).kind == "siltstone"
    assert list(files(root)) == [{"key": "b", "v": 1}]


def test_a_commit_log_is_summed_up_beside_its_batches(local_root: str) -> None:
    log = CommitLog(local_root, "log")
    for value in range(3):
        log.commit("test", lambda _, value=value: {"a": {"value": value}, f"b{value}": {"value": value}})  # type: ignore[misc]
    address = f"{local_root}/log"
    planned = compact(address, dry_run=True)
    assert (planned.compact_file, planned.entries_before, planned.entries_after) == ("2.compact", 9, 5)
    assert [file.name for file in log.listing().files] == ["0", "1", "2"]
    assert compact(address).bytes_after > 0
    assert [file.name for file in log.listing().files] == ["0", "1", "2", "2.compact"]
    assert compact(address).message == "nothing to do"
    assert CommitLog(local_root, "log").read(len) == 5
    with pytest.raises(InvalidInputError, match="no retention"):
        compact(address, retention_ms=1)


def test_data_files_that_a_tables_log_names_are_verified(local_root: str) -> None:
    log = CommitLog(local_root, "tables/t/1/log")
    for number in range(3):
        entry = {"uri": f"tables/t/1/deltas/_/{number}.parquet", "record_count": 1, "content_length": 3}
        open_objects(local_root).create(entry["uri"], b"abc")  # type: ignore[arg-type]
        log.commit("test", lambda _, n=number, e=entry: {f"delta/{n}": {"manifest": {"entries": [e]}}})  # type: ignore[misc]
    address = f"{local_root}/tables/t/1/log"
    assert (verify(address).data_files_checked, verify(address).findings) == (3, [])
    log.commit("trim", lambda _: {"delta/0": None})
    (Path(local_root) / "tables/t/1/deltas/_/0.parquet").unlink()
    assert verify(address).findings == []
    (Path(local_root) / "tables/t/1/deltas/_/1.parquet").unlink()
    (Path(local_root) / "tables/t/1/deltas/_/2.parquet").write_bytes(b"a")
    assert [finding.code for finding in verify(address).findings] == ["missing-file", "size-mismatch"]


@pytest.mark.parametrize("entry", [{"key": "a"}, {"kind": "a"}])
def test_a_log_of_our_own_is_known_by_its_entries(tmp_path: Path, entry: dict[str, object]) -> None:
    CompactibleLog(open_objects(tmp_path), "sources/0", ObjectCodec()).add(0, [entry])
    assert open_log(tmp_path / "sources/0").kind == "siltstone"


def test_where_there_is_no_log_the_error_says_what_to_give(root: str) -> None:
    with pytest.raises(NotFoundError, match="no log here; give an output directory"):
        open_log(root)


def test_showing_counts_entries_and_bytes_of_each_batch(root: str) -> None:
    fill_sink(root, 5)
    summary = show(root)
    assert (summary.kind, summary.interval, summary.latest, summary.live_entries) == ("sink", 3, 4, 5)
    assert [(batch.file, batch.entries) for batch in summary.batches] == [("0", 1), ("1", 1), ("2.compact", 3), ("3", 1), ("4", 1)]  # fmt: skip
    assert summary.bytes == sum(batch.bytes for batch in summary.batches)
    assert json.loads(json.dumps(dataclasses.asdict(summary)))["batches"][2]["is_compact"] is True


def test_showing_survives_damaged_files_and_gaps(root: str) -> None:
    log = fill_sink(root, 5)
    log.objects.replace("_spark_metadata/4", b"")
    summary = show(root)
    assert summary.live_entries is None
    assert "Incomplete log file" in (summary.batches[4].problem or "")
    log.objects.delete(["_spark_metadata/3", "_spark_metadata/4"])
    log.objects.create("_spark_metadata/6", b"v1")
    assert show(root).live_entries is None


def test_an_output_directory_whose_log_is_empty_shows_nothing(tmp_path: Path) -> None:
    (tmp_path / "_spark_metadata").mkdir()
    summary = show(tmp_path)
    assert (summary.kind, summary.latest, summary.live_entries, summary.batches) == ("sink", None, 0, [])


def test_a_sound_log_has_no_findings(root: str) -> None:
    fill_sink(root, 8)
    report = verify(root)
    assert report.findings == []
    assert (report.batches, report.entries, report.data_files_checked) == (8, 8, 8)


def test_missing_and_changed_data_files_are_found(root: str) -> None:
    log = fill_sink(root, 5)
    log.objects.delete(["k=1/1 é.parquet"])
    log.objects.replace("k=0/4 é.parquet", b"1234567890")
    findings = verify(root).findings
    assert [(finding.code, finding.file.rpartition("/")[2]) for finding in findings] == [
        ("size-mismatch", "4 é.parquet"),
        ("missing-file", "1 é.parquet"),
    ]
    assert "5 bytes, but it has 10" in findings[0].message
    assert all(finding.action for finding in findings)
    assert verify(root, data_files=False).findings == []


def test_a_path_listed_twice_is_found_however_it_is_spelled(root: str) -> None:
    log = fill_sink(root, 2)
    entry = log.all_files()[0]
    log.add(2, [entry._replace(path=entry.path.replace("%20", "%20").replace("%C3%A9", "é"))])
    assert codes(root) == ["duplicate-path"]


def test_files_elsewhere_than_in_the_output_directory_are_found(tmp_path: Path) -> None:
    fill_sink(str(tmp_path / "old"), 2)
    os.rename(tmp_path / "old", tmp_path / "new")
    assert codes(str(tmp_path / "new")) == ["foreign-path", "missing-file", "foreign-path", "missing-file"]
    log = SinkLog(tmp_path / "new")
    log.add(2, [SinkEntry("hdfs://nn/o/a.parquet", 1, False, NOW)])
    assert codes(str(tmp_path / "new"))[-1] == "unchecked"


def test_a_gap_is_found(root: str) -> None:
    log = fill_sink(root, 8)
    log.objects.delete(["_spark_metadata/6"])
    findings = verify(root).findings
    assert [(finding.code, finding.file.rpartition("/")[2]) for finding in findings] == [("gap", "6")]
    with pytest.raises(CorruptionError, match="batches are missing"):
        compact(root)


def test_damaged_lines_and_versions_are_found_each(root: str) -> None:
    log = fill_sink(root, 5)
    good = log.objects.read("_spark_metadata/3").split(b"\n")[1]
    log.objects.replace("_spark_metadata/3", b"\n".join([b"v1", b"{", good, b"[]"]))
    log.objects.replace("_spark_metadata/4", b"v2\n" + good)
    log.objects.replace("_spark_metadata/0", b"")
    findings = verify(root).findings
    assert [(finding.code, finding.file.rpartition("/")[2]) for finding in findings] == [
        ("bad-file", "0"),
        ("bad-line", "3"),
        ("bad-line", "3"),
        ("bad-file", "4"),
    ]
    assert "line 2," in findings[1].message
    assert "line 4," in findings[2].message
    assert "encountered v2" in findings[3].message


def test_names_that_contradict_the_interval_are_found(root: str) -> None:
    log = fill_sink(root, 8)
    log.objects.create("_spark_metadata/6.compact", b"v1")
    log.objects.delete(["_spark_metadata/5.compact"])
    findings = verify(root).findings
    assert [(finding.code, finding.file.rpartition("/")[2]) for finding in findings] == [("interval", "7.compact")]


def test_compacting_drops_expired_entries_and_superfluous_files(root: str) -> None:
    log = fill_sink(root, 8)
    before = log.objects.read("_spark_metadata/5.compact")
    report = compact(root, retention_ms=10_000, now_ms=lambda: NOW + 13_000)
    assert (report.entries_before, report.entries_after, report.compact_file) == (6, 3, "5.compact")
    assert report.bytes_before == len(before)
    assert report.bytes_after == len(log.objects.read("_spark_metadata/5.compact"))
    assert report.deleted_files == ["0", "1", "3", "4"]
    assert names(log.objects, "_spark_metadata") == sorted([*spelled("2c 5c 6 7"), "_backup-1-5.compact"])
    assert log.objects.read("_spark_metadata/_backup-1-5.compact") == before
    assert log.objects.read("_spark_metadata/2.compact") == b"v1"
    assert [entry.modified_ms for entry in SinkLog(root).all_files()] == [NOW + each * 1000 for each in (3, 4, 5, 6, 7)]
    assert SinkLog(root, default_interval=10).interval == 3
    assert log.latest_id() == 7
    again = compact(root, retention_ms=10_000, now_ms=lambda: NOW + 13_000)
    assert again.message == "nothing to do"


def test_a_dry_run_says_the_same_and_changes_nothing(root: str) -> None:
    log = fill_sink(root, 8)
    before = {name: log.objects.read(f"_spark_metadata/{name}") for name in names(log.objects, "_spark_metadata")}
    planned = compact(root, retention_ms=10_000, now_ms=lambda: NOW + 13_000, dry_run=True)
    assert {
        name: log.objects.read(f"_spark_metadata/{name}") for name in names(log.objects, "_spark_metadata")
    } == before
    done = compact(root, retention_ms=10_000, now_ms=lambda: NOW + 13_000)
    changed = {"dry_run": False, "message": planned.message.replace("would be", "were")}
    assert dataclasses.replace(planned, **changed) == done  # type: ignore[arg-type]
    assert done.message == "3 entries were dropped, 4 files were deleted"


def test_compacting_without_retention_only_deletes_superfluous_files(root: str) -> None:
    log = fill_sink(root, 8)
    entries = log.all_files()
    before = log.objects.read("_spark_metadata/5.compact")
    report = compact(root)
    assert (report.entries_before, report.entries_after, report.backup_file) == (6, 6, None)
    assert names(log.objects, "_spark_metadata") == spelled("2c 5c 6 7")
    assert log.objects.read("_spark_metadata/5.compact") == before
    assert SinkLog(root).all_files() == entries


def test_without_backup_no_copy_stays_and_checksums_go_first(tmp_path: Path) -> None:
    log = fill_sink(str(tmp_path), 3)
    (tmp_path / "_spark_metadata/.2.compact.crc").write_bytes(b"old")
    report = compact(tmp_path, retention_ms=0, backup=False, now_ms=lambda: NOW + 13_000)
    assert report.backup_file is None
    assert sorted(os.listdir(tmp_path / "_spark_metadata")) == ["2.compact"]
    assert log.objects.read("_spark_metadata/2.compact") == b"v1"


def test_a_log_without_a_compact_file_needs_nothing(root: str) -> None:
    fill_sink(root, 2)
    assert compact(root, retention_ms=0).message == "nothing to do"


@pytest.mark.parametrize("missing", ["0", "1"])
def test_a_log_with_a_gap_and_no_compact_file_is_not_called_sound(root: str, missing: str) -> None:
    log = fill_sink(root, 3, interval=10)
    log.objects.delete([f"_spark_metadata/{missing}"])
    with pytest.raises(CorruptionError, match="batches are missing; run verify"):
        compact(root)


def test_a_commit_log_with_a_gap_is_not_called_sound(local_root: str) -> None:
    log = CommitLog(local_root, "log")
    for key in ("a", "b", "c"):
        log.commit("test", lambda _, key=key: {key: {"value": 1}})  # type: ignore[misc]
    os.remove(Path(local_root) / "log/1")
    with pytest.raises(CorruptionError, match="batches are missing; run verify"):
        compact(f"{local_root}/log")


def test_a_plain_batch_that_its_compact_file_lacks_is_found_and_not_deleted(root: str) -> None:
    log = fill_sink(root, 7)
    late = SinkEntry("file:///o/late", 1, False, NOW)
    content = log.objects.read("_spark_metadata/4") + b"\n" + SINK_CODEC.encode(late)
    log.objects.replace("_spark_metadata/4", content)
    findings = verify(root, data_files=False).findings
    assert [(finding.code, finding.file.rpartition("/")[2]) for finding in findings] == [("passed-batch", "4")]
    assert "1 of its entries are not in 5.compact" in findings[0].message
    assert "file:///o/late" in findings[0].message
    with pytest.raises(CorruptionError, match=r"_spark_metadata/4: entries of this batch are not in 5\.compact"):
        compact(root)
    assert log.objects.read("_spark_metadata/4") == content


def test_a_plain_batch_of_a_source_that_its_compact_file_lacks_is_found(root: str) -> None:
    log = fill_source(root, 4)
    log.objects.replace("1", b'v1\n{"path":"file:///in/late","timestamp":1,"batchId":1}')
    assert codes(root) == ["passed-batch"]


def test_entries_that_expired_are_not_taken_for_lost(root: str) -> None:
    fill_sink(root, 2)
    log = SinkLog(root, default_interval=3, retention_ms=10_000, now_ms=lambda: NOW + 11_000)
    log.objects.create("k=0/2.parquet", b"1")
    log.add(2, [log.entry("k=0/2.parquet")._replace(modified_ms=NOW + 5_000)])
    assert len(log.all_files()) == 2
    assert codes(root) == []
    assert compact(root).deleted_files == ["0", "1"]


def test_a_source_log_is_compacted_without_retention_only(root: str) -> None:
    log = fill_source(root, 8)
    with pytest.raises(InvalidInputError, match="a source log has no retention"):
        compact(root, retention_ms=1000)
    report = compact(root)
    assert report.deleted_files == ["0", "1", "3", "4"]
    assert [batch_id for batch_id, _ in log.get_range()] == list(range(8))


def test_compacting_a_damaged_file_changes_nothing(root: str) -> None:
    log = fill_sink(root, 3)
    damaged = log.objects.read("_spark_metadata/2.compact")[:-10]
    log.objects.replace("_spark_metadata/2.compact", damaged)
    with pytest.raises(CorruptionError, match=r"2\.compact"):
        compact(root, retention_ms=0, now_ms=lambda: NOW + 13_000)
    assert names(log.objects, "_spark_metadata") == spelled("0 1 2c")
    assert log.objects.read("_spark_metadata/2.compact") == damaged
