"""The things a lake holds: namespaces, tables, versions, streams, partitions, deltas and their files."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import pyarrow as pa

from siltstone.errors import InvalidInputError, NotFoundError
from siltstone.model.dict_model import Model, field
from siltstone.model.locators import (
    DeltaLocator,
    NamespaceLocator,
    PartitionLocator,
    PartitionValue,
    StreamLocator,
    TableLocator,
    TableVersionLocator,
    check_name,
    check_path,
    partition_value,
)
from siltstone.model.properties import HISTORY_TRACK
from siltstone.model.schema import (
    SchemaField,
    check_key_types,
    check_known,
    check_partition_types,
    schema_from_json,
    schema_of,
    without_ids,
)

DeltaType = Literal["append", "upsert", "delete", "add", "chrono"]
MergeEngine = Literal["deduplicate", "partial_update", "first_row", "history"]
LifecycleState = Literal["created", "unreleased", "active", "deprecated", "beta"]
CommitState = Literal["staged", "committed"]
DEFAULT_STREAM = "deltas"
COMPACTED_STREAM = "compacted"
DELTA_TYPES: tuple[DeltaType, ...] = get_args(DeltaType)
OPERATIONS = ("c", "r", "u", "d", "I", "U", "D", "+I", "-U", "+U", "-D")
"""What an operation column may have."""
REMOVALS = ("d", "D", "-D")
"""Those that delete a row."""
VALID_FROM, VALID_TO, IS_DELETED = "_valid_from", "_valid_to", "_is_deleted"
HISTORY_COLUMNS = (VALID_FROM, VALID_TO, IS_DELETED)
"""What compaction adds to the rows of a table that keeps history."""
Overwrite = Literal["table", "partitions"] | Sequence[Sequence[PartitionValue]]
"""What a commit replaces: the whole table, the partitions that its rows belong to, or those with these values."""


class Metafile(Model):
    """A model with a locator, which is its identity: sets and mappings find it by that."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self["locator"])


class Namespace(Metafile):
    """A namespace."""

    locator: NamespaceLocator
    properties: dict[str, str] = field(default_factory=dict)
    created_at: int = 0


class VersionEntry(Model):
    """What a table knows about one of its versions; the rest is in the log in the version's folder."""

    version: str = field(check=check_name)
    folder: str = field(check=check_path)
    lifecycle_state: LifecycleState = "active"


class Table(Metafile):
    """A table: its name, and its versions in order of creation."""

    locator: TableLocator
    description: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    versions: list[VersionEntry] = field(default_factory=list)
    created_at: int = 0

    def choose_version(self, version: str | None = None) -> VersionEntry:
        """Return the entry of a version, by default of the newest active one. Raises: NotFoundError."""
        for entry in reversed(self.versions):
            if entry.version == version or (version is None and entry.lifecycle_state == "active"):
                return entry
        versions = ", ".join(f"{entry.version} ({entry.lifecycle_state})" for entry in self.versions) or "none"
        missing = "active version" if version is None else f"version {version}"
        raise NotFoundError(f"table {self.locator.full_name} has no {missing}; there are: {versions}")


class DroppedField(SchemaField):
    """A column that was dropped when the newest delta of the table was at a stream position."""

    stream_position: int = 0


class TableRules(Model):
    """How a table keeps its rows: by which keys, how rows of one key become one, and whether they do."""

    primary_keys: list[str] = field(default_factory=list)
    sort_keys: list[str] = field(default_factory=list)
    partition_keys: list[str] = field(default_factory=list)
    merge_engine: MergeEngine = "deduplicate"
    drop_duplicates: bool = True
    unique_within_partition: bool = False


class TableVersion(Metafile):
    """One version of a table: its schema, keys and rules.

    Every column has an id, and a name inside files; neither is ever given to another column, also when it was dropped.
    A key has one row in the whole table, so partition keys are part of the primary key; where `unique_within_partition`,
    it may have one in each partition. None: nobody said so, which tables from before that rule have.
    """

    locator: TableVersionLocator
    fields: list[SchemaField]
    dropped_fields: list[DroppedField] = field(default_factory=list)
    last_column_id: int = 0
    schema_id: int = 1
    primary_keys: list[str] = field(default_factory=list)
    sort_keys: list[str] = field(default_factory=list)
    partition_keys: list[str] = field(default_factory=list)
    merge_engine: MergeEngine = "deduplicate"
    drop_duplicates: bool = True
    unique_within_partition: bool | None = None
    lifecycle_state: LifecycleState = "active"
    description: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    created_at: int = 0

    @property
    def partition_keys_outside(self) -> list[str]:
        """The partition keys that the primary key does not have, so that one key can be in several partitions."""
        return [key for key in self.partition_keys if self.primary_keys and key not in self.primary_keys]

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return without_ids(schema_of(self.fields))

    @property
    def keeps_history(self) -> bool:
        """Whether all versions of a key's row are kept."""
        return self.merge_engine == "history"

    @property
    def written_schema(self) -> pa.Schema:
        """The columns that writers have values for: all but those that compaction adds."""
        added = HISTORY_COLUMNS if self.keeps_history else ()
        return pa.schema([field for field in self.schema if field.name not in added])

    @property
    def tracked_columns(self) -> list[str]:
        """The columns of a table that keeps history by which two versions differ."""
        untracked = {*self.primary_keys, *self.sort_keys, *HISTORY_COLUMNS}
        named = HISTORY_TRACK.of(self.properties, self.locator)
        return [column.name for column in self.fields if column.name not in untracked] if named is None else [*named]

    def refuse_history_columns(self, columns: Iterable[str]) -> None:
        """Refuse columns that only compaction may write. Raises: InvalidInputError."""
        own = [name for name in columns if self.keeps_history and name in HISTORY_COLUMNS]
        if own:
            raise InvalidInputError(
                f"column {own[0]!r} is kept by merge engine history, which computes it when it compacts; leave it out"
            )

    def refuse_undated_delete(self) -> None:
        """Refuse a delta of type delete, or a truncate, where rows have a place in time. Raises: InvalidInputError."""
        if self.keeps_history:
            raise InvalidInputError(
                f"{self.locator.table_locator.full_name}: keeps history, in which a delta of type delete, or a truncate, has no place "
                f"in time; write rows with the key, {self.sort_keys[0]} and an operation column that says d, or overwrite "
                "the table or its partitions"
            )

    def names_in_files(self, columns: Sequence[str]) -> list[str]:
        """Return the names inside files of columns; what is not a column keeps its name."""
        names = {column.name: column.name_in_files for column in self.fields}
        return [names.get(column, column) for column in columns]

    def names_by_file(self) -> dict[str, str]:
        """Return today's names of columns by their names inside files."""
        return {column.name_in_files: column.name for column in self.fields}

    def as_in_files(self) -> "TableVersion":
        """Return the version with all columns named as files name them: what reads and merges files works with it."""
        fields = [
            SchemaField.from_serializable({**column, "name": column.name_in_files, "stored_name": None})
            for column in self.fields
        ]
        keys = {name: self.names_in_files(self[name]) for name in ("primary_keys", "sort_keys", "partition_keys")}
        properties = self.properties
        if HISTORY_TRACK.text_in(properties) is not None:
            tracked = ", ".join(self.names_in_files(self.tracked_columns))
            properties = {**properties, HISTORY_TRACK.name: tracked}
        return TableVersion.from_serializable({**self, "fields": fields, **keys, "properties": properties})

    def new_name_in_files(self, name: str, column_id: int, taken: Iterable[str] = ()) -> str:
        """Return a name inside files for a new column that no column ever had, dropped ones included."""
        used = {column.name_in_files.lower() for column in [*self.fields, *self.dropped_fields]}
        used |= {other.lower() for other in taken}
        new_name = name
        while new_name.lower() in used:
            new_name = f"{new_name}_{column_id}"
        return new_name

    def check_partition_values(self, values: Sequence[PartitionValue]) -> None:
        """Refuse values that are not one for each partition key. Raises: InvalidInputError."""
        if len(values) != len(self.partition_keys):
            keys = ", ".join(self.partition_keys) or "none"
            raise InvalidInputError(
                f"{self.locator}: {len(values)} partition values {list(values)!r} for the partition keys: {keys}"
            )

    def partition_values_of(self, values: Mapping[str, object]) -> list[PartitionValue]:
        """Return the values of one partition, given by the names of its keys. Raises: InvalidInputError."""
        unknown = [name for name in values if name not in self.partition_keys]
        missing = [name for name in self.partition_keys if name not in values]
        if unknown or missing or not self.partition_keys:
            keys = ", ".join(self.partition_keys) or "none"
            raise InvalidInputError(f"{self.locator}: {dict(values)!r} is not a value for each partition key: {keys}")
        return [partition_value(self._in_type(name, values[name])) for name in self.partition_keys]

    def _in_type(self, name: str, value: object) -> object:
        kind = self.schema.field(name).type
        try:
            return pa.scalar(value).cast(kind).as_py()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise InvalidInputError(
                f"{self.locator}: {value!r} is not a value of the partition key {name!r}, which is {kind}"
            ) from error

    def _number_columns(self) -> None:
        """Assign ids to columns without one: before there were ids, columns were only ever added at the end."""
        for position, column in enumerate(self.fields):
            if column.id is None:
                column.id = position + 1
        ids = [column.id or 0 for column in [*self.fields, *self.dropped_fields]]
        if len(set(ids)) != len(ids):
            raise InvalidInputError(f"{self.locator}: two columns have the same id; the ids are {ids}")
        self.last_column_id = max([self.last_column_id, *ids])

    def validate(self) -> None:
        """Check that keys are columns and that the merge engine has what it needs."""
        self._number_columns()
        schema = self.schema
        for what, columns in (
            ("primary key", self.primary_keys),
            ("sort key", self.sort_keys),
            ("partition key", self.partition_keys),
        ):
            check_known(columns, schema, what)
            check_key_types(columns, schema, what)
        check_partition_types(self.partition_keys, schema)
        if self.unique_within_partition is False and self.partition_keys_outside:
            outside = ", ".join(self.partition_keys_outside)
            raise InvalidInputError(
                f"{self.locator}: is partitioned by {outside}, which is not part of the primary key "
                f"({', '.join(self.primary_keys)}): a row whose {outside} changes would be there twice, once in each "
                "partition. Make it part of the primary key, leave out the partition key, or say that keys are unique "
                "within a partition only: unique_within_partition=True, --unique-within-partition"
            )
        if not self.primary_keys and self.merge_engine != "deduplicate":
            raise InvalidInputError(f"merge engine {self.merge_engine} needs primary keys; name them")
        if self.merge_engine == "first_row" and self.sort_keys:
            raise InvalidInputError("merge engine first_row takes rows as they come; leave out the sort keys")
        if self.merge_engine == "partial_update":
            keys = {*self.primary_keys, *self.sort_keys, *self.partition_keys}
            strict = [column.name for column in self.fields if not column.nullable and column.name not in keys]
            if strict:
                raise InvalidInputError(
                    f"merge engine partial_update may leave {', '.join(strict)} out; make it nullable"
                )
        self._validate_history(schema)
        if self.sort_keys and not self.primary_keys:
            raise InvalidInputError("sort keys choose among rows of one primary key; name the primary keys too")
        if not self.drop_duplicates and self.merge_engine != "deduplicate":
            raise InvalidInputError(f"merge engine {self.merge_engine} keeps one row per key; leave drop_duplicates on")

    def _validate_history(self, schema: pa.Schema) -> None:
        tracked = HISTORY_TRACK.of(self.properties, self.locator)
        if not self.keeps_history:
            if tracked is not None:
                raise InvalidInputError(f"property {HISTORY_TRACK.name} goes with merge engine history; leave it out")
            return
        if len(self.sort_keys) != 1:
            raise InvalidInputError(
                "merge engine history needs exactly one sort key, from which on each version is valid; the sort keys "
                f"are: {', '.join(self.sort_keys) or 'none'}"
            )
        order = schema.field(self.sort_keys[0])
        missing = [field.name for field in history_fields(order.type) if field not in list(schema)]
        if missing:
            raise InvalidInputError(
                f"merge engine history needs a column {missing[0]!r}, with the type of {order.name}"
            )
        keys = {*self.primary_keys, *self.sort_keys, *self.partition_keys}
        strict = [column.name for column in self.fields if not column.nullable and column.name not in keys]
        if strict:
            raise InvalidInputError(
                f"merge engine history keeps deletes as rows, which may lack {', '.join(strict)}; make it nullable"
            )
        check_known(self.tracked_columns, schema, f"property {HISTORY_TRACK.name}:")
        wrong = [name for name in tracked or () if name in {*self.primary_keys, *self.sort_keys, *HISTORY_COLUMNS}]
        if wrong:
            raise InvalidInputError(
                f"property {HISTORY_TRACK.name}: {wrong[0]!r} says of which row a version is, and when; name other columns"
            )


def history_fields(order: pa.DataType) -> "list[pa.Field[Any]]":
    """Return what compaction adds to the rows of a table that keeps history, whose sort key has a type."""
    return [pa.field(VALID_FROM, order), pa.field(VALID_TO, order), pa.field(IS_DELETED, pa.bool_())]


class Stream(Metafile):
    """A stream of deltas; `stream_position` is the newest committed one, 0 before the first.

    `floor` is the highest of its truncates, see `Delta.floor`: partitions that begin later begin with it.
    """

    locator: StreamLocator
    state: CommitState = "committed"
    stream_format: str = "siltstone"
    stream_position: int = 0
    floor: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    created_at: int = 0


class Partition(Metafile):
    """A partition of a stream.

    `stream_position` is that of its newest delta, 0 before the first; deltas up to `trimmed_stream_position` are gone.
    """

    locator: PartitionLocator
    state: CommitState = "committed"
    stream_position: int = 0
    trimmed_stream_position: int = 0
    created_at: int = 0


class Follower(Metafile):
    """A compacted partition that reads the deltas of the partition `locator`; `folder` says which, whatever its name is.

    Deltas above `start_position` are needed until it has a round after `after_round`; then that round says which are.
    """

    locator: PartitionLocator
    folder: str = field(check=check_path)
    start_position: int = 0
    after_round: int = 0


class ManifestEntry(Model):
    """One data file, named relative to the root, so that a root can be moved."""

    uri: str = field(check=check_path)
    record_count: int
    content_length: int
    content_type: str = "application/vnd.apache.parquet"


class Manifest(Model):
    """The files of a delta."""

    entries: list[ManifestEntry] = field(default_factory=list)

    @property
    def record_count(self) -> int:
        """Rows in all files."""
        return sum(entry.record_count for entry in self.entries)

    @property
    def content_length(self) -> int:
        """Bytes of all files."""
        return sum(entry.content_length for entry in self.entries)


class Idempotency(Model):
    """A writer's own name for a commit: the same one twice commits once."""

    app_id: str
    batch_id: int

    def validate(self) -> None:
        """Check that both can be part of a log key."""
        if not self.app_id or len(self.app_id) > 256 or not self.app_id.isprintable():
            raise InvalidInputError(f"idempotency app_id {self.app_id[:40]!r} must have 1 to 256 printable characters")
        if self.batch_id < 0:
            raise InvalidInputError(f"idempotency batch_id {self.batch_id} must be 0 or more")


class Delta(Metafile):
    """One immutable set of changes to one partition, committed at a stream position.

    Columns are named as its files name them. `columns` are the table's columns in its files, without an operation
    column that the table does not have; `fields` has the types of all columns in the files while the delta is
    staged, with the ids that they had then; a column without one is new. One that `replaces` takes the place of all that
    its partition has had before it. Among the staged deltas of one commit, those with a higher `place` come later, at the next
    position. A delete with a `floor` is of all rows with a lower sort key, those that come later included: a sort key of
    bytes, as hexadecimal text; empty, it is of all rows before it. The first delta of a partition has as its
    `inherited_floor` that of the truncates from before the partition was there.
    """

    locator: DeltaLocator
    type: DeltaType
    state: CommitState = "staged"
    manifest: Manifest
    columns: list[str] = field(default_factory=list)
    fields: list[SchemaField] = field(default_factory=list)
    delete_columns: list[str] | None = None
    op_column: str | None = None
    every_partition: bool = False
    replaces: bool = False
    place: int = 0
    floor: str | None = None
    inherited_floor: str | None = None
    idempotency: Idempotency | None = None
    previous_stream_position: int = 0
    committed_at: int = 0
    properties: dict[str, Any] = field(default_factory=dict)

    @property
    def stream_position(self) -> int:
        """The position in the stream; 0 while staged."""
        return self.locator.stream_position

    @property
    def partition_values(self) -> list[Any]:
        """The values of the partition keys."""
        return list(self.locator.partition_values)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the files of a staged delta, operation column included."""
        return without_ids(schema_from_json(self.fields))
