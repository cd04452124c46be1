"""What a storage implementation provides: module-level functions with these signatures.

An implementation is any module that has all functions of `Storage`: the type checker compares them, and
`siltstone.testing.storage_conformance` checks signatures and behaviour. Functions keep no state between calls, so Spark executors can call them as they are. `root` says where the
implementation keeps its data. Functions that get one thing raise NotFoundError where it is not there; functions that
list return empty lists only for things that exist and are empty. What is staged is invisible until committed.

All other packages reach storage through these functions. How a data file is written and read (`storage.parquet`), and
how values become those of a column (`storage.conversion`), is the same for every implementation. Only a vacuum knows
which one there is: it deletes files by where they lie (`storage.layout`).
"""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa

from siltstone.model import (
    DEFAULT_STREAM,
    Delta,
    DeltaLocator,
    DeltaType,
    Follower,
    Idempotency,
    Manifest,
    ManifestEntry,
    Namespace,
    Overwrite,
    Partition,
    PartitionLocator,
    PartitionValue,
    Stream,
    StreamLocator,
    Table,
    TableRules,
    TableVersion,
)
from siltstone.model.entities import LifecycleState

ArrowData: TypeAlias = (
    pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch] | Iterable[Mapping[str, object]]
)


T = TypeVar("T")


class StreamState(Protocol):
    """A stream at one moment, by one state of where it is kept; to be used only while it stands still."""

    @property
    def locator(self) -> StreamLocator:
        """The stream."""

    @property
    def version(self) -> TableVersion:
        """The version of the table, as of this state."""

    @property
    def stream_position(self) -> int:
        """The newest position, 0 before the first."""

    @property
    def log_address(self) -> str:
        """Where the state is kept, for messages."""

    def streams(self) -> frozenset[str]:
        """Return the names of all streams of the version."""

    def partitions(self) -> dict[str, Partition]:
        """Return the partitions by their ids."""

    def partition(self, partition_id: str) -> Partition | None:
        """Return the partition with this id, or None."""

    def followers(self) -> list[Follower]:
        """Return who follows any of the partitions."""

    def expiry_ms(self) -> int:
        """Return the time by which things may expire: now if that is sure, else the last time that was."""

    def deltas(self, partition_id: str, after: int = 0, upto: int | None = None) -> Sequence[Delta]:
        """Return the deltas of a partition after a position and up to another, by position; those trimmed are not there.

        What is returned may be used, and pickled, when the stream has moved on. Raises: CorruptionError, also when one is
        asked for that is damaged.
        """

    def position_at(self, moment: datetime.datetime) -> int:
        """Return the newest position that was committed by a time, 0 before the first.

        Raises: InvalidInputError where deltas are trimmed of which nothing says whether they were.
        """


class StreamLog(Protocol):
    """A stream, found once by its name. What is compacted into it is kept in its folder under the root."""

    @property
    def locator(self) -> StreamLocator:
        """The stream; with the version that was chosen, where none was named."""

    @property
    def folder(self) -> str:
        """The folder of the stream under the root; it stays when the table is renamed."""

    @property
    def version_folder(self) -> str:
        """The folder of the table version, which has a folder for each stream."""

    @property
    def root(self) -> str:
        """The root."""

    @property
    def log_address(self) -> str:
        """Where its state is kept, for messages."""

    def read(self, query: Callable[[StreamState], T]) -> T:
        """Call `query` on the newest state, which stands still meanwhile. Raises: NotFoundError, CorruptionError."""

    def refresh(self) -> None:
        """Read what is new. Raises: CorruptionError."""

    def recall(self, query: Callable[[StreamState], T]) -> T:
        """Call `query` on a state that this process knows already, however old; where it knows none, as `read` does."""

    def expiry_ms(self) -> int:
        """Return the time by which things may expire, as the newest state has it; the stream need not exist."""

    def time_warning(self, expiry_ms: int) -> str | None:
        """Return why things expire by an earlier time than now, and what to do, or None if they do not."""

    def announced(self) -> AbstractContextManager[None]:
        """Keep vacuums away from what is staged for the stream meanwhile, since the state that was read last."""


StreamLike: TypeAlias = StreamLocator | StreamLog
"""A stream by its name, or found already: then it is not looked up again, and what counts is what was read of it last."""


class Storage(Protocol):
    """The functions of a storage implementation."""

    def list_namespaces(self, *, root: str) -> list[Namespace]:
        """List all namespaces by name."""

    def get_namespace(self, namespace: str, *, root: str) -> Namespace:
        """Get a namespace. Raises: NotFoundError."""

    def namespace_exists(self, namespace: str, *, root: str) -> bool:
        """Return whether the namespace exists."""

    def create_namespace(self, namespace: str, *, properties: Mapping[str, str] | None = None, root: str) -> Namespace:
        """Create a namespace. Raises: AlreadyExistsError."""

    def update_namespace(self, namespace: str, *, properties: Mapping[str, str | None], root: str) -> Namespace:
        """Set properties; None removes one. Raises: NotFoundError."""

    def delete_namespace(self, namespace: str, *, root: str) -> None:
        """Delete an empty namespace. Raises: NotFoundError, ConflictError where it has tables."""

    def list_tables(self, namespace: str | None = None, *, root: str) -> list[Table]:
        """List the tables of one namespace or of all, by name. Raises: NotFoundError."""

    def get_table(self, namespace: str, table: str, *, recall: bool = False, root: str) -> Table:
        """Get a table. Raises: NotFoundError.

        With `recall`, one that this process knows already, though it may have changed since, or be dropped.
        """

    def table_exists(self, namespace: str, table: str, *, root: str) -> bool:
        """Return whether the table exists."""

    def create_table(
        self,
        namespace: str,
        table: str,
        *,
        description: str = "",
        properties: Mapping[str, str] | None = None,
        root: str,
    ) -> Table:
        """Create a table that has no version yet. Raises: AlreadyExistsError, NotFoundError without the namespace."""

    def update_table(
        self,
        namespace: str,
        table: str,
        *,
        new_namespace: str | None = None,
        new_table: str | None = None,
        description: str | None = None,
        properties: Mapping[str, str | None] | None = None,
        root: str,
    ) -> Table:
        """Rename, move to another namespace, describe, or set properties, in one commit.

        Raises: NotFoundError, AlreadyExistsError where the new name is taken.
        """

    def delete_table(self, namespace: str, table: str, *, root: str) -> None:
        """Delete a table with all its versions; its files become orphans. Raises: NotFoundError."""

    def list_table_versions(self, namespace: str, table: str, *, root: str) -> list[TableVersion]:
        """List the versions of a table in order of creation. Raises: NotFoundError."""

    def get_table_version(
        self, namespace: str, table: str, table_version: str | None = None, *, recall: bool = False, root: str
    ) -> TableVersion:
        """Get one version, by default the newest active one; `recall` as in `get_table`. Raises: NotFoundError."""

    def get_latest_table_version(self, namespace: str, table: str, *, root: str) -> TableVersion:
        """Get the version created last. Raises: NotFoundError."""

    def get_latest_active_table_version(self, namespace: str, table: str, *, root: str) -> TableVersion:
        """Get the active version created last. Raises: NotFoundError."""

    def table_version_exists(self, namespace: str, table: str, table_version: str, *, root: str) -> bool:
        """Return whether the version exists."""

    def create_table_version(
        self,
        namespace: str,
        table: str,
        table_version: str | None = None,
        *,
        schema: pa.Schema,
        rules: TableRules | None = None,
        lifecycle_state: LifecycleState = "active",
        description: str = "",
        properties: Mapping[str, str] | None = None,
        reserved_properties: Mapping[str, str] | None = None,
        create_parents: bool = False,
        dry_run: bool = False,
        root: str,
    ) -> TableVersion:
        """Create a version with its stream of deltas; by default the next number.

        Without rules, rows have no key. Partition keys must be part of the primary key, if there is one, unless keys are `unique_within_partition` only.
        With `create_parents`, a missing namespace or table is created in the same commit, and a table that exists is an
        error. Properties are checked as `model.properties` says; reserved ones are for what the system keeps, and are taken
        as they are. A dry run makes all checks, and creates nothing. Raises: AlreadyExistsError, NotFoundError, InvalidInputError.
        """

    def update_table_version(
        self,
        namespace: str,
        table: str,
        table_version: str | None = None,
        *,
        add_columns: pa.Schema | None = None,
        rename_columns: Mapping[str, str] | None = None,
        drop_columns: Sequence[str] = (),
        unique_within_partition: bool | None = None,
        lifecycle_state: LifecycleState | None = None,
        description: str | None = None,
        properties: Mapping[str, str | None] | None = None,
        dry_run: bool = False,
        root: str,
    ) -> TableVersion:
        """Drop, rename and add columns, in this order, set properties, describe, or change the state of a version.

        No file is written anew: inside files, columns keep the name they were added under. Properties are checked as
        `model.properties` says; None removes one. A dry run returns what the version would be. Raises: NotFoundError,
        InvalidInputError, also for keys, which cannot be dropped.
        """

    def get_table_version_schema(
        self, namespace: str, table: str, table_version: str | None = None, *, root: str
    ) -> pa.Schema:
        """Get the Arrow schema of a version. Raises: NotFoundError."""

    def get_table_version_column_names(
        self, namespace: str, table: str, table_version: str | None = None, *, root: str
    ) -> list[str]:
        """Get the column names of a version, in order. Raises: NotFoundError."""

    def list_streams(self, namespace: str, table: str, table_version: str | None = None, *, root: str) -> list[Stream]:
        """List the committed streams of a version. Raises: NotFoundError."""

    def get_stream(self, stream: StreamLocator, *, root: str) -> Stream:
        """Get a committed stream. Raises: NotFoundError."""

    def stream_exists(self, stream: StreamLocator, *, root: str) -> bool:
        """Return whether the stream exists and is committed."""

    def locate_stream(self, stream: StreamLocator, *, root: str) -> StreamLog:
        """Find a stream, or that of a partition or delta, which itself need not exist. Raises: NotFoundError."""

    def find_stream(
        self,
        namespace: str,
        table: str,
        table_version: str | None = None,
        stream: str = DEFAULT_STREAM,
        *,
        recall: bool = False,
        root: str,
    ) -> StreamLog:
        """Find a stream of a table version, by default the deltas of the newest active one; `recall` as in `get_table`.

        Raises: NotFoundError.
        """

    def find_stream_in(self, folder: str, *, root: str) -> StreamLog | None:
        """Return the stream kept in a folder, or None if its table was dropped: names change, folders do not."""

    def stage_stream(self, stream: StreamLocator, *, properties: Mapping[str, str] | None = None, root: str) -> Stream:
        """Make a stream that nobody sees until it is committed. Raises: NotFoundError without the table version."""

    def commit_stream(self, stream: Stream, *, root: str) -> Stream:
        """Commit a staged stream. Raises: AlreadyExistsError, NotFoundError."""

    def delete_stream(self, stream: StreamLocator, *, root: str) -> None:
        """Delete a stream with its partitions and deltas; files become orphans. Raises: NotFoundError."""

    def close_stream(self, stream: StreamLocator, *, before_ms: int, root: str) -> bool:
        """Close a stream up to a time, unless it is closed up to a later one; return whether that changed anything.

        The time is a property of the table version, `CLOSED_BEFORE_MS`: a writer that checked its changes against it says so
        with the `expected_properties` of its commit. Raises: NotFoundError.
        """

    def list_partitions(self, stream: StreamLocator, *, root: str) -> list[Partition]:
        """List the committed partitions of a stream. Raises: NotFoundError."""

    def get_partition(self, partition: PartitionLocator, *, root: str) -> Partition:
        """Get a committed partition. Raises: NotFoundError."""

    def partition_exists(self, partition: PartitionLocator, *, root: str) -> bool:
        """Return whether the partition exists and is committed."""

    def stage_partition(
        self, stream: StreamLocator, partition_values: Sequence[PartitionValue] = (), *, root: str
    ) -> Partition:
        """Make a partition that nobody sees until it is committed. Raises: NotFoundError, InvalidInputError."""

    def commit_partition(self, partition: Partition, *, root: str) -> Partition:
        """Commit a staged partition; committing a delta into it does so too. Raises: AlreadyExistsError, NotFoundError."""

    def delete_partition(self, partition: PartitionLocator, *, root: str) -> None:
        """Delete a partition with its deltas; files become orphans. Raises: NotFoundError."""

    def list_followers(self, stream: StreamLocator, *, root: str) -> list[Follower]:
        """List the followers of all partitions of a stream. Raises: NotFoundError."""

    def add_follower(self, follower: Follower, *, root: str) -> bool:
        """Let a compacted partition follow a partition, which need not exist yet; return whether that changed anything.

        A follower is known by its partition and folder. One that is there is replaced by one after a later round; after
        the same round, the lower start position counts; after an earlier round, nothing changes. Raises: NotFoundError.
        """

    def remove_follower(self, follower: Follower, *, root: str) -> bool:
        """Forget a follower that is still exactly as given; return whether it was. Raises: NotFoundError."""

    def list_deltas(
        self,
        stream: StreamLocator,
        *,
        first_stream_position: int | None = None,
        last_stream_position: int | None = None,
        ascending: bool = True,
        root: str,
    ) -> list[Delta]:
        """List committed deltas of all partitions by stream position; both bounds are inclusive. Raises: NotFoundError."""

    def list_partition_deltas(
        self,
        partition: PartitionLocator,
        *,
        first_stream_position: int | None = None,
        last_stream_position: int | None = None,
        ascending: bool = True,
        root: str,
    ) -> list[Delta]:
        """List committed deltas of one partition by stream position; both bounds are inclusive. Raises: NotFoundError."""

    def get_delta(self, delta: DeltaLocator, *, root: str) -> Delta:
        """Get a committed delta. Raises: NotFoundError."""

    def get_latest_delta(self, partition: PartitionLocator, *, root: str) -> Delta:
        """Get the newest committed delta of a partition. Raises: NotFoundError."""

    def get_delta_manifest(self, delta: DeltaLocator, *, root: str) -> Manifest:
        """Get the manifest of a committed delta. Raises: NotFoundError."""

    def stage_delta(
        self,
        data: ArrowData,
        partition: PartitionLocator,
        *,
        type: DeltaType = "upsert",
        delete_columns: Sequence[str] | None = None,
        op_column: str | None = None,
        evolve: bool = True,
        root: str,
    ) -> Delta:
        """Write the files of a delta to one partition; nobody sees it until it is committed.

        Raises: InvalidInputError, also where a row belongs to another partition; NotFoundError.
        """

    def stage_deltas(
        self,
        data: ArrowData,
        stream: StreamLike,
        *,
        type: DeltaType = "upsert",
        delete_columns: Sequence[str] | None = None,
        op_column: str | None = None,
        evolve: bool = True,
        root: str,
    ) -> list[Delta]:
        """Write the files of one delta per partition that the rows belong to.

        Without `evolve`, columns and types that the table does not have are refused; a table whose property says so never
        takes them. Where a key can be in several partitions, a row-level delete without a value of a partition key
        that the primary key does not have concerns every partition. A delete whose columns do not include the partition keys concerns every partition: it is staged once and
        committed to each partition that exists then. Raises: InvalidInputError, NotFoundError.
        """

    def stage_files(self, files: Sequence[str], stream: StreamLike, *, root: str) -> list[Delta] | None:
        """Stage Parquet files of this machine as they are, by a second name for each, without copying them.

        They must never be changed. None where that cannot be: the root is elsewhere, the table is partitioned, or a file
        does not have the columns of the table with their types. Raises: NotFoundError.
        """

    def commit_delta(
        self, delta: Delta, *, stream_position: int | None = None, idempotency: Idempotency | None = None, root: str
    ) -> Delta:
        """Commit one staged delta. Raises: as `commit_deltas`."""

    def commit_deltas(
        self,
        deltas: Sequence[Delta],
        stream: StreamLike,
        *,
        stream_position: int | None = None,
        idempotency: Idempotency | None = None,
        rising_ids: bool = False,
        expected_properties: Mapping[str, str | None] | None = None,
        overwrite: Overwrite | None = None,
        root: str,
    ) -> Stream:
        """Commit staged deltas of one stream together, at one stream position, and return the stream as of then.

        The position is the newest one plus one, or the given one, which must be higher than the newest. What was
        committed under this idempotency id before is not committed again; the stream then has that commit's position.
        With `rising_ids`, the ids of this app only ever rise, with gaps or not: a lower one than the newest is refused.
        The table's schema takes over new columns and wider types in the same commit. Nothing is committed where a property
        of the table version is not what is expected (None: not set) at the moment of the commit. What is overwritten has
        the rows of these deltas from then on, and no others: partitions that the deltas have no rows for are empty.
        Raises: InvalidInputError, NotFoundError, ConflictError, CommitUnknownError.
        """

    def plan_overwrite(
        self, deltas: Sequence[Delta], stream: StreamLike, overwrite: Overwrite, *, root: str
    ) -> list[Delta]:
        """Return what `commit_deltas` would commit where it overwrites, and commit nothing. Raises: InvalidInputError."""

    def find_commit(self, stream: StreamLike, idempotency: Idempotency, *, root: str) -> int | None:
        """Return the stream position that was committed under an idempotency id, or None.

        Where others wrote in between, and the delta is trimmed by now, it is one that the commit is not after.
        Raises: NotFoundError.
        """

    def give_up_commit(self, stream: StreamLike, idempotency: Idempotency, *, root: str) -> int | None:
        """Make sure that nothing is ever committed under an idempotency id, the newest of its app.

        Whoever is about to commit under it meets a ConflictError. Returns None, or the stream position where something
        was committed under it already. Raises: NotFoundError, CommitUnknownError.
        """

    def discard_deltas(self, deltas: Sequence[Delta], *, root: str) -> None:
        """Delete the files of staged deltas that will not be committed. Raises: InvalidInputError."""

    def delete_deltas(
        self,
        partition: PartitionLocator,
        *,
        last_stream_position: int,
        followers: Sequence[Follower] | None = None,
        root: str,
    ) -> int:
        """Trim a partition: forget its deltas up to a position, inclusive, and remember that; return how many.

        Files become orphans. With `followers`, nothing is trimmed unless these are all followers of the stream at the
        moment of the commit. Raises: NotFoundError, InvalidInputError, ConflictError.
        """

    def trim_partitions(
        self, positions: Mapping[PartitionLocator, int], *, followers: Sequence[Follower] | None = None, root: str
    ) -> dict[PartitionLocator, int]:
        """Trim partitions of one stream in one commit, each up to a position; return how many deltas of each.

        All are trimmed, or none; see `delete_deltas`. Raises: NotFoundError, InvalidInputError, ConflictError.
        """

    def download_delta(self, delta: Delta, *, columns: Sequence[str] | None = None, root: str) -> pa.Table:
        """Read all rows of a delta in the order they were written.

        Columns have the names that the table gives them now; those that were dropped since are left out.
        Raises: CorruptionError, InvalidInputError where a column is not there.
        """

    def download_delta_manifest_entry(
        self, entry: ManifestEntry, *, columns: Sequence[str] | None = None, root: str
    ) -> pa.Table:
        """Read all rows of one data file, with the names that columns have inside it. Raises: CorruptionError."""
