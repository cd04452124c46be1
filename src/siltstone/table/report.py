"""A table for people and programs: its columns, keys and deltas, and its rounds and buckets in numbers, computed once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from siltstone.catalog import main as catalog
from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError, SiltstoneError
from siltstone.ingest.dry_run import distinct_files
from siltstone.log.state import Entry
from siltstone.model import Delta, PartitionLocator, TableVersion
from siltstone.model.buckets import Bucket
from siltstone.model.rounds import RoundCompletion, ratio
from siltstone.rows.kept import Kept
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLog, StreamState
from siltstone.table.completion import Destination, current_completion, read_kept
from siltstone.table.followers import Followed, FollowedTable, read_followed, read_own, work_in
from siltstone.text import format_value


@dataclass(frozen=True)
class Column:
    """One column of a table; `type` is text, or an object for nested types."""

    name: str
    type: object
    nullable: bool = True


@dataclass(frozen=True)
class TableSummary:
    """One line of a list of tables; `problem` says why nothing else is known."""

    name: str
    primary_keys: Sequence[str] = ()
    columns: int | None = None
    merge_engine: str | None = None
    stream_position: int | None = None
    description: str = ""
    problem: str | None = None


@dataclass(frozen=True)
class TableDescription:
    """All about one table; times are in milliseconds since 1970."""

    name: str
    version: str
    schema_id: int
    columns: Sequence[Column]
    primary_keys: Sequence[str]
    sort_keys: Sequence[str]
    partition_keys: Sequence[str]
    merge_engine: str
    drop_duplicates: bool
    unique_within_partition: bool
    description: str
    properties: Mapping[str, str]
    created_at: int
    folder: str | None = None
    stream_position: int = 0
    partitions: int = 0
    deltas: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class DeltaReport:
    """One committed delta of one partition."""

    stream_position: int
    committed_at: int
    type: str
    partition: Sequence[object]
    rows: int
    bytes: int
    files: int
    columns: Sequence[str]
    delete_columns: Sequence[str] | None = None
    op_column: str | None = None
    idempotency: str | None = None
    replaces: bool = False


def summarize_table(name: str, *, root: str) -> TableSummary:
    """Return a table as one line of a list; what is wrong with it is part of it."""
    try:
        version = catalog.get_table_version(name, root=root)
        stream = storage.get_stream(catalog.delta_stream(name, root=root), root=root)
    except SiltstoneError as error:
        return TableSummary(name, problem=str(error))
    return TableSummary(
        name=name,
        primary_keys=version.primary_keys,
        columns=len(version.fields),
        merge_engine=version.merge_engine,
        stream_position=stream.stream_position,
        description=version.description,
    )


def describe_table(name: str, *, root: str) -> TableDescription:
    """Return all about a table and its deltas. Raises: NotFoundError."""
    stream = catalog.delta_stream(name, root=root)
    deltas = storage.list_deltas(stream, root=root)
    files = distinct_files(deltas)
    return describe_version(
        catalog.get_table_version(name, root=root),
        folder=f"{root}/{catalog.version_folder(name, root=root)}",
        stream_position=storage.get_stream(stream, root=root).stream_position,
        partitions=len(storage.list_partitions(stream, root=root)),
        deltas=len(deltas),
        rows=sum(rows for rows, _ in files.values()),
        bytes=sum(size for _, size in files.values()),
    )


def describe_version(version: TableVersion, **of_deltas: Any) -> TableDescription:
    """Return what a version says of its table, with what is known of its deltas."""
    return TableDescription(
        name=version.locator.table_locator.full_name,
        version=version.locator.table_version,
        schema_id=version.schema_id,
        columns=[Column(field.name, field.type, field.nullable) for field in version.fields],
        primary_keys=version.primary_keys,
        sort_keys=version.sort_keys,
        partition_keys=version.partition_keys,
        merge_engine=version.merge_engine,
        drop_duplicates=version.drop_duplicates,
        unique_within_partition=bool(version.partition_keys_outside),
        description=version.description,
        properties=version.properties,
        created_at=version.created_at,
        **of_deltas,
    )


def report_delta(delta: Delta, names: Mapping[str, str]) -> DeltaReport:
    """Return a delta in numbers; `names` has the columns' names by those in files."""
    return DeltaReport(
        stream_position=delta.stream_position,
        committed_at=delta.committed_at,
        type=delta.type,
        partition=delta.partition_values,
        rows=delta.manifest.record_count,
        bytes=delta.manifest.content_length,
        files=len(delta.manifest.entries),
        columns=[names.get(column, column) for column in delta.columns],
        delete_columns=delta.delete_columns and [names.get(column, column) for column in delta.delete_columns],
        op_column=delta.op_column,
        idempotency=f"{delta.idempotency.app_id}:{delta.idempotency.batch_id}" if delta.idempotency else None,
        replaces=delta.replaces,
    )


def changes_between(before: TableVersion, after: TableVersion) -> Iterator[str]:
    """Yield what is different about a table, in words."""
    columns = {column.id: column for column in before.fields}
    left = {column.id for column in after.fields}
    yield from (f"dropped column {column.name}" for column in before.fields if column.id not in left)
    kept = [(columns[column.id], column) for column in after.fields if column.id in columns]
    yield from (f"renamed column {old.name} to {new.name}" for old, new in kept if old.name != new.name)
    for column in after.fields:
        if column.id not in columns:
            yield f"added column {column.name} {column.type}"
        elif column.type != columns[column.id].type:
            yield f"widened column {column.name} from {columns[column.id].type} to {column.type}"
    if before.unique_within_partition != after.unique_within_partition:
        yield "said that keys are unique within a partition only"
    if before.description != after.description:
        yield f"changed the description to {after.description!r}"
    yield from _property_changes(before.properties, after.properties)


def _property_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    yield from (f"set property {name}={value}" for name, value in after.items() if before.get(name) != value)
    yield from (f"removed property {name}" for name in before if name not in after)


# Write amplification is that of the newest rounds of each partition; reading all of them would take long.
RECENT_ROUNDS = 10
MAX_ROUNDS = 60
MAX_BUCKETS = 256
MAX_WAITING = 50
# About how much a round in numbers takes, and all of them that a process remembers.
_REPORT_BYTES = 4 << 10
_REPORTS_BYTES = 32 << 20


@dataclass(frozen=True)
class RoundReport:
    """One committed round. `base_rows`, `delta_rows` and `added_rows` add up to `live_rows` and all rows that went.

    Rows that are added are records of documents. `problem` says why little else is known.
    """

    partition: Sequence[object]
    round_id: int
    completed_at: int
    high_watermark: int
    live_rows: int
    files: int
    deltas: int = 0
    base_rows: int = 0
    delta_rows: int = 0
    added_rows: int = 0
    removal_rows: int = 0
    superseded_rows: int = 0
    deleted_rows: int = 0
    duplicate_rows: int = 0
    lost_rows: int = 0
    bytes: int = 0
    input_bytes: int = 0
    written_bytes: int = 0
    written_files: int = 0
    written_rows: int = 0
    carried_files: int = 0
    carried_bytes: int = 0
    copied_by_reference_ratio: float = 0.0
    write_amplification: float | None = None
    dead_rows: int = 0
    read_amplification: float | None = None
    bucket_actions: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    rolled_back_to: int | None = None
    problem: str | None = None


_KNOWN_ROUNDS = Kept[tuple[str, str, str], RoundReport](_REPORTS_BYTES)


def report_round(completion: RoundCompletion) -> RoundReport:
    """Return a round in numbers."""
    accounting = completion.accounting
    rolled_back_to = completion.get("rolled_back_to")
    return RoundReport(
        partition=completion.destination_partition_locator.partition_values,
        round_id=completion.round_id,
        completed_at=completion.completed_at,
        high_watermark=completion.high_watermark,
        live_rows=completion.live_rows,
        files=completion.file_count,
        deltas=completion.delta_count,
        base_rows=accounting.base_rows,
        delta_rows=accounting.delta_rows,
        added_rows=accounting.added_rows,
        removal_rows=accounting.removal_rows,
        superseded_rows=accounting.superseded_rows,
        deleted_rows=accounting.deleted_rows,
        duplicate_rows=accounting.duplicate_rows,
        lost_rows=accounting.lost_rows,
        bytes=completion.content_length,
        input_bytes=completion.input_bytes,
        written_bytes=completion.written_bytes,
        written_files=completion.written_files,
        written_rows=completion.written_rows,
        carried_files=completion.carried_files,
        carried_bytes=completion.carried_bytes,
        copied_by_reference_ratio=completion.copied_by_reference_ratio,
        write_amplification=completion.write_amplification,
        dead_rows=completion.dead_rows,
        read_amplification=completion.read_amplification,
        bucket_actions=completion.bucket_actions,
        seconds=completion.seconds,
        rolled_back_to=None if rolled_back_to is None else int(rolled_back_to),
    )


@dataclass(frozen=True)
class FileReport:
    """A data file of a bucket, with how many of its rows are dead."""

    uri: str
    rows: int
    bytes: int
    dead_rows: int
    deletion_vector: str | None
    index: str | None


@dataclass(frozen=True)
class BucketReport:
    """A bucket after a round, with its files; tombstones are counted."""

    bucket: str
    live_rows: int
    bytes: int
    files: Sequence[FileReport]
    tombstones: int


@dataclass(frozen=True)
class RoundDetails:
    """Everything that a round completion file says."""

    table: str
    round: RoundReport
    previous_round_id: int | None
    read_watermark: int
    source: str
    destination: str
    rebased_from: str | None
    primary_keys: Sequence[str]
    sort_keys: Sequence[str]
    merge_engine: str
    columns: Sequence[str]
    buckets: Sequence[BucketReport]


def detail_round(table: str, completion: RoundCompletion) -> RoundDetails:
    """Return a round with its buckets and their files."""
    rebased_from = completion.rebase_source_partition_locator
    return RoundDetails(
        table=table,
        round=report_round(completion),
        previous_round_id=completion.previous_round_id,
        read_watermark=completion.read_watermark,
        source=str(completion.source_partition_locator),
        destination=str(completion.destination_partition_locator),
        rebased_from=None if rebased_from is None else str(rebased_from),
        primary_keys=completion.primary_keys,
        sort_keys=completion.sort_keys,
        merge_engine=completion.merge_engine,
        columns=[field.name for field in completion.fields],
        buckets=[_report_bucket(bucket) for bucket in completion.buckets],
    )


def _report_bucket(bucket: Bucket) -> BucketReport:
    return BucketReport(
        bucket=bucket.name,
        live_rows=bucket.live_count,
        bytes=bucket.content_length,
        files=[
            FileReport(
                uri=file.uri,
                rows=file.record_count,
                bytes=file.content_length,
                dead_rows=file.record_count - file.live_count,
                deletion_vector=file.deletion_vector.uri if file.deletion_vector else None,
                index=file.index_uri,
            )
            for file in bucket.files
        ],
        tombstones=bucket.tombstone_count,
    )


@dataclass(frozen=True)
class TableReport:
    """A table at a glance. Where it cannot be read, `problem` says why and the rest is empty.

    Where only some of its partitions cannot be read, `problem` says why, too, and the numbers are those of the others.
    """

    name: str
    partitions: int = 0
    # Those that cannot be read, by their values.
    damaged_partitions: Sequence[Sequence[object]] = ()
    # The compacted rows and their files; dead rows are still in files, but no longer in the table.
    rows: int = 0
    files: int = 0
    bytes: int = 0
    dead_rows: int = 0
    # Deltas that no round has read.
    backlog_partitions: int = 0
    backlog_deltas: int = 0
    backlog_bytes: int = 0
    oldest_at: int | None = None
    stream_position: int = 0
    # The lowest of all partitions with deltas; None before the first round.
    high_watermark: int | None = None
    # Bytes written for each byte of deltas, in the newest rounds; rows in files for each row of the table.
    write_amplification: float | None = None
    read_amplification: float | None = None
    last_round: RoundReport | None = None
    problem: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether there are numbers, be they of some partitions only."""
        return self.problem is None or bool(self.damaged_partitions)


@dataclass(frozen=True)
class TableRound(RoundReport):
    """A round among all of its table; no totals after it where a round of another partition is not known."""

    rows_in: int = 0
    table_rows: int | None = None
    table_bytes: int | None = None
    # How old the oldest delta that it read was when it was committed; None where that is no longer known.
    lag_ms: int | None = None


@dataclass(frozen=True)
class BucketSize:
    """A bucket as it is now, in numbers."""

    partition: Sequence[object]
    bucket: str
    rows: int
    dead_rows: int
    files: int
    bytes: int
    tombstones: int
    # The bits of key hashes that it is known by: one more halves the keys that belong to it.
    depth: int = 0


@dataclass(frozen=True)
class TableDetails:
    """A table at a glance, its newest rounds, oldest first, its largest buckets, and the oldest deltas that wait."""

    overview: TableReport
    rounds: Sequence[TableRound] = ()
    buckets: Sequence[BucketSize] = ()
    bucket_count: int = 0
    waiting: Sequence[DeltaReport] = ()


class PartitionRounds(NamedTuple):
    """The newest rounds of a partition, oldest first, and whether there are older ones."""

    locator: PartitionLocator
    current: RoundCompletion | None
    recent: Sequence[RoundCompletion]
    has_older: bool
    # The newest ones in numbers.
    reports: Sequence[RoundReport] = ()
    # See `TableRound.lag_ms`, by the id of the round.
    lags_ms: Mapping[int, int] = {}

    def newest(self, count: int) -> "PartitionRounds":
        """Return the same with at most so many rounds."""
        kept = self.recent[max(len(self.recent) - count, 0) :]
        return self._replace(recent=kept, has_older=self.has_older or len(kept) < len(self.recent))


def report_table(table: FollowedTable, partitions: Sequence[PartitionRounds]) -> TableReport:
    """Return a table in numbers."""
    current = [partition.current for partition in partitions if partition.current is not None]
    recent = [report for partition in partitions for report in partition.reports[-RECENT_ROUNDS:]]
    waiting = [work for work in work_in(table, recall=True) if work.is_waiting]
    deltas = [delta for work in waiting for delta in work.deltas]
    live_rows, stored_rows = sum(each.live_rows for each in current), sum(each.record_count for each in current)
    return TableReport(
        name=table.stream.locator.table_locator.full_name,
        partitions=len(partitions),
        rows=live_rows,
        files=sum(each.file_count for each in current),
        bytes=sum(each.content_length for each in current),
        dead_rows=stored_rows - live_rows,
        backlog_partitions=len(waiting),
        backlog_deltas=len(deltas),
        backlog_bytes=sum(delta.manifest.content_length for delta in deltas),
        oldest_at=min((delta.committed_at for delta in deltas), default=None),
        stream_position=table.stream_position,
        high_watermark=min((each.high_watermark for each in current), default=None),
        write_amplification=ratio(sum(each.written_bytes for each in recent), sum(each.input_bytes for each in recent)),
        read_amplification=ratio(stored_rows, live_rows),
        last_round=max(recent, key=_by_time, default=None),
    )


def detail_table(
    overview: TableReport, partitions: Sequence[PartitionRounds], waiting: Sequence[DeltaReport] = ()
) -> TableDetails:
    """Return a table with its newest rounds and its largest buckets; `waiting` are the deltas that wait."""
    sizes = [
        BucketSize(
            partition=each.current.destination_partition_locator.partition_values,
            bucket=bucket.name,
            rows=bucket.live_count,
            dead_rows=bucket.dead_count,
            files=len(bucket.files),
            bytes=bucket.content_length,
            tombstones=bucket.tombstone_count,
            depth=bucket.depth,
        )
        for each in sorted(partitions, key=lambda partition: partition.locator.partition_id)
        if each.current is not None
        for bucket in sorted(each.current.buckets.of_largest_pages(MAX_BUCKETS), key=lambda bucket: bucket.name)
    ]
    count = sum(len(each.current.buckets) for each in partitions if each.current is not None)
    by_size = sorted(range(len(sizes)), key=lambda index: sizes[index].bytes, reverse=True)
    largest = [sizes[index] for index in sorted(by_size[:MAX_BUCKETS])]
    return TableDetails(overview, list(table_rounds(partitions)), largest, count, waiting)


def table_rounds(partitions: Sequence[PartitionRounds]) -> Iterator[TableRound]:
    """Yield the rounds of all partitions by time, with the totals of the table after each."""
    # Where there are more partitions than rounds to show, nothing is shown of those beyond.
    shown = [each.newest(_rounds_each(len(partitions)) if at < MAX_ROUNDS else 0) for at, each in enumerate(partitions)]
    rounds = sorted((completion for each in shown for completion in each.recent), key=_by_time)
    unseen = {each.locator.partition_id for each in shown if each.has_older}
    latest: dict[str, RoundCompletion] = {}
    lags_ms = {each.locator.partition_id: each.lags_ms for each in shown}
    for completion in rounds:
        partition_id = completion.destination_partition_locator.partition_id
        latest[partition_id] = completion
        is_whole = unseen <= latest.keys()
        report = report_round(completion)
        yield TableRound(
            **{each.name: getattr(report, each.name) for each in fields(report)},
            rows_in=completion.accounting.input_rows,
            table_rows=sum(each.live_rows for each in latest.values()) if is_whole else None,
            table_bytes=sum(each.content_length for each in latest.values()) if is_whole else None,
            lag_ms=lags_ms[partition_id].get(completion.round_id),
        )


def _by_time(of_round: RoundCompletion | RoundReport) -> tuple[int, int]:
    return of_round.completed_at, of_round.round_id


def _rounds_each(partitions: int) -> int:
    return max(MAX_ROUNDS // max(partitions, 1), 2)


def read_reports(*, root: str) -> list[TableReport]:
    """Read all tables, each log once; one that is damaged does not hide the others. Raises: StorageError."""
    tables = catalog.list_tables(root=root)
    return [read_report(table.locator.full_name, recall=True, root=root) for table in tables]


def read_report(name: str, *, recall: bool = False, root: str) -> TableReport:
    """Read one table, each log once; what is wrong with it is part of the report.

    With `recall`, it is looked up in the catalog as this process knows it.
    """
    try:
        readable = _read_partitions(name, lambda partitions: RECENT_ROUNDS, recall=recall, root=root)
        return readable.report()
    except SiltstoneError as error:
        return TableReport(name, problem=str(error))


def read_details(name: str, *, root: str) -> TableDetails:
    """Read one table with its rounds and buckets, each log once; what is wrong with it is part of the report."""
    try:
        readable = _read_partitions(name, lambda partitions: max(RECENT_ROUNDS, _rounds_each(partitions)), root=root)
        rounds = [
            each._replace(lags_ms=_lags_ms(readable.table.stream, followed, each.recent))
            for followed, each in zip(readable.table.partitions, readable.rounds, strict=True)
        ]
        return detail_table(readable.report(), rounds, _oldest_waiting(readable.table))
    except SiltstoneError as error:
        return TableDetails(TableReport(name, problem=str(error)))


def _oldest_waiting(table: FollowedTable) -> list[DeltaReport]:
    """Return the oldest of the deltas that no round has read."""
    waiting = [
        (delta.stream_position, delta, work.source.version)
        for work in work_in(table, recall=True)
        for delta in work.deltas[:MAX_WAITING]
    ]
    oldest = sorted(waiting, key=lambda each: each[0])[:MAX_WAITING]
    return [report_delta(delta, version.names_by_file()) for _, delta, version in oldest]


def _lags_ms(own: StreamLog, partition: Followed, rounds: Sequence[RoundCompletion]) -> dict[int, int]:
    """Return how old the oldest delta of each round was when it was committed, where nothing of that is trimmed."""
    source = partition.source
    if source is None or not rounds:
        return {}
    watermarks = {int(entry["round_id"]): int(entry["high_watermark"]) for entry in partition.state.rounds}

    def read(state: StreamState) -> dict[int, int]:
        known = state.partition(source.partition_id)
        trimmed = 0 if known is None else known.trimmed_stream_position
        lags_ms: dict[int, int] = {}
        for completion in rounds:
            previous = completion.previous_round_id
            after = 0 if previous is None else watermarks.get(previous)
            if after is None or after < trimmed or completion.source_partition_locator != source:
                continue
            oldest = next(iter(state.deltas(source.partition_id, after, completion.high_watermark)), None)
            if oldest is not None:
                lags_ms[completion.round_id] = max(completion.completed_at - oldest.committed_at, 0)
        return lags_ms

    is_own = source.stream_locator == own.locator
    return own.recall(read) if is_own else storage.locate_stream(source, root=own.root).read(read)


class _Readable(NamedTuple):
    """What can be read of a table's partitions, and why others cannot be read."""

    table: FollowedTable
    rounds: list[PartitionRounds]
    damage: list[tuple[PartitionLocator, CorruptionError]]

    def report(self) -> TableReport:
        report = report_table(self.table, self.rounds)
        if not self.damage:
            return report
        problem = str(self.damage[0][1])
        if len(self.damage) > 1:
            problem += f"; and {len(self.damage) - 1} more partitions cannot be read"
        if not self.rounds:
            return TableReport(report.name, problem=problem)
        damaged = [locator.partition_values for locator, _ in self.damage]
        return replace(report, damaged_partitions=damaged, problem=problem)


def _read_partitions(name: str, count: Callable[[int], int], *, recall: bool = False, root: str) -> _Readable:
    """Read the newest rounds of each partition, by how many partitions there are; one that is damaged hides no other."""
    damage: list[tuple[PartitionLocator, CorruptionError]] = []
    table = read_followed(
        name,
        with_rounds=True,
        recall=recall,
        on_damage=lambda partition, error: damage.append((partition, error)),
        root=root,
    )
    rounds: list[PartitionRounds] = []
    readable: list[Followed] = []
    for partition in table.partitions:
        try:
            read = _recall_rounds if recall else _newest_rounds
            rounds.append(read(partition, count(len(table.partitions))))
            readable.append(partition)
        except CorruptionError as error:
            damage.append((partition.own, error))
    return _Readable(table._replace(partitions=readable), rounds, damage)


def read_rounds(name: str, *, root: str) -> list[RoundReport]:
    """Read the rounds of all partitions, oldest first; a damaged one has its problem. Raises: NotFoundError."""
    rounds = [_read_round(*place) for place in read_own(name, with_rounds=True, root=root).rounds]
    return sorted(filter(None, rounds), key=lambda report: (report.completed_at, report.round_id))


def find_round(name: str, round_id: int, partition: Sequence[str] = (), *, root: str) -> RoundCompletion:
    """Return a round of the one partition that has it, or of the named one. Raises: NotFoundError, InvalidInputError."""
    table = read_own(name, with_rounds=True, root=root)
    chosen = table.partitions
    if partition:
        keys = table.version.partition_keys
        chosen = [each for each in chosen if _is_named(each.own, partition, keys)]
        if not chosen:
            raise NotFoundError(
                f"{name}: there is no partition {', '.join(partition)}; `siltstone rounds {name}` lists them"
            )
    rounds = [
        (each.destination, entry) for each in chosen for entry in each.state.rounds if entry["round_id"] == round_id
    ]
    if len(rounds) > 1:
        values = ",".join(map(format_value, rounds[0][0].locator.partition_values))
        raise InvalidInputError(
            f"{name}: {len(rounds)} partitions have a round {round_id}; say which, e.g. --partition {values}"
        )
    completion = read_kept(*rounds[0]) if rounds else None
    if completion is None:
        raise NotFoundError(f"{name}: there is no round {round_id}; `siltstone rounds {name}` lists them")
    return completion


def _is_named(partition: PartitionLocator, name: Sequence[str], keys: Sequence[str]) -> bool:
    """Return whether a partition is meant by its values, or by `key=value` for some or all of its keys."""
    values = [format_value(value) for value in partition.partition_values]
    parts = [part.strip() for text in name for part in text.split(",")]
    if values in (list(name), parts):
        return True
    pairs = [part.partition("=") for part in parts]
    by_key = dict(zip(keys, values, strict=True))
    return all(equals and by_key.get(key.strip()) == value.strip() for key, equals, value in pairs)


def _newest_rounds(partition: Followed, count: int) -> PartitionRounds:
    destination, entry, entries = partition.destination, partition.state.current, partition.state.rounds
    rounds = [read_kept(destination, entry) for entry in entries[-count:]]
    recent = [completion for completion in rounds if completion is not None]
    current = next((each for each in recent if entry is not None and each.round_id == entry["round_id"]), None)
    if current is None and entry is not None:
        current = current_completion(destination, entry)
    return PartitionRounds(destination.locator, current, recent, len(entries) > count, [*map(report_round, recent)])


def _recall_rounds(partition: Followed, count: int) -> PartitionRounds:
    """Return the newest rounds of a partition in numbers, those before the current one as this process knows them.

    The completion of the current round is read each time, so that damage to it is noticed.
    """
    destination, entries = partition.destination, partition.state.rounds
    current = current_completion(destination, partition.state.current)
    reports = [
        report_round(current) if current is not None and current.round_id == entry["round_id"] else None
        for entry in entries[-count:]
    ]
    known = [
        report or _recall_report(destination, entry) for report, entry in zip(reports, entries[-count:], strict=True)
    ]
    found = [report for report in known if report is not None]
    return PartitionRounds(destination.locator, current, (), len(entries) > count, found)


def _recall_report(destination: Destination, entry: Entry) -> RoundReport | None:
    """Return a round in numbers, which never change; None where a vacuum forgot it since its entry was read."""
    key = destination.root, str(entry["uri"]), str(entry["checksum"])
    report = _KNOWN_ROUNDS.get(key)
    if report is None:
        completion = read_kept(destination, entry)
        if completion is None:
            return None
        report = _KNOWN_ROUNDS.keep(key, report_round(completion), _REPORT_BYTES)
    return report


def _read_round(destination: Destination, entry: Entry) -> RoundReport | None:
    """Return a round in numbers, with its problem if it is damaged; None where a vacuum forgot it since."""
    try:
        completion = read_kept(destination, entry)
        return None if completion is None else report_round(completion)
    except CorruptionError as error:
        return RoundReport(
            partition=destination.locator.partition_values,
            round_id=entry["round_id"],
            completed_at=entry["completed_at"],
            high_watermark=entry["high_watermark"],
            live_rows=entry["live_rows"],
            files=entry["files"],
            problem=str(error),
        )
