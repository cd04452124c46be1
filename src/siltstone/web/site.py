"""What the pages are about: the books, the lake, and the node that serves them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from siltstone.service import Database, ServiceSettings
from siltstone.web.access import Access
from siltstone.web.lake_reader import LakeReader


def _nobody_to_wake() -> None:
    """Do nothing."""


def _always() -> bool:
    return True


@dataclass(frozen=True)
class Site:
    """Everything a page needs; `wake` makes the node look at once, `is_alive` tells whether it still runs."""

    database: Database
    lake: LakeReader
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    access: Access = field(default_factory=Access)
    node: str | None = None
    wake: Callable[[], None] = _nobody_to_wake
    is_alive: Callable[[], bool] = _always
    # Whether reading needs the token, too.
    is_private: bool = False
