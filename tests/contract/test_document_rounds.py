"""A fault at any storage call of a round of documents loses nothing and doubles nothing; nor do two compactors at once."""

import contextlib
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import pytest

import siltstone
from siltstone.documents.merge import run_here
from siltstone.errors import InvalidInputError, SiltstoneError
from siltstone.objects import open_objects
from siltstone.testing import FaultKind, Killed, faults
from siltstone.testing.faults import FAULT_KINDS
from tests.contract.test_rounds import is_write, kind_of, shape
from tests.unit.documents.rounds_of_two import FEW, TWO_BUCKETS, build
from tests.unit.documents.tables import NAME, Written, change_id, compact, hold, kinds, make, rounds
from tests.unit.rounds.compaction import meeting

# What each pass does: it adds records and leaves deltas, adds and deletes, only deletes.
PASSES = {"records": 20, "records and deletes": 40, "deletes": 60}


class Template:
    """A table before a pass, to be copied into new roots."""

    def __init__(self, folder: str, before: str) -> None:
        self._folder = folder
        self._written = build(folder)
        for name, second in PASSES.items():
            if name == before:
                break
            self._written.compact(second, FEW)

    def copy_to(self, root: str) -> Written:
        """Make the table in a new root."""
        objects = open_objects(self._written.docs.lake.root)
        for object_ in objects.list_objects("", recursive=True):
            open_objects(root).create(object_.path, objects.read(object_.path))
        return Written(siltstone.open(root).document_table(NAME), deepcopy(self._written.changes))


@pytest.fixture(scope="module", params=PASSES)
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Template, int]:
    folder = tmp_path_factory.mktemp("template")
    return Template(str(folder / "lake"), request.param), PASSES[request.param]


def attempt(written: Written, second: float, *, at_call: int, kind: FaultKind) -> str:
    """Compact with a fault; tell how it ended."""
    with faults(written.docs.lake.root, at_call=at_call, kind=kind):
        try:
            compact(written.docs, second, FEW)
        except Killed:
            return "killed"
        except SiltstoneError:
            return "failed"
        return "done"


def test_a_fault_at_any_call_changes_no_document_and_the_next_round_completes(
    template: tuple[Template, int], new_root: Callable[[str], str]
) -> None:
    source, second = template
    written = source.copy_to(new_root("memory"))
    with faults(written.docs.lake.root) as store:
        assert len(compact(written.docs, second, FEW).rounds) == 1
    after = [kinds(written.docs, key) for key in written.changes]
    calls = list(enumerate(store.history, 1))
    assert sum(is_write(call) for _, call in calls) >= 2 * TWO_BUCKETS
    outcomes: set[tuple[str, object]] = set()
    failed: set[str] = set()
    for at_call, call in calls:
        # Of reads of one kind of object between two writes, the first one fails.
        if is_write(call):
            failed.clear()
        elif kind_of(call) in failed:
            continue
        failed.add(kind_of(call))
        for kind in FAULT_KINDS if is_write(call) else ("fail",):
            written = source.copy_to(new_root("memory"))
            outcome = attempt(written, second, at_call=at_call, kind=kind)
            # Where the store looks as after a fault that was recovered from, there is nothing new to see.
            if (outcome, shape(written.docs.lake.root)) in outcomes:
                continue
            outcomes.add((outcome, shape(written.docs.lake.root)))
            try:
                written.check()
                written.compact(second, FEW)
                assert [kinds(written.docs, key) for key in written.changes] == after
            except (AssertionError, SiltstoneError) as error:
                error.add_note(f"after {kind} at call {at_call}, {call}")
                raise
    assert {outcome for outcome, _ in outcomes} >= {"killed", "failed"}
    assert len(outcomes) >= 2 * TWO_BUCKETS
    assert written.docs.fsck(deep=True) == []


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_fault_at_any_call_of_an_update_leaves_it_written_once_or_not_at_all(
    kind: FaultKind, new_root: Callable[[str], str]
) -> None:
    for at_call in range(1, 100):
        written = make(new_root("memory"))
        written.write(1, "r1", '{"n":1}')
        ignored = contextlib.suppress(SiltstoneError, Killed)
        with faults(written.docs.lake.root, at_call=at_call, kind=kind) as store, ignored:
            written.docs.update("r1", '{..,"last":1}', (), change_id(9))
        version = written.docs.get("r1")["~version"]
        written.write(9, "r1", '{..,"last":1}')
        written.check()
        assert version in (written.docs.get("r1")["~version"], len(written.changes["r1"]) - 1)
        if store.calls < at_call:
            return
    pytest.fail("an update makes a hundred calls")


def test_documents_are_written_compacted_and_read_on_every_store(root: str) -> None:
    written = build(root)
    for second in PASSES.values():
        written.compact(second, FEW)
    assert {kinds(written.docs, key) for key in written.changes} == {"C"}
    assert written.docs.fsck(deep=True) == []


class TestTwoCompactors:
    def test_the_one_that_comes_second_plans_again(self, local_root: str) -> None:
        written = build(local_root)
        for second in (20, 40, 60, 80):
            other = partial(compact, written.docs, second + 0.5, FEW)
            written.compact(second, FEW, engine=meeting(other, engine=run_here))
        assert {kinds(written.docs, key) for key in written.changes} == {"C"}

    def test_clocks_that_differ_change_no_document(self, local_root: str) -> None:
        written = build(local_root)
        for second in (20, 14, 60, 30, 31, 90, 70):
            written.compact(second, FEW)
        with pytest.raises(InvalidInputError, match="is complete up to"):
            written.docs.update("r1", "~", (), change_id(79))

    def test_a_hold_and_a_write_during_a_round_are_both_respected(self, local_root: str) -> None:
        written = build(local_root)
        written.compact(20, FEW)
        result = written.compact(
            40,
            FEW,
            engine=meeting(
                lambda: hold(written.docs, 10, 1000),
                lambda: written.write(39, "r1", '{..,"late":1}'),
                engine=run_here,
            ),
        )
        assert result.conflicts == 1
        assert sum(round_["deleted"] for round_ in rounds(result)) == 0
        written.check()
