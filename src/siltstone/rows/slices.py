"""Slices of data files that several buckets share: what is whose, and all slices of a file read as one."""

import itertools
from collections.abc import Iterable, Sequence

from siltstone.model.buckets import Bucket, CompactedFile
from siltstone.rows.files import SharedObjects, StoredFile


class StretchFiles:
    """The data files of neighbouring buckets, each once, with which of its slices is which file of which bucket."""

    def __init__(self, root: str, buckets: Sequence[Bucket]) -> None:
        self._root = root
        self._buckets = buckets
        self._shared = SharedObjects(root)
        places: dict[str, list[tuple[CompactedFile, int, int]]] = {}
        for place, bucket in enumerate(buckets):
            for position, file in enumerate(bucket.files):
                places.setdefault(file["uri"], []).append((file, place, position))
        self.whole: list[StoredFile] = []
        self.owners: list[list[tuple[int, int]]] = []
        for slices in places.values():
            if len(slices) > 1:
                slices.sort(key=lambda each: each[0].first_row)
            self.whole.append(StoredFile.together(root, [file for file, _, _ in slices], shared=self._shared))
            self.owners.append([(place, position) for _, place, position in slices])

    def of(self, place: int) -> list[StoredFile]:
        """Return the files of a bucket, or its slices of them."""
        return [StoredFile(self._root, file, shared=self._shared) for file in self._buckets[place].files]


def by_data_file(files: Iterable[CompactedFile]) -> list[tuple[CompactedFile, ...]]:
    """Return files, and slices of files: those of one data file together, in the order in which these come first."""
    together: dict[str, list[CompactedFile]] = {}
    for file in files:
        together.setdefault(file.uri, []).append(file)
    return [tuple(slices) for slices in together.values()]


def slices_of(
    files: Sequence[CompactedFile], counts: Sequence[int], carried: Sequence[int] | None = None
) -> list[list[CompactedFile]]:
    """Return which slices of files, one after another, have so many rows each; one that is a whole file is that file.

    Where it is known how many rows, the first ones of each, were `carried` over, slices say how many of theirs.
    """
    slices: list[list[CompactedFile]] = [[] for _ in counts]
    ends = list(itertools.accumulate(counts))
    place = start = 0
    for file in files:
        stop = start + file.record_count
        while place < len(counts) and ends[place] - counts[place] < stop:
            begin = ends[place] - counts[place]
            first, last = max(begin, start), min(ends[place], stop)
            if last > first:
                known = None if carried is None else min(max(begin + carried[place] - first, 0), last - first)
                slices[place].append(_slice_of(file, first - start, last - start, known))
            if ends[place] > stop:
                break
            place += 1
        start = stop
    return slices


def _slice_of(file: CompactedFile, first: int, last: int, carried: int | None) -> CompactedFile:
    rows, size = file.record_count, file.content_length
    if last - first == rows:
        return file.replaced(carried_rows=carried)
    return file.replaced(
        first_row=first,
        record_count=last - first,
        # So that the shares of all slices add up.
        content_length=last * size // rows - first * size // rows,
        file_rows=rows,
        file_length=size,
        carried_rows=carried,
    )
