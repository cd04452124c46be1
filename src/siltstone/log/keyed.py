"""Logs of entries with a key, of which the latest counts: how Siltstone's own logs are read."""

from typing import Any, Unpack

from siltstone.log.codec import ObjectCodec
from siltstone.log.compactible import CompactibleLog, LogOptions
from siltstone.objects import Objects

Entry = dict[str, Any]
VERSION = 2
"""What batches say in their first line. 1: columns had no ids, so that names alone told which one was meant."""


class KeyedLog(CompactibleLog[Entry]):
    """A log in which a later entry replaces an earlier one with its key, or only removes it.

    Every batch has the plain file `N`; `N.compact` comes beside it and says the same as all batches up to N.
    """

    reconciles = True
    writer = "Siltstone"

    def __init__(self, objects: Objects, folder: str, **options: Unpack[LogOptions]) -> None:
        options.setdefault("version", VERSION)
        super().__init__(objects, folder, ObjectCodec(), **options)

    def key(self, entry: Entry) -> str | None:
        """Return what a later entry must share to replace this one."""
        key = entry.get("key")
        return key if isinstance(key, str) else None

    def is_removal(self, entry: Entry) -> bool:
        """Tell whether the entry only removes what has its key."""
        return entry.get("removed") is True

    def name_of(self, batch_id: int) -> str:
        """Return the one name under which a batch is committed, whatever the interval."""
        return str(batch_id)
