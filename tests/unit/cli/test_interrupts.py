"""Ctrl-C in a terminal: one line that says what it left, the exit code, and no trace of where it was."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from siltstone.lake import Lake, Table
from tests.terminal import Terminal


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Lake(tmp_path / "lake").create_table("shop.t", schema={"id": "int64", "v": "string"}, primary_keys=["id"])


def check_end(terminal: Terminal, sentence: str = "") -> None:
    assert terminal.end() == 130, terminal.text
    assert terminal.text.rstrip("\n").endswith(f"Interrupted.{sentence and ' ' + sentence}"), terminal.text
    assert not re.search(r"Traceback|Error|Abort", terminal.text), terminal.text


def test_while_rows_are_awaited_from_the_terminal(table: Table, tmp_path: Path) -> None:
    with Terminal("write", "shop.t", "-", folder=tmp_path) as terminal:
        terminal.wait_for("end with Ctrl-D")
        terminal.interrupt()
        check_end(terminal, "Nothing was written to shop.t.")
    assert table.deltas() == []
    assert list(terminal.temporary.iterdir()) == []


def test_while_a_file_is_read(table: Table, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,v\n1,a\n")
    # Whoever opens it waits for somebody who writes, for ever.
    os.mkfifo(tmp_path / "b.csv")
    with Terminal("write", "shop.t", "a.csv", "b.csv", folder=tmp_path) as terminal:
        terminal.wait_for("Opening a.csv")
        terminal.interrupt()
        check_end(terminal, "Nothing was written to shop.t.")
    assert table.deltas() == []


def test_while_a_large_table_is_printed(table: Table, tmp_path: Path) -> None:
    table.write([{"id": n, "v": "x" * 100} for n in range(20_000)])
    with Terminal("read", "shop.t", "--fresh", "--json", folder=tmp_path) as terminal:
        # Nobody reads on, so that it cannot get to the end.
        terminal.wait_for('"id": 1,')
        terminal.interrupt()
        check_end(terminal)


def test_while_a_folder_is_watched(table: Table, tmp_path: Path) -> None:
    (tmp_path / "drops").mkdir()
    (tmp_path / "drops" / "a.csv").write_text("id,v\n1,a\n")
    with Terminal("ingest", "shop.t", "drops", "--settle", "0s", "--every", "1h", folder=tmp_path) as terminal:
        terminal.wait_for("took 1 file")
        terminal.interrupt()
        check_end(terminal, "Files are committed in whole batches, each file once; run it again to take the rest.")
    assert len(table.deltas()) == 1


def test_while_a_question_is_asked(table: Table, tmp_path: Path) -> None:
    with Terminal("table", "drop", "shop.t", folder=tmp_path) as terminal:
        terminal.wait_for(re.escape("Drop shop.t?"))
        terminal.interrupt()
        check_end(terminal)
    assert Lake(tmp_path / "lake").table("shop.t").name == "shop.t"


# Another thread gets the signal, once the main thread waits: as with one that comes just before, nothing ends the wait.
UNNOTICED = """\
import os, signal, sys, threading, time
from pathlib import Path
from siltstone.cli.interrupts import heed_interrupts

heed_interrupts()
waiting = Path("/proc/self/task", str(threading.main_thread().native_id), "wchan")

def interrupt():
    until = time.monotonic() + 5
    while "pipe" not in waiting.read_text() and time.monotonic() < until:
        pass
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    os.read(os.pipe()[0], 1)
except KeyboardInterrupt:
    print("noticed")
"""


def test_that_comes_just_before_a_command_waits() -> None:
    done = subprocess.run([sys.executable, "-c", UNNOTICED], capture_output=True, text=True, timeout=60)
    assert done.stdout == "noticed\n", done.stderr
