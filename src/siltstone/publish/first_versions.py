"""First versions of published tables, which no version before them guards against a vacuum.

A vacuum commits an empty version before it deletes, so that publishers plan again. Where nothing is published it must not make a
log. So whoever is about to make a first version says so, by an object beside it, before it looks at the table: a vacuum that
finds that makes the version itself. One that does not has forgotten its rounds before the publisher looked.
"""

import contextlib
import logging
import uuid
from collections.abc import Iterator

from siltstone.errors import SiltstoneError
from siltstone.objects import open_objects

_log = logging.getLogger(__name__)
_ENDING = ".begun"


@contextlib.contextmanager
def announced(root: str, path: str) -> Iterator[None]:
    """Announce, while this is open, a first version that is about to be committed at a path; a vacuum removes what is left of it."""
    objects = open_objects(root)
    mark = f"{path}.{uuid.uuid4().hex}{_ENDING}"
    objects.create(mark, b"{}")
    try:
        yield
    finally:
        try:
            objects.delete([mark])
        except SiltstoneError as error:
            _log.warning("%s/%s: was not removed (%s)", root, mark, error)


def is_announced(root: str, path: str) -> bool:
    """Return whether somebody may be about to commit a first version at a path."""
    listed = open_objects(root).list_objects(path.rpartition("/")[0])
    return any(info.path.startswith(f"{path}.") and info.path.endswith(_ENDING) for info in listed)
