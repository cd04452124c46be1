"""The live rows of a compacted partition, with or without the deltas that are not compacted yet."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from siltstone.compactor.files import StoredFile
from siltstone.compactor.state import RoundCompletion
from siltstone.model.schema import schema_from_json


def live_batches(root: str, completion: RoundCompletion, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the live rows, a row group at a time. Raises: CorruptionError."""
    schema = schema_from_json(completion.fields)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    for file in completion.files:
        stored = StoredFile(root, file)
        live = None if file.deletion_vector is None else stored.live_flags()
        for start, table in stored.scan(schema):
            yield table if live is None else table.filter(pa.array(live[start : start + table.num_rows]))
