"""The log of an output directory."""

import itertools
import os
from pathlib import Path

import pytest

from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError
from siltstone.log import SinkEntry, SinkLog
from siltstone.log.spark_logs import SINK_CODEC, base_uri, decoded, file_uri, partition_folder
from siltstone.objects import open_objects

_numbers = itertools.count()
NOW = 1_700_000_000_000


@pytest.fixture(params=["local", "memory"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "out") if request.param == "local" else f"memory://sink-tests-{next(_numbers)}"


def made(path: str, modified_ms: int = NOW) -> SinkEntry:
    return SinkEntry(path, 1, False, modified_ms)


def test_an_entry_is_written_byte_for_byte_as_spark_does() -> None:
    line = (
        b'{"path":"file:///o/part-0.parquet","size":3919,"isDir":false,"modificationTime":1615462080000,'
        b'"blockReplication":1,"blockSize":33554432,"action":"add"}'
    )
    entry = SinkEntry("file:///o/part-0.parquet", 3919, False, 1615462080000)
    assert SINK_CODEC.encode(entry) == line
    assert SINK_CODEC.decode(line) == entry


def test_a_file_of_a_second_is_kept_until_its_retention_is_over() -> None:
    log = SinkLog("memory://retention", retention_ms=60_000)
    kept = [log.retain(made("p", NOW - age), NOW) for age in (0, 60_000, 60_001, 120_000)]
    assert kept == [True, True, False, False]
    assert SinkLog("memory://retention").retain(made("p", 0), NOW)


def test_compaction_drops_files_past_their_retention(output: str) -> None:
    log = SinkLog(output, retention_ms=60_000, default_interval=2, now_ms=lambda: NOW)
    entries = [made(f"file:///o/{age}", NOW - age) for age in (120_000, 60_001, 60_000, 0)]
    log.add(0, entries[:3])
    assert log.all_files() == entries[2:3]
    assert SinkLog(output).all_files() == entries[:3]
    log.add(1, entries[3:])
    assert SinkLog(output).all_files() == entries[2:]


HOSTILE = [
    made('file:///o/,"modificationTime":1,"blockReplication":1,"blockSize":1,"action":"add"}'),
    made('file:///o/\\"modificationTime\\":1'),
    SinkEntry("file:///o/a", 1, False, NOW, action='x","modificationTime":1,"blockReplication":1,"action":"add'),
    made("file:///o/é\u2028"),
    made("file:///o/negative", -5),
    made("file:///o/old", 1),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(len(HOSTILE)), 2)))
def test_retention_is_not_fooled_by_text_inside_an_entry(order: tuple[int, int]) -> None:
    log = SinkLog("memory://hostile", retention_ms=60_000)
    entries = [HOSTILE[each] for each in order]
    block = b"\n".join(map(SINK_CODEC.encode, entries))
    expected = b"\n".join(SINK_CODEC.encode(entry) for entry in entries if log.retain(entry, NOW))
    assert log.retained_block(block, NOW) == expected


def test_retention_understands_entries_with_other_fields_in_another_order() -> None:
    log = SinkLog("memory://hostile", retention_ms=60_000)
    nested = (
        b'{"later":{"path":"x","modificationTime":1,"blockReplication":1,"blockSize":1,"action":"add"},'
        b'"action":"add","path":"p","size":1,"isDir":false,"modificationTime":%d,"blockReplication":1,"blockSize":1}'
    )
    assert log.retained_block(nested % NOW, NOW) == nested % NOW
    assert log.retained_block(nested % 1, NOW) == b""


def test_a_missing_field_is_damage_also_while_compacting(output: str) -> None:
    log = SinkLog(output, retention_ms=60_000, default_interval=2)
    open_objects(output).create("_spark_metadata/0", b'v1\n{"path":"file:///o/a","size":1}')
    with pytest.raises(CorruptionError, match="isDir"):
        log.all_files()
    with pytest.raises(CorruptionError, match="isDir"):
        log.to_arrow()
    with pytest.raises(CorruptionError, match=r"_spark_metadata/0\..*isDir"):
        log.add(1, [])


def test_the_table_holds_what_the_list_holds(output: str) -> None:
    log = SinkLog(output, default_interval=3, now_ms=lambda: NOW)
    assert log.to_arrow().num_rows == 0
    for batch_id in range(5):
        log.add(batch_id, [made(f"file:///o/{batch_id}-é", NOW - batch_id), made(f"file:///o/{batch_id}+")])
    rows = log.to_arrow().to_pylist()
    assert [SinkEntry(**row) for row in rows] == log.all_files()
    retaining = SinkLog(output, retention_ms=2, now_ms=lambda: NOW)
    assert [SinkEntry(**row) for row in retaining.to_arrow().to_pylist()] == retaining.all_files()


def test_a_file_named_twice_in_a_batch_is_refused(output: str) -> None:
    with pytest.raises(InvalidInputError, match="names a file twice"):
        SinkLog(output).add(0, [made("file:///o/a"), made("file:///o/a")])
    assert SinkLog(output).latest_id() is None


def test_a_data_file_is_described_by_what_the_store_says(output: str) -> None:
    objects = open_objects(output)
    objects.create("k=a%2Fb/a b+é%.parquet", b"12345")
    entry = SinkLog(output).entry("k=a%2Fb/a b+é%.parquet")
    assert entry.path == f"{base_uri(output)}/k=a%252Fb/a%20b+%C3%A9%25.parquet"
    info = objects.info("k=a%2Fb/a b+é%.parquet")
    assert info is not None
    assert (entry.size, entry.modified_ms, entry.is_dir, entry.action) == (5, info.modified_ms, False, "add")


def test_a_data_file_that_is_not_there_is_not_described(output: str) -> None:
    with pytest.raises(NotFoundError, match="write it before logging it"):
        SinkLog(output).entry("nothing.parquet")


@pytest.mark.parametrize("path", ["_hidden.parquet", ".hidden.parquet", "folder/a.parquet", "k=1/folder/a.parquet"])
def test_a_data_file_that_spark_would_pass_over_is_refused(output: str, path: str) -> None:
    open_objects(output).create(path, b"1")
    with pytest.raises(InvalidInputError, match="Spark does not read such a file"):
        SinkLog(output).entry(path)


def test_links_to_an_output_directory_are_not_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a.parquet").write_bytes(b"1")
    os.symlink(tmp_path / "real", tmp_path / "link")
    assert SinkLog(tmp_path / "link").entry("a.parquet").path == f"file://{tmp_path}/link/a.parquet"


@pytest.mark.parametrize(
    ("root", "uri"),
    [
        ("/o/a b", "file:///o/a%20b"),
        ("/o/a%b/", "file:///o/a%25b"),
        ("file:///o/a%20b", "file:///o/a%20b"),
        ("file:/o/", "file:///o"),
        ("s3a://bucket/o/", "s3a://bucket/o"),
        ("s3://bucket/a%20b/é", "s3://bucket/a%20b/%C3%A9"),
    ],
)
def test_an_output_directory_has_one_uri(root: str, uri: str) -> None:
    assert base_uri(root) == uri


def test_uris_of_one_file_are_the_same_once_decoded() -> None:
    uri = file_uri("file:///o/x%20y", "k=1/a%b é.parquet")
    assert decoded(uri) == decoded(uri.replace("file:///", "file:/").replace("%C3%A9", "é"))
    assert decoded(uri) == "file:///o/x y/k=1/a%b é.parquet"


def test_partition_values_are_escaped_as_spark_does() -> None:
    assert partition_folder({"k": "a/b"}) == "k=a%2Fb"
    assert partition_folder({"a": "x y", "b=": "50%"}) == "a=x y/b%3D=50%25"
    assert partition_folder({"k": None, "l": ""}) == "k=__HIVE_DEFAULT_PARTITION__/l=__HIVE_DEFAULT_PARTITION__"
    assert partition_folder({"k": True, "l": 7, "m": "é[1]"}) == "k=true/l=7/m=é%5B1%5D"
    with pytest.raises(InvalidInputError):
        partition_folder({"": 1})


def test_logs_that_spark_wrote_with_a_last_newline_are_read(tmp_path: Path) -> None:
    log_folder = tmp_path / "_spark_metadata"
    log_folder.mkdir()
    lines = [SINK_CODEC.encode(made(f"/a/b/{each}")).decode() for each in range(10)]
    (log_folder / "7.compact").write_text("\n".join(["v1", *lines[:8]]) + "\n")
    (log_folder / "8").write_text(f"v1\n{lines[8]}\n")
    (log_folder / "9").write_text(f"v1\n{lines[9]}\n")
    log = SinkLog(tmp_path, default_interval=10)
    assert log.interval == 8
    assert [entry.path for entry in log.all_files()] == [f"/a/b/{each}" for each in range(10)]
