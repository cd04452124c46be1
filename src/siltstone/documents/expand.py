"""Expanding a row: what the document is, and what compaction would write and delete.

A pure function of the row, three times and the id of a record to write. A record is written first and owns what it
absorbed; what it owns is deleted by a later pass only, when the record itself is older than full consistency. So all
readers agree whatever they see: crashes, racing compactors and deltas that come back change nothing.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from siltstone.documents.language.deltas import Delta, MapDelta
from siltstone.documents.language.parser import parse_delta
from siltstone.documents.language.values import (
    DELETED,
    FIRST_UPDATE_AT,
    ID,
    LAST_MUTATE_AT,
    LAST_UPDATE_AT,
    PLACEMENT,
    SIGNATURE,
    TABLE,
    UNDEFINED,
    Json,
    Value,
    partition_of,
    strictly_equal,
    value_text,
)
from siltstone.documents.record import (
    ArchivedChange,
    CompactionRecord,
    Row,
    new_change_id,
    order_key,
    time_bound,
    to_bytes,
    to_iso_time,
    to_ms,
)
from siltstone.errors import CorruptionError, InvalidInputError

NO_TAGS: Final[frozenset[str]] = frozenset()
ZERO_SIGNATURE: Final = bytes(16)
MAX_CHANGE_BYTES: Final = 2 << 20
MAX_ARCHIVE_BYTES: Final = 10 << 20
BEFORE_ALL_MS: Final = -(1 << 62)
AFTER_ALL_MS: Final = 1 << 62
TIMES: Final = {FIRST_UPDATE_AT: "first_update_at", LAST_UPDATE_AT: "last_update_at", LAST_MUTATE_AT: "last_mutate_at"}
_OF_ROW: Final = {ID: "key", TABLE: "table", PLACEMENT: "placement"}

_Keyed: TypeAlias = tuple[str, str, str, Sequence[str] | None]


class Expansion(NamedTuple):
    """A resolved document, and what its compaction would do.

    `first_update_at` and the like are change ids. `write` is None where nothing was absorbed. `delete` and `redundant` are
    in order. `due_ms` is when there will be something to do after that, if nothing new is written: not before the later
    of the full consistency times has reached it; None means never.
    """

    content: Value
    version: int
    signature: str
    first_update_at: str | None
    last_update_at: str | None
    last_mutate_at: str | None
    last_mutation: str | None
    last_tags: tuple[str, ...]
    redundant: tuple[str, ...]
    write: CompactionRecord | None
    delete: tuple[str, ...]
    base: CompactionRecord | None
    resolved: tuple[str, ...]
    due_ms: int | None
    archived: tuple[ArchivedChange, ...] = ()

    @property
    def deleted(self) -> bool:
        """Whether there is no content."""
        return self.content is UNDEFINED

    @property
    def has_work(self) -> bool:
        """Whether compaction would change the row."""
        return self.write is not None or bool(self.delete)

    def is_redundant(self, change_id: str) -> bool:
        """Return whether a change is known to have changed nothing. Where that is uncertain it is not."""
        return change_id in self.redundant or _is_known_redundant(self.base, order_key(change_id))

    def is_pending(self, change_id: str, fct: int) -> bool:
        """Return whether a change that was announced has still to arrive, given the full consistency time."""
        if to_ms(change_id) <= fct or change_id in self.resolved:
            return False
        return self.base is None or self.base.cutoff is None or order_key(change_id) > order_key(self.base.cutoff)


@contextlib.contextmanager
def naming(table: str, row: Row) -> Iterator[None]:
    """Name the document in errors about what is stored of it. Raises: CorruptionError."""
    try:
        yield
    except InvalidInputError as error:
        raise CorruptionError(f"{table}: document {row.key!r}: {error}") from error


def resolve(row: Row) -> Expansion:
    """Resolve a document without compacting it. Raises: InvalidInputError, CorruptionError."""
    return expand(row, fct=BEFORE_ALL_MS, raw=BEFORE_ALL_MS)


def expand(
    row: Row,
    *,
    fct: int,
    raw: int,
    ctl: int | None = None,
    new_id: str | Callable[[], str] = new_change_id,
    keep_history: bool = False,
) -> Expansion:
    """Resolve a document, with what compaction would write and delete. Times are in milliseconds since 1970.

    `fct`: deltas before it are complete everywhere, so they may be absorbed. `raw`: records before it are complete
    everywhere, so what they own may be deleted. `ctl`: nothing up to it is deleted, for a snapshot that is being read.
    `new_id`: under which a record is written, or what makes one. `keep_history` archives what the record absorbs.
    Raises: InvalidInputError, CorruptionError.
    """
    pass_ = _Pass(row, time_bound(fct), time_bound(raw), ArchiveBuilder() if keep_history else None)
    if pass_.absorbed:
        pass_.write(new_id if isinstance(new_id, str) else new_id())
    pass_.resolve_rest()
    return pass_.result(None if ctl is None else time_bound(ctl + 1))


def state_of(row: Row) -> "Resolver":
    """Return the state of a document after all its deltas, from which others can go on. Raises: as `resolve`."""
    pass_ = _Pass(row, time_bound(BEFORE_ALL_MS), time_bound(BEFORE_ALL_MS), None)
    pass_.resolve_rest()
    return pass_.resolver


def recent_changes(row: Row) -> list[ArchivedChange]:
    """Return the changes that no record has absorbed, as history keeps them. Raises: InvalidInputError, CorruptionError."""
    archive = ArchiveBuilder(is_bounded=False)
    _Pass(row, time_bound(AFTER_ALL_MS), time_bound(AFTER_ALL_MS), archive)
    return archive.changes


class _Pass:
    """One pass over one row: goes on from the record that counts, if there is one, and absorbs what may be absorbed."""

    def __init__(self, row: Row, fct: str, raw: str, archive: "ArchiveBuilder | None") -> None:
        self.fct = fct
        self.row = row
        self.changes = _in_order(row.changes)
        self.effective, self.obsolete = effective_record(row.records)
        self.is_behind = self.effective is not None and order_key(self.effective.change_id) < raw
        self.doomed: list[tuple[str, str]] = []
        if self.is_behind:
            self.doomed += [(order_key(record.change_id), record.change_id) for record in self.obsolete]
        self.resolver = Resolver(row)
        self.written: CompactionRecord | None = None
        self.position = 0
        self.owned = 0
        self.absorbed = 0
        self.resolved: tuple[str, ...] = ()
        self.archive = archive
        if self.effective is not None:
            self.resolver.start_from(self.effective)
            self.skip_owned(self.effective)
        if self.effective is not None and self.effective.compacted_delta is None:
            self.absorb_legacy(self.effective)
        elif self.effective is None or self.is_behind:
            self.absorb()

    def skip_owned(self, record: CompactionRecord) -> None:
        """Go to the first delta after the cutoff; what is up to it is owned by the record, if it is there at all."""
        assert record.cutoff is not None
        cutoff = order_key(record.cutoff)
        is_legacy = record.compacted_delta is None
        for key, change_id, _, _ in self.changes:
            if key > cutoff or (is_legacy and key == cutoff):
                break
            self.position += 1
            if self.is_behind or is_legacy:
                self.doomed.append((key, change_id))
        self.owned = self.position + is_legacy

    def absorb(self) -> None:
        """Apply the deltas that are complete everywhere."""
        changes, fct, update, archive = self.changes, self.fct, self.resolver.update, self.archive
        start = position = self.position
        while position < len(changes) and changes[position][0] < fct:
            _, change_id, text, tags = changes[position]
            update(change_id, parse_stored(text, change_id), tags)
            if archive is not None:
                archive.add(change_id, text, tags, self.resolver)
            position += 1
        self.position = position
        self.absorbed = position - start

    def absorb_legacy(self, record: CompactionRecord) -> None:
        """Go on from a record whose content is in the cutoff delta; it and what is absorbed are deleted at once."""
        start = self.position
        cutoff = self.changes[start] if start < len(self.changes) else None
        if cutoff is None or cutoff[1] != record.cutoff:
            raise CorruptionError(
                f"compaction record {record.change_id} has its content in change {record.cutoff}, which is missing; "
                "restore that change, or the row"
            )
        _, change_id, text, tags = cutoff
        delta = parse_stored(text, change_id)
        if not delta.is_constant:
            raise CorruptionError(
                f"compaction record {record.change_id} has its content in change {change_id}, which is not a constant: "
                f"{text:.60}; restore that change as the record left it, or the row"
            )
        self.resolver.update(change_id, delta, tags)
        self.resolver.signature = bytes.fromhex(record.cutoff_signature or "")
        self.resolver.last_mutation = record.last_mutation or self.resolver.last_mutation
        if self.archive is not None:
            self.archive.add(change_id, text, tags, self.resolver)
        self.position += 1
        if cutoff[0] < self.fct:
            self.absorb()
            self.absorbed += 1
            self.doomed.append((order_key(record.change_id), record.change_id))
            self.doomed += [(key, change_id) for key, change_id, _, _ in self.changes[start : self.position]]

    def write(self, new_id: str) -> None:
        """Make the record of all that was absorbed, and go on from it."""
        ids = [*(change[1] for change in self.changes), *(record.change_id for record in self.row.records)]
        if new_id in ids:
            raise InvalidInputError(f"{new_id} is already an id in the row; use a new one")
        self.written = self.resolver.to_record(new_id)
        self.owned = self.position
        # The state stays the same but for one thing: a record does not know which deltas were redundant.
        self.resolver.redundant.clear()

    def resolve_rest(self) -> None:
        """Apply what is left."""
        rest = self.changes[self.position :]
        for _, change_id, text, tags in rest:
            self.resolver.update(change_id, parse_stored(text, change_id), tags)
        self.position += len(rest)
        self.resolved = tuple([change[1] for change in rest])

    def result(self, deletable_from: str | None) -> Expansion:
        """Return the result; what is before `deletable_from` stays."""
        state = self.resolver
        base = self.written or self.effective
        is_legacy = self.effective is not None and self.effective.compacted_delta is None
        doomed = self.doomed
        if deletable_from is not None and not is_legacy:
            doomed = [(key, id_) for key, id_ in doomed if key >= deletable_from]
        delete = tuple([change_id for _, change_id in sorted(set(doomed))]) if doomed else ()
        redundant = state.redundant
        if base is not None and base.last_mutation != base.cutoff:
            redundant = [change[1] for change in self.changes if _is_known_redundant(base, change[0])] + redundant
        return Expansion(
            state.content,
            state.version,
            state.signature.hex(),
            state.first_update_at,
            state.last_update_at,
            state.last_mutate_at,
            state.last_mutation,
            tuple(sorted(state.last_tags)),
            tuple(redundant),
            self.written,
            delete,
            base,
            self.resolved,
            self._due_ms(base, delete),
            self.archive.archived(self.written) if self.archive is not None else (),
        )

    def _due_ms(self, base: CompactionRecord | None, delete: tuple[str, ...]) -> int | None:
        """Return when the row, after this pass, will have something to do: see `Expansion`."""
        is_all = self.owned == len(self.changes)
        first_recent = None if is_all else to_ms(self.changes[self.owned][1]) + 1
        if base is None:
            return first_recent
        behind = to_ms(base.change_id) + 1
        owned_records = len(self.row.records) - (self.written is None)
        if self.owned + owned_records > len(delete):
            return behind
        return None if first_recent is None else max(behind, first_recent)


@dataclass(slots=True, eq=False)
class Resolver:
    """The state of one document after some of its deltas; conditions ask it about the document so far."""

    row: Row
    content: Value = UNDEFINED
    version: int = 0
    signature: bytes = ZERO_SIGNATURE
    first_update_at: str | None = None
    last_update_at: str | None = None
    last_mutate_at: str | None = None
    last_mutation: str | None = None
    last_tags: frozenset[str] = NO_TAGS
    redundant: list[str] = field(default_factory=list)
    # Whether nobody else has the map that is the content.
    is_own: bool = False

    def start_from(self, record: CompactionRecord) -> None:
        """Go on from what a record resolved to; a legacy one has its content in the delta at its cutoff."""
        self.version = record.count
        self.first_update_at = record.first
        self.last_mutation = record.last_mutation
        if record.compacted_delta is None:
            self.last_update_at = self.last_mutate_at = record.first
            return
        self.content = parse_stored(record.compacted_delta, record.change_id).apply()
        self.signature = bytes.fromhex(record.cutoff_signature or "")
        self.last_update_at = record.cutoff
        self.last_mutate_at = record.last_content_mutation or record.last_mutation
        self.last_tags = frozenset(record.last_tags or ())

    def update(self, change_id: str, delta: Delta, tags: Sequence[str] | None) -> None:
        """Apply the next delta; whether it is redundant follows from its predecessors alone."""
        changed = self._apply(delta)
        now_tags = frozenset(tags) if tags else NO_TAGS
        if changed or now_tags != self.last_tags:
            self.last_mutation = change_id
        else:
            self.redundant.append(change_id)
        self.last_tags = now_tags
        self.version += 1
        self.signature = hashlib.md5(self.signature + to_bytes(change_id), usedforsecurity=False).digest()
        if self.first_update_at is None:
            self.first_update_at = change_id
        self.last_update_at = change_id
        if changed or self.last_mutate_at is None:
            self.last_mutate_at = change_id

    def _apply(self, delta: Delta) -> bool:
        """Make of the content what a delta says; return whether that is anything else."""
        content = self.content
        if (
            isinstance(delta, MapDelta)
            and delta.keeps_rest
            and not delta.deletes_if_empty
            and isinstance(content, dict)
        ):
            return self._update_keys(delta, content)
        updated = delta.apply(content, self)
        self.content, self.is_own = updated, False
        return not strictly_equal(content, updated)

    def _update_keys(self, delta: MapDelta, content: dict[str, Json]) -> bool:
        """Change a map where it stands, so that a delta costs what it names, however large the document is."""
        if not self.is_own:
            self.content = content = dict(content)
            self.is_own = True
        changed = False
        for key, value in delta.puts.items():
            changed = changed or not strictly_equal(content.get(key, UNDEFINED), value)
            content[key] = value
        for key, inner in delta.others.items():
            old = content.get(key, UNDEFINED)
            new = inner.apply(old, self)
            changed = changed or not strictly_equal(old, new)
            if new is not UNDEFINED:
                content[key] = new
            elif old is not UNDEFINED:
                del content[key]
        return changed

    def to_record(self, change_id: str) -> CompactionRecord:
        """Return the record of all that was resolved so far."""
        return CompactionRecord(
            change_id,
            self.version,
            self.first_update_at,
            self.last_update_at,
            self.signature.hex(),
            self.last_mutate_at,
            self.last_mutation,
            self.content_text() or "~",
            tuple(sorted(self.last_tags)),
        )

    def content_text(self) -> str | None:
        """Return the canonical text of the content, None where there is none."""
        return None if self.content is UNDEFINED else value_text(self.content)

    def intrinsic(self, name: str) -> Json:
        """Return what a condition asks for."""
        if name == SIGNATURE:
            return self.signature.hex()
        if name == DELETED:
            return self.content is UNDEFINED
        if name in _OF_ROW:
            value: Json = getattr(self.row, _OF_ROW[name])
            return value
        change_id = getattr(self, TIMES[name])
        return None if change_id is None else to_iso_time(change_id)

    def partition(self, count: int) -> int:
        """Return which of `count` partitions the document is in."""
        return partition_of(self.row.table, self.row.key, count)


class ArchiveBuilder:
    """Collects the changes of one pass. History is best effort: what is too large is left out, and all with it."""

    def __init__(self, *, is_bounded: bool = True) -> None:
        self.changes: list[ArchivedChange] = []
        self._is_bounded = is_bounded
        self._is_too_large = False
        self._bytes = 0

    def add(self, change_id: str, delta: str, tags: Sequence[str] | None, state: Resolver) -> None:
        """Keep a change that was applied just now."""
        size = len(delta.encode())
        self._bytes += size
        self._is_too_large = self._is_too_large or size >= MAX_CHANGE_BYTES or self._bytes >= MAX_ARCHIVE_BYTES
        if self._is_bounded and self._is_too_large:
            self.changes.clear()
            return
        distinct = tuple(sorted(set(tags or ())))
        is_redundant = state.redundant[-1:] == [change_id]
        self.changes.append(
            ArchivedChange(change_id, state.version, delta, distinct, state.content_text(), is_redundant)
        )

    def archived(self, record: CompactionRecord | None) -> tuple[ArchivedChange, ...]:
        """Return the changes that a record absorbed, none if they are too large together."""
        if record is None:
            return ()
        compacted_bytes = len((record.compacted_delta or "").encode())
        if self._bytes + len(self.changes) * compacted_bytes >= MAX_ARCHIVE_BYTES:
            return ()
        return tuple(change._replace(record_id=record.change_id) for change in self.changes)


def effective_record(records: Sequence[CompactionRecord]) -> tuple[CompactionRecord | None, list[CompactionRecord]]:
    """Return the record that counts, the one of the most deltas and then the latest, and the others."""
    if not records:
        return None, []
    best = max(records, key=lambda record: (record.count, order_key(record.change_id)))
    if best.count <= 0:
        return None, []
    check_record(best)
    return best, [record for record in records if record is not best]


def _in_order(changes: Sequence[tuple[str, str, Sequence[str] | None]]) -> list[_Keyed]:
    """Return the changes by time, each once. Raises: InvalidInputError where one id has two deltas."""
    keyed: list[_Keyed] = [(order_key(change_id), change_id, text, tags) for change_id, text, tags in changes]
    keyed.sort(key=itemgetter(0))
    for position in range(len(keyed) - 1, 0, -1):
        earlier, later = keyed[position - 1], keyed[position]
        if earlier[0] == later[0]:
            if earlier[2] != later[2] or set(earlier[3] or ()) != set(later[3] or ()):
                raise InvalidInputError(
                    f"change {earlier[1]} has two deltas, {earlier[2]:.60} and {later[2]:.60}; a change id is used once"
                )
            del keyed[position]
    return keyed


def parse_stored(text: str, change_id: str) -> Delta:
    """Read the delta of a row. Raises: InvalidInputError, naming the change."""
    try:
        return parse_delta(text)
    except InvalidInputError as error:
        raise InvalidInputError(f"change {change_id}: {error}") from error


def check_record(record: CompactionRecord) -> None:
    """Make sure that a record can be started from. Raises: CorruptionError."""
    signature = record.cutoff_signature
    try:
        is_whole = signature is not None and len(bytes.fromhex(signature)) == len(ZERO_SIGNATURE)
    except ValueError:
        is_whole = False
    if record.first is None or record.cutoff is None or not is_whole:
        raise CorruptionError(
            f"compaction record {record.change_id}: {record.count} deltas, first {record.first}, cutoff {record.cutoff}, "
            f"signature {signature}; a record with deltas has all three. Remove the record, or restore the row"
        )
    if order_key(record.first) > order_key(record.cutoff):
        raise CorruptionError(
            f"compaction record {record.change_id}: first {record.first} is later than cutoff {record.cutoff}; "
            "remove the record, or restore the row"
        )


def _is_known_redundant(base: CompactionRecord | None, key: str) -> bool:
    """Return whether a record shows that a change it owns was redundant: it came after the last one that was not."""
    if base is None or base.cutoff is None or base.last_mutation is None:
        return False
    return order_key(base.last_mutation) < key <= order_key(base.cutoff)
