"""A fault at any storage call of a round leaves the previous state or the next one, and the next session completes."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import SiltstoneError
from siltstone.objects import open_objects
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.table.completion import current_completion, get_round, list_rounds
from siltstone.testing import FaultKind, Killed, faults
from siltstone.testing.faults import FAULT_KINDS
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import (
    MAJOR,
    MINOR,
    check_rows,
    compact,
    compacted,
    completion_of,
    destination_of,
    found_rows,
    objects_below,
    objects_of,
    only_partition,
    request_for,
)

# Two buckets, so that a fault can come between them.
FEW_ROWS = 9
MINOR_ROUND = replace(MINOR, bucket_rows=FEW_ROWS, page_buckets=1)
MAJOR_ROUND = replace(MAJOR, bucket_rows=FEW_ROWS, page_buckets=1)
NEWEST = 6
Rows = list[dict[str, Any]]


def build(root: str, *, is_compacted: bool = True) -> siltstone.Table:
    """Make a table that has been compacted with deletion vectors and tombstones, and has changes of every kind since."""
    table = siltstone.open(root).create_table(
        "shop.orders", schema={"id": "int64", "at": "int64", "v": "string"}, primary_keys=["id"], sort_keys=["at"]
    )

    def write(ids: range, at: int, operation: str = "u") -> None:
        data = {"id": list(ids), "at": [at] * len(ids), "v": [f"{number}-{at}" for number in ids]}
        table.write(pa.table({**data, "op": [operation] * len(ids)}), op_column="op")

    write(range(16), 1)
    if is_compacted:
        compact(table, MINOR_ROUND)
    write(range(6, 9), 5, "d")
    write(range(4), 2)
    if is_compacted:
        compact(table, MINOR_ROUND)
        completion = completion_of(table)
        assert len(completion.buckets) == 2
        assert any(file.deletion_vector for file in completion.files)
        assert all(bucket.tombstones for bucket in completion.buckets)
    write(range(2, 12), 4)
    table.write(pa.table({"id": [0, 13]}), "delete")
    write(range(20, 24), 4)
    assert len(table.deltas()) == NEWEST
    return table


@dataclass(frozen=True)
class Operation:
    """Something that changes a compacted partition: what does it, and up to where the partition is compacted then."""

    name: str
    prepare: Callable[[siltstone.Table], Callable[[], object]]
    after: int
    before: int | None = 3

    def run(self, table: siltstone.Table) -> None:
        """Do it."""
        self.prepare(table)()

    def __str__(self) -> str:
        return self.name


def session(table: siltstone.Table, settings: Settings = MINOR_ROUND, **more: Any) -> Callable[[], object]:
    request = request_for(table, settings, **more)
    return lambda: run_session(request, run_here)


def rebase_from_itself(table: siltstone.Table) -> Callable[[], object]:
    return session(table, source=compacted(table), rebase_source=only_partition(table), rebase_high_watermark=3)


OPERATIONS = (
    Operation("minor", session, NEWEST),
    Operation("minor by bucket", lambda table: session(table, replace(MINOR_ROUND, stretch_buckets=1)), NEWEST),
    Operation("major with split", lambda table: session(table, replace(MAJOR, bucket_rows=2)), NEWEST),
    Operation("initial", session, NEWEST, before=None),
    Operation("rebase", lambda table: session(table, rebase_source=only_partition(table)), NEWEST),
    Operation("rebase from itself", rebase_from_itself, NEWEST),
    Operation("rollback", lambda table: lambda: table.rollback(1), 1),
    Operation("vacuum", lambda table: lambda: table.vacuum(retention_ms=0, orphan_grace_ms=0), 3),
)


class Template:
    """That table, to be copied into new roots: all paths are relative. What its rows should be is known too."""

    def __init__(self, folder: str, *, is_compacted: bool) -> None:
        table = build(folder, is_compacted=is_compacted)
        self._objects = open_objects(table.lake.root)
        self._folder = folder
        self.rows: dict[int, Rows] = {upto: oracle_of(table, upto).rows() for upto in range(NEWEST + 1)}

    def copy_to(self, root: str) -> siltstone.Table:
        """Make the table in a new root."""
        if "://" not in root:
            shutil.copytree(self._folder, root)
        else:
            for object_ in self._objects.list_objects("", recursive=True):
                open_objects(root).create(object_.path, self._objects.read(object_.path))
        return siltstone.open(root).table("shop.orders")


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Template]:
    """The table as compacted, and as it was before."""
    return {each: Template(str(tmp_path_factory.mktemp("template")), is_compacted=each) for each in (True, False)}


def attempt(table: siltstone.Table, operation: Operation, *, at_call: int, kind: FaultKind) -> str:
    """Do it with a fault; tell how it ended."""
    act = operation.prepare(table)
    with faults(table.lake.root, at_call=at_call, kind=kind):
        try:
            act()
        except Killed:
            return "killed"
        except SiltstoneError:
            return "failed"
        return "done"


def check_nothing_is_left_over(table: siltstone.Table) -> None:
    """Check that a vacuum leaves exactly what readable states and deltas name, by a full listing."""
    report = table.vacuum(orphan_grace_ms=0)
    destination = destination_of(table)
    named = {entry.uri for delta in table.deltas() for entry in delta.manifest.entries}
    for entry in list_rounds(destination):
        named |= {entry["uri"], *objects_of(get_round(destination, int(entry["round_id"])))}
    found = [path for path in objects_below(table.lake.root) if path.startswith("tables/")]
    assert sorted(named) == found
    assert not named & set(report.removed_files)


def check_state(table: siltstone.Table, operation: Operation, rows: dict[int, Rows], outcome: str) -> int | None:
    """Check that what is there after a fault is the state before or after, whole; return up to where it is compacted."""
    found = current_completion(destination_of(table))
    watermark = None if found is None else found.high_watermark
    assert watermark in (operation.before, operation.after)
    assert outcome != "done" or watermark == operation.after, "it was reported done and is not there"
    if watermark is not None:
        same_rows(found_rows(table), rows[watermark])
    return watermark


def check_recovery(table: siltstone.Table, operation: Operation, rows: dict[int, Rows]) -> None:
    """Check that the operation can be repeated, that rounds go on from there, and that only orphans are left over."""
    if current_completion(destination_of(table)) is not None:
        assert table.fsck(deep=True) == []
    operation.run(table)
    same_rows(found_rows(table), rows[operation.after])
    compact(table, MINOR_ROUND)
    same_rows(found_rows(table), rows[NEWEST])
    same_rows(table.to_arrow(as_of=2), rows[2])
    assert table.fsck(deep=True) == []
    check_nothing_is_left_over(table)


def shape(root: str) -> tuple[tuple[str, int], ...]:
    """Tell how many objects of each kind are where; names are random, so this is what two runs can have in common."""
    objects = open_objects(root).list_objects("", recursive=True)
    kinds = Counter(
        "/".join([*object_.path.split("/")[5:-1], object_.path.rpartition(".")[2][-9:]]) for object_ in objects
    )
    return tuple(sorted(kinds.items()))


def is_write(call: str) -> bool:
    """Tell whether a call can change what is stored; all others only read."""
    return call.startswith(("create", "replace", "open writer", "close", "delete"))


def kind_of(call: str) -> str:
    """Return what is done to which kind of object: names are random, and numbers differ."""
    what, _, path = call.rpartition(" ")
    folder, _, name = path.rpartition("/")
    return f"{what} {folder.rpartition('/')[2]} {name.rpartition('.')[2] if '.' in name else ''}"


def check_every_call(
    make: Callable[[], siltstone.Table],
    operation: Operation,
    rows: dict[int, Rows],
    kinds: Sequence[FaultKind],
) -> None:
    """Do it once for each call and kind of fault, with that fault at that call.

    A call that only reads can fail; that its answer is lost is the same, and who dies there leaves what was written
    before, as who dies after the last write. Of reads of one kind of object between two writes, the first one fails. Where
    the store looks as after a fault that was recovered from already, recovery is not repeated.
    """
    table = make()
    act = operation.prepare(table)
    with faults(table.lake.root) as store:
        act()
    same_rows(found_rows(table), rows[operation.after])
    assert operation.name != "major with split" or len(completion_of(table).buckets) > 2
    assert sum(map(is_write, store.history)) >= 2, "it must go through the store that counts"
    outcomes = set()
    recovered = set()
    failed: set[str] = set()
    for at_call, call in enumerate(store.history, 1):
        if is_write(call):
            failed.clear()
        elif kind_of(call) in failed:
            continue
        failed.add(kind_of(call))
        for kind in kinds if is_write(call) else [kind for kind in kinds if kind == "fail"]:
            table = make()
            outcome = attempt(table, operation, at_call=at_call, kind=kind)
            outcomes.add(outcome)
            try:
                watermark = check_state(table, operation, rows, outcome)
                seen = (outcome, watermark, shape(table.lake.root))
                if seen not in recovered:
                    check_recovery(table, operation, rows)
                recovered.add(seen)
            except (AssertionError, SiltstoneError) as error:
                error.add_note(f"after {kind} at call {at_call}, {call}, which {outcome}")
                raise
    assert outcomes >= {"killed"}
    assert outcomes >= {"failed"} or "fail" not in kinds


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_a_fault_at_any_call_leaves_the_state_before_or_after(
    operation: Operation, new_root: Callable[[str], str], templates: dict[bool, Template]
) -> None:
    template = templates[operation.before is not None]
    check_every_call(lambda: template.copy_to(new_root("memory")), operation, template.rows, FAULT_KINDS)


@pytest.mark.parametrize(
    "operation",
    [each for each in OPERATIONS if each.name in ("minor", "major with split", "rollback", "vacuum")],
    ids=str,
)
def test_dying_at_any_write_on_local_disk_leaves_the_state_before_or_after(
    operation: Operation, new_root: Callable[[str], str], templates: dict[bool, Template]
) -> None:
    template = templates[operation.before is not None]
    check_every_call(lambda: template.copy_to(new_root("local")), operation, template.rows, ["kill"])


@pytest.mark.parametrize("kind", ["lose", "kill_after"])
def test_a_fault_while_a_round_is_committed_on_s3_leaves_the_state_before_or_after(
    kind: FaultKind, new_root: Callable[[str], str], templates: dict[bool, Template]
) -> None:
    minor = OPERATIONS[0]
    table = templates[True].copy_to(new_root("s3"))
    act = minor.prepare(table)
    with faults(table.lake.root) as store:
        act()
    creates = [number for number, call in enumerate(store.history, 1) if call.startswith("create")]
    assert len(creates) == 4, "two pages, the completion file, and the commit"
    recovered = set()
    for at_call in creates:
        table = templates[True].copy_to(new_root("s3"))
        outcome = attempt(table, minor, at_call=at_call, kind=kind)
        seen = outcome, check_state(table, minor, templates[True].rows, outcome)
        if seen not in recovered:
            check_recovery(table, minor, templates[True].rows)
        recovered.add(seen)


@pytest.mark.parametrize("kind", ["lose", "kill"])
def test_a_fault_at_any_write_of_a_session_of_several_rounds_leaves_a_whole_number_of_them(
    kind: FaultKind, new_root: Callable[[str], str], templates: dict[bool, Template]
) -> None:
    operation = Operation("session", lambda table: session(table, max_round_bytes=1), NEWEST)
    template = templates[True]
    table = template.copy_to(new_root("memory"))
    act = operation.prepare(table)
    with faults(table.lake.root) as store:
        act()
    seen = set()
    for at_call in [number for number, call in enumerate(store.history, 1) if is_write(call)]:
        table = template.copy_to(new_root("memory"))
        outcome = attempt(table, operation, at_call=at_call, kind=kind)
        watermark = completion_of(table).high_watermark
        seen.add(watermark)
        assert outcome != "done" or watermark == NEWEST
        same_rows(found_rows(table), template.rows[watermark])
        operation.run(table)
        same_rows(found_rows(table), template.rows[NEWEST])
        rounds = [int(entry["round_id"]) for entry in list_rounds(destination_of(table))]
        assert rounds == [*range(1, 6)]
    assert seen >= {3, 4, 5, 6} - ({6} if kind == "kill" else set())


def test_rounds_conform_on_every_store(root: str) -> None:
    table = build(root)
    for settings in (MINOR_ROUND, MAJOR_ROUND):
        compact(table, settings, max_round_bytes=1)
        same_rows(found_rows(table), oracle_of(table).rows())
        table.write(pa.table({"id": [7, 30], "at": [9, 9], "v": ["x", "y"]}))
    compact(table, rebase_source=only_partition(table))
    check_rows(table)
