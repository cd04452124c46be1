"""Whatever is written, late or not, compacted, vacuumed or interrupted, a consumer gets each change once, and no redundant one."""

import contextlib
import uuid

from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.documents.record import Change
from siltstone.errors import InvalidInputError, SiltstoneError
from siltstone.testing import Killed, faults
from tests.property.test_documents_compaction import TAGS, TEXTS
from tests.unit.documents.feed_oracle import Commits, Seen, seen
from tests.unit.documents.tables import DELAY, change_id, compact, make

UPDATES = st.lists(st.tuples(st.sampled_from("abc"), TEXTS, TAGS, st.integers(0, DELAY - 1)), min_size=1, max_size=3)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.tuples(st.just("write"), UPDATES)
        | st.tuples(st.just("write"), UPDATES)
        | st.tuples(st.just("compact"), st.integers(0, 30))
        | st.tuples(st.just("poll"), st.booleans())
        | st.tuples(st.just("vacuum")),
    ),
    min_size=1,
    max_size=14,
)


class World:
    """A table, what its changes must be, and a consumer that forgets what it took if it dies before it acknowledges."""

    def __init__(self) -> None:
        self.docs = make(f"memory://{uuid.uuid4().hex}").docs
        self.commits = Commits()
        self.second = 0.0
        self.count = 0
        self.taken: list[Seen] = []

    def write(self, updates: list[tuple[str, str, tuple[str, ...], int]]) -> None:
        changes = []
        for key, text, tags, late in updates:
            self.count += 1
            changes.append((key, Change(change_id(self.second - late, self.count), text, tags)))
        with contextlib.suppress(InvalidInputError):
            self.docs.update_many([(key, each.delta, each.tags, each.change_id) for key, each in changes])
            self.commits.commit(changes)

    def compact(self, at_call: int) -> None:
        ignored = contextlib.suppress(SiltstoneError, Killed)
        with faults(self.docs.lake.root, at_call=at_call or None, kind="kill_after"), ignored:
            compact(self.docs, self.second)

    def vacuum(self) -> None:
        self.docs.vacuum(retention_ms=0, orphan_grace_ms=0)

    def poll(self, dies: bool) -> None:
        changes = self.docs.changes(consumer="c")
        taken = seen(changes)
        if not dies:
            changes.acknowledge()
            self.taken += taken


@settings(max_examples=25)
@given(STEPS)
def test_a_consumer_gets_each_change_that_is_not_redundant_once(steps: list[tuple[int, tuple[object, ...]]]) -> None:
    world = World()
    for seconds, (name, *given_) in steps:
        world.second += seconds
        getattr(world, str(name))(*given_)
    world.poll(dies=False)
    assert world.taken == world.commits.expected
    assert seen(world.docs.changes()) == world.commits.expected
