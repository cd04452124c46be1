"""How many requests an operation may make of the store: each one takes a while on S3, and costs.

`python -m tests.contract.test_request_budgets` counts them and prints a table.
"""

import contextlib
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import siltstone
from siltstone.cli.main import app
from siltstone.errors import NotFoundError
from siltstone.objects import open_objects, replaced
from siltstone.testing.faults import FaultyObjects, faults

T = TypeVar("T")


class Requests(NamedTuple):
    """How many requests there are of each kind."""

    # Whether there is a newer batch, or an object: there is none.
    probes: int = 0
    # The beginning of an earlier batch: whether a log was cleaned up meanwhile.
    anchors: int = 0
    # Completion files of rounds.
    completions: int = 0
    listings: int = 0
    # All other reads: batches of logs, data files, indices.
    gets: int = 0
    puts: int = 0


class Budget(NamedTuple):
    """The most requests in a process that has just started, and in one that knows the logs from the call before."""

    new_process: Requests
    same_process: Requests


# What it takes now, by operation and partitions; less is always welcome, and then this should say so.
BUDGETS: dict[tuple[str, int], Budget] = {
    ("read", 1): Budget(Requests(2, 2, 1, 6, 6, 0), Requests(3, 3, 1, 0, 1, 0)),
    ("fresh read", 1): Budget(Requests(2, 2, 1, 6, 8, 0), Requests(3, 3, 1, 0, 3, 0)),
    ("lookup", 1): Budget(Requests(2, 2, 1, 6, 7, 0), Requests(3, 3, 1, 0, 2, 0)),
    ("explain-key", 1): Budget(Requests(3, 3, 1, 6, 9, 0), Requests(4, 4, 1, 0, 4, 0)),
    ("siltstone read", 1): Budget(Requests(2, 2, 1, 6, 6, 0), Requests(3, 3, 1, 0, 1, 0)),
    ("siltstone plan", 1): Budget(Requests(5, 5, 1, 6, 8, 0), Requests(6, 6, 1, 0, 3, 0)),
    ("write", 1): Budget(Requests(2, 3, 0, 4, 4, 2), Requests(2, 3, 0, 0, 0, 2)),
    ("compact", 1): Budget(Requests(6, 7, 1, 6, 13, 5), Requests(7, 8, 1, 0, 6, 4)),
    ("document get", 1): Budget(Requests(2, 2, 1, 6, 9, 0), Requests(3, 3, 1, 0, 2, 0)),
    ("document update", 1): Budget(Requests(4, 5, 0, 4, 5, 2), Requests(4, 5, 0, 0, 0, 2)),
    ("read", 10): Budget(Requests(2, 2, 10, 24, 24, 0), Requests(12, 12, 10, 0, 10, 0)),
    ("fresh read", 10): Budget(Requests(2, 2, 10, 24, 26, 0), Requests(12, 12, 10, 0, 12, 0)),
    ("lookup", 10): Budget(Requests(2, 2, 1, 24, 16, 0), Requests(12, 12, 1, 0, 2, 0)),
    ("explain-key", 10): Budget(Requests(3, 3, 1, 6, 9, 0), Requests(4, 4, 1, 0, 4, 0)),
    ("siltstone read", 10): Budget(Requests(2, 2, 10, 24, 24, 0), Requests(12, 12, 10, 0, 10, 0)),
    ("siltstone plan", 10): Budget(Requests(14, 14, 10, 24, 17, 0), Requests(24, 24, 10, 0, 3, 0)),
    ("write", 10): Budget(Requests(2, 3, 0, 4, 4, 2), Requests(2, 3, 0, 0, 0, 2)),
    ("compact", 10): Budget(Requests(15, 16, 10, 24, 22, 5), Requests(25, 26, 10, 0, 6, 4)),
    ("overview", 100): Budget(Requests(0, 0, 100, 402, 301, 0), Requests(201, 201, 100, 0, 0, 0)),
}
PAGE = Path(__file__).parents[2] / "docs/requests.md"
TABLES = 100
COLUMNS = {"region": "string", "id": "int64", "v": "string"}


class CountingObjects(FaultyObjects):
    """A store that keeps what kind of request each call was."""

    def __init__(self, root: str) -> None:
        super().__init__(open_objects(root))
        self._kinds: list[str] = []

    def _call(self, name: str, path: str, do: Callable[[], T]) -> T:
        # A writer sends what it has when it is closed. Opening a reader brings the end of the object, which is all of
        # these small ones.
        if name in ("open writer", "read range"):
            return do()
        kind = _kind_of(name, path)
        try:
            result = do()
        except NotFoundError:
            self._kinds.append("probes")
            raise
        self._kinds.append("probes" if result is None and name == "info" else kind)
        return result

    def take(self) -> Requests:
        """Return the requests since the last time."""
        kinds, self._kinds = Counter(self._kinds), []
        return Requests(**kinds)


def _kind_of(name: str, path: str) -> str:
    if name in ("create", "replace", "delete", "close"):
        return "puts"
    if name in ("list", "list folders"):
        return "listings"
    if name == "read start":
        return "anchors"
    return "completions" if "/rounds/" in path else "gets"


@contextlib.contextmanager
def counted(root: str) -> Iterator[CountingObjects]:
    """Count the requests to a root; at first, no state of its logs is known, as in a process that has just started."""
    with faults(root), replaced(root, store := CountingObjects(root)):
        yield store


def count(root: str, operation: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> Budget:
    """Count the requests of an operation, and of the same one again after something else was done."""
    with counted(root) as store:
        operation()
        first = store.take()
        prepare()
        store.take()
        operation()
        return Budget(first, store.take())


def compact(table: siltstone.Table) -> None:
    """Compact in this process."""
    table.compact(engine="local")


def run(root: str, *args: str) -> None:
    result = CliRunner(env={"SILTSTONE_ROOT": root}).invoke(app, [*args, "--json"])
    assert result.exit_code == 0, result.output


def rows_of(partitions: int, ids: range) -> pa.Table:
    return pa.table({"region": [f"r{number % partitions}" for number in ids], "id": list(ids), "v": ["x" for _ in ids]})


def new_root() -> str:
    # In memory, since files on a disk are read past the store.
    return f"memory://{uuid.uuid4().hex}"


def count_all(partitions: int) -> dict[str, Budget]:
    """Count the requests of each operation on a compacted table to which a row was written since."""
    root = new_root()
    created = siltstone.open(root).create_table(
        "shop.orders",
        schema=COLUMNS,
        primary_keys=["region", "id"],
        partition_keys=["region"] if partitions > 1 else [],
    )
    created.write(rows_of(partitions, range(20 * partitions)))
    compact(created)

    def table() -> siltstone.Table:
        return siltstone.open(root).table("shop.orders")

    def write() -> None:
        table().write(rows_of(partitions, range(1)))

    write()
    key = {"region": "r0", "id": 0}
    return {
        "read": count(root, lambda: table().to_arrow()),
        "fresh read": count(root, lambda: table().to_arrow(include_uncompacted=True)),
        "lookup": count(root, lambda: table().lookup(key)),
        "explain-key": count(root, lambda: table().explain_key(key)),
        "siltstone read": count(root, lambda: run(root, "read", "shop.orders")),
        "siltstone plan": count(root, lambda: run(root, "plan", "shop.orders")),
        "write": count(root, write),
        "compact": count(root, lambda: compact(table()), prepare=write),
    }


def count_documents() -> dict[str, Budget]:
    """Count the requests of operations on a compacted document that was updated since."""
    root = new_root()
    created = siltstone.open(root).create_document_table("shop.reviews")
    created.update("r1", {"stars": 4})
    created.compact(engine="local")

    def documents() -> siltstone.DocumentTable:
        return siltstone.open(root).document_table("shop.reviews")

    def update() -> None:
        documents().update("r1", '{..,"stars":5}')

    update()
    return {
        "document get": count(root, lambda: documents().get("r1")),
        "document update": count(root, update),
    }


def count_overview() -> Budget:
    """Count the requests of what the service shows of a hundred compacted tables."""
    root = new_root()
    lake = siltstone.open(root)
    for number in range(TABLES):
        table = lake.create_table(f"shop.t{number}", schema=COLUMNS, primary_keys=["id"])
        table.write(rows_of(1, range(1)))
        compact(table)
    return count(root, lambda: siltstone.open(root).report())


def check(found: Mapping[tuple[str, int], Budget]) -> None:
    """Fail if an operation took more than its budget."""
    over = [
        f"{name}, {size}, {state.replace('_', ' ')}: {kind} {actual}, budget {allowed}"
        for (name, size), budget in found.items()
        for state in Budget._fields
        for kind, actual, allowed in zip(
            Requests._fields, getattr(budget, state), getattr(BUDGETS[name, size], state), strict=True
        )
        if actual > allowed
    ]
    assert not over, "\n".join(over)


@pytest.mark.parametrize("partitions", [1, 10])
def test_no_operation_makes_more_requests_than_its_budget(partitions: int) -> None:
    counted_here = count_all(partitions) | (count_documents() if partitions == 1 else {})
    found = {(name, partitions): budget for name, budget in counted_here.items()}
    assert found.keys() == {key for key in BUDGETS if key[1] == partitions}
    check(found)


def test_an_overview_of_many_tables_makes_no_more_requests_than_its_budget() -> None:
    check({("overview", TABLES): count_overview()})


def test_a_check_does_not_ask_more_often_for_what_is_new_where_there_are_more_rounds() -> None:
    table = siltstone.open(new_root()).create_table("shop.orders", schema=COLUMNS, primary_keys=["id"])
    probes = []
    for rounds in (2, 6):
        for number in range(rounds):
            table.write(rows_of(1, range(number, number + 1)))
            compact(table)
        probes.append(count(table.lake.root, table.fsck).same_process.probes)
    assert probes[0] == probes[1]


def test_every_request_is_counted_by_its_kind() -> None:
    root = new_root()
    with counted(root) as store:
        store.create("t/log/0", b"x")
        with store.open_writer("t/data") as file:
            file.write(b"x")
        assert store.take() == Requests(puts=2)
        assert store.read("t/log/0") == store.open_reader("t/data").read() == b"x"
        assert store.take() == Requests(gets=2)
        with pytest.raises(NotFoundError):
            store.read("t/log/1")
        assert store.info("t/log/1") is None
        assert store.take() == Requests(probes=2)
        store.read_start("t/log/0", 10)
        assert store.take() == Requests(anchors=1)
        store.replace("t/rounds/1-a.json", b"{}")
        store.read("t/rounds/1-a.json")
        assert len(store.list_objects("t/log")) == 1
        assert store.take() == Requests(completions=1, listings=1, puts=1)


def table_of(counts: Mapping[tuple[str, int], Budget]) -> str:
    """Return a Markdown table: a process that has just started / one that knows the logs."""
    lines = [
        f"| operation | partitions or tables | {' | '.join(Requests._fields)} |",
        f"|---|--:|{'--:|' * len(Requests._fields)}",
    ]
    for (name, size), budget in counts.items():
        cells = (f"{new} / {same}" for new, same in zip(*budget, strict=True))
        lines.append(f"| {name} | {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_page_of_requests_has_the_budgets() -> None:
    assert table_of(BUDGETS) in PAGE.read_text()


def main() -> None:
    """Print a table of what was counted."""
    counts = {(name, size): budget for size in (1, 10) for name, budget in count_all(size).items()}
    counts |= {(name, 1): budget for name, budget in count_documents().items()}
    counts["overview", TABLES] = count_overview()
    print(table_of(counts))


if __name__ == "__main__":
    main()
