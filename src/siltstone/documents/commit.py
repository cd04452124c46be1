"""Committing changes: none of a time that the table is complete up to, whatever clocks and pauses do."""

import datetime
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from siltstone import clock
from siltstone.catalog import main as catalog
from siltstone.documents import groups
from siltstone.documents.intake import Update, new_updates, with_ids
from siltstone.documents.read import check_known, snapshot_of
from siltstone.documents.recent import list_keys
from siltstone.documents.record import new_change_id, order_key, to_iso_time, to_ms
from siltstone.documents.schema import (
    KEY,
    changes_of,
    grouped,
    hash_changes,
    stored_updates,
)
from siltstone.errors import AlreadyExistsError, ConflictError, InvalidInputError
from siltstone.model import Delta, Idempotency, ManifestEntry, PartitionLocator, StreamLocator
from siltstone.model.properties import CLOSED_BEFORE_MS
from siltstone.objects import open_objects
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLog
from siltstone.storage.parquet import read_data_file
from siltstone.table.completion import (
    Destination,
    Hold,
    add_hold,
    closed_before,
    delay_of,
    locate_compacted,
    release_hold,
)

R = TypeVar("R")
_ATTEMPTS = 20
_MAX_WAIT_MS = 1000


class Staged(NamedTuple, Generic[R]):
    """Changes that are staged, the earliest change id among them, and what their commit results in."""

    deltas: list[Delta]
    earliest: str | None
    result: R


def write_updates(
    name: str, updates: Sequence[Update], *, idempotency: Idempotency | None = None, root: str
) -> list[Update]:
    """Commit updates but for those that are there already; return what was written, with change ids.

    Threads that do so at the same time share a commit, unless it has an idempotency id.
    Raises: AlreadyExistsError, ConflictError where something was committed under that id before.
    """

    def write(group: Sequence[Sequence[Update]]) -> list[list[Update]]:
        return _write_group(name, group, root, idempotency)

    if idempotency is not None:
        return write([updates])[0]
    if len(updates) > groups.MAX_GROUP_UPDATES:
        return write([updates])[0]
    return groups.commit_groups.of(root, name).commit(updates, write) if updates else []


def _write_group(
    name: str, group: Sequence[Sequence[Update]], root: str, idempotency: Idempotency | None = None
) -> list[list[Update]]:
    """Commit the updates of several callers as one delta; return what was written for each."""
    identified = [update for updates in group for update in updates if update.change_id is not None]
    stored = snapshot_of(name, root=root).stored_changes(identified) if identified else {}
    fresh = [new_updates(name, updates, stored) for updates in group]
    if not any(fresh):
        return fresh

    def stage(stream: StreamLog) -> Staged[list[list[Update]]]:
        written = [with_ids(updates, lambda: new_change_id(now_ms(root))) for updates in fresh]
        every = [update for updates in written for update in updates]
        deltas = storage.stage_deltas(stored_updates(every), stream, type="append", root=root)
        list_keys(deltas, [update.key for update in every])
        ids = [update.change_id for update in every if update.change_id is not None]
        return Staged(deltas, min(ids, key=order_key), written)

    return commit_changes(name, stage, idempotency=idempotency, root=root)


def write_files(name: str, stage_files: Callable[[StreamLocator], list[Delta]], *, have_ids: bool, root: str) -> int:
    """Commit updates that are staged as files; return how many there are without those that were there already.

    Raises: AlreadyExistsError.
    """

    def stage(stream: StreamLog) -> Staged[int]:
        deltas = stage_files(stream.locator)
        files = [entry for delta in deltas for entry in delta.manifest.entries]
        try:
            repeats = _count_repeats(name, files, root) if have_ids else 0
        except AlreadyExistsError:
            storage.discard_deltas(deltas, root=root)
            raise
        return Staged(deltas, _earliest_in(files, root), sum(file.record_count for file in files) - repeats)

    return commit_changes(name, stage, root=root)


def begin_changes(name: str, *, root: str) -> int:
    """Return the time in milliseconds of changes that are made from now on, later than what is complete."""
    closed = closed_before(catalog.get_table_version(name, root=root).properties)
    _wait_until((closed or 0) + 1, root)
    return now_ms(root)


def commit_files(
    name: str,
    deltas: Sequence[Delta],
    *,
    began_ms: int,
    have_ids: bool,
    idempotency: Idempotency | None,
    rising_ids: bool,
    root: str,
) -> int:
    """Commit updates that others staged as files after `began_ms`; return the stream position.

    Files that are not committed are discarded. Raises: as `commit_changes`, AlreadyExistsError; ConflictError where the table
    was completed beyond changes that were made for this, so that they have to be made again.
    """
    with catalog.discarded_on_error(deltas, root=root):
        stream = deltas[0].locator.stream_locator
        files = [entry for delta in deltas for entry in delta.manifest.entries]
        earliest = None
        if idempotency is None or storage.find_commit(stream, idempotency, root=root) is None:
            earliest = _earliest_in(files, root)
            if have_ids:
                _count_repeats(name, files, root)
        for attempt in range(_ATTEMPTS):
            limit = _limit(name, began_ms, root)
            if earliest is not None and to_ms(earliest) <= limit.time_ms:
                message = _too_late(name, earliest, limit.time_ms, limit.delay_ms)
                raise InvalidInputError(message) if have_ids else ConflictError(f"{message}; or write it again")
            try:
                return catalog.commit_staged(
                    deltas,
                    idempotency=idempotency,
                    rising_ids=rising_ids,
                    expected_properties=limit.expected_properties,
                    root=root,
                )
            except ConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
    raise AssertionError


def _earliest_in(files: Sequence[ManifestEntry], root: str) -> str | None:
    ids = [earliest_of(read_data_file(root, file, ["change_id"]).column("change_id")) for file in files]
    return min((id_ for id_ in ids if id_ is not None), key=order_key, default=None)


def earliest_of(change_ids: pa.ChunkedArray) -> str | None:
    """Return the earliest of some change ids, or None if there are none."""
    return min(change_ids.to_pylist(), key=order_key, default=None)


def _count_repeats(name: str, files: Sequence[ManifestEntry], root: str) -> int:
    """Count staged updates that are there already, in these files or stored. Raises: AlreadyExistsError.

    They stay in the files; wherever these are read, the same change counts once.
    """
    hashes = [hash_changes(read_data_file(root, file, [KEY, "change_id"])) for file in files]
    distinct, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]), return_counts=True)
    snapshot = snapshot_of(name, root=root)
    stored = snapshot.changes_among(distinct)
    suspects = np.concatenate([distinct[counts > 1], hash_changes(stored)])
    if not len(suspects):
        return 0
    updates = [
        Update(row["key"], row["delta"], tuple(row["tags"]), row["change_id"])
        for file, own in zip(files, hashes, strict=True)
        if np.isin(own, suspects).any()
        for row in read_data_file(root, file).filter(pa.array(np.isin(own, suspects))).to_pylist()
    ]
    return len(updates) - len(new_updates(name, updates, changes_of(grouped(stored, snapshot.name))))


def hold_documents(name: str, *, since_ms: int, until_ms: int, reason: str, root: str) -> Hold:
    """Make a hold on all that is stored up to now. Raises: InvalidInputError."""
    if until_ms <= since_ms:
        raise InvalidInputError(f"{name}: a hold until {until_ms} ends before it begins, {since_ms}")
    destination = documents_destination(name, root=root)
    position = storage.get_stream(catalog.delta_stream(name, root=root), root=root).stream_position
    hold = add_hold(destination, since_ms=since_ms, until_ms=until_ms, reason=reason, stream_position=position)
    # Not before it is there: from then on nothing is deleted that it needs.
    try:
        check_known(name, hold, root=root)
    except InvalidInputError:
        release_hold(destination, hold.hold_id)
        raise
    return hold


def documents_destination(name: str, *, root: str) -> Destination:
    """Return where the documents of a table are compacted to. Raises: NotFoundError."""
    stream = catalog.delta_stream(name, root=root)
    return locate_compacted(PartitionLocator(**stream, partition_values=[]), root=root)


def commit_changes(
    name: str, stage: Callable[[StreamLog], Staged[R]], *, idempotency: Idempotency | None = None, root: str
) -> R:
    """Commit what is staged and return its result, if all changes are later than what is complete.

    Whoever compacts closes the table's stream first, in the log that changes are committed to; the commit holds only
    if the closing time is still the one that the changes were checked against.
    Raises: InvalidInputError, ConflictError where something was committed under the idempotency id before.
    """
    started_ms = now_ms(root)
    results: list[R] = []
    for attempt in range(_ATTEMPTS):
        limit = _limit(name, started_ms, root)
        _wait_until(limit.time_ms + 1, root)

        def checked(stream: StreamLog, limit: _Limit = limit) -> list[Delta]:
            staged = stage(stream)
            if staged.earliest is not None and to_ms(staged.earliest) <= limit.time_ms:
                storage.discard_deltas(staged.deltas, root=root)
                raise InvalidInputError(_too_late(name, staged.earliest, limit.time_ms, limit.delay_ms))
            results.append(staged.result)
            return staged.deltas

        try:
            catalog.write_staged(
                name, checked, idempotency=idempotency, expected_properties=limit.expected_properties, root=root
            )
        except ConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        if not results and idempotency is not None:
            raise ConflictError(f"{name}: batch {idempotency.batch_id} of {idempotency.app_id} was committed before")
        return results[-1]
    raise AssertionError


class _Limit(NamedTuple):
    """The time that changes must be later than, the delay of the table, and what must hold of it at the commit."""

    time_ms: int
    delay_ms: int
    expected_properties: dict[str, str | None]


def _limit(name: str, started_ms: int, root: str) -> _Limit:
    properties = catalog.get_table_version(name, root=root).properties
    delay_ms = delay_of(properties, name) or 0
    # A change made right now is never too old, whatever the delay.
    limit_ms = max(started_ms - max(delay_ms, 1), closed_before(properties) or 0)
    return _Limit(limit_ms, delay_ms, {CLOSED_BEFORE_MS.name: properties.get(CLOSED_BEFORE_MS.name)})


def complete_up_to(name: str, *, root: str) -> int:
    """Return the full consistency time in milliseconds: no change of it or before comes any more."""
    properties = catalog.get_table_version(name, root=root).properties
    return max(now_ms(root) - (delay_of(properties, name) or 0), closed_before(properties) or 0)


def latest_ms(name: str, *, root: str) -> int:
    """Return the time now, by this clock or by that of the latest compaction, whichever is ahead."""
    properties = catalog.get_table_version(name, root=root).properties
    closed = closed_before(properties)
    return now_ms(root) if closed is None else max(now_ms(root), closed + (delay_of(properties, name) or 0))


def now_ms(root: str) -> int:
    """Return the time in milliseconds since 1970, that of the store where it has a clock."""
    return open_objects(root).now_ms()


def _wait_until(time_ms: int, root: str) -> None:
    """Wait for a clock that is a little behind the one that closed the stream, so that new changes are later."""
    ahead_ms = time_ms - now_ms(root)
    if ahead_ms > 0:
        ahead_ms = time_ms - open_objects(root).now_ms(is_asked=True)
    if 0 < ahead_ms <= _MAX_WAIT_MS:
        clock.sleep(ahead_ms / 1000)


def _too_late(name: str, change_id: str, limit_ms: int, delay_ms: int) -> str:
    limit = datetime.datetime.fromtimestamp(limit_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")
    return (
        f"{name}: change {change_id} is of {to_iso_time(change_id)}, but the table is complete up to {limit}: changes may "
        f"be {delay_ms} ms old at most; leave out the change id, or create the table with a longer full consistency delay"
    )
