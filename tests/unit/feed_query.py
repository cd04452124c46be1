"""A streaming query without Spark, as tests of feeds run it: offsets, batches, deaths and restarts."""

import json
from typing import Any

from siltstone import Table
from siltstone.spark.source import open_stream_reader, schema_of

Rows = list[dict[str, Any]]


class Query:
    """A query that notes how far a batch goes before it reads it, and takes the batch when all of it is read."""

    def __init__(self, table: Table, **options: str) -> None:
        self.options = {"root": table.lake.root, "table": table.name, **options}
        self.offsets: list[str] = []
        self.taken: list[Rows] = []
        self.tasks = 0

    def run(self, dies_at: int = -1, *, available_now: bool = True) -> list[Rows]:
        """Start it, and run batches until there is nothing new, or it dies in one of them; return all batches so far."""
        reader = open_stream_reader(self.options, schema_of(self.options))
        if available_now:
            reader.prepareForTriggerAvailableNow()
        if not self.offsets:
            self.offsets.append(json.dumps(reader.initialOffset()))
        for number in range(100):
            if len(self.offsets) == len(self.taken) + 1:
                end = json.dumps(reader.latestOffset(json.loads(self.offsets[-1]), reader.getDefaultReadLimit()))
                if end == self.offsets[-1]:
                    return self.taken
                self.offsets.append(end)
            if number == dies_at:
                return self.taken
            first, last = map(json.loads, self.offsets[-2:])
            parts = reader.partitions(first, last)
            self.tasks = len(parts)
            self.taken.append([row for part in parts for batch in reader.read(part) for row in batch.to_pylist()])
        raise AssertionError("it does not end")

    @property
    def rows(self) -> Rows:
        """All rows that were taken; those of deltas in the order that they mean something in."""
        rows = [row for batch in self.taken for row in batch]
        is_of_deltas = self.options["feed"] == "deltas"
        return sorted(rows, key=lambda row: (row["_position"], row["_row"])) if is_of_deltas else rows
