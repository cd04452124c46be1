"""What is asked of an intake of files, what it results in, and what it needs of a table."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

from siltstone.errors import InvalidInputError
from siltstone.ingest.drop_log import Rejected
from siltstone.ingest.file_rows import Report
from siltstone.model import Idempotency
from siltstone.model.locators import check_name
from siltstone.objects import canonical_root

DonePolicy = Literal["keep", "move", "delete"]
MAX_FILES = 1000
MAX_BYTES = 1 << 30
SETTLE_SECONDS = 2.0


@dataclass(frozen=True)
class Ingested:
    """What was taken from a folder; `waiting_files` are those that are not settled yet."""

    table: str
    source: str
    source_id: str
    batches: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    stream_position: int | None = None
    rejected: Sequence[Rejected] = ()
    waiting_files: int = 0
    dry_run: bool = False


@dataclass(frozen=True)
class DropOptions:
    """Which files are taken, how many at once, and what becomes of them; `how` are options of the write."""

    pattern: str | None = None
    done: DonePolicy = "keep"
    quarantine: bool = False
    rejects: str | None = None
    max_files: int = MAX_FILES
    max_bytes: int = MAX_BYTES
    settle_seconds: float = SETTLE_SECONDS
    how: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.done not in get_args(DonePolicy):
            raise InvalidInputError(f"done is {self.done!r}; use keep, move or delete")
        for name, least in (("max_files", 1), ("max_bytes", 1), ("settle_seconds", 0)):
            if getattr(self, name) < least:
                raise InvalidInputError(f"{name} is {getattr(self, name)}; use {least} or more")

    def checked(self, change_formats: Sequence[str]) -> "DropOptions":
        """Return them with all that a write of their format needs. Raises: InvalidInputError for what does not go with it."""
        is_events = self.how.get("format") in change_formats
        wrong = [name for name in (_OF_ROWS if is_events else _OF_EVENTS) if name in self.how]
        if wrong and is_events:
            raise InvalidInputError(
                f"{wrong[0]} does not go with {self.how['format']} events, which tell it themselves"
            )
        if wrong:
            formats = ", ".join(change_formats)
            raise InvalidInputError(f"{wrong[0]} goes with change events; name their format ({formats})")
        if self.how.get("create") and "into" not in self.how:
            raise InvalidInputError("create goes with into, the template of the tables' names, e.g. shop.{table}")
        if not is_events or self.rejects is None:
            return self
        return dataclasses.replace(self, how={**self.how, "rejects": canonical_root(self.rejects)})


_OF_EVENTS = ("decimals", "times", "header", "into", "create")
_OF_ROWS = ("delimiter", "type", "op_column")


def write_options(
    format: str | None, delimiter: str | None, type: str, op_column: str | None, evolve: bool, **changes: object
) -> dict[str, object]:
    """Return the options of a write that differ from its defaults, as a batch records them; `changes` are of change events."""
    given = {"format": format, "delimiter": delimiter, "op_column": op_column}
    return {
        **{name: value for name, value in given.items() if value is not None},
        **({} if type == "upsert" else {"type": type}),
        **({} if evolve else {"evolve": False}),
        **{name: value for name, value in changes.items() if value},
    }


class Target(Protocol):
    """The table that files are written to."""

    def take_files(
        self,
        files: Sequence[str],
        how: Mapping[str, Any],
        idempotency: Idempotency | None,
        before_commit: Callable[[], None],
        *,
        dry_run: bool,
        progress: Report,
    ) -> "TakenRows":
        """Write all rows of files as one commit, or only check them; return what was written.

        `before_commit` is called when all is read; what it raises stops the write. Raises: as `Table.write`.
        """


class TakenRows(NamedTuple):
    """Rows that were written, or would be in a dry run; the position where it is known."""

    rows: int
    stream_position: int | None


def source_id_of(address: str, given: str | None = None) -> str:
    """Return what a folder's log is called: as given, or by its address. Raises: InvalidInputError."""
    return hashlib.sha256(address.encode()).hexdigest()[:16] if given is None else check_name(given, "source id")
