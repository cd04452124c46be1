"""What is stored of a document: changes, compaction records, and what history keeps of changes."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from siltstone.errors import InvalidInputError

MAX_TAGS: Final = 3
MAX_TAG_LENGTH: Final = 8


class Change(NamedTuple):
    """One delta under its change id, never modified. Wherever changes are read, plain tuples will do."""

    change_id: str
    delta: str
    tags: Sequence[str] | None = ()


class CompactionRecord(NamedTuple):
    """What was resolved up to a cutoff, under a change id of its own.

    `count` deltas from `first` to `cutoff` resolve to `compacted_delta`, a literal or `~`. Legacy records have none: they
    do not count the cutoff delta, which then holds the content.
    """

    change_id: str
    count: int  # type: ignore[assignment]  # a tuple's own method of that name is not missed
    first: str | None
    cutoff: str | None
    cutoff_signature: str | None
    last_content_mutation: str | None
    last_mutation: str | None
    compacted_delta: str | None
    last_tags: Sequence[str] | None = ()


class Row(NamedTuple):
    """All that is stored for one document, in any order. Key, table and placement matter to conditions only."""

    changes: Sequence[tuple[str, str, Sequence[str] | None]]
    records: Sequence[CompactionRecord] = ()
    key: str = ""
    table: str = ""
    placement: str | None = None


class ArchivedChange(NamedTuple):
    """A change that a compaction absorbed, with the version and the content after it; content None means deleted."""

    change_id: str
    version: int
    delta: str
    tags: tuple[str, ...]
    content: str | None


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Return the tags of a write in order, each once. Raises: InvalidInputError."""
    if isinstance(tags, str):
        raise InvalidInputError(f"tags are a list of strings; write ({tags!r},) for a single one")
    distinct = tuple(sorted(set(tags)))
    if len(distinct) > MAX_TAGS:
        raise InvalidInputError(f"{len(distinct)} tags are too many ({', '.join(distinct)}); use at most {MAX_TAGS}")
    for tag in distinct:
        if not isinstance(tag, str) or not 1 <= len(tag) <= MAX_TAG_LENGTH:
            raise InvalidInputError(f"tag {tag!r}: a tag has 1 to {MAX_TAG_LENGTH} characters")
    return distinct
