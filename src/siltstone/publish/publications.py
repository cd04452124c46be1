"""Publishing in any of the formats there are: what `Table.publish`, the service and the command line call."""

from collections.abc import Callable, Mapping, Sequence

from siltstone.catalog import main as catalog
from siltstone.errors import CorruptionError, InvalidInputError, SiltstoneError
from siltstone.log.inspect import Finding
from siltstone.model.properties import PUBLISH, PUBLISH_FORMATS
from siltstone.objects import open_objects
from siltstone.publish.delta import publish_delta, unpublish_delta
from siltstone.publish.delta_log import DeltaLog
from siltstone.publish.iceberg import publish_iceberg, unpublish_iceberg
from siltstone.publish.iceberg_state import read_state
from siltstone.publish.outcomes import Publication, Published, PublishFailure
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
    return _PUBLISHERS[format](name, replace=replace, root=root)


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
    """Return in which formats a table is published now. Raises: NotFoundError, CorruptionError."""
    folder = catalog.version_folder(name, root=root)
    delta, iceberg = DeltaLog(root, folder).read(), read_state(root, folder)
    found = []
    if delta.is_published:
        behind = _rounds_behind(name, delta.rounds, root)
        counts = (delta.version, delta.committed_ms, delta.rounds, behind, delta.file_count)
        found.append(Publication(name, "delta", f"{root}/{folder}", *counts))
    if iceberg.is_published:
        rounds = {**iceberg.rounds}
        behind = _rounds_behind(name, rounds, root)
        counts = (iceberg.version, iceberg.committed_ms, rounds, behind, iceberg.file_count)
        found.append(Publication(name, "iceberg", iceberg.location, *counts))
    return found


def _rounds_behind(name: str, rounds: Mapping[str, int], root: str) -> int:
    """Return how many rounds came since those that were published."""
    partitions = read_own(name, root=root).partitions
    newest = [(each.own.partition_id, each.state.round_id or 0) for each in partitions]
    return sum(max(0, number - rounds.get(partition, 0)) for partition, number in newest)


def unpublish(name: str, *, root: str) -> list[str]:
    """Take back what is published of a table, in all formats; return which. Raises: NotFoundError."""
    ways = {"delta": unpublish_delta, "iceberg": unpublish_iceberg}
    return [known for known, take_back in ways.items() if take_back(name, root=root)]


def check_publications(name: str, *, root: str) -> Sequence[Finding]:
    """Check that all that is published is there, as large as it was."""
    folder = catalog.version_folder(name, root=root)
    action = f"run siltstone unpublish {name}, then siltstone publish {name}"
    try:
        delta, iceberg = DeltaLog(root, folder).read(), read_state(root, folder)
        expected: dict[str, tuple[int | None, str]] = {}
        if iceberg.is_published:
            expected |= {uri: (size, f"version {iceberg.version} as iceberg") for uri, size in iceberg.sizes().items()}
        if delta.is_published:
            adds = delta.adds(delta.uri_of(path) for path in delta.all_adds().field("path").to_pylist())
            of = f"version {delta.version} as delta"
            expected |= dict.fromkeys(delta.named(adds.values()), (None, of))
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
