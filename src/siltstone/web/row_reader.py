"""Rows for those who may see them: the first ones of a table, all about one key, and the timeline of a document."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from siltstone.documents.timeline import TimelineEvent
from siltstone.errors import SiltstoneError
from siltstone.ingest.export import plain
from siltstone.lake import Lake
from siltstone.table.explain import Explanation
from siltstone.table.preview import Preview

PREVIEW_ROWS = 20
MAX_PREVIEW_ROWS = 100
# So many keys are explained at the same time, which reads deltas; who comes meanwhile waits so long.
_READS_AT_ONCE = 2
_WAIT_SECONDS = 10.0
DOCUMENT_KEY = "key"


class BusyError(SiltstoneError):
    """Others read rows at the moment; try again."""


@dataclass(frozen=True)
class KeyAnswer:
    """What is known of a key, in each partition that has it; or what is wrong with what was typed, by column."""

    problems: Mapping[str, str]
    explanations: Sequence[Explanation] = ()


class RowReader:
    """Reads rows of a lake's tables for pages and the API, of the newest state."""

    def __init__(self, lake: Lake, *, wait_seconds: float = _WAIT_SECONDS) -> None:
        self._lake = lake
        self._wait_seconds = wait_seconds
        self._reads = threading.BoundedSemaphore(_READS_AT_ONCE)

    def preview(self, name: str, limit: int = PREVIEW_ROWS) -> Preview:
        """Return the first compacted rows; of documents, their keys. Raises: NotFoundError, BusyError, CorruptionError."""
        table = self._lake.table(name)
        with self._read():
            return table.preview(limit, [DOCUMENT_KEY] if table.holds_documents else None)

    def explain(self, name: str, texts: Mapping[str, str | None]) -> KeyAnswer:
        """Explain a key that is written as text, None for null. Raises: NotFoundError, BusyError, CorruptionError."""
        table = self._lake.table(name)
        problems = table.key_problems(texts)
        if problems:
            return KeyAnswer(problems)
        with self._read():
            return KeyAnswer({}, [_plain_explanation(each) for each in table.explain_key(table.parse_key(texts))])

    def timeline(self, name: str, key: str) -> list[TimelineEvent]:
        """Return what happened to a document. Raises: NotFoundError, InvalidInputError, BusyError, CorruptionError."""
        with self._read():
            return self._lake.document_table(name).timeline(key)

    @contextmanager
    def _read(self) -> Iterator[None]:
        if not self._reads.acquire(timeout=self._wait_seconds):
            raise BusyError("other rows are being read")
        try:
            yield
        finally:
            self._reads.release()


def _plain_explanation(explanation: Explanation) -> Explanation:
    """Return an explanation with values that JSON can hold."""
    return replace(
        explanation,
        key=plain(dict(explanation.key)),
        partition=plain(list(explanation.partition)),
        events=[replace(event, values=plain(event.values)) for event in explanation.events],
        row=plain(explanation.row),
        compacted_row=plain(explanation.compacted_row),
    )
