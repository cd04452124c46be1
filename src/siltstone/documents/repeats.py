"""Updates that come again under their change id: the same delta counts once, another one is refused."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from siltstone.documents.intake import Update
from siltstone.documents.language.parser import parse_delta
from siltstone.errors import AlreadyExistsError

ChangeKey: TypeAlias = tuple[str, str]
"""A document's key and a change id."""

Stored: TypeAlias = tuple[str, Sequence[str] | None]
"""The text and the tags of a change that is stored."""


def with_own_ids(table: str, updates: Iterable[Update]) -> list[Update]:
    """Return updates without those that repeat an earlier one. Raises: AlreadyExistsError where two share an id."""
    first: dict[ChangeKey, Update] = {}
    kept = []
    for update in updates:
        if update.change_id is not None:
            known = first.setdefault((update.key, update.change_id), update)
            if known is not update:
                _check_same(table, update, (known.delta, known.tags))
                continue
        kept.append(update)
    return kept


def not_stored(table: str, updates: Iterable[Update], stored: Mapping[ChangeKey, Stored]) -> list[Update]:
    """Return the updates that are not stored already. Raises: AlreadyExistsError where their id is another delta's."""
    kept = []
    for update in updates:
        known = None if update.change_id is None else stored.get((update.key, update.change_id))
        if known is None:
            kept.append(update)
        else:
            _check_same(table, update, known)
    return kept


def _check_same(table: str, update: Update, known: Stored) -> None:
    text, tags = known
    is_same = text == update.delta or parse_delta(text) == parse_delta(update.delta)
    if not is_same or set(tags or ()) != set(update.tags):
        raise AlreadyExistsError(
            f"{table}: change {update.change_id} of document {update.key!r} is {_shown(text, tags)}, and never changes; "
            f"give {_shown(update.delta, update.tags)} an id of its own"
        )


def _shown(text: str, tags: Sequence[str] | None) -> str:
    return " ".join([f"{text:.60}", *(f"#{tag}" for tag in tags or ())])
