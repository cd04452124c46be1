"""The audit trail of a lake: who created, altered, dropped, rolled back, erased and vacuumed what, from its logs.

Each entry is in the batch of the change itself. The log of the catalog has those about tables as a whole, the log of a table and those of
its partitions the rest. When the files of a dropped table are removed, its entries go on in the catalog's log.
"""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from siltstone.errors import CorruptionError, NotFoundError, SiltstoneWarning
from siltstone.log.actions import AUDIT_PREFIX, Action
from siltstone.log.commit import CommitLog, commit_log
from siltstone.log.state import Entry, LogState, decoding
from siltstone.model import COMPACTED_STREAM, DEFAULT_STREAM
from siltstone.model.locators import UNPARTITIONED, split_table_name
from siltstone.storage import object_store as storage
from siltstone.storage.layout import DROPPED_PREFIX, catalog_log, dropped_key, partition_prefix, version_log

Detail = int | str | list[str]


@dataclass(frozen=True)
class AuditEntry:
    """What somebody did, and when. `about` is the table, its partition, and the details, for people.

    `through` is `command`, `python`, or `service` for what was asked of the service; there, `requester` says whether by a command, a page or
    the API. `table` is None for what is about no table, or about all.
    """

    at: int
    requester: str
    action: str
    about: str
    through: str = "service"
    table: str | None = None
    details: Mapping[str, Detail] = field(default_factory=dict)


def read_audit(
    *,
    table: str | None = None,
    asked: Iterable[AuditEntry] = (),
    limit: int | None = None,
    recall: bool = False,
    root: str,
) -> list[AuditEntry]:
    """Return what was done in a lake, or to a table of it, newest first, together with what was `asked` of the service.

    Tables have the names that they have now, or had when they were dropped. With `recall`, their logs are as this process knows them. Where
    one is damaged, that is a warning, unless its table is asked for. Raises: NotFoundError where nothing is known of the table;
    CorruptionError, StorageError.
    """
    # By key: what the catalog's log has taken over may still be where it was.
    known = {entry["key"]: _entry(entry, entry.get("table"), "") for entry in catalog_log(root).read(_entries)}
    folders = _folders(root)
    if table is not None:
        folders = {folder: name for folder, name in folders.items() if name == table}
    for folder, name in folders.items():
        try:
            for partition, log in _logs_in(root, folder, recall=recall):
                for entry in (log.recall if recall else log.read)(_entries):
                    known.setdefault(entry["key"], _entry(entry, name, partition))
        except CorruptionError as error:
            # Of a dropped table, files may be gone already.
            if table is not None and storage.table_exists(*split_table_name(table), root=root):
                raise
            warnings.warn(f"left out of the audit trail: {error}", SiltstoneWarning, stacklevel=2)
    entries = [each for each in [*known.values(), *reversed(list(asked))] if table is None or _is_about(each, table)]
    if table is not None and not entries and not folders:
        raise NotFoundError(f"nothing is known of a table {table}; `siltstone audit` lists all that was done")
    entries.sort(key=lambda each: each.at)
    return entries[::-1][:limit]


def _is_about(entry: AuditEntry, table: str) -> bool:
    return table in (entry.table, entry.details.get("to")) or table in entry.details.get("tables", ())  # type: ignore[operator]


def carry_over(root: str, folder: str, dropped: Entry, action: Action) -> None:
    """Keep, in the catalog's log, the audit entries of a dropped table version whose files are about to be removed, and who does that.

    After one that is damaged, the rest is left out. Of a partition nothing is kept but what was done: it may be called by values of a key that was erased.
    """
    kept: dict[str, Entry] = {dropped_key(folder): dropped}
    with contextlib.suppress(CorruptionError):
        for _, log in _logs_in(root, folder):
            kept |= {each["key"]: {**each, "table": dropped["table"]} for each in log.read(_entries)}
    changes = {key: {name: value for name, value in each.items() if name != "key"} for key, each in kept.items()}
    catalog_log(root).commit("remove dropped table", lambda _: changes, action=action)


def _logs_in(root: str, folder: str, *, recall: bool = False) -> Iterator[tuple[str, CommitLog]]:
    """Yield the logs of a table version with the partitions that they are of: none for its own. Raises: CorruptionError."""
    own, prefix = version_log(root, folder), partition_prefix(DEFAULT_STREAM)
    yield "", own
    for key in (own.recall if recall else own.read)(lambda state: state.keys(prefix)):
        partition = key.removeprefix(prefix)
        log = commit_log(root, f"{folder}/{COMPACTED_STREAM}/{partition}/log")
        yield "" if partition == UNPARTITIONED else partition, log


def _folders(root: str) -> dict[str, str]:
    """Return the folders of all table versions that may be there, those of dropped tables first, with the names of the tables."""
    dropped = catalog_log(root).read(lambda state: state.scan(DROPPED_PREFIX))
    tables = storage.list_tables(root=root)
    return {
        **{entry["key"].removeprefix(DROPPED_PREFIX): str(entry["table"]) for entry in dropped},
        **{version.folder: table.locator.full_name for table in tables for version in table.versions},
    }


def _entries(state: LogState) -> list[Entry]:
    return state.scan(AUDIT_PREFIX)


def _entry(entry: Entry, table: str | None, partition: str) -> AuditEntry:
    with decoding(entry):
        details = dict(entry["details"])
        about = [" ".join(filter(None, [table, partition.replace(",", ", ")])), *_phrases(details)]
        return AuditEntry(
            at=int(entry["at"]),
            requester=str(entry["actor"]),
            action=str(entry["action"]),
            about=": ".join(filter(None, [about[0], ", ".join(about[1:])])),
            through=str(entry["through"]),
            table=table,
            details=details,
        )


def _phrases(details: Mapping[str, Detail]) -> Iterable[str]:
    for name, value in details.items():
        yield f"{name.replace('_', ' ')} {', '.join(value) if isinstance(value, list) else value}"
