"""Whatever is written, compacted, held, rolled back or interrupted, at whatever times, documents are what they must be."""

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.document_table import Document
from siltstone.documents.language import parse_delta
from siltstone.documents.record import Change, to_ms
from siltstone.errors import AlreadyExistsError, ConflictError, InvalidInputError, SiltstoneError
from siltstone.log.commit import forget_logs
from siltstone.testing import FaultKind, Killed, faults
from tests.property.test_documents_compaction import TAGS, TEXTS
from tests.unit.documents.tables import DELAY, ROOMY, Written, at, change_id, compact, kinds, make

KEYS = st.sampled_from(["a", "b", "c", "d", "e", "f"])
SETTINGS = st.sampled_from(
    [
        ROOMY,
        replace(ROOMY, bucket_rows=3),
        replace(ROOMY, full=True),
        replace(ROOMY, max_files=1),
        replace(ROOMY, max_files=1, max_carried_fraction=1.0),
    ]
)
# How late a change may come: within the delay it must be taken, beyond it may be refused.
UPDATES = st.tuples(st.just("update"), KEYS, TEXTS, TAGS, st.integers(0, 2 * DELAY))
COMPACTIONS = st.tuples(st.just("compact"), SETTINGS, st.integers(0, 30), st.integers(0, 60), st.booleans())
HOLDS = st.tuples(st.just("hold"), st.integers(-90, 5), st.integers(1, 60))
REPEATS = st.tuples(st.just("repeat"), KEYS, TEXTS, TAGS, st.booleans())
STEPS = st.lists(
    st.tuples(st.integers(0, 15), UPDATES | UPDATES | REPEATS | COMPACTIONS | HOLDS | st.tuples(st.just("release"))),
    min_size=1,
    max_size=14,
)


class World:
    """A table, a clock that only goes on, and what an export under each hold must be."""

    def __init__(self, written: Written, keeps_history: bool) -> None:
        self.written = written
        self.keeps_history = keeps_history
        self.second = 0.0
        self.count = 0
        self.exports: dict[str, list[Document]] = {}

    def update(self, key: str, text: str, tags: tuple[str, ...], late: int) -> None:
        """Write a change of some seconds ago; it is taken, or refused."""
        self.count += 1
        change = Change(change_id(self.second - late, self.count), text, tags)
        with contextlib.suppress(InvalidInputError):
            self.written.docs.update(key, text, tags, change.change_id)
            self.written.note(key, change)

    def repeat(self, key: str, text: str, tags: tuple[str, ...], is_same: bool) -> None:
        """Write a document's last change once more, or another delta under its id: neither changes anything."""
        changes = self.written.changes.get(key)
        if not changes:
            return
        id_ = changes[-1].change_id
        if is_same:
            text, tags = changes[-1].delta, tuple(changes[-1].tags or ())
        given = (parse_delta(text), set(tags))
        is_same = given == (parse_delta(changes[-1].delta), set(changes[-1].tags or ()))
        try:
            assert self.written.docs.update_many([(key, text, tags, id_), (key, text, tags, id_)]) == 0
            assert is_same
        except AlreadyExistsError:
            assert not is_same
        except InvalidInputError:
            # It is absorbed and deleted, so its time is complete.
            assert all(each.change_id != id_ for each in self.written.docs.timeline(key) if each.state != "history")

    def compact(self, how: object, at_call: int, ahead: int, is_killed: bool) -> None:
        """Compact, maybe with another clock, and maybe with a fault at some call."""
        docs = self.written.docs
        second = self.second + (ahead - 30) / 3
        kind: FaultKind = "kill_after" if is_killed else "lose"
        with faults(docs.lake.root, at_call=at_call or None, kind=kind), contextlib.suppress(SiltstoneError, Killed):
            compact(docs, second, how)  # type: ignore[arg-type]

    def hold(self, since: int, seconds: int) -> None:
        """Keep what is there for a while; refused only where deltas that this needs are deleted already."""
        written, since_ms = self.written, at(self.second + since)
        are_all_there = all(kinds(written.docs, key).count("d") == len(written.changes[key]) for key in written.changes)
        try:
            made = written.docs.hold(since=since_ms, until=at(self.second + seconds + 5))
        except InvalidInputError:
            assert not are_all_there
            return
        then = {
            key: [change for change in changes if to_ms(change.change_id) <= since_ms]
            for key, changes in written.changes.items()
        }
        past = Written(written.docs, {key: changes for key, changes in then.items() if changes})
        self.exports[made.hold_id] = [past.expected(key) for key in sorted(past.changes)]

    def release(self) -> None:
        """End the oldest hold."""
        for each in self.written.docs.holds()[:1]:
            self.written.docs.release(each)
            del self.exports[each.hold_id]

    def check(self) -> None:
        """Check that documents are what they must be, exports what they were, and that all history is known."""
        self.written.check()
        if self.keeps_history:
            self.written.check_history()
        for hold_id, expected in self.exports.items():
            found = self.written.docs.scan(hold=hold_id, include_deleted=True)
            assert sorted(found, key=lambda each: str(each["~id"])) == expected


@settings(max_examples=30)
@given(STEPS, st.booleans())
def test_no_schedule_of_rounds_holds_and_faults_changes_a_document(
    steps: list[tuple[int, tuple[object, ...]]], keeps_history: bool
) -> None:
    root = f"memory://{uuid.uuid4().hex}"
    try:
        world = World(make(root, keep_history=keeps_history), keeps_history)
        for seconds, (name, *given_) in steps:
            world.second += seconds
            act: Callable[..., None] = getattr(world, str(name))
            act(*given_)
            world.check()
        world.written.check_timelines(is_whole=keeps_history)
        for seconds in (100, 200, 300):
            with contextlib.suppress(ConflictError):
                world.written.compact(world.second + seconds)
        world.check()
        for key in world.written.changes:
            assert kinds(world.written.docs, key) == "C"
        assert world.written.docs.fsck(deep=True) == []
    finally:
        forget_logs(root)
