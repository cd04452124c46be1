"""One log, two programs: Spark reads and goes on with ours, and ours with Spark's."""

import contextlib
import itertools
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from siltstone.errors import CorruptionError
from siltstone.log import CompactibleLog, SinkEntry, SinkLog, SourceEntry, SourceLog, wire
from siltstone.log.batches import derive_interval, is_compaction_batch
from siltstone.log.inspect import verify
from siltstone.log.repair import compact
from siltstone.log.spark_logs import SINK_CODEC, partition_folder

# Logs are compared with those of classes of Spark's, which are called in the JVM.
pytestmark = pytest.mark.jvm

INTERVAL = 3
SETTINGS = {
    "spark.sql.streaming.fileSink.log.compactInterval": str(INTERVAL),
    "spark.sql.streaming.fileSource.log.compactInterval": str(INTERVAL),
    "spark.sql.streaming.fileSink.log.cleanupDelay": "0",
    "spark.sql.streaming.fileSource.log.cleanupDelay": "0",
    "spark.sql.streaming.minBatchesToRetain": "2",
}
AWKWARD_NAMES = ["a b.parquet", "a+b.parquet", "é.parquet", "50%.parquet", "x=y,&#?[1].parquet"]
AWKWARD_VALUES = ["a/b", "a b", "é", "50%", "x=y:z", "a+b"]


@pytest.fixture
def compacting(spark: SparkSession) -> Iterator[SparkSession]:
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    yield spark
    for key in SETTINGS:
        spark.conf.unset(key)


class Query:
    """A streaming query from text files to a Parquet directory, one file a batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.inputs = folder / "in"
        self.output = folder / "out"
        self.checkpoint = folder / "checkpoint"
        self.inputs.mkdir(exist_ok=True)
        self.written = len(list(self.inputs.iterdir()))

    def provide(self, files: int) -> None:
        for _ in range(files):
            aside = self.inputs / f".{self.written}"
            aside.write_text(f"line {self.written:04}\n")
            aside.rename(self.inputs / f"{self.written:04} é.txt")
            self.written += 1

    @contextlib.contextmanager
    def running(self, *, until_done: bool = False) -> Iterator[StreamingQuery]:
        source = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.inputs)).coalesce(1)
        writer = source.writeStream.option("checkpointLocation", str(self.checkpoint))
        query = (writer.trigger(availableNow=True) if until_done else writer).start(str(self.output), format="parquet")
        try:
            yield query
        finally:
            query.stop()

    def run(self, batches: int) -> None:
        self.provide(batches)
        with self.running(until_done=True) as query:
            assert query.awaitTermination(120)

    def sink_log(self) -> SinkLog:
        return SinkLog(self.output, default_interval=INTERVAL, min_batches_to_retain=2, cleanup_delay_ms=0)

    def source_log(self) -> SourceLog:
        return SourceLog(
            self.checkpoint / "sources/0", default_interval=INTERVAL, min_batches_to_retain=2, cleanup_delay_ms=0
        )

    def values(self) -> list[str]:
        return sorted(row.value for row in self.spark.read.parquet(str(self.output)).collect())


def spark_sink_log(spark: SparkSession, output: Path, retention_ms: int | None = None) -> Any:
    jvm: Any = spark._jvm
    retention = (
        getattr(getattr(jvm.scala, "None$"), "MODULE$") if retention_ms is None else jvm.scala.Some(retention_ms)
    )
    return jvm.org.apache.spark.sql.execution.streaming.sinks.FileStreamSinkLog(
        1, spark._jsparkSession, str(output / "_spark_metadata"), retention
    )


def no_files(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    return gateway.new_array(jvm.org.apache.spark.sql.execution.streaming.sinks.SinkFileStatus, 0)


def spark_all_files(spark: SparkSession, output: Path) -> list[SinkEntry]:
    return [
        SinkEntry(e.path(), e.size(), e.isDir(), e.modificationTime(), e.blockReplication(), e.blockSize(), e.action())
        for e in spark_sink_log(spark, output).allFiles()
    ]


def assert_same_bytes_when_written_again(log: CompactibleLog[Any], folder: Path) -> None:
    for file in log.listing().files:
        entries = log.read_entries(file.name)
        assert wire.encode(map(log.codec.encode, entries)) == (folder / file.name).read_bytes()


def spark_source_log(spark: SparkSession, folder: Path) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.execution.streaming.runtime.FileStreamSourceLog(
        1, spark._jsparkSession, str(folder)
    )


def spark_read_files(entries: Any) -> list[SourceEntry]:
    return [SourceEntry(entry.path(), entry.timestamp(), entry.batchId()) for entry in entries]


def assert_both_read_the_same(query: Query, sink: SinkLog, source: SourceLog) -> None:
    expected = spark_all_files(query.spark, query.output)
    assert sink.all_files() == expected
    assert query.sink_log().all_files() == expected
    inputs = spark_read_files(spark_source_log(query.spark, query.checkpoint / "sources/0").allFiles())
    assert source.restore() == inputs
    assert query.source_log().restore() == inputs
    assert_same_bytes_when_written_again(sink, query.output / "_spark_metadata")
    assert_same_bytes_when_written_again(source, query.checkpoint / "sources/0")


@pytest.mark.parametrize("retained", ["2", "100"])
def test_what_spark_logs_is_read_exactly_at_each_batch(compacting: SparkSession, tmp_path: Path, retained: str) -> None:
    compacting.conf.set("spark.sql.streaming.minBatchesToRetain", retained)
    query = Query(compacting, tmp_path)
    sink, source = query.sink_log(), query.source_log()
    batches = 27 if retained == "2" else 10
    with query.running() as running:
        for batch_id in range(batches):
            query.provide(1)
            running.processAllAvailable()
            assert sink.latest_id() == source.latest_id() == batch_id
            assert len(sink.all_files()) == batch_id + 1
            assert [entry.batch_id for entry in source.all_files()] == list(range(batch_id + 1))
            assert_both_read_the_same(query, sink, source)
    assert sink.interval == source.interval == INTERVAL
    assert query.values() == [f"line {number:04}" for number in range(batches)]
    own = [(batch_id, [entry]) for batch_id, entry in enumerate(source.all_files())]
    assert source.get_range() == own
    assert (sink.listing().ids[0] > 0) == (retained == "2")


def write_rows(path: Path, values: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"value": values}), path)


def test_spark_reads_exactly_the_files_that_our_log_lists(spark: SparkSession, tmp_path: Path) -> None:
    output = tmp_path / "out dir é%"
    log = SinkLog(output, default_interval=INTERVAL)
    for batch_id, name in enumerate(AWKWARD_NAMES):
        write_rows(output / name, [name])
        log.add(batch_id, [log.entry(name)])
    write_rows(output / "stray.parquet", ["stray"])
    assert sorted(row.value for row in spark.read.parquet(str(output)).collect()) == sorted(AWKWARD_NAMES)
    assert spark_all_files(spark, output) == log.all_files()


def test_spark_reads_partitions_that_our_log_lists(spark: SparkSession, tmp_path: Path) -> None:
    output = tmp_path / "out"
    log = SinkLog(output, default_interval=INTERVAL)
    expected = []
    for batch_id, value in enumerate(AWKWARD_VALUES):
        paths = []
        for name in AWKWARD_NAMES:
            paths.append(f"{partition_folder({'k': value, 'l k': batch_id})}/{name}")
            write_rows(output / paths[-1], [name])
            expected.append((name, value, batch_id))
        log.add(batch_id, map(log.entry, paths))
    write_rows(output / partition_folder({"k": "a/b", "l k": 0}) / "stray.parquet", ["stray"])
    rows = spark.read.parquet(str(output)).select("value", "k", "l k").collect()
    assert sorted(map(tuple, rows)) == sorted(expected)


def test_partition_folders_are_those_spark_makes(spark: SparkSession, tmp_path: Path) -> None:
    values = [*AWKWARD_VALUES, "".join(map(chr, range(1, 128))), "{}[]^|<>~", "", None]
    frame = spark.createDataFrame([(value, 1) for value in values], "k string, v int")
    frame.write.partitionBy("k").parquet(str(tmp_path / "out"))
    made = {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()}
    assert made == {partition_folder({"k": value}) for value in values}


def test_spark_goes_on_with_a_log_that_we_began(compacting: SparkSession, tmp_path: Path) -> None:
    query = Query(compacting, tmp_path)
    query.run(4)
    inputs = query.source_log().get_range()
    shutil.rmtree(query.output)
    shutil.rmtree(query.checkpoint / "sources/0")
    sink, source = query.sink_log(), query.source_log()
    for batch_id, entries in inputs:
        write_rows(query.output / f"ours {batch_id}.parquet", [f"ours {batch_id}"])
        assert sink.add(batch_id, [sink.entry(f"ours {batch_id}.parquet")])
        assert source.add(batch_id, entries)
    query.run(9)
    assert query.values() == sorted(
        [*(f"line {each:04}" for each in range(4, 13)), *(f"ours {each}" for each in range(4))]
    )
    assert sink.listing().compact_ids[0] > 6
    assert_both_read_the_same(query, sink, source)


def test_we_go_on_with_a_log_that_spark_began_and_spark_after_us(compacting: SparkSession, tmp_path: Path) -> None:
    query = Query(compacting, tmp_path)
    query.run(5)
    sink, source = query.sink_log(), query.source_log()
    first = 5
    last = sink.interval * 3
    for batch_id in range(first, last):
        write_rows(query.output / f"ours {batch_id}.parquet", [f"ours {batch_id}"])
        assert sink.add(batch_id, [sink.entry(f"ours {batch_id}.parquet")])
        assert source.add(batch_id, [SourceEntry(f"file:///gone/{batch_id}", 1_700_000_000_000, batch_id)])
        assert_both_read_the_same(query, sink, source)
    assert sink.listing().compact_ids[0] == last - 1
    expected = sorted([*(f"line {each:04}" for each in range(5)), *(f"ours {each}" for each in range(first, last))])
    assert query.values() == expected
    theirs = spark_sink_log(compacting, query.output)
    for batch_id in range(last, last + 2 * sink.interval):
        assert theirs.add(batch_id, no_files(compacting))
        assert_both_read_the_same(query, sink, source)
    assert sink.listing().compact_ids[0] > last
    assert query.values() == expected


def test_retention_keeps_and_drops_what_spark_keeps_and_drops(compacting: SparkSession, tmp_path: Path) -> None:
    now = int(time.time() * 1000)
    day = 24 * 3_600_000
    entries = [SinkEntry(f"file:///o/{age}", 1, False, now - age * day) for age in (0, 50, 90, 101, 150, 1000)]
    ours = SinkLog(tmp_path / "ours", default_interval=INTERVAL, retention_ms=100 * day)
    theirs = SinkLog(tmp_path / "theirs", default_interval=INTERVAL)
    for log in (ours, theirs):
        log.add(0, entries[0::2])
        log.add(1, entries[1::2])
    assert spark_sink_log(compacting, tmp_path / "theirs", 100 * day).add(2, no_files(compacting))
    assert ours.add(2, [])
    written = (tmp_path / "ours/_spark_metadata/2.compact").read_bytes()
    assert written == (tmp_path / "theirs/_spark_metadata/2.compact").read_bytes()
    assert [entry.path for entry in ours.all_files()] == ["file:///o/0", "file:///o/90", "file:///o/50"]


def test_a_query_goes_on_after_its_logs_were_compacted_by_hand(compacting: SparkSession, tmp_path: Path) -> None:
    compacting.conf.set("spark.sql.streaming.minBatchesToRetain", "100")
    query = Query(compacting, tmp_path)
    query.run(7)
    assert verify(query.output).findings == []
    in_the_future = query.sink_log().all_files()[4].modified_ms + 10_000
    done = compact(query.output, retention_ms=10_000, now_ms=lambda: in_the_future)
    assert (done.entries_before, done.entries_after) == (6, 2)
    assert compact(query.checkpoint).deleted_files == ["0", "1", "3", "4"]
    kept = query.values()
    assert len(kept) == 3
    query.run(6)
    assert query.sink_log().latest_id() == 12
    assert query.sink_log().interval == INTERVAL
    assert query.values() == sorted([*kept, *(f"line {each:04}" for each in range(7, 13))])
    assert_both_read_the_same(query, query.sink_log(), query.source_log())
    assert verify(query.output).findings == verify(query.checkpoint).findings == []


def test_the_arithmetic_is_sparks_own(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    theirs = getattr(jvm.org.apache.spark.sql.execution.streaming.runtime, "CompactibleFileStreamLog$")
    module = getattr(theirs, "MODULE$")
    pairs = [(default, latest) for default in range(1, 13) for latest in range(40)]
    assert [derive_interval(*pair) for pair in pairs] == [module.deriveCompactInterval(*pair) for pair in pairs]
    assert [is_compaction_batch(latest, k) for k, latest in pairs] == [
        module.isCompactionBatch(latest, k) for k, latest in pairs
    ]
    assert [
        next(later for later in itertools.count(latest + 1) if is_compaction_batch(later, k)) for k, latest in pairs
    ] == [module.nextCompactionBatchId(latest, k) for k, latest in pairs]


SOUND_LINE = SINK_CODEC.encode(SinkEntry("file:///o/a", 3, False, 16))


@pytest.mark.parametrize(
    "line",
    [
        SOUND_LINE.replace(b'"size":3', b'"size":1,"size":3'),
        SOUND_LINE.replace(b'{"path"', b'{"path":"file:///o/b","path"'),
        SOUND_LINE.replace(b"/o/a", b"/o/\xff"),
        SOUND_LINE[:-1] + b',"unknown":"\xff"}',
    ],
)
def test_an_entry_that_spark_refuses_is_damage_for_us_too(spark: SparkSession, tmp_path: Path, line: bytes) -> None:
    (tmp_path / "_spark_metadata").mkdir()
    (tmp_path / "_spark_metadata/0").write_bytes(b"v1\n" + line)
    with pytest.raises(Exception, match=r"MappingException|MalformedInputException"):
        spark_all_files(spark, tmp_path)
    with pytest.raises(CorruptionError, match="_spark_metadata/0"):
        SinkLog(tmp_path).all_files()
    with pytest.raises(CorruptionError, match="_spark_metadata/0"):
        SinkLog(tmp_path).to_arrow()
