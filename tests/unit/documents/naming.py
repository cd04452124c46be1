"""Change ids by small numbers, and rows made of them, as the examples write them."""

import dataclasses
from collections.abc import Iterable, Sequence

from siltstone.documents.expand import Expansion, expand
from siltstone.documents.record import Change, CompactionRecord, Row, change_id_at, order_key, to_ms

START_MS = 1_408_977_300_000


def ms(number: float) -> int:
    """The time of a number: one second each."""
    return START_MS + int(1000 * number)


def t(number: float) -> str:
    """The change id of a number."""
    return change_id_at(ms(number))


def number(change_id: str | None) -> float | None:
    """The number of a change id."""
    return None if change_id is None else (to_ms(change_id) - START_MS) / 1000


def numbers(change_ids: Iterable[str]) -> list[float | None]:
    return [number(change_id_) for change_id_ in change_ids]


def change(at: float, delta: str, *tags: str) -> Change:
    return Change(t(at), delta, tags)


def record(at: float, changes: Sequence[Change], count: int | None = None) -> CompactionRecord:
    """The record under id `at` of the first `count` of these changes, or of all."""
    ordered = sorted(changes, key=lambda each: order_key(each.change_id))
    written = expand(Row(ordered[:count]), fct=1 << 60, raw=1 << 60, new_id=t(at)).write
    assert written is not None
    return written


@dataclasses.dataclass
class Stored:
    """A row that passes of compaction work on."""

    row: Row

    def expand(self, fct: float, raw: float | None = None, ctl: float | None = None, new: float = 999) -> Expansion:
        return expand(
            self.row,
            fct=ms(fct),
            raw=ms(fct if raw is None else raw),
            ctl=None if ctl is None else ms(ctl),
            new_id=t(new),
        )

    def compact(self, fct: float, new: float = 999) -> Expansion:
        """Do what the pass says: write the record, then delete."""
        found = self.expand(fct, new=new)
        self.row = applied(self.row, found)
        return found

    def ids(self) -> list[float | None]:
        row = self.row
        everything = [each[0] for each in row.changes] + [each.change_id for each in row.records]
        return numbers(sorted(everything, key=order_key))


def applied(row: Row, found: Expansion, *, deletes: bool = True) -> Row:
    """The row after the record was written, and what is to go was deleted."""
    records = [*row.records, *([found.write] if found.write is not None else [])]
    doomed = set(found.delete) if deletes else set()
    return row._replace(
        changes=[each for each in row.changes if each[0] not in doomed],
        records=[each for each in records if each.change_id not in doomed],
    )
