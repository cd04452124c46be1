"""The storage implementation conforms to the interface, on every kind of store."""

import pytest

from siltstone.catalog import main
from siltstone.catalog.interface import Catalog
from siltstone.storage import object_store
from siltstone.storage.interface import Storage
from siltstone.testing import CHECKS, check_signatures
from siltstone.testing.storage_conformance import Check

# The type checker compares the modules with what they implement.
STORAGE: Storage = object_store
CATALOG: Catalog = main


def test_signatures_are_those_of_the_interface() -> None:
    check_signatures(object_store)


def test_signatures_of_the_catalog_are_those_of_its_interface() -> None:
    check_signatures(main, Catalog)
    with pytest.raises(AssertionError, match="no function alter_table"):
        check_signatures(object_store, Catalog)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_storage_conforms(check: Check, root: str) -> None:
    check(object_store, root)
