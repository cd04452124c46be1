import pickle

import pytest

from siltstone import errors
from siltstone.errors import SiltstoneError

# Programs decide by them what to do next: a kind may be added, but none may change or go.
KINDS = {
    "AccessDeniedError": "access_denied",
    "AlreadyExistsError": "already_exists",
    "CommitUnknownError": "commit_unknown",
    "ConflictError": "conflict",
    "CorruptionError": "corruption",
    "InvalidInputError": "invalid_input",
    "LeaseLostError": "lease_lost",
    "NotFoundError": "not_found",
    "NotInstalledError": "not_installed",
    "SiltstoneError": "failed",
    "StorageError": "storage",
}


def classes() -> dict[str, type[SiltstoneError]]:
    """Return every error of the tree by its name."""
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, SiltstoneError)
    }


def test_every_error_has_a_kind_of_its_own_that_stays() -> None:
    assert {name: error.kind for name, error in classes().items()} == KINDS
    assert len(set(KINDS.values())) == len(KINDS)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_an_error_keeps_its_kind_and_message_between_processes(name: str) -> None:
    error = pickle.loads(pickle.dumps(classes()[name]("shop.orders: is gone")))
    assert (error.kind, str(error)) == (KINDS[name], "shop.orders: is gone")
