"""The commit log: one winner per batch, lost answers settled, old state never trusted too long."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from siltstone.clock import replaced
from siltstone.errors import (
    AccessDeniedError,
    CommitUnknownError,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    SiltstoneError,
    StorageError,
)
from siltstone.log import commit as commit_module
from siltstone.log import state as log_state
from siltstone.log.commit import Commit, CommitLog, commit_log, forget_logs
from siltstone.log.state import ANCHOR_INTERVAL, LogState
from siltstone.objects import open_objects
from siltstone.testing import FaultyObjects, Killed


class Clock:
    """A wall clock and a monotonic clock that move only when told."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class AgingObjects(FaultyObjects):
    """A store whose objects are stamped by the test's clock."""

    def __init__(self, root: str, clock: Clock) -> None:
        super().__init__(open_objects(root))
        self._clock = clock
        self._stamps: dict[str, int] = {}

    def create(self, path: str, data: Any) -> None:
        super().create(path, data)
        self._stamps[path] = self._clock.now_ms()

    def replace(self, path: str, data: Any) -> None:
        super().replace(path, data)
        self._stamps[path] = self._clock.now_ms()

    def list_objects(self, prefix: str, *, recursive: bool = False) -> list[Any]:
        listed = super().list_objects(prefix, recursive=recursive)
        return [each._replace(modified_ms=self._stamps[each.path]) for each in listed]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_log(new_root: Callable[[str], str], clock: Clock) -> Iterator[Callable[..., CommitLog]]:
    """Open the same log anew, as another process would."""
    root = new_root("memory")
    store = AgingObjects(root, clock)

    def make(**settings: Any) -> CommitLog:
        log = CommitLog(root, "log", **settings)
        log.objects = store
        return log

    with replaced(clock):
        yield make


def put(log: CommitLog, **entries: int | None) -> int | None:
    changes = {key: None if value is None else {"value": value} for key, value in entries.items()}
    return log.commit("test", lambda _: changes).batch_id


def content(log: CommitLog) -> dict[str, int]:
    return log.read(
        lambda state: {key: (state.get(key) or {})["value"] for key in state.keys() if key != "commit"}  # noqa: SIM118
    )


def names(log: CommitLog) -> list[str]:
    return sorted(file.name for file in log.listing().files)


def test_later_entries_replace_and_removals_drop(open_log: Callable[[], CommitLog]) -> None:
    log = open_log()
    assert content(log) == {}
    assert put(log, a=1, b=2) == 0
    assert put(log, a=3, c=4) == 1
    assert put(log, b=None, never_there=None) == 2
    assert content(log) == content(open_log()) == {"a": 3, "c": 4}


def test_no_changes_commit_nothing(open_log: Callable[[], CommitLog]) -> None:
    log = open_log()
    assert log.commit("test", lambda _: {}).batch_id is None
    assert names(log) == []


def test_a_commit_returns_what_was_decided_on_the_state_it_was_made_on(open_log: Callable[[], CommitLog]) -> None:
    log, other = open_log(), open_log()
    content(log)
    put(other, count=1)

    def count_up(state: LogState) -> Commit[int]:
        count = (state.get("count") or {"value": 0})["value"] + 1
        return Commit({"count": {"value": count}}, result=count)

    committed = log.commit("test", count_up)
    assert (committed.result, committed.batch_id) == (2, 1)
    assert log.commit("test", lambda state: Commit({}, result=len(state))).result == 2


@pytest.mark.parametrize("method", ["add", "get", "purge", "purge_after", "publish", "delete_files"])
def test_a_commit_log_has_none_of_the_methods_that_write_logs_of_spark(
    open_log: Callable[[], CommitLog], method: str
) -> None:
    log = open_log()
    assert not hasattr(log, method)
    assert not hasattr(log, "add")


def test_processes_see_each_others_commits_and_take_turns(open_log: Callable[[], CommitLog]) -> None:
    one, two = open_log(), open_log()
    assert [put(one, a=1), put(two, b=2), put(one, c=3), put(two, a=4)] == [0, 1, 2, 3]
    assert content(one) == content(two) == {"a": 4, "b": 2, "c": 3}


def test_prepare_sees_what_the_faster_writer_left(open_log: Callable[[], CommitLog]) -> None:
    one, two = open_log(), open_log()
    put(one, counter=1)
    content(two)
    seen: list[int] = []

    def increase(state: Any) -> dict[str, Any]:
        value = state.get("counter")["value"]
        seen.append(value)
        if len(seen) == 1:
            put(one, counter=10)
        return {"counter": {"value": value + 1}}

    two.commit("test", increase)
    assert seen == [1, 10]
    assert content(one) == {"counter": 11}


def test_a_refusal_is_decided_on_the_newest_state(open_log: Callable[[], CommitLog]) -> None:
    one, two = open_log(), open_log()
    put(one, a=1)
    content(two)
    put(one, a=None)

    def refuse_if_there(state: Any) -> dict[str, Any]:
        if "a" in state:
            raise InvalidInputError("a is there")
        return {"a": {"value": 2}}

    two.commit("test", refuse_if_there)
    assert content(two) == {"a": 2}
    with pytest.raises(InvalidInputError):
        two.commit("test", refuse_if_there)
    assert content(one) == {"a": 2}


def test_checkpoints_come_beside_batches_and_hold_all_that_is_live(open_log: Callable[[], CommitLog]) -> None:
    log = open_log()
    for number in range(10):
        put(log, a=number, **{f"k{number}": number}, **({f"k{number - 1}": None} if number else {}))
    assert names(log) == [*"0123456789", "9.compact"]
    assert content(open_log()) == {"a": 9, "k9": 9}
    assert len(list(log.read_lines("9.compact"))) == 4, "a head, two live entries and the newest commit"


def test_readers_need_only_the_newest_checkpoint_and_what_follows(open_log: Callable[[], CommitLog]) -> None:
    log = open_log()
    for number in range(12):
        put(log, **{f"k{number}": number})
    log.objects.delete([f"log/{number}" for number in range(10)])
    assert content(open_log()) == {f"k{number}": number for number in range(12)}


def test_checkpoints_of_large_logs_are_rarer(open_log: Callable[[], CommitLog]) -> None:
    log = open_log()
    put(log, **{f"k{number}": number for number in range(30_000)})
    for number in range(40):
        put(log, extra=number)
    assert [name for name in names(log) if name.endswith(".compact")] == ["29.compact"]


def test_old_batches_go_when_two_checkpoints_cover_them_and_time_has_passed(
    open_log: Callable[[], CommitLog], clock: Clock
) -> None:
    log = open_log()
    for number in range(20):
        put(log, a=number)
    assert len(names(log)) == 22, "nothing is old enough"
    clock.seconds += 3600
    for number in range(20, 30):
        put(log, a=number)
    left = names(log)
    assert "15" not in left
    assert "9.compact" not in left
    assert {"16", "19", "19.compact", "20", "29", "29.compact"} <= set(left), "from an anchor on"
    assert content(open_log()) == content(log) == {"a": 29}


def test_a_writer_that_slept_does_not_reuse_an_id_that_was_cleaned_up(
    open_log: Callable[[], CommitLog], clock: Clock
) -> None:
    sleeper, worker = open_log(), open_log()
    put(sleeper, a=1)
    for number in range(30):
        put(worker, b=number)
        clock.seconds += 60
    clock.seconds += 3600
    for number in range(10):
        put(worker, c=number)
    assert "1" not in names(worker), "the batch after the one that the sleeper knows is gone"
    assert put(sleeper, a=2) == 41
    assert content(worker) == {"a": 2, "b": 29, "c": 9}


def test_a_reader_that_slept_catches_up(open_log: Callable[[], CommitLog], clock: Clock) -> None:
    sleeper, worker = open_log(), open_log()
    assert content(sleeper) == {}
    for number in range(30):
        put(worker, b=number)
        clock.seconds += 600
    assert content(sleeper) == {"b": 29}


def go_on_far(log: CommitLog) -> None:
    """Let another process commit so much that what came before is cleaned up, whatever the time is."""
    for number in range(60):
        put(log, other=number)
    log.checkpoint()


@pytest.mark.parametrize("known", [0, 1, 15, 16, 17, 40])
def test_a_writer_that_stands_still_at_any_call_commits_once_and_loses_nothing(
    new_root: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    monkeypatch.setattr(log_state, "CLEANUP_DELAY_MS", -1000)
    for at_call in range(1, 6):
        root = new_root("memory")
        sleeper, other = CommitLog(root, "log"), CommitLog(root, "log")
        for number in range(known):
            put(sleeper, known=number)
        content(sleeper)
        sleeper.objects = FaultyObjects(
            open_objects(root),
            at_call=at_call,
            kind="meet",
            act=lambda other=other: go_on_far(other),  # type: ignore[misc]
        )
        put(sleeper, mine=at_call)
        expected = {"mine": at_call, **({"known": known - 1} if known else {})}
        met = content(other).get("other")
        assert content(CommitLog(root, "log")) == {**expected, **({} if met is None else {"other": met})}
        sleeper.objects = open_objects(root)
        assert content(sleeper) == content(other)
        put(sleeper, mine=0)
        assert content(other)["mine"] == 0


class _LosingTwice(FaultyObjects):
    """Loses the answer to the first put, and to the question what became of it; then others act, at a moment of choice."""

    def __init__(self, root: str, act: Callable[[], object], moment: str) -> None:
        super().__init__(open_objects(root))
        self.act, self.moment = act, moment
        self.puts = self.looks = 0

    def create(self, path: str, data: Any) -> None:
        self.puts += 1
        if self.puts == 2 and self.moment == "put":
            self.act()
        super().create(path, data)
        if self.puts == 1:
            raise StorageError("lost answer")

    def read_start(self, path: str, length: int) -> bytes:
        self.looks += 1
        if self.looks == 1:
            raise StorageError("lost answer")
        if self.looks == 2 and self.moment == "look":
            self.act()
        return super().read_start(path, length)


@pytest.mark.parametrize("is_reused", [False, True])
@pytest.mark.parametrize("moment", ["put", "look"])
@pytest.mark.parametrize("known", [1, 16, 17])
def test_a_commit_whose_answer_was_lost_and_that_was_cleaned_up_since_happens_once(
    new_root: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, known: int, moment: str, is_reused: bool
) -> None:
    monkeypatch.setattr(log_state, "CLEANUP_DELAY_MS", -1000)
    root = new_root("memory")
    log, other, sleeper = (CommitLog(root, "log") for _ in range(3))
    for _ in range(known):
        log.commit("test", lambda state: {"count": {"value": (state.get("count") or {"value": 0})["value"] + 1}})
    content(sleeper)

    class Dying(FaultyObjects):
        def create(self, path: str, data: Any) -> None:
            super().create(path, data)
            raise Killed

    def clean_up() -> None:
        go_on_far(other)
        if is_reused:
            sleeper.objects = Dying(open_objects(root))
            with pytest.raises(Killed):
                put(sleeper, never=1)

    log.objects = _LosingTwice(root, clean_up, moment)
    log.commit("test", lambda state: {"count": {"value": (state.get("count") or {"value": 0})["value"] + 1}})
    assert content(CommitLog(root, "log")) == {"count": known + 1, "other": 59}


def test_a_reader_never_sees_a_number_that_is_used_again(
    new_root: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_state, "CLEANUP_DELAY_MS", -1000)
    root = new_root("memory")
    reader, writer, other = (CommitLog(root, "log") for _ in range(3))
    put(writer, a=1)
    content(reader)
    go_on_far(other)
    assert "1" not in names(other), "the next number that reader and writer know of is free again"
    seen: list[dict[str, int]] = []
    delete = writer.objects.delete

    def read_before(paths: Any) -> None:
        seen.append(content(reader))
        delete(paths)

    class Watched(FaultyObjects):
        def delete(self, paths: Any) -> None:
            read_before(paths)

    writer.objects = Watched(open_objects(root))
    assert put(writer, a=2) == 61
    assert seen == [{"a": 1, "other": 59}], "while the second batch 1 was there"


def test_anchors_go_before_the_batches_after_them_wherever_the_clean_up_ends(
    new_root: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_state, "CLEANUP_DELAY_MS", 1 << 40)
    root = new_root("memory")
    writer = CommitLog(root, "log")
    for number in range(60):
        put(writer, a=number)
    monkeypatch.setattr(log_state, "CLEANUP_DELAY_MS", -1000)
    put(writer, a=60)
    for at_call in range(1, 12):
        cleaner = CommitLog(root, "log")
        cleaner.objects = FaultyObjects(open_objects(root), at_call=at_call, kind="kill_after")
        with contextlib.suppress(Killed):
            cleaner.checkpoint()
        plain = {int(name) for name in names(CommitLog(root, "log")) if name.isdigit()}
        for number in range(61):
            anchor = (number - 1) // ANCHOR_INTERVAL * ANCHOR_INTERVAL
            assert number in plain or number == 0 or anchor not in plain, (at_call, number)
        assert content(CommitLog(root, "log")) == {"a": 60}


def test_time_that_stepped_on_a_machine_is_not_sure_until_somebody_confirms_it(
    open_log: Callable[[], CommitLog], clock: Clock
) -> None:
    log = open_log()
    put(log, a=1)
    right = clock.now_ms()
    clock.seconds += 20 * 3600
    assert log.expiry_ms() == clock.now_ms(), "less than a day is nothing special"
    clock.seconds += 31 * 24 * 3600
    assert log.expiry_ms() == right
    put(log, a=2)
    put(log, a=3)
    assert log.expiry_ms() == open_log().expiry_ms() == right, "commits by a wrong clock change nothing"
    log.confirm_time()
    assert log.expiry_ms() == open_log().expiry_ms() == clock.now_ms()


@pytest.mark.parametrize("kind", ["fail", "lose"])
def test_a_commit_whose_answer_is_lost_happens_once(
    open_log: Callable[[], CommitLog], kind: Any, new_root: Callable[[str], str]
) -> None:
    root = new_root("memory")
    log = CommitLog(root, "log")
    put(log, a=1)
    log.objects = FaultyObjects(open_objects(root), at_call=1, kind=kind)
    assert put(log, a=2) == 1
    assert names(log) == ["0", "1"]
    assert content(CommitLog(root, "log")) == {"a": 2}


def test_a_store_that_repeats_a_put_by_itself_does_not_make_us_our_own_rival(new_root: Callable[[str], str]) -> None:
    root = new_root("memory")
    log = CommitLog(root, "log")

    class Repeating(FaultyObjects):
        def create(self, path: str, data: Any) -> None:
            super().create(path, data)
            super().create(path, data)

    log.objects = Repeating(open_objects(root))
    assert put(log, a=1) == 0
    assert names(log) == ["0"]


def test_a_lost_answer_while_another_writer_wins_is_committed_after_it(new_root: Callable[[str], str]) -> None:
    root = new_root("memory")
    one, two = CommitLog(root, "log"), CommitLog(root, "log")
    put(one, a=1)
    store = FaultyObjects(open_objects(root), at_call=1, kind="fail")
    real_create = store.create
    calls: list[str] = []

    def create(path: str, data: Any) -> None:
        calls.append(path)
        if len(calls) == 1:
            put(two, b=1)
        real_create(path, data)

    store.create = create  # type: ignore[method-assign]
    one.objects = store
    assert put(one, c=1) == 2
    assert content(two) == {"a": 1, "b": 1, "c": 1}


def test_a_store_that_never_answers_leaves_the_outcome_unknown(new_root: Callable[[str], str]) -> None:
    root = new_root("memory")
    log = CommitLog(root, "log")
    put(log, a=1)

    class Dead(FaultyObjects):
        def create(self, path: str, data: Any) -> None:
            raise StorageError("no answer")

    log.objects = Dead(open_objects(root))
    with pytest.raises(CommitUnknownError, match="no answer"):
        put(log, a=2)


@pytest.mark.parametrize("failure", [StorageError, AccessDeniedError, CorruptionError, InvalidInputError])
def test_a_failing_checkpoint_does_not_fail_the_commit(
    new_root: Callable[[str], str], caplog: pytest.LogCaptureFixture, failure: type[SiltstoneError]
) -> None:
    root = new_root("memory")
    log = CommitLog(root, "log")

    class NoCheckpoints(FaultyObjects):
        def replace(self, path: str, data: Any) -> None:
            raise failure("disk full")

    log.objects = NoCheckpoints(open_objects(root))
    for number in range(12):
        assert put(log, a=number) == number
    assert "disk full" in caplog.text
    assert content(CommitLog(root, "log")) == {"a": 11}


def test_a_gap_is_an_error_that_names_the_batch(local_root: str) -> None:
    log = CommitLog(local_root, "log")
    for number in range(4):
        put(log, a=number)
    (Path(local_root) / "log" / "2").unlink()
    with pytest.raises(CorruptionError, match=r"log/2.*gap"):
        content(CommitLog(local_root, "log"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (b"", "Incomplete log file"),
        (b"v9\n{}", "v9"),
        (b"v1\nnot json", "not json"),
        (b'v1\n{"key":"a","val', "is not an entry"),
        (b'v1\n["key"]', "is not an entry"),
    ],
)
def test_damage_is_an_error_that_names_the_file(local_root: str, damage: bytes, words: str) -> None:
    log = CommitLog(local_root, "log")
    put(log, a=1)
    (Path(local_root) / "log" / "0").write_bytes(damage)
    with pytest.raises(CorruptionError, match=words) as raised:
        content(CommitLog(local_root, "log"))
    assert "log/0" in str(raised.value)


def test_entries_expire_at_a_checkpoint(open_log: Callable[..., CommitLog], clock: Clock) -> None:
    log = open_log()
    for number in range(10):
        expires_at = clock.now_ms() + (0 if number < 5 else 1)
        log.commit("test", lambda _, n=number, at=expires_at: {f"old{n}": {"value": n, "expires_at": at}})  # type: ignore[misc]
    assert content(log) == content(open_log()) == {f"old{number}": number for number in range(5, 10)}


def test_threads_share_a_log(new_root: Callable[[str], str]) -> None:
    root = new_root("memory")

    def work(worker: int) -> None:
        for number in range(25):
            put(commit_log(root, "log"), **{f"{worker}-{number}": number})

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(content(commit_log(root, "log"))) == 100
    forget_logs(root)
    assert len(content(commit_log(root, "log"))) == 100


def test_endless_competition_ends_in_a_conflict(new_root: Callable[[str], str], monkeypatch: Any) -> None:
    monkeypatch.setattr(commit_module, "_ATTEMPTS", 4)
    root = new_root("memory")
    one, two = CommitLog(root, "log"), CommitLog(root, "log")

    def prepare(_: Any) -> dict[str, Any]:
        put(two, b=1)
        return {"a": {"value": 1}}

    with pytest.raises(ConflictError, match="came first"):
        one.commit("test", prepare)


def test_a_log_is_recalled_without_asking_the_store(new_root: Callable[[str], str]) -> None:
    root = new_root("memory")
    log, other = CommitLog(root, "log"), CommitLog(root, "log")
    put(log, a=1)
    store = FaultyObjects(open_objects(root))
    log.objects = store
    put(other, a=2)
    assert log.recall(lambda state: state.get("a")) == {"key": "a", "value": 1}
    assert store.calls == 0
    assert content(log) == {"a": 2}
    assert store.calls > 0


def test_commit_times_never_go_back(open_log: Callable[[], CommitLog], clock: Clock) -> None:
    log = open_log()
    first = log.commit("test", lambda _: {"a": {"value": 1}})
    clock.seconds -= 100
    second = log.commit("test", lambda _: {"a": {"value": 2}})
    assert second.time_ms == first.time_ms


class KeyList:
    """An index that knows the keys in the order in which it was told of them."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def add(self, key: str, line: bytes) -> None:
        self.keys.append(key)


def applied(state: LogState, *changes: tuple[str, dict[str, Any] | None]) -> None:
    state.apply([log_state.encode_entry(key, entry) for key, entry in changes], "here")


def test_keys_are_found_by_what_they_begin_with() -> None:
    state = LogState()
    applied(state, ("a/x/1", {}), ("b/1", {}), ("a/y/1", {}), ("a", {}), ("ab/1", {}))
    assert state.keys("a/") == ["a/x/1", "a/y/1"]
    assert state.keys("a/x/") == ["a/x/1"]
    assert state.keys("a") == ["a/x/1", "a/y/1", "a", "ab/1"]
    assert state.keys() == ["a/x/1", "b/1", "a/y/1", "a", "ab/1"]
    applied(state, ("a/x/1", None), ("a/z/1", {}), ("b/1", None))
    assert (state.keys("a/"), state.keys("b/"), state.keys("c/")) == (["a/y/1", "a/z/1"], [], [])
    assert [entry["key"] for entry in state.scan("a/")] == ["a/y/1", "a/z/1"]


def test_an_index_is_told_of_what_comes_and_made_anew_where_something_went() -> None:
    state = LogState()
    applied(state, ("a/1", {}), ("b/1", {}))
    index = state.index("a", KeyList)
    applied(state, ("a/2", {}), ("b/2", {}), ("b/1", None))
    assert state.index("a", KeyList) is index
    assert index.keys == ["a/1", "a/2"]
    applied(state, ("a/1", None), ("a/3", {}))
    assert state.index("a", KeyList).keys == ["a/2", "a/3"]
    applied(state, ("a/3", {"n": 1}))
    assert state.index("a", KeyList).keys == ["a/2", "a/3"]
    applied(state, ("a/4", {log_state.EXPIRES_AT: 1}), ("commit", {"time": 5}))
    assert state.index("a", KeyList).keys == ["a/2", "a/3", "a/4"]
    state.expire()
    assert state.index("a", KeyList).keys == ["a/2", "a/3"]
