"""What a round asks of a real S3 server, counted by a proxy, is what the formula in docs/scale.md says."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone.model.buckets import Buckets, CompactedFile
from siltstone.rounds.request import Request as CompactionRequest
from siltstone.rounds.session import run_session
from siltstone.rows.columns import hash_keys
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.table.completion import compacted_partition, current_completion, locate_compacted, source_partitions
from siltstone.testing.oracle import oracle_of, same_rows
from tests.integration.s3_proxy import Proxy, proxy_to

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs/scale.md"


@pytest.fixture
def proxy(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxy_to(s3_endpoint) as started:
        monkeypatch.setenv("AWS_ENDPOINT_URL", started.url)
        yield started


def compact(table: siltstone.Table, page_buckets: int, stretch_buckets: int) -> None:
    root = table.lake.root
    (source,) = source_partitions(table.name, root=root)
    settings = Settings(
        bucket_rows=40,
        max_dead_fraction=1.0,
        max_delta_fraction=9.0,
        page_buckets=page_buckets,
        stretch_buckets=stretch_buckets,
    )
    run_session(CompactionRequest(source, compacted_partition(source), ("id",), root, settings=settings), run_here)


def formula(kind: str, **values: int) -> int:
    """Evaluate a line of the page, such as `GET = 14 + d + p`."""
    (line,) = re.findall(rf"^{kind} += ([0-9a-z+* ]+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return int(eval(line, {}, values))


@pytest.mark.parametrize(
    ("changed", "deltas", "page_buckets", "stretch_buckets"),
    [
        ([7], 1, 128, 128),
        (list(range(5)), 1, 128, 128),
        (list(range(5)), 3, 4, 128),
        (list(range(5)), 1, 4, 1),
        (list(range(400)), 1, 4, 128),
        (list(range(400)), 7, 4, 3),
    ],
    ids=lambda value: str(len(value) if isinstance(value, list) else value),
)
def test_a_minor_round_asks_for_what_it_touches(
    proxy: Proxy,
    new_root: Callable[[str], str],
    changed: list[int],
    deltas: int,
    page_buckets: int,
    stretch_buckets: int,
) -> None:
    table = siltstone.open(new_root("s3")).create_table(
        "shop.orders", schema={"id": "int64", "v": "string"}, primary_keys=["id"]
    )
    for value, numbers in (("a", range(400)), ("b", range(390)), ("c", range(3, 50))):
        table.write(pa.table({"id": numbers, "v": [value] * len(numbers)}))
        compact(table, page_buckets, stretch_buckets)
    rows = pa.table({"id": changed, "v": ["d"] * len(changed)})
    for number in range(deltas):
        table.write(rows.take(list(range(number, len(changed), deltas))))
    before = state_of(table)
    proxy.requests.clear()
    compact(table, page_buckets, stretch_buckets)
    counted = Counter(request.method for request in proxy.requests)
    same_rows(table.to_arrow(), oracle_of(table).rows())
    touched = sorted({before.number_of(int(hash_)) for hash_ in hash_keys(rows, ["id"])})
    stretches = [touched[first : first + stretch_buckets] for first in range(0, len(touched), stretch_buckets)]
    files = [[file for number in stretch for file in before[number].files] for stretch in stretches]
    pages = Counter(number // page_buckets for number in touched) if before.pages else Counter[int]()
    values = {
        "d": deltas,
        "s": len(stretches),
        "f": sum(len({file.uri for file in own}) for own in files),
        "w": sum(len(vectors(own)) for own in files),
        "v": len(vectors(all_files(state_of(table))) - vectors(all_files(before))),
        "p": len(pages),
        "q": sum(count < page_buckets for count in pages.values()),
    }  # fmt: skip
    assert values["w"] or len(changed) > 100
    assert dict(counted) == {kind: formula(kind, **values) for kind in ("GET", "HEAD", "PUT")}


def state_of(table: siltstone.Table) -> Buckets:
    (source,) = source_partitions(table.name, root=table.lake.root)
    completion = current_completion(locate_compacted(source, root=table.lake.root))
    assert completion is not None
    return completion.buckets


def vectors(files: list[CompactedFile]) -> set[str]:
    """Return the objects that have the deletion vectors of files."""
    return {file.deletion_vector.uri for file in files if file.deletion_vector}


def all_files(buckets: Buckets) -> list[CompactedFile]:
    return [file for bucket in buckets for file in bucket.files]
