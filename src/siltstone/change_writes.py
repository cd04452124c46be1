"""Change events on their way into tables: read from files, decoded, and committed, all of a table's in one commit."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from siltstone.catalog import main as catalog
from siltstone.cdc import OP_COLUMN, SOURCE_POSITION, ChangeFormat, Decoded, Events, Options, Target, decode
from siltstone.cdc.changes import Decimals, TimeUnit
from siltstone.cdc.dms import read_csv
from siltstone.cdc.event_lines import concat
from siltstone.cdc.source_tables import Layout, by_table, layout_of
from siltstone.errors import InputWarning, InvalidInputError
from siltstone.ingest.drop_options import TakenRows
from siltstone.ingest.dry_run import sum_up, written_before
from siltstone.ingest.file_rows import Report, open_bytes, silent
from siltstone.ingest.rejects import put_aside
from siltstone.model import Delta, Idempotency, TableRules, TableVersion
from siltstone.model.properties import KIND, ROWS_KIND
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLike
from siltstone.table.explain import explain_key
from siltstone.table.scan import open_scan

ChangeData: TypeAlias = bytes | Events | pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]] | Sequence[bytes]
_MOST_BYTES = 2_000_000_000
_SHOWN_WARNINGS = 5


@dataclass(frozen=True)
class ChangesWritten:
    """One write of change events; `stream_position` is that of the last delta, None in a dry run or without a change.

    `by_source_position` says whether rows follow the order of the source, or that in which they came.
    """

    table: str
    format: ChangeFormat
    stream_position: int | None
    events: int
    rows: int
    deletes: int
    truncates: int
    skipped: Mapping[str, int]
    rejected: int
    rejects_file: str | None
    files: int
    bytes: int
    new_columns: Sequence[str]
    by_source_position: bool
    repeated: bool
    dry_run: bool


@dataclass(frozen=True)
class ChangeOptions:
    """How change events are written: `rejects` is a folder for events that do not fit, without which they stop the write."""

    decimals: Decimals | None = None
    times: Mapping[str, TimeUnit] = dataclasses.field(default_factory=dict)
    header: Sequence[str] | None = None
    rejects: str | None = None
    evolve: bool = True
    dry_run: bool = False

    @property
    def of_decoder(self) -> Options:
        """What the decoder needs of them."""
        return Options(decimals=self.decimals, times=self.times, header=self.header)


@dataclass(frozen=True)
class ChangeFiles:
    """The events of several files, one after another, and where each line came from."""

    events: "Events | pa.Table"
    names: Sequence[str]
    starts: Sequence[int]

    def place(self, line: int) -> str:
        """Return the file and the line in it, for messages."""
        number = max(at for at, start in enumerate(self.starts) if start < line)
        return f"{self.names[number]}, line {line - self.starts[number]}"


def read_change_files(files: Sequence[str], format: ChangeFormat, *, progress: Report = silent) -> ChangeFiles:
    """Read all events of files; they are held in memory. Raises: InvalidInputError."""
    parts: list[Events | pa.Table] = []
    starts, count = [], 0
    for file in files:
        progress(f"Reading {file}")
        with open_bytes(file) as (stream, name):
            starts.append(count)
            part = _read(stream.read(), file, name, format)
        parts.append(part)
        count += len(part) if isinstance(part, Events) else part.num_rows
    tables = [part for part in parts if isinstance(part, pa.Table) and part.num_columns]
    if len(tables) not in (0, len([p for p in parts if not isinstance(p, pa.Table) or p.num_columns])):
        raise InvalidInputError("files of rows and files of messages cannot be written together; write them one by one")
    if tables:
        return ChangeFiles(_one_table(tables), files, starts)
    events = [part for part in parts if isinstance(part, Events)]
    numbered = [
        dataclasses.replace(part, lines=part.lines + start) for part, start in zip(events, starts, strict=False)
    ]
    return ChangeFiles(concat(numbered) if numbered else Events.of_lines(b""), files, starts)


def _read(data: bytes, file: str, name: str, format: ChangeFormat) -> "Events | pa.Table":
    if len(data) > _MOST_BYTES:
        raise InvalidInputError(
            f"{name}: has {len(data)} bytes, and events are held in memory; split it into smaller files"
        )
    if format != "dms":
        return Events.of_lines(data)
    if data.lstrip()[:1] == b"{":
        return Events.of_lines(data)
    try:
        return pq.read_table(pa.BufferReader(data)) if data[:4] == b"PAR1" else read_csv(data)
    except (InvalidInputError, pa.ArrowInvalid) as error:
        raise InvalidInputError(f"{name}: {error}") from error


def _one_table(tables: Sequence[pa.Table]) -> pa.Table:
    if any("f0" in table.column_names for table in tables) and len({table.num_columns for table in tables}) > 1:
        raise InvalidInputError("the files have different numbers of columns; write them one by one")
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"the files have different columns ({error}); write them one by one") from error


def events_of(data: ChangeData, format: ChangeFormat) -> "Events | pa.Table":
    """Return events that a caller has: JSON lines, messages, or a table with `value` and `key`. Raises: InvalidInputError."""
    if isinstance(data, Events):
        return data
    if isinstance(data, bytes):
        return read_csv(data) if format == "dms" and data.lstrip()[:1] != b"{" else Events.of_lines(data)
    if isinstance(data, pa.Table | pa.RecordBatch):
        if format == "dms" and "value" not in data.schema.names:
            return data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
        return Events.of_batch(data)
    lines = [each if isinstance(each, bytes) else orjson.dumps(each) for each in data]
    return Events.of_lines(b"\n".join(lines))


def write_changes(
    name: str,
    events: "Events | pa.Table",
    format: ChangeFormat,
    options: ChangeOptions,
    *,
    idempotency: Idempotency | None = None,
    files: ChangeFiles | None = None,
    root: str,
) -> ChangesWritten:
    """Write the events of one table as one commit. Raises: InvalidInputError, ConflictError, CommitUnknownError."""
    return _prepare(name, events, format, options, idempotency, files, root).commit(idempotency)


@dataclass(frozen=True)
class _Prepared:
    """A write of which all is known that could be wrong with its events; `position` where it was committed before."""

    version: TableVersion
    format: ChangeFormat
    decoded: Decoded
    options: ChangeOptions
    root: str
    rejects_file: str | None = None
    position: int | None = None

    @property
    def name(self) -> str:
        return self.version.locator.table_locator.full_name

    def commit(self, idempotency: Idempotency | None, *, rising_ids: bool = False) -> ChangesWritten:
        """Commit it, unless that was done, or nothing is to be written. Raises: ConflictError, CommitUnknownError."""
        write = ChangeStaging(self.version, self.decoded, self.options, self.root)
        if self.position is not None or self.options.dry_run or not write.has_changes:
            return self._summary(self.position)
        position = catalog.write_staged(
            self.name,
            write.stage,
            idempotency=idempotency,
            rising_ids=rising_ids,
            expected_properties={KIND.name: self.version.properties.get(KIND.name)},
            root=self.root,
        )
        after = catalog.get_table_version(self.name, root=self.root)
        summary = sum_up("upsert", write.staged, self.version, after, stream_position=position)
        return dataclasses.replace(
            self._summary(position),
            rows=summary.rows,
            files=summary.files,
            bytes=summary.bytes,
            new_columns=summary.new_columns,
        )

    def _summary(self, position: int | None) -> ChangesWritten:
        decoded = self.decoded
        return ChangesWritten(
            table=self.name,
            format=self.format,
            stream_position=position,
            events=decoded.events,
            rows=sum(each.rows.num_rows for each in decoded.changes),
            deletes=sum(pc.sum(pc.equal(each.rows.column(OP_COLUMN), "d")).as_py() or 0 for each in decoded.changes),
            truncates=len(decoded.truncates),
            skipped=dict(decoded.skipped),
            rejected=len(decoded.rejects),
            rejects_file=self.rejects_file,
            files=0,
            bytes=0,
            new_columns=[field.name for field in decoded.new_fields],
            by_source_position=SOURCE_POSITION in self.version.sort_keys,
            repeated=self.position is not None,
            dry_run=self.options.dry_run,
        )


def _prepare(
    name: str,
    events: "Events | pa.Table",
    format: ChangeFormat,
    options: ChangeOptions,
    idempotency: Idempotency | None,
    files: ChangeFiles | None,
    root: str,
) -> _Prepared:
    """Decode the events of one table, unless they were written before. Raises: InvalidInputError."""
    version = catalog.get_table_version(name, root=root)
    before = written_before(version, catalog.delta_stream(name, root=root), "upsert", idempotency, root=root)
    if before is not None:
        return _Prepared(version, format, Decoded(), options, root, position=before.stream_position)
    decoded, rejects_file = decode_for(version, events, format, options, files=files, root=root)
    return _Prepared(version, format, decoded, options, root, rejects_file)


def decode_for(
    version: TableVersion,
    events: "Events | pa.Table",
    format: ChangeFormat,
    options: ChangeOptions,
    *,
    files: ChangeFiles | None = None,
    root: str,
) -> tuple[Decoded, str | None]:
    """Decode the events of one table, and put those aside that do not fit; return also the file that they are in.

    Raises: InvalidInputError.
    """
    name = version.locator.table_locator.full_name
    _refuse_documents(version, name)
    decoded = decode(events, format, _target(version), options.of_decoder, _finder(name, root))
    _warn(decoded, name, SOURCE_POSITION in version.sort_keys)
    rejects_file = _put_aside(decoded, name, options, files)
    _check(decoded, version, name)
    return decoded, rejects_file


def _refuse_documents(version: TableVersion, name: str) -> None:
    kind = KIND.of(version.properties, name)
    if kind != ROWS_KIND:
        raise InvalidInputError(f"{name}: is a table of {kind}, which change events cannot be written to")


def _target(version: TableVersion) -> Target:
    """Return the table as a decoder sees it; where it does not go by the source position, there is none."""
    fields = list(version.written_schema)
    if version.sort_keys != [SOURCE_POSITION]:
        fields = [field for field in fields if field.name != SOURCE_POSITION]
    return Target(pa.schema(fields), version.primary_keys)


def _finder(name: str, root: str) -> Any:
    """Return a function that reads rows by their keys, waiting deltas included, and knows which were deleted."""

    def find_rows(keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        where = None
        for column in keys.column_names:
            own = pc.field(column).isin(pc.unique(keys.column(column)))
            where = own if where is None else where & own
        rows = open_scan(name, [*keys.column_names, *columns], where, fresh=True, root=root).to_arrow()
        if SOURCE_POSITION not in columns:
            return rows
        there = {tuple(row.values()) for row in rows.select(keys.column_names).to_pylist()}
        deleted = [
            {**key, SOURCE_POSITION: position, OP_COLUMN: "d"}
            for key in keys.to_pylist()
            if tuple(key.values()) not in there and (position := _last_position(name, key, root)) is not None
        ]
        rows = rows.append_column(OP_COLUMN, pa.nulls(rows.num_rows, pa.string()))
        return pa.concat_tables([rows, pa.Table.from_pylist(deleted, schema=rows.schema)])

    return find_rows


def _last_position(name: str, key: Mapping[str, object], root: str) -> bytes | None:
    """Return the highest source position among the deltas of a key that are still there."""
    positions = [
        event.values.get(SOURCE_POSITION) for each in explain_key(name, key, root=root) for event in each.events
    ]
    return max((each for each in positions if isinstance(each, bytes)), default=None)


def _warn(decoded: Decoded, name: str, by_position: bool) -> None:
    for text in decoded.warnings[:_SHOWN_WARNINGS]:
        warnings.warn(f"{name}: {text}", InputWarning, stacklevel=5)
    if not by_position and decoded.changes:
        warnings.warn(
            f"{name}: does not go by the order of the source, so that events count in the order they come, and one that comes "
            f"twice or late counts again; tables that are created with --cdc have {SOURCE_POSITION} as sort key",
            InputWarning,
            stacklevel=5,
        )


def _put_aside(decoded: Decoded, name: str, options: ChangeOptions, files: ChangeFiles | None) -> str | None:
    """Write the events that do not fit to a file, before anything is committed, or refuse the write for them."""
    if not decoded.rejects:
        return None
    if options.rejects is None:
        first = decoded.rejects[0]
        if files is not None:
            others = f" ({len(decoded.rejects) - 1} more do not fit)" if len(decoded.rejects) > 1 else ""
            raise InvalidInputError(
                f"{files.place(first.line)}: {first.reason}{others}. Nothing was written: correct it, or set such events "
                "aside with --rejects DIR"
            )
        decoded.refuse_rejects(name)
    rejects: list[dict[str, object]] = [
        {
            "table": name,
            "place": str(each.line) if files is None else files.place(each.line),
            "reason": each.reason,
            "event": each.event.decode(errors="replace").rstrip(),
        }
        for each in decoded.rejects
    ]
    return put_aside(options.rejects or "", name, rejects, dry_run=options.dry_run)


def _check(decoded: Decoded, version: TableVersion, name: str) -> None:
    """Refuse what the table's rules cannot take. Raises: InvalidInputError."""
    if version.sort_keys and version.sort_keys != [SOURCE_POSITION] and decoded.changes:
        raise InvalidInputError(
            f"{name}: its sort key is {', '.join(version.sort_keys)}, which a delete event does not tell; write change events "
            f"to a table that is created with --cdc, whose sort key is {SOURCE_POSITION}, or to one without"
        )
    if decoded.left_out and version.merge_engine != "partial_update":
        raise InvalidInputError(
            f"{name}: some events leave out {', '.join(decoded.left_out)}, whose values did not change, and the table merges "
            f"rows by {version.merge_engine}, which would lose them; create the table with --cdc (merge engine "
            "partial_update), or ALTER TABLE … REPLICA IDENTITY FULL at the source"
        )
    if SOURCE_POSITION in version.sort_keys:
        for each in decoded.changes:
            if each.rows.column(SOURCE_POSITION).null_count:
                raise InvalidInputError(
                    f"{name}: goes by the order of the source, and events do not tell theirs; have the source add it (for "
                    "flat rows of Debezium, add.fields=op,source.ts_us,source.lsn,source.sequence and "
                    "delete.tombstone.handling.mode=rewrite; for DMS, TimestampColumnName), or write to a table without "
                    f"the sort key {SOURCE_POSITION}"
                )
    if decoded.truncates:
        version.refuse_undated_delete()
    if decoded.truncates and not (version.primary_keys and version.drop_duplicates):
        raise InvalidInputError(
            f"{name}: was truncated at the source, which only a table with one row for each primary key can follow; create "
            "it so"
        )
    if any(not each.position for each in decoded.truncates) and SOURCE_POSITION in version.sort_keys:
        raise InvalidInputError(f"{name}: a truncate does not tell its place in the order of the source")


class ChangeStaging:
    """Stages the changes of one commit, in their order."""

    def __init__(self, version: TableVersion, decoded: Decoded, options: ChangeOptions, root: str) -> None:
        self._root = root
        self._version = version
        self._decoded = decoded
        self._options = options
        self.staged: list[Delta] = []

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to write."""
        return any(each.rows.num_rows for each in self._decoded.changes) or bool(self._decoded.truncates)

    def stage(self, stream: StreamLike) -> list[Delta]:
        """Write the files of all changes; each gets a place of its own, so that they come one after another."""
        self.staged = []
        try:
            for number, changes in enumerate(self._decoded.changes):
                self._truncate(stream, number)
                if changes.rows.num_rows:
                    self._stage_rows(stream, changes.rows)
            self._truncate(stream, len(self._decoded.changes))
        except BaseException:
            storage.discard_deltas(self.staged, root=self._root)
            raise
        return self.staged

    def _stage_rows(self, stream: StreamLike, rows: pa.Table) -> None:
        self._add(
            storage.stage_deltas(
                self._rows(rows),
                stream,
                op_column=OP_COLUMN if self._version.primary_keys else None,
                evolve=self._options.evolve,
                root=self._root,
            )
        )

    def _truncate(self, stream: StreamLike, number: int) -> None:
        """Stage the truncates that come before some changes: a delete of all rows below a source position, or of all."""
        by_position = self._version.sort_keys == [SOURCE_POSITION]
        column = SOURCE_POSITION if by_position else self._version.primary_keys[0]
        kind = self._version.schema.field(column).type
        for truncate in self._decoded.truncates:
            if truncate.before != number:
                continue
            floor = truncate.position if by_position else b""
            row = pa.table({column: pa.array([floor or None], kind)})
            deltas = storage.stage_deltas(row, stream, type="delete", delete_columns=[column], root=self._root)
            for delta in deltas:
                delta.floor = floor.hex()
            self._add(deltas)

    def _add(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            delta.place = len(self.staged)
        self.staged += deltas

    def _rows(self, rows: pa.Table) -> pa.Table:
        unwanted = [] if self._version.primary_keys else [OP_COLUMN]
        if self._version.sort_keys != [SOURCE_POSITION]:
            unwanted.append(SOURCE_POSITION)
        return rows.drop_columns(unwanted) if unwanted else rows


def write_to_tables(
    files: ChangeFiles,
    format: ChangeFormat,
    into: str,
    options: ChangeOptions,
    *,
    create: bool = False,
    idempotency: Idempotency | None = None,
    rising_ids: bool = False,
    last: str | None = None,
    root: str,
) -> list[ChangesWritten]:
    """Write events to the tables that a template such as `shop.{table}` names, one commit for each table.

    All events are decoded before the first commit, so that one that does not fit stops all. A crash between two commits leaves
    some tables written; the same call again writes the others. The table `last` comes after all others, so that its commit
    says that all is written. Raises: as `write_changes`.
    """
    if isinstance(files.events, pa.Table):
        raise InvalidInputError("files of DMS have the rows of one table each; write them to it by its name")
    by_name: dict[str, list[Events]] = {}
    for source, events in by_table(files.events, format).items():
        by_name.setdefault(source.name_in(into), []).append(events)
    if not by_name:
        _refuse_unknown(files, files.events, format)
    plans: list[tuple[str, Events, Layout | None]] = []
    for name, parts in by_name.items():
        events = _in_line_order(concat(parts))
        if not catalog.table_exists(name, root=root):
            if not create:
                raise InvalidInputError(f"{name}: there is no such table; create it first, or use --create")
            plans.append((name, events, layout_of(events, format)))
        else:
            plans.append((name, events, None))
    prepared = []
    for name, events, layout in plans:
        if layout is not None and options.dry_run:
            continue
        if layout is not None:
            create_change_table(name, layout, root=root)
        prepared.append(_prepare(name, events, format, options, idempotency, files, root))
    prepared.sort(key=lambda each: each.name == last)
    return [each.commit(idempotency, rising_ids=rising_ids) for each in prepared]


def _refuse_unknown(files: ChangeFiles, events: Events, format: ChangeFormat) -> None:
    """Refuse events of which none tells its table, unless they are none of rows at all. Raises: InvalidInputError."""
    rejects = decode(events, format, Target(pa.schema([]), [])).rejects
    if rejects:
        raise InvalidInputError(f"{files.place(rejects[0].line)}: {rejects[0].reason}; is --format {format} right?")


def _in_line_order(events: Events) -> Events:
    order = np.argsort(events.lines, kind="stable")
    return events.take(order) if np.any(order[1:] < order[:-1]) else events


def create_change_table(name: str, layout: Layout, *, root: str) -> None:
    """Create a table that change events are written to in any order. Raises: AlreadyExistsError, InvalidInputError."""
    rules = TableRules(
        primary_keys=list(layout.primary_keys),
        sort_keys=[SOURCE_POSITION],
        merge_engine="partial_update" if layout.leaves_out else "deduplicate",
    )
    catalog.create_table(name, schema=layout.columns, rules=rules, root=root)


def take_change_files(
    name: str,
    files: Sequence[str],
    how: Mapping[str, Any],
    idempotency: Idempotency | None,
    before_commit: Callable[[], None],
    *,
    dry_run: bool,
    progress: Report = silent,
    root: str,
) -> TakenRows:
    """Write files of events that arrived in a folder, by the options of an intake; see `ingest.drop_options.Target`."""
    given = {key: value for key, value in how.items() if key not in ("format", "into", "create")}
    kind, into, options = how["format"], how.get("into"), ChangeOptions(**given, dry_run=dry_run)
    read = read_change_files(files, kind, progress=progress)
    before_commit()
    if into is None:
        done = [write_changes(name, read.events, kind, options, idempotency=idempotency, files=read, root=root)]
    else:
        done = write_to_tables(
            read,
            kind,
            into,
            options,
            create=how.get("create", False),
            idempotency=idempotency,
            # Nobody who slept writes a batch to a table that has a later one.
            rising_ids=True,
            last=name,
            root=root,
        )
    for each in done:
        if each.rejected and not dry_run:
            text = f"{each.table}: {each.rejected} of {each.events} events did not fit; see {each.rejects_file}"
            warnings.warn(text, InputWarning, stacklevel=3)
    position = next((each.stream_position for each in done if each.table == name), None)
    return TakenRows(sum(each.rows for each in done), position)
