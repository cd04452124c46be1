"""Updates of several threads that are committed together."""

import linecache
import multiprocessing
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

import siltstone
from siltstone.documents import commit, groups
from siltstone.documents.groups import CommitGroup
from siltstone.documents.intake import Update
from siltstone.errors import AlreadyExistsError, CommitUnknownError, InvalidInputError, StorageError
from siltstone.testing.faults import Killed
from tests.unit.documents.tables import Written, change_id, make
from tests.waiting import wait_for


def update(key: str) -> list[Update]:
    return [Update(key, "{}", (), None)]


class Commits:
    """Commits that are held up until they may go on, and what is to happen in them."""

    def __init__(self, fails: Callable[[list[str]], None] = lambda keys: None) -> None:
        self.group = CommitGroup()
        self.written: list[list[str]] = []
        self.may_go_on = threading.Event()
        self._fails = fails
        self._pool = ThreadPoolExecutor(8)

    def write(self, group: Sequence[Sequence[Update]]) -> list[list[Update]]:
        keys = [each.key for updates in group for each in updates]
        self.written.append(keys)
        assert self.may_go_on.wait(60)
        self._fails(keys)
        return [list(updates) for updates in group]

    def together(self, *keys: str) -> list[Future[list[Update]]]:
        """Let one commit begin, the others come meanwhile, and all of them go on."""
        first = self._pool.submit(self.group.commit, update("first"), self.write)
        wait_for("the first commit", lambda: self.written)
        others = []
        for number, key in enumerate(keys, 1):
            others.append(self._pool.submit(self.group.commit, update(key), self.write))
            wait_for(key, lambda: len(self.group._waiting) == number)  # noqa: B023 - called here
        self.may_go_on.set()
        self._pool.shutdown()
        return [first, *others]


def test_updates_that_come_during_a_commit_share_the_next_one() -> None:
    commits = Commits()
    futures = commits.together("a", "b", "c")
    assert commits.written == [["first"], ["a", "b", "c"]]
    assert [future.result()[0].key for future in futures] == ["first", "a", "b", "c"]


def test_a_commit_takes_no_more_updates_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_GROUP_UPDATES", 2)
    commits = Commits()
    futures = commits.together("a", "b", "c")
    assert commits.written == [["first"], ["a", "b"], ["c"]]
    assert [future.result()[0].key for future in futures] == ["first", "a", "b", "c"]


@pytest.mark.parametrize("kind", [InvalidInputError, AlreadyExistsError])
def test_what_is_wrong_with_one_is_told_to_that_one_alone(kind: type[Exception]) -> None:
    def fails(keys: list[str]) -> None:
        if "bad" in keys:
            raise kind("bad")

    commits = Commits(fails)
    futures = commits.together("a", "bad", "c")
    assert commits.written == [["first"], ["a", "bad", "c"], ["a"], ["bad"], ["c"]]
    assert [type(future.exception()) for future in futures] == [type(None), type(None), kind, type(None)]


@pytest.mark.parametrize("kind", [CommitUnknownError, StorageError])
def test_what_may_have_happened_to_all_is_told_to_all_and_not_tried_again(kind: type[Exception]) -> None:
    def fails(keys: list[str]) -> None:
        if "first" not in keys:
            raise kind("no answer")

    commits = Commits(fails)
    first, *others = commits.together("a", "b")
    assert first.result()
    assert commits.written == [["first"], ["a", "b"]]
    errors = [other.exception() for other in others]
    assert [type(error) for error in errors] == [kind, kind]
    assert errors[0] is not errors[1]


def test_where_the_thread_that_commits_is_interrupted_the_others_do_not_know_the_outcome_and_go_on() -> None:
    def fails(keys: list[str]) -> None:
        if "a" in keys:
            raise Killed("here")

    commits = Commits(fails)
    first, leader, other = commits.together("a", "b")
    assert first.result()
    assert isinstance(leader.exception(), Killed)
    assert isinstance(other.exception(), CommitUnknownError)
    assert commits.group.commit(update("later"), commits.write)[0].key == "later"


def test_who_is_interrupted_while_it_waits_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            super().wait(timeout)
            raise KeyboardInterrupt

    class Request(groups._Request):
        def __init__(self, updates: Sequence[Update]) -> None:
            super().__init__(updates)
            if updates[0].key == "a":
                self.woken = Interrupted()

    # The second caller is woken to commit, and interrupted before it does.
    monkeypatch.setattr(groups, "_Request", Request)
    commits = Commits()
    first, interrupted, other = commits.together("a", "b")
    assert isinstance(interrupted.exception(), KeyboardInterrupt)
    assert commits.written == [["first"], ["b"]]
    assert first.result()
    assert other.result()


def test_an_update_in_the_middle_of_a_commit_of_the_same_thread_does_not_wait_for_itself() -> None:
    group = CommitGroup()

    def write(updates: Sequence[Sequence[Update]]) -> list[list[Update]]:
        if updates[0][0].key == "outer":
            assert group.commit(update("inner"), write)[0].key == "inner"
        return [list(each) for each in updates]

    assert group.commit(update("outer"), write)[0].key == "outer"


def test_a_caller_that_is_interrupted_at_any_line_holds_up_nobody() -> None:
    """One caller is interrupted at its first line within the group, then at its second, and so on, until it comes through."""
    for at_line in range(1, 100):
        commits, reached = Commits(), [0]

        def interrupt(frame: FrameType, event: str, argument: object) -> Any:
            if frame.f_code.co_filename != groups.__file__:
                return None
            # Nobody can be interrupted between the end of a block and the release of its lock, as a tracer could.
            is_inside = "with self._lock" not in linecache.getline(groups.__file__, frame.f_lineno)
            reached[0] += event == "line" and is_inside  # noqa: B023 - called before the next
            if reached[0] == at_line and event == "line" and is_inside:  # noqa: B023
                sys.settrace(None)
                raise KeyboardInterrupt
            return interrupt

        def interrupted() -> None:
            sys.settrace(interrupt)
            try:
                commits.group.commit(update("a"), commits.write)  # noqa: B023
            finally:
                sys.settrace(None)

        commits.may_go_on.set()
        with ThreadPoolExecutor(2) as pool:
            one, other = pool.submit(interrupted), pool.submit(commits.group.commit, update("b"), commits.write)
            assert isinstance(one.exception(60), KeyboardInterrupt | None)
            assert isinstance(other.exception(60), CommitUnknownError | None)
            later = pool.submit(commits.group.commit, update("later"), commits.write)
            assert later.result(60)[0].key == "later"
        if reached[0] < at_line:
            return
    raise AssertionError("it never came through")


def test_an_update_by_the_thread_that_is_about_to_commit_does_not_wait_for_itself() -> None:
    commits = Commits()
    commits.may_go_on.set()
    commits.group._leader = groups._Request(update("about to commit"))
    assert commits.group.commit(update("of a signal handler"), commits.write)[0].key == "of a signal handler"


def _has_leader() -> bool:
    return groups.commit_groups.of("root", "shop.reviews")._leader is not None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_waits_for_no_thread_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    group = groups.commit_groups.of("root", "shop.reviews")
    monkeypatch.setattr(group, "_leader", groups._Request(update("a")))
    assert _has_leader()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_has_leader) is False


class TestTables:
    @pytest.fixture
    def written(self, local_root: str) -> Written:
        return make(local_root)

    def run(self, docs: siltstone.DocumentTable, calls: list[tuple[Any, ...]]) -> list[str | BaseException]:
        """Update from as many threads, and return the change id or the error of each."""
        with ThreadPoolExecutor(len(calls)) as pool:
            futures = [pool.submit(docs.update, *call) for call in calls]
        return [future.exception() or future.result() for future in futures]

    def test_every_update_of_many_threads_is_there_once(self, written: Written) -> None:
        docs = written.docs
        ids: list[str | BaseException] = []
        for number in range(5):
            ids += self.run(docs, [(f"d{key % 3}", f'{{..,"n{number}-{key}":1}}') for key in range(8)])
        assert len(set(map(str, ids))) == 40
        documents = docs.get_many(["d0", "d1", "d2"])
        assert [len([name for name in each if name.startswith("n")]) for each in documents] == [15, 15, 10]
        assert [each["~version"] for each in documents] == [15, 15, 10]
        assert sum(delta.manifest.entries[0].record_count for delta in docs.table.deltas()) == 40

    def test_a_tag_that_is_no_text_is_refused_before_it_can_fail_others(self, written: Written) -> None:
        with pytest.raises(InvalidInputError, match="lone surrogate at 0"):
            written.docs.update("a", "{}", tags=["\ud800"])

    def test_the_same_change_from_several_threads_counts_once(self, written: Written) -> None:
        calls = [("d", '{..,"n":1}', (), change_id(1))] * 6
        assert self.run(written.docs, calls) == [change_id(1)] * 6
        assert written.docs.get("d")["~version"] == 1
        assert len(written.docs.table.deltas()) == 1

    def test_of_two_deltas_under_one_id_one_is_refused(self, written: Written) -> None:
        calls = [("d", f'{{..,"n":{number}}}', (), change_id(1)) for number in range(6)]
        results = self.run(written.docs, calls)
        assert sorted(type(result).__name__ for result in results) == ["AlreadyExistsError"] * 5 + ["str"]
        assert written.docs.get("d")["~version"] == 1

    def test_a_change_that_is_too_late_fails_no_other(self, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
        late = "febb5880-2c64-11e4-8000-000000000000"
        requests = [[Update("late", "{}", (), late)], [Update("fine", "{}", (), None)]]
        group, results = CommitGroup(), []

        def write(updates: Sequence[Sequence[Update]]) -> list[list[Update]]:
            return commit._write_group(written.docs.name, updates, written.docs.lake.root)

        with pytest.raises(InvalidInputError, match="complete up to"):
            write(requests)
        assert written.docs.table.deltas() == []
        monkeypatch.setattr(group, "_callers", 2)
        monkeypatch.setattr(group, "_seconds", 60.0)
        monkeypatch.setattr(groups, "_MAX_SECONDS", 60.0)
        with ThreadPoolExecutor(2) as pool:
            results = [pool.submit(group.commit, updates, write) for updates in requests]
        assert isinstance(results[0].exception(), InvalidInputError)
        assert results[1].result()[0].key == "fine"
        assert [event.kind for event in written.docs.timeline("fine")] == ["delta"]
