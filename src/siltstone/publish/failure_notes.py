"""Why the last publish of a table failed: kept for people, beside the table, until a later publish makes up for it."""

import contextlib

import orjson

from siltstone.errors import NotFoundError, SiltstoneError
from siltstone.model.properties import PUBLISH_FORMATS
from siltstone.objects import open_objects

FAILURE_FOLDER = "publish_failures"


def failure_path(folder: str, format: str) -> str:
    """Return where it is kept, in the folder of a table version."""
    return f"{folder}/{FAILURE_FOLDER}/{format}.json"


def failure_paths(folder: str) -> set[str]:
    """Return where all formats keep theirs."""
    return {failure_path(folder, name) for name in PUBLISH_FORMATS}


def note_failure(root: str, folder: str, format: str, error: SiltstoneError) -> None:
    """Keep why a publish failed. Raises: StorageError."""
    objects = open_objects(root)
    noted = {"error": str(error), "kind": error.kind, "failed_at": objects.now_ms()}
    objects.replace(failure_path(folder, format), orjson.dumps(noted))


def read_failure(root: str, folder: str, format: str, after_ms: int) -> tuple[str | None, int | None]:
    """Return why and when the last publish failed, if that was after a time. Raises: StorageError."""
    with contextlib.suppress(NotFoundError, ValueError, KeyError, TypeError):
        noted = orjson.loads(open_objects(root).read(failure_path(folder, format)))
        if int(noted["failed_at"]) > after_ms:
            return str(noted["error"]), int(noted["failed_at"])
    return None, None
