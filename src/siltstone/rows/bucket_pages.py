"""Pages of buckets: storing them beside the round completion files that name them, and reading them."""

import zlib
from functools import partial

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.log.horizon import new_round_name
from siltstone.model.buckets import Page, ReadPage, StoredPage
from siltstone.objects import open_objects


def page_reader(root: str) -> ReadPage:
    """Return what reads the pages under a root, wherever it is sent."""
    return partial(read_page, root)


def read_page(root: str, page: Page) -> bytes:
    """Read the lines of a page. Raises: CorruptionError that names it."""
    where = f"{root}/{page.uri}"
    try:
        data = open_objects(root).read(page.uri)
    except NotFoundError as error:
        raise CorruptionError(
            f"{where}: the page of buckets is missing; restore it, or rebase the partition"
        ) from error
    if zlib.crc32(data) != page.checksum:
        raise CorruptionError(
            f"{where}: the page of buckets is damaged (wrong checksum); restore it, or rebase the partition"
        )
    return zlib.decompress(data)


def write_page(root: str, folder: str, began: int, lines: bytes) -> StoredPage:
    """Store the lines of a page under a new name, which says at which batch of the log the round began."""
    path = f"{folder}/rounds/{new_round_name(began)}.page"
    data = zlib.compress(lines, 1)
    open_objects(root).create(path, data)
    return StoredPage(path, len(data), zlib.crc32(data))
