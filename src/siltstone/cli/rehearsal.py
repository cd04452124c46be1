"""A write that does everything but keep its files and commit: how a dry run finds all that a write would."""

import io
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple, cast

import pyarrow as pa

from siltstone.model import Delta, DeltaType, StreamLocator
from siltstone.model.locators import check_new_position
from siltstone.objects import Objects, open_objects, replaced
from siltstone.storage import object_store as storage


class WriteRules(NamedTuple):
    """How a delta is to be taken."""

    type: DeltaType = "upsert"
    delete_columns: Sequence[str] | None = None
    op_column: str | None = None
    idempotency: tuple[str, int] | None = None
    stream_position: int | None = None
    evolve: bool = True


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


def rehearse(rows: Iterator[pa.RecordBatch], stream: StreamLocator, rules: WriteRules, root: str) -> list[Delta]:
    """Do all that a write does before it commits, with the same checks, except for keeping the files."""
    newest = storage.get_stream(stream, root=root).stream_position
    if rules.stream_position is not None:
        check_new_position(rules.stream_position, newest, str(stream))
    objects = cast("Objects", _ReadOnlyObjects(open_objects(root)))
    with replaced(root, objects):
        return storage.stage_deltas(
            rows,
            stream,
            type=rules.type,
            delete_columns=rules.delete_columns,
            op_column=rules.op_column,
            evolve=rules.evolve,
            root=root,
        )
