"""A fault at any storage call of a round leaves the previous state or the next one, and the next session completes."""

import shutil
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

import siltstone
from siltstone.compactor.completion import current_completion, list_rounds
from siltstone.compactor.job import Settings
from siltstone.errors import SiltstoneError
from siltstone.objects import open_objects
from siltstone.testing import FaultKind, Killed
from siltstone.testing.faults import FAULT_KINDS
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.compactor.compacting import (
    MAJOR,
    MINOR,
    check_rows,
    compact,
    completion_of,
    destination_of,
    found_rows,
    only_partition,
    round_faults,
)

# Two buckets, so that a fault can come between them.
SETTINGS = {"minor": replace(MINOR, bucket_rows=12), "major": replace(MAJOR, bucket_rows=12)}


def build(root: str) -> siltstone.Table:
    """Make a table that has been compacted with deletion vectors and tombstones, and has changes of every kind since."""
    table = siltstone.open(root).create_table(
        "shop.orders", schema={"id": "int64", "at": "int64", "v": "string"}, primary_keys=["id"], sort_keys=["at"]
    )

    def write(ids: range, at: int, operation: str = "u") -> None:
        data = {"id": list(ids), "at": [at] * len(ids), "v": [f"{number}-{at}" for number in ids]}
        table.write(pa.table({**data, "op": [operation] * len(ids)}), op_column="op")

    write(range(16), 1)
    compact(table, SETTINGS["minor"])
    write(range(6, 9), 5, "d")
    write(range(4), 2)
    compact(table, SETTINGS["minor"])
    completion = completion_of(table)
    assert len(completion.buckets) == 2
    assert any(file.deletion_vector for file in completion.files)
    assert all(bucket.tombstones for bucket in completion.buckets)
    write(range(2, 12), 4)
    table.write(pa.table({"id": [0, 13]}), "delete")
    write(range(20, 24), 4)
    return table


@pytest.fixture(scope="module")
def make_table(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], siltstone.Table]:
    """Make that table in a new root: all paths are relative, so a copy will do."""
    template = tmp_path_factory.mktemp("template")
    build(str(template))

    def make(root: str) -> siltstone.Table:
        if "://" not in root:
            shutil.copytree(template, root)
        else:
            for path in template.rglob("*"):
                if path.is_file():
                    open_objects(root).create(str(path.relative_to(template)), path.read_bytes())
        return siltstone.open(root).table("shop.orders")

    return make


def attempt(table: siltstone.Table, call: Callable[[], object], *, at_call: int, kind: FaultKind) -> str:
    """Make the call with a fault; tell how it ended."""
    with round_faults(table.lake.root, at_call=at_call, kind=kind):
        try:
            call()
        except Killed:
            return "killed"
        except SiltstoneError:
            return "failed"
        return "done"


def count_calls(table: siltstone.Table, call: Callable[[], object]) -> int:
    with round_faults(table.lake.root) as store:
        call()
    return store.calls


def check_previous_or_next(table: siltstone.Table, outcome: str, where: str) -> None:
    """Check that what can be read is the state before or after, and after where success was reported."""
    watermark = completion_of(table).high_watermark
    assert watermark in (3, 6), where
    assert outcome != "done" or watermark == 6, f"{where} was reported done and is not there"
    check_rows(table, watermark)


def check_calls(
    make: Callable[[], siltstone.Table], action: str, kind: FaultKind, is_chosen: Callable[[int, str], bool]
) -> None:
    """Run a round once for each chosen call, with a fault at that one."""
    settings = SETTINGS[action]
    table = make()
    with round_faults(table.lake.root) as store:
        compact(table, settings)
    assert set(completion_of(table).bucket_actions) == {action}
    chosen = [number for number, call in enumerate(store.history, 1) if is_chosen(number, call)]
    assert chosen, "the round must go through the store that counts"
    outcomes = set()
    for at_call in chosen:
        table = make()
        outcome = attempt(table, lambda: compact(table, settings), at_call=at_call, kind=kind)  # noqa: B023
        outcomes.add(outcome)
        check_previous_or_next(table, outcome, f"call {at_call}: {store.history[at_call - 1]}")
        compact(table, settings)
        assert completion_of(table).high_watermark == 6
        check_rows(table)
        if at_call % 8 == 0:
            table.write(pa.table({"id": [7, 9], "at": [4, 9], "v": ["late", "newer"]}))
            compact(table, settings)
            check_rows(table)
    assert outcomes >= ({"killed"} if "kill" in kind else {"failed"})


@pytest.mark.parametrize("kind", FAULT_KINDS)
@pytest.mark.parametrize("action", ["minor", "major"])
def test_a_fault_at_any_call_of_a_round_leaves_the_state_before_or_after(
    action: str, kind: FaultKind, new_root: Callable[[str], str], make_table: Callable[[str], siltstone.Table]
) -> None:
    # Dying after a call is dying before the next one, and failing is dying with a clean-up: some of those are enough.
    step = (1 if action == "minor" else 2) if kind in ("lose", "kill") else 4
    check_calls(
        lambda: make_table(new_root("local")),
        action,
        kind,
        lambda number, call: number % step == 0 or call.startswith("create"),
    )


@pytest.mark.parametrize("kind", ["lose", "kill_after"])
def test_a_fault_while_a_round_is_committed_on_s3_leaves_the_state_before_or_after(
    kind: FaultKind, new_root: Callable[[str], str], make_table: Callable[[str], siltstone.Table]
) -> None:
    check_calls(lambda: make_table(new_root("s3")), "minor", kind, lambda number, call: call.startswith("create"))


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_fault_at_any_call_of_a_session_of_several_rounds_leaves_a_whole_number_of_them(
    kind: FaultKind, new_root: Callable[[str], str], make_table: Callable[[str], siltstone.Table]
) -> None:
    def session(table: siltstone.Table, settings: Settings = SETTINGS["minor"]) -> None:
        compact(table, settings, max_round_bytes=1)

    table = make_table(new_root("local"))
    calls = count_calls(table, lambda: session(table))
    seen = set()
    for at_call in range(1, calls + 1, 14):
        table = make_table(new_root("local"))
        outcome = attempt(table, lambda: session(table), at_call=at_call, kind=kind)  # noqa: B023
        watermark = completion_of(table).high_watermark
        seen.add(watermark)
        assert outcome != "done" or watermark == 6
        check_rows(table, watermark)
        session(table)
        check_rows(table)
        rounds = [int(entry["round_id"]) for entry in list_rounds(destination_of(table))]
        assert rounds == [*range(1, 6)]
    assert seen >= {3, 4, 5, 6} - ({6} if kind == "fail" else set())


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_fault_at_any_call_of_a_rebase_leaves_the_state_before_or_after(
    kind: FaultKind, new_root: Callable[[str], str], make_table: Callable[[str], siltstone.Table]
) -> None:
    def rebase(table: siltstone.Table) -> None:
        compact(table, SETTINGS["minor"], rebase_source=only_partition(table))

    table = make_table(new_root("local"))
    calls = count_calls(table, lambda: rebase(table))
    for at_call in range(1, calls + 1, 7):
        table = make_table(new_root("local"))
        outcome = attempt(table, lambda: rebase(table), at_call=at_call, kind=kind)  # noqa: B023
        check_previous_or_next(table, outcome, f"call {at_call}")
        rebase(table)
        check_rows(table)


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_fault_at_any_call_of_the_first_round_leaves_none_or_one(
    kind: FaultKind, new_root: Callable[[str], str]
) -> None:
    template = open_objects(new_root("memory"))
    rows = pa.table({"id": [1, 2, 2], "v": ["a", "b", "c"]})
    siltstone.open(template.root).create_table("shop.orders", schema=rows.schema, primary_keys=["id"]).write(rows)

    def make() -> siltstone.Table:
        root = new_root("memory")
        for each in template.list_objects("", recursive=True):
            open_objects(root).create(each.path, template.read(each.path))
        return siltstone.open(root).table("shop.orders")

    table = make()
    calls = count_calls(table, lambda: compact(table))
    for at_call in range(1, calls + 1):
        table = make()
        outcome = attempt(table, lambda: compact(table), at_call=at_call, kind=kind)  # noqa: B023
        found = current_completion(destination_of(table))
        assert outcome != "done" or found is not None
        if found is not None:
            check_rows(table)
        compact(table)
        check_rows(table)


def test_rounds_conform_on_every_store(root: str) -> None:
    table = build(root)
    for settings in (SETTINGS["minor"], SETTINGS["major"]):
        compact(table, settings, max_round_bytes=1)
        same_rows(found_rows(table), oracle_of(table).rows())
        table.write(pa.table({"id": [7, 30], "at": [9, 9], "v": ["x", "y"]}))
    compact(table, rebase_source=only_partition(table))
    check_rows(table)
