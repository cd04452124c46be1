"""What did not fit, put aside with the reason: one file of JSON lines for each time that something is."""

import hashlib
from collections.abc import Sequence

import orjson

from siltstone.errors import InvalidInputError, StorageError
from siltstone.objects import canonical_root, open_objects


def put_aside(folder: str, name: str, rejects: Sequence[dict[str, object]], *, dry_run: bool = False) -> str:
    """Write rejects to a file in a folder, local or `s3://…`, whose name has a hash of them; return where it is.

    Nothing is written in a dry run. Raises: InvalidInputError.
    """
    text = b"".join(orjson.dumps(each, option=orjson.OPT_APPEND_NEWLINE) for each in rejects)
    root = canonical_root(folder)
    file = f"{name}-{hashlib.sha256(text).hexdigest()[:16]}.jsonl"
    if not dry_run:
        try:
            open_objects(root).replace(file, text)
        except StorageError as error:
            raise InvalidInputError(f"{root}: rejects cannot be written ({error}); name a folder") from error
    return f"{root}/{file}"
