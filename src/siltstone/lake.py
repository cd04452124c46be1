"""What a person holds in Python: `open(root)` gives a lake, a lake gives tables. Thin: each call goes to the catalog."""

import dataclasses
import datetime
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args, overload

import pyarrow as pa

from siltstone.catalog import main as catalog
from siltstone.errors import (
    AlreadyExistsError,
    InvalidInputError,
    KeysInSeveralPartitionsWarning,
    NotFoundError,
    SiltstoneError,
)
from siltstone.ingest.drop_folder import open_drop_folder
from siltstone.ingest.drop_log import DropLog, IngestReport, Status, drop_logs, read_ingest_report
from siltstone.ingest.drop_options import (
    MAX_BYTES,
    MAX_FILES,
    SETTLE_SECONDS,
    DonePolicy,
    DropOptions,
    Ingested,
    TakenRows,
    Target,
    source_id_of,
    write_options,
)
from siltstone.ingest.drops import Drops
from siltstone.ingest.dry_run import Written, plan_write, sum_up, written_before
from siltstone.ingest.file_rows import Format, Report, open_rows, silent
from siltstone.log.inspect import Finding, KeyedLog, verify_log
from siltstone.maintenance.audit import AuditEntry, read_audit
from siltstone.maintenance.backup import BackupReport, back_up
from siltstone.maintenance.clone import CloneReport, clone_table
from siltstone.maintenance.erasure import ErasureReport, erase_key
from siltstone.maintenance.fsck import check_deltas, check_drop_logs, check_partition, check_registered
from siltstone.maintenance.recovery import PartitionRepair, repair, roll_back
from siltstone.maintenance.restore import restore
from siltstone.maintenance.vacuum import (
    DROPPED_RETENTION_MS,
    ORPHAN_GRACE_MS,
    ROUND_RETENTION_MS,
    DroppedReport,
    VacuumReport,
    vacuum,
    vacuum_dropped,
)
from siltstone.model import (
    COMPACTED_STREAM,
    DEFAULT_STREAM,
    Delta,
    DeltaType,
    Idempotency,
    MergeEngine,
    Overwrite,
    PartitionLocator,
    PartitionValue,
    StreamLocator,
    TableRules,
    TableVersion,
)
from siltstone.model.locators import did_you_mean, split_table_name
from siltstone.model.properties import DOCUMENTS_KIND, KIND, PUBLISH, ROWS_KIND
from siltstone.model.rounds import RoundCompletion
from siltstone.model.schema import describe_type, schema_from_json
from siltstone.objects import canonical_root, local_folder, open_objects
from siltstone.publish.comparison import ReaderCheck, check_published
from siltstone.publish.iceberg import read_metadata
from siltstone.publish.outcomes import Publication, Published
from siltstone.publish.publications import (
    check_publications,
    publish,
    publish_by_property,
    read_publications,
    unpublish,
)
from siltstone.rounds.events import Progress
from siltstone.rounds.request import TableRequest
from siltstone.rounds.session import Compacted, Plan, compact_table, preview_table
from siltstone.rows.job import Engine
from siltstone.spark.compaction import LazyEngine, Spark
from siltstone.storage import object_store as storage
from siltstone.storage.interface import ArrowData, StreamLog
from siltstone.storage.layout import CATALOG_FOLDER
from siltstone.table.change_feed import Changes, Images, OnRebase, open_changes
from siltstone.table.completion import (
    Destination,
    current_completion,
    locate_compacted,
    read_kept,
)
from siltstone.table.consumers import Consumer, list_consumers, remove_consumer
from siltstone.table.explain import Explanation, explain_key, key_problems, parse_key
from siltstone.table.followers import (
    Followed,
    followed_partition,
    read_followed,
    read_own,
    register_destination,
    unregistered_destinations,
)
from siltstone.table.preview import Preview, read_preview
from siltstone.table.report import (
    DeltaReport,
    RoundDetails,
    RoundReport,
    TableDescription,
    TableDetails,
    TableReport,
    TableSummary,
    describe_table,
    describe_version,
    detail_round,
    find_round,
    read_details,
    read_report,
    read_reports,
    read_rounds,
    report_delta,
    summarize_table,
)
from siltstone.table.round_bounds import Bound
from siltstone.table.scan import Scan, Where, look_up, open_scan
from siltstone.table.snapshot import Moment, TableSnapshot, take_snapshot
from siltstone.table.tags import Tag, add_tag, check_tags, find_tag, list_tags, remove_tag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from siltstone.catalog.adopt import Adopted
    from siltstone.cdc.changes import ChangeFormat, Decimals, TimeUnit
    from siltstone.change_writes import ChangeData, ChangeOptions, ChangesWritten
    from siltstone.document_table import DocumentTable
    from siltstone.ingest.foreign import ForeignFormat
    from siltstone.table.query import Query, QueryTable

EngineName = Literal["spark", "local"]
WriteMode = Literal["append", "overwrite"]
Partitions: TypeAlias = Sequence[Mapping[str, object]] | Literal["present"] | None
"""What an overwrite replaces: partitions by their values, those that the rows belong to, or None, the table."""
HISTORY_SUFFIX = "$history"
"""What SQL calls the history of a table of documents by: `shop."reviews$history"`."""
SchemaLike: TypeAlias = pa.Schema | Mapping[str, str] | Sequence[Mapping[str, object]]


def open(root: str | os.PathLike[str]) -> "Lake":  # noqa: A001
    """Open the lake under `root`: a local folder, or a URL such as `s3://bucket/lake`.

    Nothing is read or written yet, and an empty folder is an empty lake. Raises: InvalidInputError.
    """
    return Lake(root)


class Lake:
    """All tables under one root."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = canonical_root(root)

    def __repr__(self) -> str:
        return f"Lake({self.root!r})"

    def _repr_html_(self) -> str:
        from siltstone.table.notebook import table_html

        rows = [
            (table.name, ", ".join(table.primary_keys), table.columns, table.problem or table.description)
            for table in self.summaries()
        ]
        return table_html(["table", "key", "columns", "description"], rows, self.root)

    def namespaces(self) -> list[str]:
        """Return the names of all namespaces."""
        return [namespace.locator.namespace for namespace in catalog.list_namespaces(root=self.root)]

    def iceberg_metadata(self, name: str) -> tuple[str, dict[str, Any]] | None:
        """Return the address and content of the newest Iceberg metadata of a table, or None if it is not published as Iceberg.

        Raises: NotFoundError, CorruptionError.
        """
        return read_metadata(name, root=self.root)

    def create_namespace(self, namespace: str, *, properties: Mapping[str, str] | None = None) -> None:
        """Create a namespace; `create_table` also creates a missing one. Raises: AlreadyExistsError."""
        catalog.create_namespace(namespace, properties=properties, root=self.root)

    def drop_namespace(self, namespace: str) -> None:
        """Drop an empty namespace. Raises: NotFoundError, ConflictError."""
        catalog.drop_namespace(namespace, root=self.root)

    def tables(self, namespace: str | None = None) -> list["Table"]:
        """Return the tables of one namespace or of all, by name. Raises: NotFoundError."""
        try:
            return [Table(self, each.locator.full_name) for each in catalog.list_tables(namespace, root=self.root)]
        except NotFoundError as error:
            raise NotFoundError(f"{error}{did_you_mean(namespace or '', self.namespaces())}") from error

    def table(self, name: str) -> "Table":
        """Return a table by its name, e.g. `shop.orders`. Raises: NotFoundError, which suggests similar names."""
        table = Table(self, self._full_name(name, recall=True))
        _warn_of_keys_in_several_partitions(table)
        return table

    def _full_name(self, name: str, *, recall: bool = False) -> str:
        try:
            return catalog.get_table(name, recall=recall, root=self.root).locator.full_name
        except NotFoundError as error:
            folder = local_folder(self.root)
            if folder is not None and not folder.is_dir():
                raise NotFoundError(f"{error}; the folder {folder} does not exist, is the root right?") from error
            raise NotFoundError(f"{error}{self._guess(name)}") from error
        except InvalidInputError as error:
            raise InvalidInputError(f"{error}{self._guess(name)}") from error

    def _guess(self, name: str) -> str:
        try:
            return did_you_mean(name, [table.name for table in self.tables()])
        except SiltstoneError:
            return ""

    def has_table(self, name: str) -> bool:
        """Return whether there is such a table."""
        return catalog.table_exists(name, root=self.root)

    def summaries(self, namespace: str | None = None) -> list[TableSummary]:
        """Return a short summary of each table of one namespace or of all; a damaged one has its `problem`."""
        return [summarize_table(table.name, root=self.root) for table in self.tables(namespace)]

    def report(self) -> list[TableReport]:
        """Return a report on every table, by name; a damaged one has its `problem`. Raises: StorageError."""
        return read_reports(root=self.root)

    def skew_ms(self) -> int | None:
        """Return how far this machine's clock is ahead of the store's, None if the store has none. Raises: StorageError."""
        return open_objects(self.root).skew_ms()

    def create_table(
        self,
        name: str,
        *,
        schema: SchemaLike,
        primary_keys: Sequence[str] = (),
        sort_keys: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        merge_engine: MergeEngine = "deduplicate",
        drop_duplicates: bool = True,
        unique_within_partition: bool = False,
        description: str = "",
        properties: Mapping[str, str] | None = None,
    ) -> "Table":
        """Create a table, and its namespace if that is missing.

        The schema is an Arrow schema, or a mapping such as `{"order_id": "int64", "amount": "decimal(10,2)"}`.
        Partition keys must be part of the primary key, since a key has one row in the whole table. With
        `unique_within_partition` they need not be, and a key may have one row in each partition.
        Raises: AlreadyExistsError, InvalidInputError.
        """
        version = catalog.create_table(
            name,
            schema=_arrow_schema(schema),
            rules=TableRules(
                primary_keys=_names(primary_keys),
                sort_keys=_names(sort_keys),
                partition_keys=_names(partition_keys),
                merge_engine=merge_engine,
                drop_duplicates=drop_duplicates,
                unique_within_partition=unique_within_partition,
            ),
            description=description,
            properties=properties,
            root=self.root,
        )
        return Table(self, version.locator.table_locator.full_name)

    def adopt_table(
        self,
        name: str,
        source: str,
        format: "ForeignFormat",
        *,
        primary_keys: Sequence[str] = (),
        sort_keys: Sequence[str] = (),
        partition_keys: Sequence[str] | None = None,
        merge_engine: MergeEngine = "deduplicate",
        unique_within_partition: bool = False,
        description: str = "",
        dry_run: bool = False,
        progress: Report = silent,
    ) -> "Adopted":
        """Create a table with the columns and rows of a Delta or Iceberg table, or of a folder of Parquet files.

        The rows of the source's newest version become the first delta; the source is not changed. Its data files are
        used without a copy if they are on the same disk and contain exactly the table's rows and columns. By default
        the table is partitioned like the source. An adoption that was interrupted continues when it is called again;
        one that was completed is not repeated.
        Raises: NotFoundError, AlreadyExistsError, InvalidInputError, NotInstalledError.
        """
        from siltstone.catalog.adopt import adopt
        from siltstone.ingest.foreign import open_foreign

        return adopt(
            self.root,
            name,
            open_foreign(source, format),
            rules=TableRules(
                primary_keys=_names(primary_keys),
                sort_keys=_names(sort_keys),
                partition_keys=_names(partition_keys or ()),
                merge_engine=merge_engine,
                unique_within_partition=unique_within_partition,
            ),
            partitions_as_source=partition_keys is None,
            description=description,
            dry_run=dry_run,
            progress=progress,
        )

    def plan_table(
        self,
        name: str,
        *,
        schema: SchemaLike,
        rules: TableRules,
        description: str = "",
        properties: Mapping[str, str] | None = None,
    ) -> TableDescription:
        """Return what `create_table` would create, and create nothing. Raises: AlreadyExistsError, InvalidInputError."""
        version = catalog.create_table(
            name,
            schema=_arrow_schema(schema),
            rules=rules,
            description=description,
            properties=properties,
            dry_run=True,
            root=self.root,
        )
        return describe_version(version)

    def create_document_table(
        self,
        name: str,
        *,
        full_consistency_delay: "float | datetime.timedelta" = 300,
        keep_history: "bool | datetime.timedelta" = False,
        description: str = "",
        properties: Mapping[str, str] | None = None,
    ) -> "DocumentTable":
        """Create a table of JSON documents, and its namespace if that is missing.

        The times of changes may be as far back as the delay, in seconds; older times are complete, and can be
        compacted. With `keep_history`, compaction keeps each delta that it absorbs, forever or for that long, see
        `DocumentTable.history`.
        Raises: AlreadyExistsError, InvalidInputError.
        """
        from siltstone.document_table import create_document_table

        return create_document_table(
            self,
            name,
            full_consistency_delay=full_consistency_delay,
            keep_history=keep_history,
            description=description,
            properties=properties,
        )

    def write_changes(
        self,
        data: "ChangeData",
        format: "ChangeFormat",
        *,
        into: str,
        create: bool = False,
        options: "ChangeOptions | None" = None,
        idempotency: Idempotency | tuple[str, int] | None = None,
    ) -> "list[ChangesWritten]":
        """Write change events of several tables to the tables that a template names; see `Table.write_changes`."""
        from siltstone.change_writes import ChangeFiles, ChangeOptions, events_of, write_to_tables

        events, batch = ChangeFiles(events_of(data, format), ["events"], [0]), _idempotency(idempotency)
        return write_to_tables(
            events, format, into, options or ChangeOptions(), create=create, idempotency=batch, root=self.root
        )

    def write_change_files(
        self,
        files: Sequence[str],
        format: "ChangeFormat",
        *,
        into: str,
        create: bool = False,
        options: "ChangeOptions | None" = None,
        idempotency: Idempotency | tuple[str, int] | None = None,
        progress: Report = silent,
    ) -> "list[ChangesWritten]":
        """Write files with change events of several tables to the tables that a template names, e.g. `shop.{table}`.

        Each table gets one commit; `create` creates missing tables. Raises: as `Table.write_changes`.
        """
        from siltstone.change_writes import ChangeOptions, read_change_files, write_to_tables

        read = read_change_files(files, format, progress=progress)
        batch = _idempotency(idempotency)
        return write_to_tables(
            read, format, into, options or ChangeOptions(), create=create, idempotency=batch, root=self.root
        )

    def document_table(self, name: str) -> "DocumentTable":
        """Return a document table by its name. Raises: NotFoundError, InvalidInputError if it is a table of rows."""
        from siltstone.document_table import DocumentTable

        return DocumentTable(self, self._full_name(name, recall=True))

    def rename_table(self, name: str, new_name: str, *, dry_run: bool = False) -> "Table":
        """Rename a table; the new name may be in another namespace. Raises: NotFoundError, AlreadyExistsError."""
        namespace, _ = split_table_name(new_name)
        if new_name != name:
            self._refuse_existing(new_name)
        if namespace not in self.namespaces():
            guess = did_you_mean(namespace, self.namespaces())
            raise NotFoundError(f"{self.root}: there is no namespace {namespace}{guess}")
        return Table(
            self, new_name if dry_run else catalog.rename_table(name, new_name, root=self.root).locator.full_name
        )

    def _refuse_existing(self, name: str) -> None:
        if self.has_table(name):
            raise AlreadyExistsError(f"{self.root}: table {name} exists already; drop it first, or choose another name")

    def sql(self, query: str, *, as_of: Moment | Mapping[str, Moment] | None = None, fresh: bool = False) -> "Query":
        """Return a query over tables of the lake, which DuckDB runs in this process when its rows are requested.

        Tables are named with their namespace, e.g. `select status, sum(amount) from shop.orders group by status`;
        document tables have the columns of `DocumentTable.to_spark` and, if they keep it, a history:
        `shop."reviews$history"`. Each table is read in one state: the compacted one, with `fresh` also the waiting
        deltas, or with `as_of` that of a time, or of a position for each table: `{"shop.orders": 12}`. Within the
        query, `shop.orders AT (VERSION => 12)` and `AT (TIMESTAMP => '2024-05-01T08:00:00Z')` do the same for one
        table. Queries can only read: no files, no settings, no network.
        Raises: InvalidInputError, NotFoundError, NotInstalledError, CorruptionError.
        """
        from siltstone.table.query import open_query

        def open_table(name: str, moment: Moment | None) -> "QueryTable":
            own_name = name.removesuffix(HISTORY_SUFFIX)
            table = self._table_of_any_case(own_name)
            given = as_of.get(table.name) if isinstance(as_of, Mapping) else as_of
            return table.for_query(given if moment is None else moment, fresh=fresh, history=own_name != name)

        opened = open_query(query, open_table, self._guess)
        names = {table.name for table in opened.tables}
        if isinstance(as_of, int) and len(names) > 1:
            raise InvalidInputError(
                f"as of {as_of}: a position is that of one table, and the query reads {', '.join(sorted(names))}; say "
                "which, or give a time"
            )
        for name in as_of if isinstance(as_of, Mapping) else ():
            if name not in names:
                raise InvalidInputError(f"as of: the query does not read {name}{did_you_mean(name, sorted(names))}")
        return opened

    def _table_of_any_case(self, name: str) -> "Table":
        """Return a table as SQL finds it: by its name, or else by that in another case. Raises: NotFoundError."""
        try:
            return self.table(name)
        except NotFoundError:
            alike = [table.name for table in self.tables() if table.name.lower() == name.lower()]
            if len(alike) != 1:
                raise
            return self.table(alike[0])

    def clone_table(
        self,
        source: str,
        name: str,
        *,
        as_of: Moment | None = None,
        dry_run: bool = False,
        progress: Report = silent,
    ) -> CloneReport:
        """Create a table with the columns, rules and rows of another one; on a local disk, without copying files."""
        return clone_table(
            self._full_name(source), name, as_of=as_of, dry_run=dry_run, progress=progress, root=self.root
        )

    def backup(
        self,
        target: str | os.PathLike[str],
        *,
        tables: Sequence[str] | None = None,
        check: bool = False,
        dry_run: bool = False,
        progress: Report = silent,
    ) -> BackupReport:
        """Copy some tables, by default all, to another root, except files that earlier backups have copied there."""
        return back_up(self.root, os.fspath(target), tables=tables, check=check, dry_run=dry_run, progress=progress)

    def restore(
        self,
        source: str | os.PathLike[str],
        *,
        number: int | None = None,
        tables: Sequence[str] | None = None,
        check: bool = False,
        dry_run: bool = False,
        progress: Report = silent,
    ) -> BackupReport:
        """Restore a backup into this lake, which must be empty."""
        return restore(
            os.fspath(source), self.root, number=number, tables=tables, check=check, dry_run=dry_run, progress=progress
        )

    def audit(
        self,
        table: str | None = None,
        *,
        asked: Iterable[AuditEntry] = (),
        limit: int | None = None,
        recall: bool = False,
    ) -> list[AuditEntry]:
        """Return who changed what in the lake, or of a table of it, newest first; see `read_audit`."""
        return read_audit(table=table, asked=asked, limit=limit, recall=recall, root=self.root)

    def drop_table(self, name: str) -> None:
        """Drop a table; its files stay until they are vacuumed. Raises: NotFoundError."""
        catalog.drop_table(name, root=self.root)

    def vacuum_dropped(
        self, *, retention_ms: int = DROPPED_RETENTION_MS, confirm_time: bool = False, dry_run: bool = False
    ) -> DroppedReport:
        """Remove the files of tables that were dropped longer ago than the retention."""
        return vacuum_dropped(self.root, retention_ms=retention_ms, confirm_time=confirm_time, dry_run=dry_run)


class Table:
    """One table of a lake, by its name. Its methods and properties always reflect the newest state."""

    def __init__(self, lake: Lake, name: str) -> None:
        self.lake = lake
        self.name = name

    def __repr__(self) -> str:
        return f"Table({self.name!r} in {self.lake.root!r})"

    def _repr_html_(self) -> str:
        from siltstone.table.notebook import table_html

        version = self.version
        keys = {"key": version.primary_keys, "sort": version.sort_keys, "partition": version.partition_keys}
        rows = [
            (
                field.name,
                describe_type(field.type),
                ", ".join(kind for kind, names in keys.items() if field.name in names),
            )
            for field in version.schema
        ]
        return table_html(["column", "type", "key"], rows, f"{self.name} in {self.lake.root}")

    @property
    def version(self) -> TableVersion:
        """The newest active version: schema, keys and rules. Raises: NotFoundError."""
        return catalog.get_table_version(self.name, root=self.lake.root)

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self.version.schema

    @property
    def properties(self) -> dict[str, str]:
        """The properties."""
        return self.version.properties

    @property
    def _stream(self) -> StreamLocator:
        return catalog.delta_stream(self.name, root=self.lake.root)

    @overload
    def write(
        self,
        data: "ArrowData | DataFrame",
        type: DeltaType = "upsert",
        delete_columns: Sequence[str] | None = None,
        op_column: str | None = None,
        idempotency: Idempotency | tuple[str, int] | None = None,
        stream_position: int | None = None,
        evolve: bool = True,
        *,
        mode: WriteMode = "append",
        partitions: Partitions = None,
    ) -> int: ...

    @overload
    def write(
        self,
        data: ArrowData,
        type: DeltaType = "upsert",
        delete_columns: Sequence[str] | None = None,
        op_column: str | None = None,
        idempotency: Idempotency | tuple[str, int] | None = None,
        stream_position: int | None = None,
        evolve: bool = True,
        *,
        mode: WriteMode = "append",
        partitions: Partitions = None,
        dry_run: Literal[True],
    ) -> Written: ...

    def write(
        self,
        data: "ArrowData | DataFrame",
        type: DeltaType = "upsert",
        delete_columns: Sequence[str] | None = None,
        op_column: str | None = None,
        idempotency: Idempotency | tuple[str, int] | None = None,
        stream_position: int | None = None,
        evolve: bool = True,
        *,
        mode: WriteMode = "append",
        partitions: Partitions = None,
        dry_run: bool = False,
    ) -> int | Written:
        """Write an Arrow table, record batches, a data frame, or a list of dictionaries as one commit.

        A Spark data frame is written by executors. The index of a pandas data frame is a column if it has a name.
        Numbers of another type than the column's are accepted if each value fits exactly; dictionaries get the types
        of the table's columns. UUIDs are written as text, or as bytes to a binary column. New columns and wider types
        become part of the table; without `evolve`, or if the table is strict, they are refused.
        With `mode="overwrite"` these rows replace all rows of the table; with `partitions`, only those of the given
        partitions, e.g. `[{"day": date(2026, 11, 15)}]`, or with `"present"` those of the partitions that the rows
        belong to.
        Returns the stream position. `idempotency=("my-job", 17)` makes it safe to repeat the write. A dry run makes
        all checks, keeps nothing, and returns what would be written; it is not available for Spark data frames.
        Raises: InvalidInputError, NotFoundError, ConflictError, CommitUnknownError.
        """
        idempotency = _idempotency(idempotency)
        root = self.lake.root
        properties = catalog.get_table_version(self.name, recall=True, root=root).properties
        if KIND.of(properties, self.name) != ROWS_KIND:
            properties = self.properties
        kind = KIND.of(properties, self.name)
        if kind != ROWS_KIND:
            raise InvalidInputError(
                f"{self.name}: is a table of {kind}, which rows cannot be written to; use lake.document_table(…).update"
            )
        # What this process knows may be old, so the commit makes sure of it.
        expected = {KIND.name: properties.get(KIND.name)}
        columns = None if delete_columns is None else _names(delete_columns)
        overwrite = self._overwrite(mode, partitions, type, op_column)
        if dry_run:
            return plan_write(
                cast("ArrowData", data),
                self.version,
                self._stream,
                type=type,
                delete_columns=columns,
                op_column=op_column,
                idempotency=idempotency,
                stream_position=stream_position,
                evolve=evolve,
                overwrite=overwrite,
                root=root,
            )
        if data.__class__.__module__.startswith("pyspark."):
            from siltstone.spark.write import stage_on_spark

            def stage(stream: StreamLog) -> list[Delta]:
                return stage_on_spark(
                    cast("DataFrame", data),
                    stream.locator,
                    type=type,
                    delete_columns=columns,
                    op_column=op_column,
                    evolve=evolve,
                    root=root,
                )

            return catalog.write_staged(
                self.name,
                stage,
                idempotency=idempotency,
                stream_position=stream_position,
                expected_properties=expected,
                overwrite=overwrite,
                root=root,
            )
        return catalog.write_to_table(
            data,
            self.name,
            type=type,
            delete_columns=columns,
            op_column=op_column,
            evolve=evolve,
            idempotency=idempotency,
            stream_position=stream_position,
            expected_properties=expected,
            overwrite=overwrite,
            root=self.lake.root,
        )

    def _overwrite(
        self, mode: WriteMode, partitions: Partitions, type: DeltaType, op_column: str | None
    ) -> Overwrite | None:
        """Return what a write replaces, None if nothing. Raises: InvalidInputError."""
        if mode not in get_args(WriteMode):
            raise InvalidInputError(f"{self.name}: unknown mode {mode!r}; use {' or '.join(get_args(WriteMode))}")
        if mode == "append":
            if partitions is not None:
                raise InvalidInputError(
                    f"{self.name}: partitions go with mode overwrite; rows know their own otherwise"
                )
            return None
        if type == "delete" or op_column is not None:
            raise InvalidInputError(
                f"{self.name}: an overwrite has the rows that are to be there, not deletes; leave out type delete and the "
                "operation column"
            )
        if partitions is None or partitions == "present":
            return "table" if partitions is None else "partitions"
        if isinstance(partitions, str | Mapping):
            raise InvalidInputError(
                f"{self.name}: partitions are a list such as [{{'day': '2026-11-15'}}], or 'present'"
            )
        return [self.version.partition_values_of(values) for values in partitions]

    def write_files(
        self,
        files: Sequence[str],
        *,
        format: Format | None = None,
        delimiter: str | None = None,
        type: DeltaType = "upsert",
        delete_columns: Sequence[str] | None = None,
        op_column: str | None = None,
        idempotency: Idempotency | tuple[str, int] | None = None,
        stream_position: int | None = None,
        evolve: bool = True,
        mode: WriteMode = "append",
        partitions: Partitions = None,
        dry_run: bool = False,
        progress: Report = silent,
        before_commit: Callable[[], None] = lambda: None,
    ) -> Written:
        """Write all rows of Parquet, CSV or JSON lines files, in their order, as one delta in one commit.

        CSV and JSON lines are read with the types of the table's columns; `-` is JSON lines from standard input.
        `before_commit` is called when all rows have been read; an exception that it raises stops the write.
        Raises: as `write`. Warns: InputWarning.
        """
        idempotency, before = _idempotency(idempotency), self.version
        done = written_before(before, self._stream, type, idempotency, root=self.lake.root)
        if done is not None:
            return done
        columns = (delete_columns or before.primary_keys) if type == "delete" else None
        rules = (type, delete_columns, op_column, idempotency, stream_position, evolve)
        with open_rows(files, before, format, delimiter, columns, op_column, progress=progress) as rows:
            if dry_run:
                planned = self.write(rows.batches(), *rules, mode=mode, partitions=partitions, dry_run=True)
                return dataclasses.replace(planned, null_lines=rows.null_lines)
            position = self.write(_followed_by(rows.batches(), before_commit), *rules, mode=mode, partitions=partitions)
        deltas = self.deltas(position, position)
        return sum_up(type, deltas, before, self.version, stream_position=position, null_lines=rows.null_lines)

    def write_changes(
        self,
        data: "ChangeData",
        format: "ChangeFormat",
        *,
        decimals: "Decimals | None" = None,
        times: "Mapping[str, TimeUnit] | None" = None,
        header: Sequence[str] | None = None,
        rejects: str | None = None,
        idempotency: Idempotency | tuple[str, int] | None = None,
        evolve: bool = True,
        dry_run: bool = False,
    ) -> "ChangesWritten":
        """Write change events of a database as one commit: `debezium`, `dms`, `maxwell`, `canal` or `goldengate`.

        The data is JSON lines as bytes, a list of messages, or an Arrow table with a column `value` and optionally
        `key`, as Kafka delivers them; for DMS also a table of its rows. If the sort key of the table is
        `_source_position`, events may come in any order and any number of times. An event that does not fit stops the
        write, or goes to a file in the folder `rejects`. For messages without schemas, `decimals` ("base64" or
        "text") and `times` (the unit for each column, or under `*`) resolve ambiguities; `header` names what comes
        before the columns in DMS files.
        Raises: InvalidInputError, ConflictError, CommitUnknownError. Warns: InputWarning.
        """
        from siltstone.change_writes import ChangeOptions, events_of, write_changes

        options = ChangeOptions(decimals, times or {}, header, rejects, evolve, dry_run)
        events, batch = events_of(data, format), _idempotency(idempotency)
        return write_changes(self.name, events, format, options, idempotency=batch, root=self.lake.root)

    def write_change_files(
        self,
        files: Sequence[str],
        format: "ChangeFormat",
        options: "ChangeOptions | None" = None,
        *,
        idempotency: Idempotency | tuple[str, int] | None = None,
        progress: Report = silent,
    ) -> "ChangesWritten":
        """Write the change events of files as one commit; see `write_changes`. Raises: as there."""
        from siltstone.change_writes import ChangeOptions, read_change_files, write_changes

        read = read_change_files(files, format, progress=progress)
        given, batch = options or ChangeOptions(), _idempotency(idempotency)
        return write_changes(self.name, read.events, format, given, idempotency=batch, files=read, root=self.lake.root)

    def ingest(
        self,
        source: str | os.PathLike[str],
        *,
        format: "Format | ChangeFormat | None" = None,
        delimiter: str | None = None,
        type: DeltaType = "upsert",
        op_column: str | None = None,
        evolve: bool = True,
        pattern: str | None = None,
        done: DonePolicy = "keep",
        quarantine: bool = False,
        rejects: str | None = None,
        max_files: int = MAX_FILES,
        max_bytes: int = MAX_BYTES,
        settle_seconds: float = SETTLE_SECONDS,
        source_id: str | None = None,
        decimals: "Decimals | None" = None,
        times: "Mapping[str, TimeUnit] | None" = None,
        header: Sequence[str] | None = None,
        into: str | None = None,
        create: bool = False,
        dry_run: bool = False,
        progress: Report = silent,
    ) -> Ingested:
        """Write the new files of a folder or prefix, each exactly once.

        Files are taken by age, in batches of one commit each. Files that may still be growing are left for the next
        call. A bad file stops its batch; with `quarantine`, it is moved to `rejects`, by default the folder
        `rejected`, and the others are taken. Files that were taken stay where they are, are moved to the folder
        `done`, or are deleted. A file that changes later is taken again if the table has a primary key. For files of
        change events, `decimals`, `times` and `header` are those of `write_changes`; events that do not fit go to
        `rejects`, and `into` and `create` distribute events to several tables, while this one remembers which files
        were taken. Use `open_drops` to look repeatedly.
        Raises: InvalidInputError that names a bad file, NotFoundError, StorageError.
        """
        options = DropOptions(
            pattern=pattern,
            done=done,
            quarantine=quarantine,
            rejects=rejects,
            max_files=max_files,
            max_bytes=max_bytes,
            settle_seconds=settle_seconds,
            how=write_options(
                format, delimiter, type, op_column, evolve,
                decimals=decimals, times=times, header=header, into=into, create=create,
            ),
        )  # fmt: skip
        return self.open_drops(source, options, source_id=source_id).take(dry_run=dry_run, progress=progress)

    def open_drops(
        self, source: str | os.PathLike[str], options: DropOptions | None = None, *, source_id: str | None = None
    ) -> Drops:
        """Return an object that takes the new files of a folder or prefix each time its `take` is called; see `ingest`.

        Raises: InvalidInputError, NotFoundError.
        """
        from siltstone.cdc.changes import ChangeFormat

        root = self.lake.root
        options = (options or DropOptions()).checked(get_args(ChangeFormat))
        folder = open_drop_folder(source, root=root)
        version = self.version
        is_rows = KIND.of(version.properties, self.name) == ROWS_KIND
        target: Target = self
        if not is_rows:
            from siltstone.document_table import DocumentTable

            target = DocumentTable(self.lake, self.name)
        return Drops(
            self.name,
            folder,
            DropLog(root, catalog.version_folder(self.name, root=root), source_id_of(folder.address, source_id)),
            self._stream,
            target,
            options,
            has_key=is_rows and bool(version.primary_keys) and version.drop_duplicates,
            root=root,
        )

    def take_files(
        self,
        files: Sequence[str],
        how: Mapping[str, Any],
        idempotency: Idempotency | None,
        before_commit: Callable[[], None],
        *,
        dry_run: bool,
        progress: Report,
    ) -> TakenRows:
        """Write files of a watched folder; see `Target`."""
        from siltstone.cdc.changes import ChangeFormat

        if how.get("format") in get_args(ChangeFormat):
            from siltstone.change_writes import take_change_files

            return take_change_files(
                self.name,
                files,
                how,
                idempotency,
                before_commit,
                dry_run=dry_run,
                progress=progress,
                root=self.lake.root,
            )
        written = self.write_files(
            files, **how, idempotency=idempotency, before_commit=before_commit, dry_run=dry_run, progress=progress
        )
        return TakenRows(written.rows, written.stream_position)

    def note_ingest_failure(self, source: str, error: str) -> None:
        """Record why a source cannot be opened, so that reports show it. Raises: StorageError."""
        root = self.lake.root
        log = DropLog(root, catalog.version_folder(self.name, root=root), source_id_of(source))
        now_ms = log.now_ms()
        log.set_status(Status(source, now_ms, error=error, error_at=now_ms))

    def ingests(self) -> list[IngestReport]:
        """Return a report on each folder that files were taken from. Raises: CorruptionError, StorageError."""
        root = self.lake.root
        return [read_ingest_report(log) for log in drop_logs(root, catalog.version_folder(self.name, root=root))]

    def deltas(self, first_stream_position: int | None = None, last_stream_position: int | None = None) -> list[Delta]:
        """Return the committed deltas by stream position; both bounds are inclusive."""
        return catalog.list_deltas(
            self.name,
            first_stream_position=first_stream_position,
            last_stream_position=last_stream_position,
            root=self.lake.root,
        )

    def compact(
        self,
        *,
        to: int | None = None,
        full: bool = False,
        rebase_from: "Table | str | StreamLocator | None" = None,
        on_behalf_of: "Table | str | StreamLocator | None" = None,
        high_watermark: int | None = None,
        engine: EngineName = "spark",
        spark: Spark = None,
        progress: Progress | None = None,
    ) -> Compacted:
        """Compact the new deltas of each partition, up to position `to`; `full` rewrites all buckets.

        `rebase_from` starts over from the content of another table, each partition from the one with the same values;
        from this table itself, it discards what was compacted and reads all deltas again. `on_behalf_of` names the
        table whose deltas follow, now and in later calls, if that is a third one; `high_watermark` is the last of its
        positions that is already included (by default none is). A stream or partition can be named exactly by its
        locator, or as text, e.g. `shop/orders/1/compacted`. A watermark without a rebase sets where this one
        compaction starts.
        Runs on the given Spark session, or on one in this process, which is started only if something is new; with
        `engine="local"` in this process, without Spark and Java. All partitions are planned before any of them
        changes.
        Raises: InvalidInputError, NotFoundError, CorruptionError.
        """
        asked = self._asked(to, full, rebase_from, on_behalf_of, high_watermark)
        compacted = compact_table(asked, choose_engine(engine, spark, progress), progress)
        return dataclasses.replace(compacted, published=publish_by_property(self.name, root=self.lake.root))

    def publish(self, format: str = "delta", *, replace: bool = False) -> Published:
        """Publish the newest compacted state of all partitions as `delta` or `iceberg`, without copying any rows.

        Other engines then read the table's own files at `Published.address`; they cannot write there. A state that is
        already published is not published again. With `replace`, changes that others made there in spite of the lock
        are taken back.
        Raises: InvalidInputError if the format cannot represent the table; ConflictError, CorruptionError.
        """
        return publish(self.name, format, replace=replace, root=self.lake.root)

    def publish_formats(self) -> tuple[str, ...]:
        """Return the formats in which the table is published after each compaction, from its property `publish`."""
        return PUBLISH.of(self.properties, self.name)

    def published(self) -> list[Publication]:
        """Return the formats in which the table is published, and how many rounds each is behind. Raises: CorruptionError."""
        return read_publications(self.name, root=self.lake.root)

    def check_published(self, published: Published) -> Iterator[ReaderCheck]:
        """Compare all rows of the version just published with the table's, in each reader that is installed here.

        Raises: ConflictError if the table was compacted since.
        """
        return check_published(published, root=self.lake.root)

    def unpublish(self) -> list[str]:
        """Withdraw all published formats, and return which. Rows and rounds of the table are not touched."""
        return unpublish(self.name, root=self.lake.root)

    def plan(
        self,
        *,
        to: int | None = None,
        full: bool = False,
        rebase_from: "Table | str | StreamLocator | None" = None,
        on_behalf_of: "Table | str | StreamLocator | None" = None,
        high_watermark: int | None = None,
        every_bucket: bool = False,
        progress: Progress | None = None,
    ) -> Plan:
        """Return what the next round of each partition would do if `compact` were called with these arguments; writes nothing.

        It lists the buckets that the round would touch; with `every_bucket` all of them, which reads all pages of the
        table.
        Raises: InvalidInputError, NotFoundError, CorruptionError.
        """
        from siltstone.documents.merge import resolver_of

        asked = self._asked(to, full, rebase_from, on_behalf_of, high_watermark)
        return preview_table(asked, resolver_of, progress, every=every_bucket)

    def _asked(
        self,
        to: int | None,
        full: bool,
        rebase_from: "Table | str | StreamLocator | None",
        on_behalf_of: "Table | str | StreamLocator | None",
        high_watermark: int | None,
    ) -> TableRequest:
        s1, s2 = self._source(rebase_from), self._source(on_behalf_of)
        return TableRequest(self.name, self.lake.root, to, full, s1, s2, high_watermark)

    def rounds(self) -> list[RoundCompletion]:
        """Return the round completions of all partitions, oldest first. Raises: CorruptionError."""
        table = read_own(self.name, with_rounds=True, root=self.lake.root)
        rounds = [read_kept(*place) for place in table.rounds]
        kept = [completion for completion in rounds if completion is not None]
        return sorted(kept, key=lambda completion: (completion.completed_at, completion.round_id))

    def describe(self) -> TableDescription:
        """Return a description of the table and its deltas. Raises: NotFoundError."""
        return describe_table(self.name, root=self.lake.root)

    def delta_reports(
        self, first_stream_position: int | None = None, last_stream_position: int | None = None
    ) -> list[DeltaReport]:
        """Return a report on each committed delta; see `deltas`."""
        names = self.version.names_by_file()
        return [report_delta(delta, names) for delta in self.deltas(first_stream_position, last_stream_position)]

    def report(self) -> TableReport:
        """Return a report on the table: rows, files, backlog, amplification; if it is damaged, the `problem`."""
        return read_report(self.name, root=self.lake.root)

    def details(self) -> TableDetails:
        """Return the report with the newest rounds and the largest buckets."""
        return read_details(self.name, root=self.lake.root)

    def round(self, round_id: int, partition: Sequence[str] = ()) -> RoundDetails:
        """Return a round with its buckets and files; if several partitions have it, name one by values or `key=value`.

        Raises: NotFoundError, InvalidInputError, CorruptionError.
        """
        return detail_round(self.name, find_round(self.name, round_id, partition, root=self.lake.root))

    def deltas_after(self, completion: RoundCompletion) -> list[Delta]:
        """Return the deltas that follow a round in its partition. Raises: NotFoundError."""
        own = PartitionLocator(**{**completion.destination_partition_locator, "stream": DEFAULT_STREAM})
        return storage.list_partition_deltas(
            followed_partition(own, completion, root=self.lake.root),
            first_stream_position=completion.high_watermark + 1,
            root=self.lake.root,
        )

    def round_reports(self) -> list[RoundReport]:
        """Return a report on each round of all partitions, oldest first; a damaged one has its `problem`."""
        return read_rounds(self.name, root=self.lake.root)

    def snapshot(self, *, as_of: Moment | None = None, fresh: bool = False) -> TableSnapshot:
        """Return the state of the table at one position: the highest that is compacted, with `fresh` the newest, or `as_of` another.

        `as_of` is a position, a time or a tag. The state is that of all partitions: where rounds have not reached the
        position, it includes the missing deltas. The position of a table that was compacted on behalf of another one
        is in the stream of that one.
        Raises: NotFoundError, InvalidInputError, CorruptionError.
        """
        return take_snapshot(self.name, as_of=as_of, fresh=fresh, root=self.lake.root)

    @property
    def holds_documents(self) -> bool:
        """Whether it is a document table; see `Lake.document_table`."""
        return KIND.of(self.properties, self.name) == DOCUMENTS_KIND

    def for_query(self, moment: Moment | None, *, fresh: bool = False, history: bool = False) -> "QueryTable":
        """Return the table as a query reads it: now or as of a moment, or the history of its documents. Raises: as `snapshot`."""
        from siltstone.table.query import QueryTable

        if KIND.of(self.properties, self.name) != ROWS_KIND:
            if moment is not None:
                raise InvalidInputError(f"{self.name}: is a table of documents, which SQL reads as they are now only")
            name = f"{self.name}{HISTORY_SUFFIX}" if history else self.name
            return QueryTable(name, None, self.lake.document_table(self.name).to_dataset(history=history))
        if history:
            raise InvalidInputError(f"{self.name}: is a table of rows; {HISTORY_SUFFIX} is for those of documents")
        snapshot = self.snapshot(as_of=moment, fresh=fresh)
        newer = snapshot.newer if moment is None and not fresh else 0
        return QueryTable(self.name, moment, snapshot.scan().to_dataset(), newer)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        fresh: bool = False,
        as_of: Moment | None = None,
        current_only: bool = False,
        valid_at: object = None,
    ) -> Scan:
        """Return a scan of some columns, by default all, of the rows that match a filter; see `snapshot` and `Scan`.

        The filter is text, e.g. `amount > 9 and status in ('paid', 'sent')`, or an Arrow expression. The scan reads
        one state of the table, whatever is written meanwhile. For a table with merge engine `history` it has all
        versions, only the current ones, or those that were `valid_at` a time, which is a value of the sort key.
        Raises: NotFoundError, InvalidInputError, CorruptionError.
        """
        return open_scan(
            self.name,
            columns,
            where,
            as_of=as_of,
            fresh=fresh,
            current_only=current_only,
            valid_at=valid_at,
            root=self.lake.root,
        )

    def changes(
        self,
        after: Bound | None = None,
        upto: Bound | None = None,
        *,
        columns: Sequence[str] | None = None,
        images: Images = "both",
        net: bool = True,
        on_rebase: OnRebase = "difference",
        consumer: str | None = None,
    ) -> Changes:
        """Return the changes between two bounds as record batches of rows before and after.

        A bound is a position, a time, a round such as `round:12`, or the rounds of several partitions, `{"eu": 12,
        "us": 9}`. Bounds are rounded down to rounds; the defaults are the beginning, and the newest position that all
        partitions are compacted to. `Changes.after` and `Changes.upto` say which rounds these are; continue with the
        latter. Changes are net from the first round to the last or, without `net`, come round by round. With
        `images="after"`, updates have only the row after them. A rebase between the rounds is a difference, or with
        `on_rebase="error"` an error. A `consumer` continues after what it acknowledged; call `Changes.acknowledge`
        when all changes are processed.
        Raises: InvalidInputError, NotFoundError, CorruptionError.
        """
        return open_changes(
            self.name,
            after,
            upto,
            columns=columns,
            images=images,
            net=net,
            on_rebase=on_rebase,
            consumer=consumer,
            root=self.lake.root,
        )

    def tag(
        self, name: str, *, as_of: Moment | None = None, round_id: int | None = None, overwrite: bool = False
    ) -> Tag:
        """Give a name to a state of the table, which is kept until `untag` and can be read `as_of` that name."""
        return add_tag(self.name, name, as_of=as_of, round_id=round_id, overwrite=overwrite, root=self.lake.root)

    def tags(self) -> list[Tag]:
        """Return the tags of the table by name. Raises: CorruptionError."""
        return list_tags(self.name, root=self.lake.root)

    def find_tag(self, name: str) -> Tag:
        """Return a tag by its name. Raises: NotFoundError."""
        return find_tag(self.name, name, catalog.version_folder(self.name, root=self.lake.root), root=self.lake.root)

    def untag(self, name: str) -> Tag:
        """Remove a tag; the next vacuum removes its files, unless something else names them. Raises: NotFoundError."""
        return remove_tag(self.name, name, root=self.lake.root)

    def consumers(self) -> list[Consumer]:
        """Return the consumers of changes, and how far each one is in each partition. Raises: CorruptionError."""
        return list_consumers(self._destinations())

    def remove_consumer(self, name: str) -> None:
        """Remove a consumer of changes, so that nothing is kept for it any more. Raises: NotFoundError."""
        remove_consumer(self._destinations(), name)

    def to_batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        as_of: Moment | None = None,
        include_uncompacted: bool = False,
        current_only: bool = False,
    ) -> pa.RecordBatchReader:
        """Return a reader of the rows; `include_uncompacted` is another name for `fresh`. See `scan`."""
        return self.scan(columns, as_of=as_of, fresh=include_uncompacted, current_only=current_only).to_batches()

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        *,
        as_of: Moment | None = None,
        include_uncompacted: bool = False,
        current_only: bool = False,
    ) -> pa.Table:
        """Return the rows as an Arrow table; `include_uncompacted` is another name for `fresh`. See `scan`."""
        return self.scan(columns, as_of=as_of, fresh=include_uncompacted, current_only=current_only).to_arrow()

    def to_spark(
        self,
        spark: "SparkSession",
        columns: Sequence[str] | None = None,
        *,
        as_of: Moment | None = None,
        include_uncompacted: bool = False,
        current_only: bool = False,
    ) -> "DataFrame":
        """Return the rows as a data frame; `include_uncompacted` is another name for `fresh`. See `scan`."""
        return self.scan(columns, as_of=as_of, fresh=include_uncompacted, current_only=current_only).to_spark(spark)

    def current_rounds(self) -> list[RoundCompletion]:
        """Return the current round of each partition that has one. Raises: CorruptionError."""
        partitions = read_own(self.name, root=self.lake.root).partitions
        compacted = [each for each in partitions if each.state.current is not None]
        current = [current_completion(each.destination, each.state.current) for each in compacted]
        return [completion for completion in current if completion is not None]

    def lookup(self, key: Mapping[str, object]) -> list[dict[str, object]]:
        """Return the compacted rows of a primary key, found by the index: at most one in each partition.

        In a table with merge engine `history` it is the current version; `scan(where=…)` finds all versions.
        Raises: InvalidInputError, CorruptionError.
        """
        return look_up(self.name, key, root=self.lake.root)

    def explain_key(self, key: Mapping[str, object]) -> list[Explanation]:
        """Return, for each partition that has a key, every delta that touched it, what each one did, and why the row is what it is.

        Raises: InvalidInputError, CorruptionError.
        """
        return explain_key(self.name, key, root=self.lake.root)

    def key_problems(self, texts: Mapping[str, str | None]) -> dict[str, str]:
        """Return what is wrong with a primary key that is written as text, by column; None is null."""
        return key_problems(self.version, texts)

    def parse_key(self, texts: Mapping[str, str | None]) -> dict[str, object]:
        """Return a primary key that is written as text; None is null. Raises: InvalidInputError."""
        return parse_key(self.version, texts)

    def preview(self, limit: int = 20, columns: Sequence[str] | None = None) -> Preview:
        """Return the first compacted rows, without merging deltas that wait, so that it is quick for a table of any size.

        Raises: InvalidInputError, CorruptionError.
        """
        return read_preview(self.name, limit, columns, root=self.lake.root)

    def fsck(self, *, deep: bool = False) -> list[Finding]:
        """Check logs, files, deletion vectors and indices; `deep` also reads every row. An empty list means no problems."""
        root = self.lake.root
        findings = _check_log(root, CATALOG_FOLDER)
        if findings:
            return findings
        folder = catalog.version_folder(self.name, root=root)
        partitions = open_objects(root).list_folders(f"{folder}/{COMPACTED_STREAM}")
        for log in ("log", *(f"{COMPACTED_STREAM}/{partition}/log" for partition in partitions)):
            findings += _check_log(root, f"{folder}/{log}")
        if findings:
            return findings
        findings += check_registered(self.name, root=root)
        findings += check_drop_logs(root, folder)
        findings += check_deltas(root, self.deltas(), deep=deep)
        for destination in self._destinations():
            findings += check_partition(destination, deep=deep)
        findings += check_tags(root, folder)
        return [*findings, *check_publications(self.name, root=root)]

    def vacuum(
        self,
        *,
        retention_ms: int = ROUND_RETENTION_MS,
        orphan_grace_ms: int = ORPHAN_GRACE_MS,
        confirm_time: bool = False,
        dry_run: bool = False,
    ) -> VacuumReport:
        """Forget rounds past the retention, and remove files that no readable state names."""
        root = self.lake.root
        return vacuum(
            catalog.version_folder(self.name, root=root),
            root=root,
            retention_ms=retention_ms,
            orphan_grace_ms=orphan_grace_ms,
            confirm_time=confirm_time,
            dry_run=dry_run,
        )

    def erase(
        self, key: Mapping[str, object], *, force: bool = False, dry_run: bool = False, progress: Report = silent
    ) -> ErasureReport:
        """Remove a primary key from everything stored of the table, and prove by a search that nothing is left."""
        return erase_key(self.name, key, force=force, dry_run=dry_run, progress=progress, root=self.lake.root)

    def rollback(
        self, round_id: int, *, partition_values: Sequence[PartitionValue] = (), dry_run: bool = False
    ) -> RoundCompletion:
        """Make the state after an earlier round of a partition current again; later deltas are compacted again.

        A dry run returns what would be current. Raises: NotFoundError, InvalidInputError, ConflictError.
        """
        stream = catalog.delta_stream(self.name, root=self.lake.root)
        source = PartitionLocator(**stream, partition_values=list(partition_values))
        return roll_back(locate_compacted(source, root=self.lake.root), round_id, dry_run=dry_run)

    def repair(self, *, accept_loss: bool = False, dry_run: bool = False) -> list[PartitionRepair]:
        """Recover the rows of damaged files of the current rounds, with one round in each partition that says so.

        Every row is read to find damage. Rows that cannot be recovered are given up only if the loss is accepted.
        Compacted partitions that the table does not know are registered. Raises: InvalidInputError, also if there is
        nothing to repair; CorruptionError, ConflictError.
        """
        from siltstone.documents.merge import merge_any

        root = self.lake.root
        hidden = unregistered_destinations(self.name, root=root)
        done = repair([*self._destinations(), *hidden], merge_any, accept_loss=accept_loss, dry_run=dry_run)
        if not done and not hidden:
            raise InvalidInputError(f"{self.name}: nothing is damaged, so there is nothing to repair")
        for each in hidden:
            if not dry_run:
                register_destination(each)
            done.append(PartitionRepair(list(each.locator.partition_values), dry_run, is_registered=True))
        return done

    def _partitions(self) -> list[Followed]:
        return read_followed(self.name, root=self.lake.root).partitions

    def _sources(self) -> list[PartitionLocator]:
        return [each.own for each in self._partitions()]

    def _destinations(self) -> list[Destination]:
        return [each.destination for each in self._partitions()]

    def _source(self, given: "Table | str | StreamLocator | None") -> str | StreamLocator | None:
        if isinstance(given, str) and "/" not in given:
            return self.lake._full_name(given)
        if not isinstance(given, Table):
            return given
        if given.lake.root != self.lake.root:
            raise InvalidInputError(f"{given!r}: is in another lake than {self!r}; both must be in one")
        return given.name

    def alter(
        self,
        *,
        add_columns: SchemaLike | None = None,
        rename_columns: Mapping[str, str] | None = None,
        drop_columns: Sequence[str] = (),
        unique_within_partition: bool | None = None,
        description: str | None = None,
        properties: Mapping[str, str | None] | None = None,
        dry_run: bool = False,
    ) -> TableVersion:
        """Drop, rename and add columns, change the description, and set properties; a property of None is removed.

        No file is rewritten. A column that is added again under the name of a dropped one starts empty.
        A dry run returns what the table would be. Raises: InvalidInputError.
        """
        return catalog.alter_table(
            self.name,
            add_columns=None if add_columns is None else _arrow_schema(add_columns),
            rename_columns=rename_columns,
            drop_columns=_names(drop_columns),
            unique_within_partition=unique_within_partition,
            description=description,
            properties=properties,
            dry_run=dry_run,
            root=self.lake.root,
        )

    def rename(self, new_name: str, *, dry_run: bool = False) -> "Table":
        """Rename the table. Raises: NotFoundError, AlreadyExistsError."""
        return self.lake.rename_table(self.name, new_name, dry_run=dry_run)

    def drop(self) -> None:
        """Drop the table; its files stay until they are vacuumed."""
        self.lake.drop_table(self.name)


def _check_log(root: str, folder: str) -> list[Finding]:
    """Check a log of the table; a partition that was never compacted has none."""
    return verify_log(KeyedLog(open_objects(root), folder), data_files=False).findings


def choose_engine(engine: EngineName, spark: Spark = None, progress: Progress | None = None) -> Engine:
    """Return what runs the tasks of rounds: Spark, or this process. Raises: InvalidInputError."""
    if engine == "spark":
        return LazyEngine(spark, progress)
    if engine != "local":
        raise InvalidInputError(f"unknown engine {engine!r}; use spark, or local for this process")
    if spark is not None:
        raise InvalidInputError("a Spark session was given for the local engine; leave it out, or use engine='spark'")
    from siltstone.documents.merge import run_here

    return run_here


def _arrow_schema(schema: SchemaLike) -> pa.Schema:
    return schema if isinstance(schema, pa.Schema) else schema_from_json(schema)


def _warn_of_keys_in_several_partitions(table: Table) -> None:
    try:
        version = catalog.get_table_version(table.name, recall=True, root=table.lake.root)
    except NotFoundError:
        return
    if version.partition_keys_outside and version.unique_within_partition is None:
        outside = ", ".join(version.partition_keys_outside)
        warnings.warn(
            f"{table.name}: is partitioned by {outside}, which is not part of its primary key, so a key may have one row "
            "in each partition; say that it is meant so with `siltstone table alter --unique-within-partition`, or "
            "make a table whose primary key has it",
            KeysInSeveralPartitionsWarning,
            stacklevel=3,
        )


def _idempotency(given: Idempotency | tuple[str, int] | None) -> Idempotency | None:
    return Idempotency(app_id=given[0], batch_id=given[1]) if isinstance(given, tuple) else given


def _followed_by(batches: Iterator[pa.RecordBatch], call: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    yield from batches
    call()


def _names(names: Sequence[str]) -> list[str]:
    # A lone string is a sequence of letters; what is meant is one column.
    return [names] if isinstance(names, str) else list(names)
