"""Names that the shell completes, asked as bash asks: by words in the environment, of a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from siltstone.lake import Lake
from tests.unit.test_import_cost import HEAVY

# What is loaded when the answer is out is told on standard error.
PROGRAM = f"""
import atexit, sys
atexit.register(lambda: sys.stderr.write(" ".join(name for name in {HEAVY!r} if name in sys.modules)))
from siltstone.cli.entry import main
sys.argv = ["siltstone"]
main()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lake = Lake(tmp_path / "lake")
    for name in ("shop.orders", "shop.old_orders", "shop.dropped", "web.visits"):
        lake.create_table(name, schema={"id": "int64"}, primary_keys=["id"])
    lake.table("shop.dropped").drop()
    lake.table("shop.old_orders").rename("shop.archive")
    table = lake.table("shop.orders")
    table.write(pa.table({"id": [1]}))
    for name in ("release-1", "release-2", "year-end"):
        table.tag(name, as_of=1)
    table.untag("release-1")
    return tmp_path / "lake"


def complete(line: str, folder: Path, **environment: str) -> list[str]:
    """Return what bash would offer for the last word of a line."""
    variables = {"_SILTSTONE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "SILTSTONE_ROOT": "", **variables, **environment},
    )
    assert done.stderr == "", "it says nothing, and loads nothing heavy"
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("siltstone read shop.", ["shop.archive", "shop.orders"]),
        ("siltstone read shop.o", ["shop.orders"]),
        ("siltstone table show ", ["shop.archive", "shop.orders", "web.visits"]),
        ("siltstone backup safe --table w", ["web.visits"]),
        ("siltstone table list s", ["shop"]),
        ("siltstone untag shop.orders rel", ["release-2"]),
        ("siltstone read shop.orders --as-of ", ["release-2", "year-end"]),
        ("siltstone read nosuch.", []),
        ("siltstone untag nosuch.table r", []),
        ("siltstone unta", ["untag"]),
    ],
)
def test_names_complete_in_the_lake_beside(root: Path, line: str, offered: list[str]) -> None:
    assert complete(line, root.parent) == offered


def test_the_root_counts_wherever_it_is_said(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert complete("siltstone read web", elsewhere) == []
    assert complete("siltstone read web", elsewhere, SILTSTONE_ROOT=str(root)) == ["web.visits"]
    assert complete(f"siltstone --root {root} read web", elsewhere) == ["web.visits"]
    assert complete(f"siltstone read --root {root} web", elsewhere, SILTSTONE_ROOT="nosuch") == ["web.visits"]
    assert complete(f"siltstone read --root {root} shop.orders --as-of y", elsewhere) == ["year-end"]


def test_what_cannot_be_read_completes_nothing(root: Path) -> None:
    assert complete("siltstone --root s3://bucket/lake read s", root.parent) == []
    for file in (root / "catalog").iterdir():
        file.write_bytes(b'v3\n{"key":"table/shop/orders","locator":\xff')
    assert complete("siltstone read s", root.parent) == []
    assert complete("siltstone read s", root.parent, SILTSTONE_ROOT=str(root / "catalog" / "0")) == []


def test_names_are_those_that_the_lake_lists_after_checkpoints_of_its_log(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for number in range(25):
        lake.create_table(f"many.t{number}", schema={"id": "int64"}, primary_keys=["id"])
        if number % 4 == 0:
            lake.table(f"many.t{number}").drop()
    assert list((tmp_path / "lake" / "catalog").glob("*.compact"))
    assert complete("siltstone read many.", tmp_path) == sorted(table.name for table in lake.tables())
