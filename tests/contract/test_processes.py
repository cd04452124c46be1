"""Several processes write to one table at once."""

import subprocess
import sys
from collections import Counter

import pyarrow as pa

import siltstone
from siltstone.storage import object_store as storage

WRITER = """
import sys, siltstone, pyarrow as pa
root, writer = sys.argv[1], int(sys.argv[2])
table = siltstone.open(root).table("shop.orders")
sys.stdin.readline()
for number in range(15):
    table.write(pa.table({"id": [writer * 100 + number], f"extra_{writer}": [number]}))
"""


def test_processes_racing_on_one_table_lose_nothing(local_root: str) -> None:
    table = siltstone.open(local_root).create_table("shop.orders", schema={"id": "int64"}, primary_keys=["id"])
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, local_root, str(writer)], stdin=subprocess.PIPE, text=True)
        for writer in range(4)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.close()
    assert [writer.wait() for writer in writers] == [0] * 4

    deltas = table.deltas()
    assert [delta.stream_position for delta in deltas] == list(range(1, 61))
    ids = [storage.download_delta(delta, root=local_root).column("id").to_pylist()[0] for delta in deltas]
    assert Counter(ids) == Counter(writer * 100 + number for writer in range(4) for number in range(15))
    assert set(table.schema.names) == {"id", *(f"extra_{writer}" for writer in range(4))}
    assert table.write(pa.table({"id": [1]})) == 61
