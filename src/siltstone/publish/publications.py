"""Publishing in any of the formats there are: what `Table.publish`, the service and the command line call."""

from collections.abc import Callable, Sequence

from siltstone.catalog import main as catalog
from siltstone.errors import CorruptionError, InvalidInputError, SiltstoneError
from siltstone.log.inspect import Finding
from siltstone.model.properties import PUBLISH, PUBLISH_FORMATS
from siltstone.objects import open_objects
from siltstone.publish.delta import publish_delta, unpublish_delta
from siltstone.publish.delta_log import DeltaLog
from siltstone.publish.outcomes import Publication, Published, PublishFailure
from siltstone.table.followers import read_own

_PUBLISHERS: dict[str, Callable[..., Published]] = {"delta": publish_delta}


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
    state = DeltaLog(root, folder).read()
    if not state.is_published:
        return []
    behind = 0
    for partition in read_own(name, root=root).partitions:
        newest = partition.state.round_id or 0
        behind += max(0, newest - state.rounds.get(partition.own.partition_id, 0))
    address = f"{root}/{folder}"
    return [
        Publication(name, "delta", address, state.version, state.committed_ms, state.rounds, behind, state.file_count)
    ]


def unpublish(name: str, *, root: str) -> list[str]:
    """Take back what is published of a table, in all formats; return which. Raises: NotFoundError."""
    return ["delta"] if unpublish_delta(name, root=root) else []


def check_publications(name: str, *, root: str) -> Sequence[Finding]:
    """Check that all that is published is there, as large as it was."""
    folder = catalog.version_folder(name, root=root)
    log = DeltaLog(root, folder)
    action = f"run siltstone unpublish {name}, then siltstone publish {name}"
    try:
        state = log.read()
    except CorruptionError as error:
        return [Finding("published", folder, str(error), action)]
    if not state.is_published:
        return []
    sizes = {info.path: info.size for info in open_objects(root).list_objects(folder, recursive=True)}
    adds = state.adds(state.uri_of(path) for path in state.all_adds().field("path").to_pylist())
    missing = sorted(state.named(adds.values()) - sizes.keys())
    findings = [
        Finding("published", uri, f"is missing, and version {state.version} names it", action) for uri in missing
    ]
    for uri, add in adds.items():
        if sizes.get(uri, add["size"]) != add["size"]:
            message = f"has {sizes[uri]} bytes, and version {state.version} says {add['size']}"
            findings.append(Finding("published", uri, message, action))
    return findings
