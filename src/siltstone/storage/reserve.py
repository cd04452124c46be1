"""A little room on a local disk, kept for the commits by which a full disk is freed."""

import contextlib

from siltstone.errors import SiltstoneError
from siltstone.objects import local_folder, open_objects
from siltstone.objects.local import OWN_FOLDER

_RESERVE = f"{OWN_FOLDER}/reserve"
_RESERVE_BYTES = 64 << 10


def keep_reserve(root: str) -> None:
    """Make the reserve of a local root, if it has none and there is room for it."""
    if local_folder(root) is None:
        return
    with contextlib.suppress(SiltstoneError):
        objects = open_objects(root)
        if objects.info(_RESERVE) is None:
            objects.replace(_RESERVE, bytes(_RESERVE_BYTES))


def give_up_reserve(root: str) -> bool:
    """Free the reserve; return whether there was one."""
    objects = open_objects(root)
    if local_folder(root) is None or objects.info(_RESERVE) is None:
        return False
    objects.delete([_RESERVE])
    return True
