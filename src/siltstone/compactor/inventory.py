"""What a round's state consists of in the store, and whether all of it is there."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from siltstone.compactor.completion import Destination, current_completion, current_entry
from siltstone.errors import CorruptionError
from siltstone.model.rounds import Bucket, RoundCompletion
from siltstone.objects import open_objects
from siltstone.rows.index import index_bytes


class NamedObject(NamedTuple):
    """An object that a round completion file names, and how large it must be."""

    uri: str
    size: int
    kind: str


def named_objects(buckets: Iterable[Bucket]) -> Iterator[NamedObject]:
    """Yield everything that buckets name."""
    for bucket in buckets:
        if bucket.tombstones is not None:
            yield NamedObject(bucket.tombstones.uri, bucket.tombstones.content_length, "tombstone file")
        for file in bucket.files:
            yield NamedObject(file.uri, file.content_length, "data file")
            if file.index_uri is not None:
                yield NamedObject(file.index_uri, index_bytes(file.record_count), "primary key index")
            if file.deletion_vector is not None:
                yield NamedObject(file.deletion_vector.uri, file.deletion_vector.content_length, "deletion vector")


def bucket_objects(buckets: Iterable[Bucket]) -> list[str]:
    """Return the paths of everything that buckets name."""
    return [each.uri for each in named_objects(buckets)]


def find_problems(destination: Destination, buckets: Iterable[Bucket]) -> list[tuple[NamedObject, str]]:
    """Return the objects that are missing or have another size, each with what is wrong; one listing tells them all."""
    listed = open_objects(destination.root).list_objects(destination.folder)
    sizes = {each.path: each.size for each in listed}
    problems = []
    for each in named_objects(buckets):
        found = sizes.get(each.uri)
        if found is None:
            problems.append((each, f"the {each.kind} is missing"))
        elif found != each.size:
            problems.append((each, f"the {each.kind} is damaged: it has {found} bytes instead of {each.size}"))
    return problems


def whole_completion(destination: Destination) -> RoundCompletion | None:
    """Return the completion of the current round, None before the first, if everything that it names is there.

    Raises: CorruptionError that names what is missing or has another size.
    """
    while True:
        entry = current_entry(destination)
        try:
            completion = current_completion(destination)
            if completion is not None:
                _refuse_problems(destination, completion)
        except CorruptionError:
            # Another round may have been committed, and this one vacuumed, between two looks.
            if current_entry(destination) != entry:
                continue
            raise
        return completion


def _refuse_problems(destination: Destination, completion: RoundCompletion) -> None:
    problems = find_problems(destination, completion.buckets)
    if problems:
        first, problem = problems[0]
        others = f" ({len(problems) - 1} more objects of round {completion.round_id} are missing or damaged)"
        raise CorruptionError(
            f"{destination.root}/{first.uri}: {problem}; restore it from a copy, or rebase the partition"
            f"{others if len(problems) > 1 else ''}"
        )
