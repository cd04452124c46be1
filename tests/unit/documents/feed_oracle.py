"""What the changes of documents must be: each commit read after another, and each change held against all before it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from siltstone.documents.expand import resolve
from siltstone.documents.feed import DocumentChange
from siltstone.documents.intake import sanitized
from siltstone.documents.language import Json, parse_delta, strictly_equal
from siltstone.documents.record import Change, Row, order_key
from tests.unit.documents.tables import NAME


class Seen(NamedTuple):
    """What is compared of a change."""

    position: int
    key: str
    change_id: str
    delta: str | None
    version: int
    change_type: str
    content: Json
    content_before: Json


def seen(changes: Iterable[DocumentChange]) -> list[Seen]:
    """What a feed shows."""
    return [
        Seen(
            each.position,
            each.key,
            each.change_id,
            each.delta,
            each.version,
            each.change_type,
            each.content,
            each.content_before,
        )
        for each in changes
    ]


@dataclass
class Commits:
    """All that was committed, and the changes that follow from it."""

    position: int = 0
    changes: dict[str, list[Change]] = field(default_factory=dict)
    expected: list[Seen] = field(default_factory=list)

    def commit(self, updates: Iterable[tuple[str, Change]]) -> None:
        """Take note of a commit of new changes."""
        self.position += 1
        for key, change in sorted(updates, key=lambda update: (update[0], order_key(update[1].change_id))):
            own = self.changes.setdefault(key, [])
            before = resolve(Row(list(own), (), key, NAME))
            own.append(change)
            after = resolve(Row(list(own), (), key, NAME))
            if change.change_id in after.redundant and strictly_equal(before.content, after.content):
                continue
            kind = "delete" if after.deleted else "insert" if before.deleted else "update"
            contents = [None if each.deleted else each.content for each in (after, before)]
            text = str(sanitized(parse_delta(change.delta)))
            self.expected.append(Seen(self.position, key, change.change_id, text, after.version, kind, *contents))  # type: ignore[arg-type]
