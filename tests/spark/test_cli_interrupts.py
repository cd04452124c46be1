"""Ctrl-C in a terminal, in the middle of what a command does on Spark: one line, the exit code, and nothing left behind."""

import os
import re
from pathlib import Path

import pyarrow as pa
import pytest
from tests.terminal import Terminal

from siltstone.lake import Lake, Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Lake(tmp_path / "lake").create_table(
        "shop.orders", schema={"id": "int64", "v": "string"}, primary_keys=["id"]
    )
    made.write(pa.table({"id": range(1000), "v": ["a"] * 1000}))
    return made


def check_end(terminal: Terminal, table: Table) -> None:
    """Check what is shown at the end, and that nothing has changed or is left."""
    assert terminal.end() == 130, terminal.text
    last = terminal.text.strip().splitlines()[-1]
    assert last == (
        "Interrupted. What was not committed has changed nothing; "
        "`siltstone compact shop.orders` continues after the last committed round."
    )
    assert not re.search(r"Traceback|Exception|Error|WARN|py4j|incubator", terminal.text), terminal.text
    assert table.round_reports() == []
    assert list(terminal.temporary.iterdir()) == []


def test_an_interrupt_while_spark_starts(table: Table, tmp_path: Path) -> None:
    with Terminal("compact", "shop.orders", folder=tmp_path) as terminal:
        terminal.wait_for("Starting Spark")
        terminal.interrupt()
        check_end(terminal, table)


def test_an_interrupt_while_tasks_run(table: Table, tmp_path: Path) -> None:
    # Several, so that some tasks end before, and have told Spark so.
    for number in range(8):
        table.write(pa.table({"id": [number], "v": ["b"]}))
    (entry,) = table.deltas()[-1].manifest.entries
    # Whoever opens it waits for somebody who writes, for ever.
    file = tmp_path / "lake" / entry.uri
    content = file.read_bytes()
    file.unlink()
    os.mkfifo(file)
    with Terminal("compact", "shop.orders", "--master", "local[2]", folder=tmp_path) as terminal:
        terminal.wait_for("reading 9 deltas.* [1-9] of [0-9]+ tasks")
        terminal.interrupt()
        check_end(terminal, table)
    file.unlink()
    file.write_bytes(content)
    with Terminal("compact", "shop.orders", "--master", "local[2]", folder=tmp_path) as terminal:
        assert terminal.end() == 0, terminal.text
    assert "1,000 rows now" in terminal.text
    assert not re.search(r"WARN|incubator", terminal.text), terminal.text


def test_an_interrupt_of_the_doctor(table: Table, tmp_path: Path) -> None:
    with Terminal("doctor", "--spark", folder=tmp_path) as terminal:
        terminal.wait_for("Starting Spark")
        terminal.interrupt()
        assert terminal.end() == 130, terminal.text
    assert terminal.text.rstrip().endswith("Interrupted."), terminal.text
    assert not re.search(r"Traceback|Exception|Error|WARN|py4j|incubator", terminal.text), terminal.text
