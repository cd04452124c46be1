"""What every publisher needs of a table: its data files with the rows of each that are dead, and what changed of that.

A publisher of any format keeps, in its own metadata, which round of each partition it has published, and for each data
file where the vector of its dead rows is. It shows that as a `PublishedState`, and `changes_since` gives what is different
now. From that it writes its metadata, and commits once.

- A data file may belong to several buckets, each of which has a slice of it with a vector of its own (decision 018). A published
  file has one vector of the whole: the rows of no slice, and those that the vectors of slices name.
- Where a file is one bucket's, its vector is an object that the round wrote, in the framing of `rows.vectors`: it is named
  as it is (`LiveFile.vector`). Else the publisher writes what is dead (`LiveFile.dead`) into an object of its own.
- A file without live rows is not published.
- Buckets that both rounds have are not looked at, and pages that both name not read (decision 017): the work follows what
  changed. Where the round that was published is forgotten, all files are compared.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from pyroaring import BitMap64

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.model import PartitionValue
from siltstone.model.buckets import Bucket, CompactedFile
from siltstone.model.rounds import RoundCompletion
from siltstone.objects import open_objects
from siltstone.rows.files import SharedObjects, read_vector
from siltstone.rows.vectors import LENGTH_BYTES, numbers_in, parse_vector
from siltstone.table.completion import Destination, compacted_partition, get_round
from siltstone.table.snapshot import PartitionSnapshot, TableSnapshot

_Flags = npt.NDArray[np.bool_]
_Slices = dict[str, list[CompactedFile]]
"""Slices in buckets, by their data files."""


class Vector(NamedTuple):
    """Where the vector of a whole data file is: its frame begins at `offset` of an object, and `length` bytes are its data.

    Where both are -1, the object is a Parquet file that has the numbers of the dead rows instead.
    """

    uri: str
    offset: int
    length: int
    row_count: int


@dataclass(frozen=True)
class LiveFile:
    """A data file that has live rows. Its dead ones, if any, are in a vector that is stored, or else in `dead`."""

    uri: str
    partition_values: tuple[PartitionValue, ...]
    row_count: int
    size: int
    vector: Vector | None = None
    dead: BitMap64 | None = None

    @property
    def dead_count(self) -> int:
        """How many rows are dead."""
        if self.vector is not None:
            return self.vector.row_count
        return 0 if self.dead is None else len(self.dead)


class PublishedFile(NamedTuple):
    """A data file as it was published, and where the vector of its dead rows is."""

    uri: str
    vector: Vector | None


class PublishedState(Protocol):
    """What a format's metadata say was published last."""

    @property
    def rounds(self) -> Mapping[str, int]:
        """The round of each partition, by the partition's id."""

    def files(self, uris: Iterable[str]) -> dict[str, PublishedFile]:
        """Return those of the data files that are published."""

    def uris_in(self, folder: str) -> list[str]:
        """Return the data files that are published of the compacted partition in a folder."""


@dataclass(frozen=True)
class PartitionChange:
    """What is to be published of a partition: files that are new or have other dead rows, and files that are gone.

    `previous` has those of the files that were published before. `changes_rows` is false where the rounds since have only
    arranged the same rows anew. `moves_rows` is true where, beside what changed, rows may be in another file than before.
    """

    partition_id: str
    round_id: int | None
    files: tuple[LiveFile, ...]
    removed: tuple[str, ...]
    previous: Mapping[str, PublishedFile]
    changes_rows: bool = True
    moves_rows: bool = False


def changes_since(published: PublishedState, snapshot: TableSnapshot, folder: str) -> Iterator[PartitionChange]:
    """Yield what is different in each partition whose round is another than the one that was published.

    `folder` is that of the table version. Partitions that are no longer there have lost all their files.
    Raises: CorruptionError.
    """
    ids = set()
    for partition in snapshot.partitions:
        ids.add(partition.own.partition_id)
        completion = partition.completion
        if completion is not None and published.rounds.get(partition.own.partition_id) != completion.round_id:
            yield _PartitionDiff(published, snapshot.root, partition, completion).change()
    for partition_id in sorted(published.rounds.keys() - ids):
        gone = published.uris_in(f"{folder}/compacted/{partition_id}")
        if gone:
            yield PartitionChange(partition_id, None, (), tuple(gone), published.files(gone))


class _PartitionDiff:
    """Compares what is published of a partition with a round."""

    def __init__(
        self, published: PublishedState, root: str, partition: PartitionSnapshot, completion: RoundCompletion
    ) -> None:
        self._published = published
        self._root = root
        self._partition = partition
        self._completion = completion
        self._shared = SharedObjects(root)
        self._destination = Destination(compacted_partition(partition.own), partition.folder, root)

    def change(self) -> PartitionChange:
        base = self._base()
        if base is None:
            before: _Slices = {}
            now = _by_data_file(self._completion.buckets)
            candidates = [*now, *self._published.uris_in(self._partition.folder)]
        else:
            only_now, only_before = self._completion.buckets.difference(base.buckets)
            before, now = _by_data_file(only_before), _by_data_file(only_now)
            candidates = [uri for uri in {**now, **before} if before.get(uri) != now.get(uri)]
        previous = self._published.files(dict.fromkeys(candidates))
        files, removed = [], []
        for uri in dict.fromkeys(candidates):
            live = self._live_file(uri, before.get(uri, []), now.get(uri, []), previous.get(uri), is_all=base is None)
            if live is None:
                removed += [uri] if uri in previous else []
            elif not self._is_published(live, previous.get(uri)):
                files.append(live)
        return PartitionChange(
            self._partition.own.partition_id,
            self._completion.round_id,
            tuple(files),
            tuple(removed),
            previous,
            base is None or self._changes_rows(base),
            base is not None and (base.origin != self._completion.origin or _moves_rows(before, now)),
        )

    def _base(self) -> RoundCompletion | None:
        """Return the round that was published, None where there is none, or where it is forgotten."""
        round_id = self._published.rounds.get(self._partition.own.partition_id)
        try:
            return None if round_id is None else get_round(self._destination, round_id)
        except NotFoundError:
            return None

    def _changes_rows(self, base: RoundCompletion) -> bool:
        """Return whether any round after one has changed a row; rounds that are forgotten may have."""
        completion = self._completion
        while completion.round_id != base.round_id:
            accounting, previous = completion.accounting, completion.previous_round_id
            is_same = accounting.live_rows == accounting.base_rows and not accounting.input_rows
            if (
                not is_same
                or accounting.added_rows
                or accounting.lost_rows
                or completion.get("rolled_back_to") is not None
            ):
                return True
            if previous is None or previous < base.round_id or completion.rebase_source_partition_locator is not None:
                return True
            try:
                completion = base if previous == base.round_id else get_round(self._destination, previous)
            except NotFoundError:
                return True
        return False

    def _live_file(
        self,
        uri: str,
        before: Sequence[CompactedFile],
        now: Sequence[CompactedFile],
        previous: PublishedFile | None,
        *,
        is_all: bool,
    ) -> LiveFile | None:
        """Return a file with what is dead of it now; None where nothing of it is alive.

        `before` and `now` are its slices in buckets that changed; what others have of it is as it was published.
        """
        if not any(file.is_shared for file in [*before, *now]) and len(now) <= 1:
            return self._whole_file(now[0]) if now and now[0].live_count else None
        one = [*before, *now][0]
        live = np.zeros(one.stored_rows, np.bool_)
        if previous is not None and not is_all:
            live[:] = True
            live[numbers_in(self._dead_of(previous.vector))] = False
        for files, flag in ((before, False), (now, True)):
            for file in files:
                self._mark(live, file, flag=flag)
        if not live.any():
            return None
        dead = None if live.all() else BitMap64(np.flatnonzero(~live).astype(np.uint64))
        return LiveFile(uri, self._values, one.stored_rows, one.stored_length, None, dead)

    def _whole_file(self, file: CompactedFile) -> LiveFile:
        """Return a file that one bucket has all of, with the vector that the round wrote."""
        vector, stored, dead = file.deletion_vector, None, None
        if vector is not None and vector.is_framed:
            stored = Vector(vector.uri, vector.start - LENGTH_BYTES, vector.content_length, vector.record_count)
        elif vector is not None:
            dead = read_vector(self._root, vector, self._shared)
        return LiveFile(file.uri, self._values, file.stored_rows, file.stored_length, stored, dead)

    def _mark(self, live: _Flags, file: CompactedFile, *, flag: bool) -> None:
        own = live[file.first_row : file.first_row + file.record_count]
        rows = np.ones(file.record_count, np.bool_)
        if file.deletion_vector is not None:
            rows[numbers_in(read_vector(self._root, file.deletion_vector, self._shared))] = False
        own[rows] = flag

    def _is_published(self, live: LiveFile, previous: PublishedFile | None) -> bool:
        """Return whether a file was published with the same dead rows."""
        if previous is None:
            return False
        if live.vector == previous.vector and live.dead is None:
            return True
        if live.dead_count != (previous.vector.row_count if previous.vector else 0):
            return False
        return self._dead_of(live.vector, live.dead) == self._dead_of(previous.vector)

    def _dead_of(self, vector: Vector | None, dead: BitMap64 | None = None) -> BitMap64:
        return dead if dead is not None else BitMap64() if vector is None else read_published(self._root, vector)

    @property
    def _values(self) -> tuple[PartitionValue, ...]:
        return tuple(self._partition.own.partition_values)


def read_published(root: str, vector: Vector) -> BitMap64:
    """Read the vector of a whole data file. Raises: CorruptionError."""
    try:
        data = open_objects(root).read(vector.uri)
        if vector.length < 0:
            return BitMap64(pq.read_table(io.BytesIO(data), columns=["pos"]).column("pos").to_numpy().astype(np.uint64))
        start = vector.offset + LENGTH_BYTES
        dead = parse_vector(data[start : start + vector.length])
    except (NotFoundError, ValueError, TypeError) as error:
        raise CorruptionError(
            f"{root}/{vector.uri}: the published deletion vector is missing or damaged ({error}); unpublish the table, and "
            "publish it again"
        ) from error
    if len(dead) != vector.row_count:
        raise CorruptionError(f"{root}/{vector.uri}: has {len(dead)} dead rows instead of {vector.row_count}")
    return dead


def _moves_rows(before: _Slices, now: _Slices) -> bool:
    """Return whether a file that is only in one of two states has rows that may be in another file of the other.

    Rows are carried over into newer files; after a rollback, those are the ones that were there before.
    """
    return any(file.carried_rows != 0 for uri in before.keys() ^ now.keys() for file in before.get(uri) or now[uri])


def _by_data_file(buckets: Iterable[Bucket]) -> _Slices:
    slices: _Slices = {}
    for bucket in buckets:
        for file in bucket.files:
            slices.setdefault(file.uri, []).append(file)
    return slices
