"""Tasks reach the store the way the driver does, whatever environment their executor was started with."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from siltstone.objects import share_access
from siltstone.spark.workers import settle

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def reaching(root: str, task: Task) -> Task:
    """Return a task for `mapInArrow` that brings along how this process reaches `root`.

    That is the endpoint, the region and the keys, where the driver has any; an executor with a role of its own keeps
    it. With SILTSTONE_SHARE_CREDENTIALS=false no keys travel.
    """
    access = share_access(root)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        access.use()
        yield from task(batches)

    return run
