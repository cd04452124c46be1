"""Change events, compacted by Spark: the rows are those that this process makes of them."""

from pathlib import Path

from pyspark.sql import SparkSession
from tests.unit.cdc.messages import UNAVAILABLE, change, lines

import siltstone
from siltstone.cdc import SOURCE_POSITION
from siltstone.testing.oracle import oracle_of, same_rows


def test_a_truncate_and_rows_that_leave_columns_out_are_compacted(spark: SparkSession, tmp_path: Path) -> None:
    table = siltstone.open(tmp_path / "lake").create_table(
        "shop.orders",
        schema={"id": "int64", "name": "string", "big": "string", SOURCE_POSITION: "binary"},
        primary_keys=["id"],
        sort_keys=[SOURCE_POSITION],
        merge_engine="partial_update",
    )
    rows = [{"id": key, "name": "a", "big": f"B{key}"} for key in range(6)]
    table.write_changes(lines([change("c", 10 + key, rows[key]) for key in range(6)]), "debezium")
    table.compact(spark=spark)
    update = change("u", 20, {"id": 5, "name": "b", "big": UNAVAILABLE})
    table.write_changes(
        lines([update, change("t", 13), change("c", 12, {"id": 9, "name": "late", "big": ""})]), "debezium"
    )
    table.compact(spark=spark)
    table.write_changes(lines([change("c", 11, {"id": 1, "name": "late", "big": ""})]), "debezium")
    table.compact(spark=spark)
    found = table.to_arrow()
    same_rows(found, oracle_of(table).rows())
    names = sorted((row["id"], row["name"], row["big"]) for row in found.to_pylist())
    assert names == [(3, "a", "B3"), (4, "a", "B4"), (5, "b", "B5")]
