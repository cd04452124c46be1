"""Moving from a copy-on-write compactor without reading the whole history again: a rebase, then rounds as usual.

The old compactor merged the deltas of a table into a copy of it, up to some position. A rebase takes that copy as the
compacted state on behalf of the deltas' table, and says up to which position it goes. From there on, rounds compact the
deltas that come after. At the end, what is cached is discarded, and everything is compacted from the deltas alone: the
rows are the same.
"""

import argparse
import os
import tempfile
import uuid

import pyarrow as pa
from pyspark.sql import SparkSession

import siltstone
from siltstone.spark import local_session
from siltstone.spark.compaction import compact_partition
from siltstone.table.completion import compacted_partition, source_partitions

SCHEMA = {"id": "int64", "city": "string"}
KEYS = {"id"}


def main() -> None:
    """Run in the root that the arguments say, else in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=os.environ.get("SILTSTONE_ROOT"))
    options, _ = parser.parse_known_args()
    spark = local_session("migrate-from-copy-on-write")
    if options.root:
        migrate(options.root, spark)
        return
    with tempfile.TemporaryDirectory() as folder:
        migrate(folder, spark)


def migrate(root: str, spark: SparkSession) -> None:
    """Migrate one table, go on with it, and check it against its deltas."""
    lake = siltstone.open(root)
    number = uuid.uuid4().hex[:8]

    # The table whose deltas both compactors read.
    people = lake.create_table(f"town.people_{number}", schema=SCHEMA, primary_keys=["id"])
    people.write(rows([1, 2, 3], ["Oslo", "Rome", "Lima"]))
    people.write(rows([2, 4], ["Bern", "Cork"]))
    last_compacted = people.write(pa.table({"id": [3]}), type="delete")

    # What the old compactor made of them: a full copy, as of that position. Meanwhile, deltas come in.
    copy = lake.create_table(f"town.people_{number}_copied_on_write", schema=SCHEMA)
    copy.write(rows([1, 2, 4], ["Oslo", "Bern", "Cork"]), type="append")
    people.write(rows([1, 5], ["Nice", "Kyiv"]))

    (delta_source,) = source_partitions(people.name, root=lake.root)
    (old_compacted,) = source_partitions(copy.name, root=lake.root)
    destination = compacted_partition(delta_source)

    # The first call: from the copy, on behalf of the table.
    compact_partition(
        source_partition_locator=old_compacted,
        destination_partition_locator=destination,
        primary_keys=KEYS,
        compaction_artifact_path=lake.root,
        rebase_source_partition_locator=delta_source,
        rebase_source_partition_high_watermark=last_compacted,
        spark=spark,
    )
    show("rebased on the copy", people)

    # All later calls: from the table, starting after what the copy holds.
    people.write(pa.table({"id": [4]}), type="delete")
    done = compact_partition(
        source_partition_locator=delta_source,
        destination_partition_locator=destination,
        primary_keys=KEYS,
        compaction_artifact_path=lake.root,
        spark=spark,
    )
    show(f"went on to position {done.rounds[-1].high_watermark}", people)

    # Discarding what is cached: the table on behalf of itself, from its first delta.
    before = people.to_arrow().sort_by("id")
    compact_partition(
        source_partition_locator=delta_source,
        destination_partition_locator=destination,
        primary_keys=KEYS,
        compaction_artifact_path=lake.root,
        rebase_source_partition_locator=delta_source,
        spark=spark,
    )
    show("compacted again from the deltas alone", people)
    if not people.to_arrow().sort_by("id").equals(before):
        raise SystemExit("the rows differ from those that were migrated")


def rows(ids: list[int], cities: list[str]) -> pa.Table:
    """Return rows of the table."""
    return pa.table({"id": ids, "city": cities})


def show(what: str, table: siltstone.Table) -> None:
    """Print the compacted rows."""
    found = table.to_arrow().sort_by("id").to_pylist()
    print(what + ": " + ", ".join(f"{row['id']} {row['city']}" for row in found))


if __name__ == "__main__":
    main()
