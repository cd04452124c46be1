"""Publishing in any of the formats there are: what `Table.publish`, the service and the command line call."""

import contextlib
from collections.abc import Callable, Mapping, Sequence

from siltstone.catalog import main as catalog
from siltstone.errors import CorruptionError, InvalidInputError, SiltstoneError
from siltstone.log.inspect import Finding
from siltstone.model.properties import PUBLISH, PUBLISH_FORMATS
from siltstone.objects import open_objects
from siltstone.publish.delta import publish_delta, unpublish_delta
from siltstone.publish.delta_log import DeltaLog
from siltstone.publish.delta_state import DeltaState
from siltstone.publish.failure_notes import note_failure, read_failure
from siltstone.publish.iceberg import publish_iceberg, unpublish_iceberg
from siltstone.publish.iceberg_state import FOLDER as ICEBERG_FOLDER
from siltstone.publish.iceberg_state import IcebergState, read_state
from siltstone.publish.outcomes import Publication, Published, PublishFailure
from siltstone.table.completion import list_rounds
from siltstone.table.followers import read_own

_PUBLISHERS: dict[str, Callable[..., Published]] = {"delta": publish_delta, "iceberg": publish_iceberg}


def publish(name: str, format: str, *, replace: bool = False, root: str) -> Published:
    """Publish the newest state of a table in a format; where that is published, nothing is done.

    Raises: InvalidInputError, NotFoundError, ConflictError, CorruptionError, StorageError.
    """
    if format not in _PUBLISHERS:
        raise InvalidInputError(
            f"{name}: unknown format {format!r} to publish as; there is {', '.join(PUBLISH_FORMATS)}"
        )
    try:
        return _PUBLISHERS[format](name, replace=replace, root=root)
    except SiltstoneError as error:
        with contextlib.suppress(SiltstoneError):
            note_failure(root, catalog.version_folder(name, root=root), format, error)
        raise


def publish_by_property(name: str, *, root: str) -> list[Published | PublishFailure]:
    """Publish a table in the formats that its property `publish` names. What fails is told, and does not stop the others."""
    done: list[Published | PublishFailure] = []
    try:
        version = catalog.get_table_version(name, recall=True, root=root)
        formats = PUBLISH.of(version.properties, name)
    except SiltstoneError as error:
        return [PublishFailure(name, "", str(error), error.kind)]
    for wanted in formats:
        try:
            done.append(publish(name, wanted, root=root))
        except SiltstoneError as error:
            done.append(PublishFailure(name, wanted, str(error), error.kind))
    return done


def read_publications(name: str, *, root: str) -> list[Publication]:
    """Return in which formats a table is published, or is to be by its property. Raises: NotFoundError, CorruptionError."""
    wanted = PUBLISH.of(catalog.get_table_version(name, root=root).properties, name)
    folder = catalog.version_folder(name, root=root)
    found = []
    for known, address in {"delta": f"{root}/{folder}", "iceberg": f"{root}/{folder}/{ICEBERG_FOLDER}"}.items():
        state, files, error = _state_of(root, folder, known)
        if not state.is_published and error is None and known not in wanted:
            continue
        version, published_at, failed_at = None, None, None
        if state.is_published:
            version, published_at = state.version, state.committed_ms
        behind, since = _rounds_behind(name, state.rounds, root)
        if error is None and (behind or not state.is_published):
            error, failed_at = read_failure(root, folder, known, published_at or 0)
        counts = ({**state.rounds}, behind, since, files)
        found.append(Publication(name, known, address, version, published_at, *counts, error, failed_at))
    return found


def _state_of(root: str, folder: str, format: str) -> tuple[DeltaState | IcebergState, int, str | None]:
    """Return what is published in a format, how many files that are, and what is damaged, if anything."""
    try:
        state = DeltaLog(root, folder).read() if format == "delta" else read_state(root, folder)
        return state, state.file_count, None
    except CorruptionError as error:
        return DeltaState(folder), 0, str(error)


def _rounds_behind(name: str, rounds: Mapping[str, int], root: str) -> tuple[int, int | None]:
    """Return how many rounds came since those that were published, and when the first of them that is known did."""
    count, times = 0, []
    for partition in read_own(name, root=root).partitions:
        published = rounds.get(partition.own.partition_id, 0)
        newer = (partition.state.round_id or 0) - published
        if newer > 0:
            count += newer
            entries = list_rounds(partition.destination)
            times += [int(entry["completed_at"]) for entry in entries if int(entry["round_id"]) > published]
    return count, min(times, default=None)


def unpublish(name: str, *, root: str) -> list[str]:
    """Take back what is published of a table, in all formats; return which. Raises: NotFoundError."""
    ways = {"delta": unpublish_delta, "iceberg": unpublish_iceberg}
    return [known for known, take_back in ways.items() if take_back(name, root=root)]


def check_publications(name: str, *, root: str) -> Sequence[Finding]:
    """Check that all that is published is there, as large as it was."""
    folder = catalog.version_folder(name, root=root)
    action = f"run siltstone unpublish {name}, then siltstone publish {name}"
    log = DeltaLog(root, folder)
    try:
        delta, iceberg = log.read(), read_state(root, folder)
        expected: dict[str, tuple[int | None, str]] = {}
        if iceberg.is_published:
            expected |= {uri: (size, f"version {iceberg.version} as iceberg") for uri, size in iceberg.sizes().items()}
        if delta.is_published:
            adds = delta.adds(delta.uri_of(path) for path in delta.all_adds().field("path").to_pylist())
            of = f"version {delta.version} as delta"
            named = delta.named(adds.values()) | delta.change_files(log.read_commit(delta.version))
            expected |= dict.fromkeys(named, (None, of))
            expected |= {uri: (add["size"], of) for uri, add in adds.items()}
    except CorruptionError as error:
        return [Finding("published", folder, str(error), action)]
    if not expected:
        return []
    sizes = {info.path: info.size for info in open_objects(root).list_objects(folder, recursive=True)}
    findings = []
    for uri, (size, of) in sorted(expected.items()):
        if uri not in sizes:
            findings.append(Finding("published", uri, f"is missing, and {of} names it", action))
        elif size is not None and sizes[uri] != size:
            findings.append(Finding("published", uri, f"has {sizes[uri]} bytes, and {of} says {size}", action))
    return findings
