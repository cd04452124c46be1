"""The command line compacts on a Spark of its own, as a process like any other, or on one that runs already."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.unit.cli.command_line import Cli

from siltstone.lake import Lake, Table
from siltstone.testing.oracle import oracle_of, same_rows


def run(root: Path, *args: str) -> Any:
    command = [sys.executable, "-c", "from siltstone.cli.main import main; main()", "--root", str(root), *args]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def orders_in(root: Path) -> Table:
    table = Lake(root).create_table("shop.orders", schema={"id": "int64", "v": "string"}, primary_keys=["id"])
    table.write(pa.table({"id": range(1000), "v": ["a"] * 1000}))
    table.write(pa.table({"id": range(500, 1500), "v": ["b"] * 1000}))
    return table


def test_compact_starts_spark_and_foretells_what_it_does(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    orders_in(cli.root)
    (preview,) = cli.json("plan", "shop.orders")["rounds"]
    compacted = run(cli.root, "compact", "shop.orders", "--master", "local[2]")
    assert compacted["seconds"]["spark_start"] > 0
    (line,) = compacted["rounds"]
    assert line["live_rows"] == preview["buckets"][0]["new_rows"] == 1500
    assert line["duplicate_rows"] == 500
    assert cli.json("lookup", "shop.orders", "id=700") == [{"id": 700, "v": "b"}]
    assert run(cli.root, "compact", "shop.orders")["rounds"] == []


@pytest.fixture
def cli(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A command line in this process, whose Spark has started already."""
    monkeypatch.setattr("siltstone.spark.session.local_session", lambda **_: spark)
    return Cli(tmp_path)


def test_a_table_is_compacted_damaged_explained_and_made_anew(cli: Cli) -> None:
    table = orders_in(cli.root)
    cli("compact", "shop.orders")
    table.write(pa.table({"id": [7]}), "delete")
    (file,) = table.current_rounds()[0].files
    whole = (cli.root / file.uri).read_bytes()
    (cli.root / file.uri).write_bytes(whole[:-100])
    message = cli.fails("compact", "shop.orders", "--full")
    assert file.uri in message
    assert "rebase" in message
    rebased = cli.json("compact", "shop.orders", "--rebase-from", "shop.orders")["rounds"]
    assert [(line["round_id"], line["deltas"], line["live_rows"]) for line in rebased] == [(2, 3, 1499)]
    same_rows(table.to_arrow(), oracle_of(table).rows())
    assert cli.json("fsck", "shop.orders", "--deep")[0]["findings"] == []
    (story,) = cli.json("explain-key", "shop.orders", "id=7")
    assert (story["row"], story["compacted_row"]) == (None, None)


def test_a_delta_that_is_damaged_where_only_a_task_sees_it_changes_nothing(cli: Cli) -> None:
    table = orders_in(cli.root)
    (entry,) = table.deltas()[0].manifest.entries
    data = bytearray((cli.root / entry.uri).read_bytes())
    data[4:200] = b"\0" * 196
    (cli.root / entry.uri).write_bytes(data)
    message = cli.fails("compact", "shop.orders")
    assert entry.uri in message
    assert cli.json("rounds", "shop.orders") == []


def test_a_short_session_is_that_of_the_thread_that_asked_for_it(spark: SparkSession) -> None:
    from siltstone.spark import local_session

    assert SparkSession.getActiveSession() is not None
    again = local_session(is_short=True)
    assert again.sparkContext is spark.sparkContext
