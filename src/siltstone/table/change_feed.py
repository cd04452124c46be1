"""Changes of a table from one round to another: each row as it was before and as it is after, in today's columns.

For each partition, the states of two rounds are compared by what is stored of them (`rows/difference.py`): the first and the last
one, so that what happened in between is netted, or each with the one before.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError
from siltstone.log.state import Entry
from siltstone.model import TableVersion
from siltstone.model.buckets import Buckets
from siltstone.model.properties import KIND, ROWS_KIND
from siltstone.model.rounds import RoundCompletion
from siltstone.model.schema import check_known, nullable
from siltstone.rows.deaths import read_deaths
from siltstone.rows.difference import CHANGE_TYPES, RowChanges, Step, differences
from siltstone.table.completion import is_kept, read_kept
from siltstone.table.consumers import acknowledge, acknowledged_rounds
from siltstone.table.round_bounds import Bound, Span, find_spans, round_id, steps_of, watermark
from siltstone.table.snapshot import TableSnapshot, take_snapshot

Images = Literal["both", "after"]
OnRebase = Literal["difference", "error"]
CHANGE_TYPE, ROUND, POSITION, COMMITTED_AT = "_change_type", "_round", "_position", "_committed_at"
CHANGE_FIELDS = pa.schema(
    [
        pa.field(CHANGE_TYPE, pa.string(), nullable=False),
        pa.field(ROUND, pa.int64(), nullable=False),
        pa.field(POSITION, pa.int64(), nullable=False),
        pa.field(COMMITTED_AT, pa.timestamp("us", "UTC"), nullable=False),
    ]
)
_BEFORE = CHANGE_TYPES.index("update_before")
# Of more rounds, first and last are compared: many keys change again and again.
_MOST_STEPS = 64


@dataclass(frozen=True)
class Changes:
    """The changes of a table after some rounds up to others; each of its methods reads them anew.

    Rows have the columns that were asked for, then `_change_type` (`insert`, `update_before`, `update_after`, `delete`),
    `_round`, `_position`, the last stream position that the round has read, and `_committed_at`, which is never before that of the round before. The two rows of an update
    follow each other.
    """

    root: str
    name: str
    version: TableVersion
    columns: tuple[str, ...]
    spans: tuple[Span, ...]
    images: Images = "both"
    net: bool = True
    on_rebase: OnRebase = "difference"
    consumer: str | None = None
    _acknowledged: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Changes of {self.name} after rounds {self.after} up to {self.upto}>"

    @property
    def after(self) -> dict[str, int]:
        """The round of each partition, by its id, that the changes come after; 0 before the first."""
        return {span.partition_id: round_id(span.older) for span in self.spans}

    @property
    def upto(self) -> dict[str, int]:
        """The last round of each partition, by its id: `after` for who goes on from here."""
        return {span.partition_id: round_id(span.newer) for span in self.spans}

    @property
    def positions(self) -> tuple[int, int]:
        """The highest stream positions of the rounds that the changes come after, and of the last ones."""
        older, newer = (
            ([watermark(entry) for entry in side] for side in zip(*self._ends, strict=True)) if self.spans else ([], [])
        )
        return max(older, default=0), max(newer, default=0)

    @property
    def _ends(self) -> list[tuple[Entry | None, Entry | None]]:
        return [(span.older, span.newer) for span in self.spans]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of rows, and those that say what the change is."""
        own = [self.version.schema.field(name) for name in self.columns]
        return pa.schema([*own, *CHANGE_FIELDS])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.to_batches())

    def to_batches(self) -> pa.RecordBatchReader:
        """Return a reader of the changes, by stretches of each partition. Raises: CorruptionError, NotFoundError."""
        batches = (batch for table in self._tables() for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def to_arrow(self) -> pa.Table:
        """Return the changes as an Arrow table. Raises: as `to_batches`."""
        return self.to_batches().read_all()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_batches().__arrow_c_stream__(requested_schema)

    def acknowledge(self) -> None:
        """Let the consumer go on after these changes next time, since it has taken all of them.

        Each partition is one commit: who dies in between gets whole rounds of the others again, and misses none.
        Raises: InvalidInputError without a consumer; ConflictError where another process acknowledged for it meanwhile.
        """
        if self.consumer is None:
            raise InvalidInputError(f"{self.name}: these changes have no consumer that could acknowledge them")
        for span in self.spans:
            if span.newer is not None:
                expected = self._acknowledged.get(span.partition_id)
                acknowledge(span.destination, self.consumer, round_id(span.newer), expected, self.version)

    def _tables(self) -> Iterator[pa.Table]:
        if not self.net:
            for span, older, newer in steps_of(self.spans):
                yield from self._between(span, older, newer, (newer,))
            return
        for span in self.spans:
            if span.newer is not None and span.rounds:
                yield from self._between(span, span.older, span.newer, span.rounds)

    def _between(self, span: Span, older: Entry | None, newer: Entry, rounds: Sequence[Entry]) -> Iterator[pa.Table]:
        """Yield the changes of one partition from one round to another."""
        try:
            before = None if older is None else _completion(span, older)
            after = _completion(span, newer)
            self._refuse_rebase(span, before, after)
            time_ms = max(int(entry["completed_at"]) for entry in _upto(span, newer))
            for changes in self._differences(span, before, after, rounds):
                yield self._finished(changes, newer, time_ms)
        except CorruptionError as error:
            for entry in (older, newer):
                if entry is not None and not is_kept(span.destination, entry):
                    raise _vacuumed(span, entry) from error
            raise

    def _refuse_rebase(self, span: Span, before: RoundCompletion | None, after: RoundCompletion) -> None:
        if self.on_rebase == "error" and before is not None and before.origin != after.origin:
            raise InvalidInputError(
                f"{span.destination.locator}: was rebased between rounds {before.round_id} and {after.round_id}, so that all "
                "rows may have changed; read the table anew, or take the difference (on_rebase='difference')"
            )

    def _differences(
        self, span: Span, before: RoundCompletion | None, after: RoundCompletion, rounds: Sequence[Entry]
    ) -> Iterator[RowChanges]:
        version = self.version.as_in_files()
        keys = version.primary_keys if version.drop_duplicates else ()
        as_one = before is not None and not _keeps_buckets(before, after, rounds)
        steps = None if before is None or as_one else self._recorded_steps(span, before, after, rounds)
        if steps is None:
            steps = [Step(Buckets.even(0) if before is None else before.buckets, after.buckets)]
        return differences(self.root, steps, nullable(version.schema), keys, as_one=as_one)

    def _recorded_steps(
        self, span: Span, before: RoundCompletion, after: RoundCompletion, rounds: Sequence[Entry]
    ) -> list[Step] | None:
        """Return each round by itself, where that costs less: some moved rows, and all tell which they did not move."""
        if len(rounds) > _MOST_STEPS:
            return None
        steps, moves = [], False
        for entry in rounds:
            completion = after if round_id(entry) == after.round_id else _completion(span, entry)
            deaths = None if completion.deaths is None else read_deaths(self.root, completion.deaths)
            if deaths is None or completion.previous_round_id != before.round_id:
                return None
            moves = moves or any(completion.bucket_actions.get(action) for action in ("major", "tiered"))
            steps.append(Step(before.buckets, completion.buckets, deaths))
            before = completion
        return steps if moves else None

    def _finished(self, changes: RowChanges, newer: Entry, time_ms: int) -> pa.Table:
        rows, types = changes
        if self.images == "after":
            is_wanted = types != _BEFORE
            rows, types = rows.filter(pa.array(is_wanted)), types[is_wanted]
        count = len(types)
        columns = [rows.column(name) for name in self.version.names_in_files(self.columns)]
        marks: list[object] = [
            pa.array(np.array(CHANGE_TYPES, object)[types], pa.string()),
            *(pa.array(np.full(count, value)) for value in (round_id(newer), watermark(newer))),
            pa.array(np.full(count, time_ms * 1000)).cast(CHANGE_FIELDS.field(COMMITTED_AT).type),
        ]
        return pa.Table.from_arrays([*columns, *marks], schema=self.schema)


def open_changes(
    name: str,
    after: Bound | None = None,
    upto: Bound | None = None,
    *,
    columns: Sequence[str] | None = None,
    images: Images = "both",
    net: bool = True,
    on_rebase: OnRebase = "difference",
    consumer: str | None = None,
    root: str,
) -> Changes:
    """Return the changes of a table after a bound up to another; see `Bound`. By default from before the first round.

    Without `upto`, they go up to the newest position that all partitions are compacted to. A consumer goes on after what it
    acknowledged; `after` then counts for partitions of which it acknowledged nothing.
    Raises: InvalidInputError, NotFoundError where a round was vacuumed, CorruptionError.
    """
    snapshot = _newest(name, root)
    version = snapshot.version
    if KIND.of(version.properties, name) != ROWS_KIND:
        raise InvalidInputError(f"{name}: is a table of documents; use lake.document_table({name!r}).changes")
    for what, given, choices in (("images", images, Images), ("on_rebase", on_rebase, OnRebase)):
        if given not in get_args(choices):
            raise InvalidInputError(f"{name}: unknown {what} {given!r}; use {' or '.join(get_args(choices))}")
    names = version.schema.names if columns is None else [columns] if isinstance(columns, str) else list(columns)
    check_known(names, version.schema, "column")
    taken = [each for each in names if each in CHANGE_FIELDS.names]
    if taken:
        raise InvalidInputError(
            f"{name}: its column {taken[0]} has the name of a column of changes; rename it, or leave it out with columns=…"
        )
    known = {} if consumer is None else acknowledged_rounds(snapshot, consumer)
    spans = find_spans(snapshot, 0 if after is None else after, upto, known)
    return Changes(root, name, version, tuple(names), tuple(spans), images, net, on_rebase, consumer, known)


def _newest(name: str, root: str) -> TableSnapshot:
    try:
        return take_snapshot(name, fresh=True, root=root)
    except NotFoundError:
        # It may follow a table that was dropped; what is compacted is there still.
        return take_snapshot(name, root=root)


def _completion(span: Span, entry: Entry) -> RoundCompletion:
    completion = read_kept(span.destination, entry)
    if completion is None:
        raise _vacuumed(span, entry)
    return completion


def _vacuumed(span: Span, entry: Entry) -> NotFoundError:
    return NotFoundError(
        f"{span.destination.locator}: round {entry['round_id']} was vacuumed meanwhile; begin with a later one, or read the "
        "table anew"
    )


def _upto(span: Span, newer: Entry) -> list[Entry]:
    known = [entry for entry in (span.older, *span.rounds) if entry is not None]
    return [entry for entry in known if round_id(entry) <= round_id(newer)]


def _keeps_buckets(before: RoundCompletion, after: RoundCompletion, rounds: Sequence[Entry]) -> bool:
    """Return whether a row that is in both states is in a bucket of the same hashes.

    Those with a key are where its hash says. Others are dealt out anew when deltas are read again.
    """
    if before.primary_keys != after.primary_keys or before.origin != after.origin:
        return bool(before.primary_keys) and before.primary_keys == after.primary_keys
    marks = [before.high_watermark, *map(watermark, rounds)]
    return bool(after.primary_keys) or all(first <= second for first, second in pairwise(marks))
