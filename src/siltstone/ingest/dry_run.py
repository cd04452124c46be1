"""What a write did, and a write that does everything but keep its files and commit."""

import io
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

from siltstone.errors import InvalidInputError
from siltstone.log.commit import forget_logs
from siltstone.model import Delta, DeltaType, Idempotency, Overwrite, StreamLocator, TableVersion
from siltstone.model.locators import check_new_position
from siltstone.objects import MEMORY_SCHEME, Objects, open_objects, replaced
from siltstone.storage import object_store as storage
from siltstone.storage.interface import ArrowData


@dataclass(frozen=True)
class Written:
    """One write; `stream_position` is None in a dry run, `repeated` says that it had been committed before.

    `null_lines` counts the lines of files that are null, not rows: the tombstones of a change stream.
    `replaced_partitions` counts those that an overwrite replaces.
    """

    table: str
    type: DeltaType
    stream_position: int | None
    rows: int
    bytes: int
    files: int
    partitions: int
    new_columns: Sequence[str]
    repeated: bool
    dry_run: bool
    null_lines: int = 0
    replaced_partitions: int = 0


def sum_up(
    type: DeltaType,
    deltas: Sequence[Delta],
    before: TableVersion,
    after: TableVersion,
    *,
    stream_position: int | None = None,
    repeated: bool = False,
    null_lines: int = 0,
) -> Written:
    """Return what a write did, or a dry run without a position would do, to a table that was `before` and is `after`."""
    files = distinct_files(deltas)
    names_before = before.names_by_file()
    names = after.names_by_file() | {field.name_in_files: field.name for delta in deltas for field in delta.fields}
    columns = dict.fromkeys(column for delta in deltas for column in delta.columns)
    return Written(
        table=before.locator.table_locator.full_name,
        type=type,
        stream_position=stream_position,
        rows=sum(rows for rows, _ in files.values()),
        bytes=sum(size for _, size in files.values()),
        files=len(files),
        partitions=len(deltas),
        new_columns=[names.get(column, column) for column in columns if column not in names_before],
        repeated=repeated,
        dry_run=stream_position is None,
        null_lines=null_lines,
        replaced_partitions=sum(delta.replaces for delta in deltas),
    )


def distinct_files(deltas: Sequence[Delta]) -> dict[str, tuple[int, int]]:
    """Return rows and bytes of the files of deltas; a delete for every partition has its files in each of them."""
    return {
        entry.uri: (entry.record_count, entry.content_length) for delta in deltas for entry in delta.manifest.entries
    }


def written_before(
    version: TableVersion, stream: StreamLocator, type: DeltaType, idempotency: Idempotency | None, *, root: str
) -> Written | None:
    """Return what was committed under an idempotency id, or None."""
    position = None if idempotency is None else storage.find_commit(stream, idempotency, root=root)
    if position is None:
        return None
    deltas = storage.list_deltas(stream, first_stream_position=position, last_stream_position=position, root=root)
    return sum_up(type, deltas, version, version, stream_position=position, repeated=True)


def plan_write(
    data: ArrowData,
    version: TableVersion,
    stream: StreamLocator,
    *,
    type: DeltaType = "upsert",
    delete_columns: Sequence[str] | None = None,
    op_column: str | None = None,
    idempotency: Idempotency | None = None,
    stream_position: int | None = None,
    evolve: bool = True,
    overwrite: Overwrite | None = None,
    root: str,
) -> Written:
    """Do all that a write does before it commits, with the same checks, but keep no file. Raises: InvalidInputError."""
    done = written_before(version, stream, type, idempotency, root=root)
    if done is not None:
        return done
    if data.__class__.__module__.startswith("pyspark."):
        raise InvalidInputError(f"{stream}: data frames of Spark have no dry run; try one with data.toArrow()")
    if stream_position is not None:
        check_new_position(stream_position, storage.get_stream(stream, root=root).stream_position, str(stream))
    # A root of its own: what others in this process write to the lake meanwhile is kept.
    address = f"{MEMORY_SCHEME}dry-run-{uuid.uuid4().hex}"
    try:
        with replaced(address, cast("Objects", _ReadOnlyObjects(open_objects(root)))):
            deltas = storage.stage_deltas(
                data, stream, type=type, delete_columns=delete_columns, op_column=op_column, evolve=evolve, root=address
            )
    finally:
        forget_logs(address)
    if overwrite is not None:
        deltas = storage.plan_overwrite(deltas, stream, overwrite, root=root)
    return sum_up(type, deltas, version, version)


class _ReadOnlyObjects:
    """Objects as they are, but what is written goes nowhere."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        if name in ("create", "replace"):
            raise AssertionError(f"a dry run must not {name}")
        return getattr(self._objects, name)

    def open_writer(self, path: str) -> IO[bytes]:
        return cast("IO[bytes]", _Nowhere())

    def delete(self, paths: Sequence[str]) -> None:
        pass


class _Nowhere(io.RawIOBase):
    """Takes any number of bytes and keeps none."""

    def __init__(self) -> None:
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._position += size
        return size

    def tell(self) -> int:
        return self._position
