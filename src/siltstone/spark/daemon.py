"""The process from which Spark forks its Python workers: what each of them would import is imported here, once.

Spark starts it as `python -m siltstone.spark.daemon` where a session says so in `spark.python.daemon.module`. Nothing that is
imported here starts a thread that holds a lock while a worker is forked: Arrow's allocator unlocks its own after a fork, and Spark
lets numpy's library of matrices have one thread.
"""

import gc

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import siltstone.spark.tasks  # noqa: F401


def main() -> None:
    """Fork workers until Spark closes the standard input."""
    # What is shared with workers is not written to by their garbage collection, nor scanned.
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
