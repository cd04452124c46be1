"""A table of documents whose clock the test sets, and what each document must be: the sum of all that was written."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import siltstone
from siltstone.document_table import Document
from siltstone.documents.expand import resolve
from siltstone.documents.intake import sanitized
from siltstone.documents.language import parse_delta
from siltstone.documents.merge import run_here
from siltstone.documents.read import to_document
from siltstone.documents.record import Change, Row, change_id_at, order_key
from siltstone.model import DEFAULT_STREAM, PartitionLocator
from siltstone.model.rounds import RoundCompletion
from siltstone.rounds.request import Request
from siltstone.rounds.session import SessionResult, run_session
from siltstone.rows.job import Engine, Settings
from siltstone.table.completion import Hold, compacted_partition, current_completion

NAME = "shop.reviews"
DELAY = 10
ROOMY = Settings(max_dead_fraction=1.0, max_delta_fraction=100.0, max_files=100, page_buckets=2)
# Far enough ahead that the clock of this machine plays no part: what is complete is what rounds say.
START_MS = time.time_ns() // 1_000_000 + 3_600_000


def at(second: float) -> int:
    """The time of a second of the test, in milliseconds."""
    return START_MS + round(1000 * second)


def change_id(second: float, node: int = 0) -> str:
    """The change id of a second of the test."""
    return change_id_at(at(second), node=node)


def source_of(docs: siltstone.DocumentTable) -> PartitionLocator:
    """The partition of the table's deltas."""
    return PartitionLocator(**docs.table.version.locator, stream=DEFAULT_STREAM, partition_values=[])


def request_of(docs: siltstone.DocumentTable, second: float, settings: Settings = ROOMY, **more: Any) -> Any:
    """What a compaction at a second asks for."""
    source = source_of(docs)
    return Request(
        source,
        compacted_partition(source),
        ("key",),
        **{"root": docs.lake.root, "now_ms": at(second), "settings": settings, **more},
    )


def compact(
    docs: siltstone.DocumentTable,
    second: float,
    settings: Settings = ROOMY,
    *,
    engine: Engine = run_here,
    **more: Any,
) -> SessionResult:
    """Compact in this process, at a second of the test."""
    return run_session(request_of(docs, second, settings, **more), engine)


@dataclass
class Written:
    """A table and all deltas that were acknowledged, by document."""

    docs: siltstone.DocumentTable
    changes: dict[str, list[Change]] = field(default_factory=dict)

    def write(self, second: float, key: str, delta: str, *tags: str, node: int = 0) -> str:
        """Update a document at a second."""
        found = self.docs.update(key, delta, tags, change_id(second, node))
        self.note(key, Change(found, delta, tags))
        return found

    def note(self, key: str, change: Change) -> None:
        """Take note of a change that was acknowledged."""
        self.changes.setdefault(key, []).append(change)

    def expected(self, key: str) -> Document:
        """What a document is if nothing is ever compacted."""
        row = Row(self.changes.get(key, ()), (), key, NAME)
        return to_document(resolve(row), row)

    def check_history(self) -> None:
        """Check that the table knows every change, with the version and the content after it."""
        for key, changes in self.changes.items():
            ordered = sorted(changes, key=lambda change: order_key(change.change_id))
            states = [resolve(Row(ordered[:count], (), key, NAME)) for count in range(1, len(ordered) + 1)]
            assert [
                (entry.change_id, entry.version, entry.delta, entry.tags, entry.content)
                for entry in self.docs.history(key)
            ] == [
                (
                    change.change_id,
                    state.version,
                    str(sanitized(parse_delta(change.delta))),
                    tuple(sorted(change.tags or ())),
                    None if state.deleted else state.content,
                )
                for change, state in zip(ordered, states, strict=True)
            ]

    def check_timelines(self, *, is_whole: bool) -> None:
        """Check that all that a timeline knows of a document is true, and that it has every change if it must."""
        for key, changes in self.changes.items():
            ordered = sorted(changes, key=lambda change: order_key(change.change_id))
            events = {event.change_id: event for event in self.docs.timeline(key) if event.kind == "delta"}
            assert events.keys() <= {change.change_id for change in ordered}
            for count, change in enumerate(ordered, 1):
                state, event = resolve(Row(ordered[:count], (), key, NAME)), events.get(change.change_id)
                content = None if state.deleted else state.content
                assert event is not None or not is_whole
                if event is not None and event.version is not None:
                    assert (event.version, event.content) == (count, content)
                    # What is known of the content is known of its being redundant, unless the change before is gone.
                    assert event.is_redundant <= (change.change_id in state.redundant)

    def check(self, keys: Iterable[str] = ()) -> None:
        """Check that all documents are what they must be, by key and all at once."""
        wanted = sorted({*self.changes, *keys})
        assert self.docs.get_many(wanted) == [self.expected(key) for key in wanted]
        found = sorted(self.docs.scan(include_deleted=True), key=lambda each: str(each["~id"]))
        assert found == [self.expected(key) for key in sorted(self.changes)]

    def compact(self, second: float, settings: Settings = ROOMY, **more: Any) -> SessionResult:
        """Compact, and check that this changed no document."""
        result = compact(self.docs, second, settings, **more)
        self.check()
        return result


def make(root: str, delay: float = DELAY, **more: Any) -> Written:
    """Create a table of documents."""
    return Written(siltstone.open(root).create_document_table(NAME, full_consistency_delay=delay, **more))


def kinds(docs: siltstone.DocumentTable, key: str) -> str:
    """What is stored of a document, by time: d for a delta, C for a compaction."""
    stored = [event for event in docs.timeline(key) if event.state != "history"]
    return "".join("d" if event.kind == "delta" else "C" for event in stored)


def completion_of(docs: siltstone.DocumentTable) -> RoundCompletion:
    """The completion that is current."""
    found = current_completion(docs._destination())
    assert found is not None
    return found


def hold(docs: siltstone.DocumentTable, since: float, until: float) -> Hold:
    """Hold deletions between two seconds."""
    return docs.hold(since=at(since), until=at(until))


def rounds(result: SessionResult) -> Sequence[dict[str, int]]:
    """What each round of a session added and deleted."""
    return [
        {"added": round_.accounting.added_rows, "deleted": round_.accounting.deleted_rows} for round_ in result.rounds
    ]
