"""Two compactors at once on a cluster of several processes, on S3: executors reach it although nobody told them how."""

import contextlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from dev.cluster import cluster, environment, process

import siltstone
from siltstone.testing.oracle import oracle_of, same_rows
from tests.integration.s3_servers import BUCKET, gateway, gateway_environment
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.integration

ROWS = 20_000
COMPACTORS = 2
SESSION = """
import json, sys, siltstone
from pyspark.sql import SparkSession
from siltstone.table.completion import compacted_partition, source_partitions
from siltstone.rows.job import Settings
from siltstone.spark.compaction import compact_partition
master, root, number = sys.argv[1:]
spark = (SparkSession.builder.master(master).config("spark.executor.memory", "600m").config("spark.cores.max", "1")
         .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
table = siltstone.open(root).table("shop.orders")
changes = spark.range(1000).selectExpr("id * 7 AS id", f"CAST({number} AS BIGINT) AS n")
if number == "0":
    changes.write.format("siltstone").mode("append").option("root", root).save(table.name)
else:
    table.write(changes)
(source,) = source_partitions(table.name, root=root)
done = compact_partition(source, compacted_partition(source), ["id"], compaction_artifact_path=root, spark=spark,
                         settings=Settings(bucket_rows=20_000))
result = {"rounds": len(done.rounds)}
if number == "0":
    by_source = spark.read.format("siltstone").option("root", root).load(table.name)
    result |= {"frame": table.to_spark(spark).count(), "source": by_source.count()}
print(json.dumps(result))
"""


def plain_environment() -> dict[str, str]:
    """Return an environment that knows nothing about S3."""
    return environment({name: value for name, value in os.environ.items() if not name.startswith("AWS_")})


def test_two_compactors_on_a_cluster_share_a_table_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as stack:
        settings = gateway_environment(stack.enter_context(gateway(tmp_path)))
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        root = f"s3://{BUCKET}/lake"
        schema = {"id": "int64", "n": "int64"}
        table = siltstone.open(root).create_table("shop.orders", schema=schema, primary_keys=["id"])
        rng = np.random.default_rng(7)
        for number in range(4):
            table.write(pa.table({"id": rng.integers(0, ROWS, ROWS // 2), "n": np.full(ROWS // 2, number)}))
        table.write(pa.table({"id": range(0, ROWS, 5)}), type="delete")

        spark = stack.enter_context(cluster(tmp_path, variables=plain_environment()))
        logs = [tmp_path / f"session{number}.log" for number in range(COMPACTORS)]
        sessions = [
            stack.enter_context(
                process(
                    log,
                    {**plain_environment(), **settings},
                    *(sys.executable, "-c", SESSION, spark.master, root, str(number)),
                )
            )
            for number, log in enumerate(logs)
        ]
        for session, log in zip(sessions, logs, strict=True):
            assert session.wait(LIMIT_SECONDS) == 0, log.read_text()[-4000:]
        results = [json.loads(log.read_text().splitlines()[-1]) for log in logs]

        rounds = table.rounds()
        assert sum(result["rounds"] for result in results) == len(rounds)
        assert results[0]["frame"] == results[0]["source"] > 0
        assert rounds[-1].high_watermark == 7
        same_rows(table.to_arrow(), oracle_of(table).rows())
        assert table.fsck(deep=True) == []
        table.vacuum(orphan_grace_ms=0)
        assert table.fsck(deep=True) == []
