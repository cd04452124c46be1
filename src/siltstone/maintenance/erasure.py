"""Erasing a primary key from a table: from deltas, rounds, tags and published versions, and proving that nothing is left.

Every object of the table is searched. Deltas that hold the key are written anew without it, and so are the buckets of the current
rounds that do, by a round that says so. Rounds that name what holds it are forgotten. What is published is taken back, and
published anew in the end. Then nothing names those files, and a vacuum removes them. Each step finds out by itself what is left
to do, so that an erasure that was stopped is completed by another one.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from siltstone.catalog import main as catalog
from siltstone.errors import ConflictError, CorruptionError
from siltstone.ingest.drop_log import is_drop_log
from siltstone.log.actions import Action
from siltstone.log.commit import Changes, commit_log
from siltstone.log.horizon import announced, new_file_name, raise_horizon, refuse_late
from siltstone.log.state import Entry, LogState
from siltstone.maintenance.file_copies import Progress
from siltstone.maintenance.key_search import Found, SoughtKey, search, sought_key
from siltstone.maintenance.round_erasure import erase_from_round
from siltstone.maintenance.vacuum import vacuum
from siltstone.model import DEFAULT_STREAM
from siltstone.objects import ObjectInfo, open_objects
from siltstone.publish.publications import publish, read_publications, unpublish
from siltstone.publish.retention import is_publication
from siltstone.storage.layout import EVERY_PARTITION, version_log
from siltstone.storage.parquet import DAMAGE_ERRORS, ROW_GROUP_ROWS, open_parquet, open_writer
from siltstone.table.completion import (
    CURRENT_KEY,
    HOLD_PREFIX,
    ROUND_PREFIX,
    Destination,
    completion_objects,
    current_entry,
    list_holds,
    list_rounds,
    read_kept,
)
from siltstone.table.consumers import list_consumers
from siltstone.table.followers import read_own
from siltstone.table.tags import Tag, objects_of_tag, remove_tag, tags_in

ERASURE_KEY = "erasure"
"""The entry of a version's log that says in which formats a table is to be published again."""
_DELTAS = "delta/"
_ATTEMPTS = 5
_FOREVER_MS = 1000 * 365 * 24 * 3600 * 1000


@dataclass
class ErasureReport:
    """What an erasure found, did or would do, and the proof: what was searched in the end, and where the key is left.

    `obstacles` are what keeps states that hold the key. `partial_files` are deltas that delete by a part of the key, and so are
    about other keys, too: they stay, and so do logs, which have no rows, but have the text of the key somewhere, by chance
    or not: `mentioning_logs`. `followers` are folders of other tables that read this one's deltas, and have rows of their own.
    """

    table: str
    dry_run: bool
    found_files: int = 0
    found_rows: int = 0
    rewritten_deltas: int = 0
    rewritten_buckets: int = 0
    rounds: list[int] = field(default_factory=list)
    forgotten_rounds: int = 0
    removed_tags: list[str] = field(default_factory=list)
    removed_files: int = 0
    removed_bytes: int = 0
    published_again: list[str] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)
    partial_files: list[str] = field(default_factory=list)
    mentioning_logs: list[str] = field(default_factory=list)
    followers: list[str] = field(default_factory=list)
    searched_files: int = 0
    searched_bytes: int = 0
    left_files: list[str] = field(default_factory=list)


def erase_key(
    name: str,
    key: Mapping[str, object],
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda message: None,
    root: str,
) -> ErasureReport:
    """Remove a primary key from all that there is of a table, and prove that nothing is left of it.

    States that hold it are no longer readable: rounds are forgotten. Where tags, holds or consumers of changes keep them, nothing
    is done, unless by `force`: then tags and holds are removed, and such consumers have to begin anew.
    Raises: InvalidInputError, ConflictError, CorruptionError where the key is left somewhere, StorageError.
    """
    version = catalog.get_table_version(name, root=root)
    sought = sought_key(version, key)
    report, before = ErasureReport(name, dry_run), None
    for _ in range(_ATTEMPTS):
        erasure = _Erasure(name, sought, report, progress, root)
        progress(f"Searching {name}")
        erasure.search(is_first=not report.found_files)
        report.obstacles = erasure.obstacles()
        if dry_run:
            return report
        if report.obstacles and not force:
            raise ConflictError(
                f"{name}: states that hold the key are kept by {'; '.join(report.obstacles)}; remove what keeps them, or "
                "use --force (force=True), which does"
            )
        erasure.run()
        progress(f"Searching {name} again")
        erasure.prove()
        if not report.left_files:
            return report
        if report.left_files == before:
            break
        before = report.left_files
    raise CorruptionError(
        f"{name}: the key is left in {len(report.left_files)} files, e.g. {report.left_files[0]}: somebody writes it, or nothing "
        "says whose these files are; erase it again, and delete them by hand if that does not help"
    )


class _Erasure:
    """One attempt: what holds the key, and the steps that remove it."""

    def __init__(self, name: str, key: SoughtKey, report: ErasureReport, progress: Progress, root: str) -> None:
        self._name = name
        self._key = key
        self._report = report
        self._progress = progress
        self._root = root
        self._folder = catalog.version_folder(name, root=root)
        self._log = version_log(root, self._folder)
        self._dirty: set[str] = set()
        # What rounds named that are forgotten.
        self._forgotten: set[str] = set()
        # Commit logs with the text of the key.
        self._logs: list[str] = []

    @cached_property
    def _destinations(self) -> list[Destination]:
        """The compacted partitions that hold the key, or may come to: their deltas do."""
        folders = {"/".join(path.split("/")[: self._folder.count("/") + 3]) for path in self._dirty}
        ids = {
            folder.rpartition("/")[2] for folder in folders if folder.startswith(f"{self._folder}/{DEFAULT_STREAM}/")
        }
        destinations = [partition.destination for partition in read_own(self._name, root=self._root).partitions]
        return [
            each
            for each in destinations
            if each.folder in folders or each.locator.partition_id in ids or EVERY_PARTITION in ids
        ]

    def _objects(self) -> list[ObjectInfo]:
        return open_objects(self._root).list_objects(self._folder, recursive=True)

    def search(self, *, is_first: bool) -> None:
        """Find all that holds the key."""
        whole, found = self._found(self._objects())
        self._dirty = {each.path for each in whole}
        logs = [path for path in self._report.mentioning_logs if "/log/" in path]
        self._logs = sorted({path.rpartition("/")[0] for path in logs})
        self._report.partial_files = [each.path for each in found if each.is_part]
        self._report.followers = self._followers()
        if is_first:
            self._report.found_files, self._report.found_rows = len(whole), sum(each.rows for each in whole)

    def _found(self, objects: Sequence[ObjectInfo], *, is_proof: bool = False) -> tuple[list[Found], list[Found]]:
        """Return what holds the key, and all that was found.

        Text in logs is no row. Nor is it, in the end, in publications: these were made anew from files without the key.
        """
        found = search(self._root, objects, self._key)
        logs = [each for each in found if each.is_text and self._is_log(each.path, is_proof=is_proof)]
        self._report.mentioning_logs = sorted(each.path for each in logs)
        return [each for each in found if not each.is_part and each not in logs], found

    def _is_log(self, path: str, *, is_proof: bool) -> bool:
        is_published = is_proof and is_publication(path, self._folder)
        return "/log/" in path or is_drop_log(path, self._folder) or is_published

    def _followers(self) -> list[str]:
        entries = self._log.read(lambda state: state.scan("follower/"))
        return sorted({str(entry.get("folder", "")).split("/compacted/")[0] for entry in entries})

    def obstacles(self) -> list[str]:
        """Return what keeps states that hold the key, but for those that are current."""
        found = [f"tag {tag.name}" for tag in self._dirty_tags()]
        for destination in self._destinations:
            rounds = self._dirty_rounds(destination)
            newest = (current_entry(destination) or {}).get("round_id")
            now_ms = self._log.now_ms()
            held = [hold for hold in list_holds(destination) if hold.until_ms > now_ms and hold.keeps_state]
            found += [f"hold {hold.hold_id}" for hold in held if hold.round_id in rounds]
            behind = [each for each in list_consumers([destination]) if each.round_id != newest]
            found += [f"consumer {each.name} at round {each.round_id}" for each in behind if each.round_id in rounds]
        return found

    def _dirty_tags(self) -> list[Tag]:
        tags = tags_in(self._root, self._folder)
        return [tag for tag in tags if not self._dirty.isdisjoint(objects_of_tag(tag, self._root, self._folder))]

    def _dirty_rounds(self, destination: Destination) -> dict[int, set[str]]:
        """Return the rounds of a partition that name what holds the key, with all that they name."""
        dirty = {}
        for entry in list_rounds(destination):
            completion = read_kept(destination, entry)
            named = set() if completion is None else {str(entry["uri"]), *completion_objects(completion)}
            if not self._dirty.isdisjoint(named):
                dirty[int(entry["round_id"])] = named
        return dirty

    def run(self) -> None:
        """Remove it. Raises: ConflictError."""
        formats = self._formats()
        if not self._dirty and not formats and not self._logs:
            return
        self._note_formats(formats)
        self._progress(f"Rewriting {len(self._dirty)} files of {self._name}")
        self._rewrite_deltas()
        for destination in self._destinations:
            done = erase_from_round(destination, self._key, self._dirty)
            if done is not None:
                self._report.rewritten_buckets += done.buckets
                self._report.rounds.append(done.round_id)
            self._refuse_earlier_work(destination)
        for tag in self._dirty_tags():
            remove_tag(self._name, tag.name, root=self._root)
            self._report.removed_tags.append(tag.name)
        for destination in self._destinations:
            self._report.forgotten_rounds += self._forget_rounds(destination)
        self._remove_files()
        for each in formats:
            publish(self._name, each, root=self._root)
            self._report.published_again.append(each)
        if formats:
            self._log.commit("erased", lambda state: {ERASURE_KEY: None} if ERASURE_KEY in state else {})
        for folder in self._logs:
            commit_log(self._root, folder).forget_earlier()

    def _formats(self) -> list[str]:
        """Return in which formats the table is to be published in the end: as it is now, and as an erasure found it that was stopped."""
        noted = self._log.read(lambda state: state.get(ERASURE_KEY)) or {}
        is_published = bool(self._dirty) or bool(noted)
        found = read_publications(self._name, root=self._root) if is_published else []
        now = [each.format for each in found if each.version is not None]
        return sorted({*noted.get("formats", ()), *now})

    def _note_formats(self, formats: Sequence[str]) -> None:
        if formats:
            self._log.commit(
                "erase", lambda state: {} if _noted(state) == formats else {ERASURE_KEY: {"formats": formats}}
            )
            unpublish(self._name, root=self._root)

    def _rewrite_deltas(self) -> None:
        """Let deltas name files without the key, all in one commit."""
        began = self._log.read(lambda state: state.batch_id)
        entries = self._log.read(lambda state: {each["key"]: each for each in state.scan(_DELTAS)})
        uris = {uri for entry in entries.values() for uri in _uris(entry) if uri in self._dirty}
        if not uris and not self._logs:
            return
        with announced(self._log, began):
            written = {uri: self._rewritten(uri, began) for uri in sorted(uris)}

            def prepare(state: LogState) -> Changes:
                refuse_late(state, [entry["uri"] for entry in written.values()], self._name)
                # One that was trimmed meanwhile is gone.
                current = {key: entry for key in entries if (entry := state.get(key)) is not None}
                renewed = {key: _renewed(entry, written, self._key.values) for key, entry in current.items()}
                return {key: entry for key, entry in renewed.items() if {"key": key, **entry} != current[key]}

            self._log.commit("erase from deltas", prepare, action=Action("erase", {"files_of_deltas": len(uris)}))
        self._report.rewritten_deltas += len(uris)

    def _rewritten(self, uri: str, began: int) -> Entry:
        """Write a file of a delta without the key; return what its manifest says of it. Raises: CorruptionError."""
        with open_parquet(self._root, uri) as file:
            try:
                table = file.read()
            except DAMAGE_ERRORS as error:
                raise CorruptionError(f"{self._root}/{uri}: is damaged ({error}); restore it from a copy") from error
        present, _ = self._key.columns_in(uri, table.column_names)
        kept = table.filter(pa.array(~self._key.flags(table, present)))
        path = f"{uri.rpartition('/')[0]}/{new_file_name(began)}.parquet"
        with open_objects(self._root).open_writer(path) as sink:
            with open_writer(sink, kept, table.schema) as writer:
                writer.write_table(kept, row_group_size=ROW_GROUP_ROWS)
            size = sink.tell()
        return {"uri": path, "record_count": kept.num_rows, "content_length": size}

    def _refuse_earlier_work(self, destination: Destination) -> None:
        """Refuse rounds that began before now: they may have read the key. Raises: ConflictError."""
        newest = destination.log.read(lambda state: state.batch_id)
        if raise_horizon(destination.log, newest + 1) <= newest:
            raise ConflictError(
                f"{destination.locator}: a round is under way, which may have read the key; erase it after that"
            )

    def _forget_rounds(self, destination: Destination) -> int:
        dirty = self._dirty_rounds(destination)

        def prepare(state: LogState) -> Changes:
            current = (state.get(CURRENT_KEY) or {}).get("round_id")
            held = [hold for hold in state.scan(HOLD_PREFIX) if hold.get("round_id") in dirty]
            gone = [f"{ROUND_PREFIX}{each}" for each in dirty if each != current]
            return {key: None for key in [*gone, *(str(hold["key"]) for hold in held)] if key in state}

        if dirty:
            action = Action("erase", {"forgotten_rounds": len(dirty)})
            destination.log.commit("erase from rounds", prepare, action=action)
        self._forgotten.update(*dirty.values())
        return len(dirty)

    def _remove_files(self) -> None:
        """Remove what holds the key, or was named by rounds that did, however young; its writers have to write it again."""
        # An index is called as its data file is.
        stems = {path.rpartition(".")[0] for path in self._dirty}

        def at_once(path: str) -> bool:
            is_ours = path in self._forgotten or is_publication(path, self._folder)
            return is_ours or path.rpartition(".")[0] in stems

        done = vacuum(self._folder, root=self._root, retention_ms=_FOREVER_MS, at_once=at_once)
        self._report.removed_files += len(done.removed_files)
        self._report.removed_bytes += done.removed_bytes

    def prove(self) -> None:
        """Search every object of the table again, of all its versions, and note what holds the key."""
        table, store = catalog.get_table(self._name, root=self._root), open_objects(self._root)
        objects = [info for version in table.versions for info in store.list_objects(version.folder, recursive=True)]
        left, _ = self._found(objects, is_proof=True)
        self._report.searched_files = len(objects)
        self._report.searched_bytes = sum(info.size for info in objects)
        self._report.left_files = sorted(each.path for each in left)


def _noted(state: LogState) -> list[str] | None:
    entry = state.get(ERASURE_KEY)
    return None if entry is None else list(entry["formats"])


def _uris(delta: Entry) -> Iterable[str]:
    return [file["uri"] for file in delta.get("manifest", {}).get("entries", [])]


def _renewed(delta: Entry, written: Mapping[str, Entry], values: Collection[object]) -> Entry:
    """Return the entry of a delta that names other files in place of some, and does not list the values of the key."""
    files = [{**file, **written.get(file["uri"], {})} for file in delta.get("manifest", {}).get("entries", [])]
    own = {name: value for name, value in delta.items() if name != "key"}
    listed = {
        name: [each for each in value if each not in values] if isinstance(value, list) else value
        for name, value in delta.get("properties", {}).items()
    }
    return {**own, "manifest": {**delta["manifest"], "entries": files}, **({"properties": listed} if listed else {})}
