"""The storage implementation conforms to the interface, on every kind of store."""

import pytest

from siltstone.catalog import interface, main
from siltstone.storage import object_store
from siltstone.testing import CHECKS, check_signatures
from siltstone.testing.storage_conformance import Check


def test_signatures_are_those_of_the_interface() -> None:
    check_signatures(object_store)


def test_signatures_of_the_catalog_are_those_of_its_interface() -> None:
    check_signatures(main, interface)
    with pytest.raises(AssertionError, match="no function alter_table"):
        check_signatures(object_store, interface)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_storage_conforms(check: Check, root: str) -> None:
    check(object_store, root)
