"""Rows of several megabytes on Spark, in a JVM that could not hold them all: what travels at once is bounded by bytes, too."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import siltstone

pytestmark = pytest.mark.integration

ROWS, ROW_BYTES = 100, 5_000_000
COMPACT = """\
import sys
import siltstone
from siltstone.spark import local_session

spark = local_session(conf={"spark.driver.memory": "1g"})
assert spark.sparkContext._jvm.Runtime.getRuntime().maxMemory() <= 1 << 30
siltstone.open(sys.argv[1]).table("web.pages").compact(spark=spark)
"""


def page(number: int, version: int) -> bytes:
    """Return bytes that no compression makes smaller."""
    return np.random.default_rng([number, version]).bytes(ROW_BYTES)


def test_half_a_gigabyte_of_large_rows_in_one_delta_is_compacted_with_a_heap_of_one(tmp_path: Path) -> None:
    table = siltstone.open(tmp_path / "lake").create_table(
        "web.pages", schema={"id": "int64", "page": "binary"}, primary_keys=["id"]
    )
    numbers = range(ROWS)
    table.write(pa.table({"id": numbers, "page": [page(number, 1) for number in numbers]}))
    for rewritten in (range(0), range(0, ROWS, 2)):
        if rewritten:
            table.write(pa.table({"id": rewritten, "page": [page(number, 2) for number in rewritten]}))
        done = subprocess.run([sys.executable, "-c", COMPACT, table.lake.root], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        (round_,) = table.current_rounds()
        assert (round_.high_watermark, round_.live_rows) == (len(table.deltas()), ROWS)
        for batch in table.scan().to_batches():
            for row in batch.to_pylist():
                assert row["page"] == page(row["id"], 2 if row["id"] in rewritten else 1)
