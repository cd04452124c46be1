"""A streaming query on every kind of store, with its checkpoint there, too."""

import uuid

import siltstone
from siltstone.objects import open_objects
from tests.unit.stream_writers import Stream, rows


def test_a_batch_is_committed_once_under_the_id_that_its_checkpoint_has(root: str) -> None:
    table = siltstone.open(root).create_table("shop.orders", schema={"id": "int64", "zone": "string"})
    query_id = str(uuid.uuid4())
    open_objects(root).create("checkpoint/metadata", f'{{"id":"{query_id}"}}'.encode())
    stream = Stream(table.name, root, app_id=query_id)
    # A store in memory has no address by which another process would find it.
    if not root.startswith("memory:"):
        stream = Stream(table.name, root, checkpointlocation=f"{root}/checkpoint".replace("s3://", "s3a://"))
    for batch_id in (0, 1, 1):
        stream.run(batch_id, rows(batch_id), rows(batch_id + 10))
    (first, second) = table.deltas()
    assert first.idempotency == {"app_id": query_id, "batch_id": 0}
    assert second.idempotency == {"app_id": query_id, "batch_id": 1}
    assert table.scan(fresh=True).count() == 4
    assert table.fsck(deep=True) == []
