"""Bytes under a root: read, create if absent, list, delete; the only package that talks to a real store.

Two implementations of one small protocol: local folders through the operating system, and everything else through
`obstore`. Errors of the operating system and of `obstore` become errors of ours here and nowhere else.
"""

from siltstone.objects.interface import ObjectInfo, Objects
from siltstone.objects.local import LocalObjects, find_leftovers, local_folder
from siltstone.objects.roots import (
    MEMORY_SCHEME,
    Access,
    canonical_root,
    close_together,
    give_up_reserve,
    keep_reserve,
    local_path,
    open_objects,
    replaced,
    share_access,
)
from siltstone.objects.store import StoreObjects

__all__ = [
    "MEMORY_SCHEME",
    "Access",
    "LocalObjects",
    "ObjectInfo",
    "Objects",
    "StoreObjects",
    "canonical_root",
    "close_together",
    "find_leftovers",
    "give_up_reserve",
    "keep_reserve",
    "local_folder",
    "local_path",
    "open_objects",
    "replaced",
    "share_access",
]
