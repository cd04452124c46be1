"""Tables on S3 by Spark's own Parquet reader, where its JVM reaches them; where it does not, they are read all the same."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from tests.integration.s3_servers import BUCKET, gateway, gateway_environment, s3a_classes, s3a_settings
from tests.unit.rounds.compaction import MINOR, compact
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.integration

READ = """
import json, sys, siltstone
from siltstone.spark import local_session, native
root, settings = sys.argv[1], json.loads(sys.argv[2])
native._PROBE_SECONDS = 60.0 if settings.pop("is_reached") else 15.0
spark = local_session(cores=2, conf=settings, is_short=True)
table = siltstone.open(root).table("shop.orders")
frame = table.to_spark(spark)
plan = frame.where("n = 7")._jdf.queryExecution().toString()
print(json.dumps({
    "rows": sorted(map(list, frame.collect())),
    "few": sorted(map(list, table.scan(["id"], "n = 1").to_spark(spark).collect())),
    "count": frame.count(),
    "is_native": "MapInArrow" not in plan and "EqualTo(n,7)" in plan and "s3a://" in plan,
}))
"""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    return s3a_classes(tmp_path_factory.mktemp("maven"))


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway(tmp_path_factory.mktemp("s3")) as address, pytest.MonkeyPatch.context() as patch:
        for name, value in gateway_environment(address).items():
            patch.setenv(name, value)
        yield address


@pytest.fixture(scope="module")
def table(endpoint: str) -> siltstone.Table:
    """A table with dead rows; to the JVM a path is a URL, and what has a meaning there must not get it."""
    made = siltstone.open(f"s3://{BUCKET}/a lake%20ü#1").create_table(
        "shop.orders", schema={"id": "int64", "n": "int64"}, primary_keys=["id"]
    )
    made.write(pa.table({"id": range(100), "n": [0] * 100}))
    compact(made, MINOR)
    made.write(pa.table({"id": [3, 5, 100], "n": [1] * 3}))
    made.write(pa.table({"id": range(0, 100, 10)}), type="delete")
    compact(made, MINOR)
    assert {file.deletion_vector is None for file in made.current_rounds()[0].files} == {True, False}
    return made


@pytest.mark.parametrize("case", ["reached", "wrong key", "nobody answers", "no file system"])
def test_spark_reads_s3_itself_where_it_can(
    tmp_path: Path, endpoint: str, table: siltstone.Table, classes: str, case: str
) -> None:
    conf = s3a_settings(endpoint) | {"spark.driver.extraClassPath": classes}
    if case == "wrong key":
        conf["spark.hadoop.fs.s3a.secret.key"] = "wrong"
    if case == "nobody answers":
        conf["spark.hadoop.fs.s3a.endpoint"] = "http://127.0.0.1:9"
    if case == "no file system":
        del conf["spark.driver.extraClassPath"]
    done = subprocess.run(
        [sys.executable, "-c", READ, table.lake.root, json.dumps({**conf, "is_reached": case == "reached"})],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    expected = sorted(list(row.values()) for row in table.to_arrow().to_pylist())
    assert found["rows"] == expected
    assert found["few"] == [[3], [5], [100]]
    assert found["count"] == len(expected) == 91
    assert found["is_native"] is (case == "reached")
