"""What commands hand to the output: plain records, cheap to import, which JSON shows field by field."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


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
class TableDetails:
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
class Written:
    """One write; `stream_position` is None in a dry run, `repeated` says that it had been committed before.

    `null_lines` counts the lines that are null, not rows: the tombstones of a change stream.
    """

    table: str
    type: str
    stream_position: int | None
    rows: int
    bytes: int
    files: int
    partitions: int
    new_columns: Sequence[str]
    repeated: bool
    dry_run: bool
    null_lines: int = 0


@dataclass(frozen=True)
class TableChanged:
    """What happened, or would happen, to a table; no changes means it is as wished already."""

    name: str
    action: Literal["created", "dropped", "renamed", "altered"]
    changes: Sequence[str]
    dry_run: bool
    table: TableDetails | None = None
    written: Written | None = None


@dataclass(frozen=True)
class DeltaLine:
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


@dataclass(frozen=True)
class Check:
    """One finding of the doctor; `fix` is empty where all is well."""

    name: str
    state: Literal["ok", "warning", "failed"]
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Exported:
    """Rows of a table that were written to a file."""

    table: str
    file: str
    rows: int
    bytes: int
