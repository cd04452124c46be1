"""The compactible log: numbered batches of entries, of which every k-th holds all that is still needed."""

from siltstone.log.batch_log import MetadataLog
from siltstone.log.codec import Codec, JsonCodec, ObjectCodec, RecordCodec
from siltstone.log.compactible import CompactibleLog
from siltstone.log.spark_logs import SinkEntry, SinkLog, SourceEntry, SourceLog

__all__ = [
    "Codec",
    "CompactibleLog",
    "JsonCodec",
    "MetadataLog",
    "ObjectCodec",
    "RecordCodec",
    "SinkEntry",
    "SinkLog",
    "SourceEntry",
    "SourceLog",
]
