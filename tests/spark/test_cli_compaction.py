"""The command line compacts on a Spark of its own, as a process like any other."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from siltstone.lake import Lake


def run(root: Path, *args: str) -> Any:
    command = [sys.executable, "-c", "from siltstone.cli.main import main; main()", "--root", str(root), *args]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_compact_starts_spark_and_foretells_what_it_does(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    table = Lake(root).create_table("shop.orders", schema={"id": "int64", "v": "string"}, primary_keys=["id"])
    table.write(pa.table({"id": range(1000), "v": ["a"] * 1000}))
    table.write(pa.table({"id": range(500, 1500), "v": ["b"] * 1000}))
    (preview,) = run(root, "plan", "shop.orders")["rounds"]
    compacted = run(root, "compact", "shop.orders", "--master", "local[2]")
    assert compacted["seconds"]["spark_start"] > 0
    (line,) = compacted["rounds"]
    assert line["live_rows"] == preview["buckets"][0]["new_rows"] == 1500
    assert line["duplicate_rows"] == 500
    assert run(root, "lookup", "shop.orders", "id=700") == [{"id": 700, "v": "b"}]
    assert run(root, "compact", "shop.orders")["rounds"] == []
