"""How rounds merge tables of any kind: the one place that knows which kinds there are."""

from collections.abc import Iterator, Sequence
from typing import Any

from siltstone.documents.compact import resolve_documents
from siltstone.errors import InvalidInputError
from siltstone.model.properties import DOCUMENTS_KIND, ROWS_KIND
from siltstone.rows import merge
from siltstone.rows.job import RoundJob

_RESOLVERS: dict[str, merge.Resolve] = {ROWS_KIND: merge.resolve, DOCUMENTS_KIND: resolve_documents}


def resolver_of(job: RoundJob) -> merge.Resolve:
    """Return what finds out the changes of a bucket. Raises: InvalidInputError where the kind is not known."""
    found = _RESOLVERS.get(job.kind)
    if found is None:
        raise InvalidInputError(f"{job.table}: is a table of {job.kind!r}; this version knows {', '.join(_RESOLVERS)}")
    return found


def merge_any(job: RoundJob, number: int, parts: Sequence[bytes]) -> dict[str, Any] | None:
    """Absorb a bucket's parts of deltas, by the rules of the table's kind."""
    return merge.merge_bucket(job, number, parts, resolver_of(job))


def run_here(job: RoundJob) -> Iterator[dict[str, Any]]:
    """Run all tasks of a round in this process, one after another, by the rules of the table's kind."""
    return merge.run_here(job, merge_any)
