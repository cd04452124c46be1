"""What a reader of a document sees: its content, and what the store knows about it under keys that start with `~`."""

from siltstone.documents.change_ids import to_iso_time
from siltstone.documents.expand import Expansion
from siltstone.documents.language.intrinsics import (
    DELETED,
    FIRST_UPDATE_AT,
    ID,
    LAST_MUTATE_AT,
    LAST_UPDATE_AT,
    SIGNATURE,
    TABLE,
    VERSION,
)
from siltstone.documents.language.values import Json
from siltstone.documents.rows import Row


def to_document(found: Expansion, row: Row) -> dict[str, Json]:
    """Return the document of a row: content, then intrinsics over it. The inner values are shared with `found`.

    Its table is called as conditions know it, by the name that it was created under: were it another one after a
    rename, what a condition on it decided would depend on when it was compacted.
    """
    document: dict[str, Json] = dict(found.content) if isinstance(found.content, dict) else {}
    document[ID] = row.key
    document[TABLE] = row.table
    document[VERSION] = found.version
    document[SIGNATURE] = found.signature
    document[DELETED] = found.deleted
    for name, change_id in (
        (FIRST_UPDATE_AT, found.first_update_at),
        (LAST_UPDATE_AT, found.last_update_at),
        (LAST_MUTATE_AT, found.last_mutate_at),
    ):
        if change_id is not None:
            document[name] = to_iso_time(change_id)
    return document
