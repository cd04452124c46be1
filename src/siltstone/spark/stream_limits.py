"""Spark's types for how much a batch of a stream reads. Spark 4.1 has none: there no stream is read.

It does not tell a source where a batch starts, either.
"""

import importlib.util
from typing import TYPE_CHECKING

READS_STREAMS = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None

if TYPE_CHECKING or READS_STREAMS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    ReadAllAvailable = ReadLimit = ReadMaxBytes = ReadMaxFiles = ReadMaxRows = SupportsTriggerAvailableNow = object

__all__ = [
    "READS_STREAMS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxFiles",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
