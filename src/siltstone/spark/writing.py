"""Data frames into deltas: executors write the files, the driver commits them all as one delta a partition."""

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from siltstone.errors import ConflictError
from siltstone.model import Delta, DeltaType, Manifest, StreamLocator
from siltstone.spark.access import reaching
from siltstone.storage import object_store as storage


def stage_on_spark(
    frame: DataFrame,
    stream: StreamLocator,
    *,
    type: DeltaType = "upsert",
    delete_columns: Sequence[str] | None = None,
    op_column: str | None = None,
    evolve: bool = True,
    root: str,
) -> list[Delta]:
    """Stage a data frame; where it is empty, what its schema alone says.

    Raises: as `stage_deltas`; ConflictError where columns were renamed or dropped while tasks were writing.
    """
    settings = {"type": type, "delete_columns": delete_columns, "op_column": op_column, "evolve": evolve, "root": root}

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for delta in storage.stage_deltas(batches, stream, **settings):  # type: ignore[arg-type]
            if delta.manifest.entries:
                yield pa.record_batch({"delta": [json.dumps(delta)]})

    # The schema is checked here first, so that a wrong one is refused before any task runs.
    schema = frame.limit(0).toArrow().schema
    empty = storage.stage_deltas(schema.empty_table(), stream, **settings)  # type: ignore[arg-type]
    staged: dict[str, Delta] = {}
    rows = frame.mapInArrow(reaching(root, stage), "delta string").collect()
    deltas = [Delta.from_serializable(json.loads(row.delta)) for row in rows]
    if len({json.dumps([delta.columns, delta.delete_columns, delta.op_column]) for delta in deltas}) > 1:
        storage.discard_deltas(deltas, root=root)
        raise ConflictError(f"{stream}: columns were renamed or dropped while this was being written; write it again")
    for delta in deltas:
        known = staged.setdefault(delta.locator.partition_id, delta)
        if known is not delta:
            known.manifest = Manifest(entries=[*known.manifest.entries, *delta.manifest.entries])
    return list(staged.values()) or empty
