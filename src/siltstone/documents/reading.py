"""What a reader of a document sees: its content, and what the store knows about it under keys that start with `~`."""

from collections.abc import Mapping

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


def to_document(
    found: Expansion, *, key: str, table: str, template: Mapping[str, Json] | None = None, is_weak: bool = False
) -> dict[str, Json]:
    """Return the document: content, then the table's template over it, then intrinsics over both.

    A weak read may have missed deltas, so it tells no version. The inner values are shared with `found`.
    """
    document: dict[str, Json] = dict(found.content) if isinstance(found.content, dict) else {}
    document.update(template or {})
    document[ID] = key
    document[TABLE] = table
    if not is_weak:
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
