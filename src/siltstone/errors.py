"""The whole error tree: one root, branches named for what the caller does next.

Each has a `kind`, for programs in any language: kinds may be added, and never change.
"""

import importlib.util
from typing import ClassVar

from siltstone.text import mask_secrets


class SiltstoneError(Exception):
    """Base class of all errors that Siltstone raises on purpose.

    The message says what failed, where, with which values, and what to do next. Errors take one
    argument, so that they survive the pickling between Spark's executors and the driver. Passwords and other secrets
    in it are hidden wherever it is shown.
    """

    kind: ClassVar[str] = "failed"

    def __str__(self) -> str:
        return mask_secrets(super().__str__())


class InvalidInputError(SiltstoneError, ValueError):
    """The call is wrong and has to be changed. Nothing was written."""

    kind: ClassVar[str] = "invalid_input"


class NotFoundError(SiltstoneError, LookupError):
    """What was named does not exist."""

    kind: ClassVar[str] = "not_found"


class AlreadyExistsError(SiltstoneError):
    """What was to be created exists already."""

    kind: ClassVar[str] = "already_exists"


class ConflictError(SiltstoneError):
    """The state was changed by somebody else in the meantime: read and plan again."""

    kind: ClassVar[str] = "conflict"


class CommitUnknownError(SiltstoneError):
    """The answer to a commit was lost: read back before trying again."""

    kind: ClassVar[str] = "commit_unknown"


class StorageError(SiltstoneError):
    """The store failed or could not be reached: the same call may succeed later."""

    kind: ClassVar[str] = "storage"


class AccessDeniedError(StorageError):
    """The store refused access: fix permissions or credentials first."""

    kind: ClassVar[str] = "access_denied"


class CorruptionError(SiltstoneError):
    """Stored data is damaged or incomplete: stop, then repair or rebase."""

    kind: ClassVar[str] = "corruption"


class LeaseLostError(SiltstoneError):
    """Another process has taken over the lease: stop, and commit nothing."""

    kind: ClassVar[str] = "lease_lost"


class NotInstalledError(SiltstoneError):
    """Something that is needed besides Python is missing or too old on this machine: install it."""

    kind: ClassVar[str] = "not_installed"


class SiltstoneWarning(UserWarning):
    """Base class of Siltstone's warnings, which stop nothing."""


class InputWarning(SiltstoneWarning):
    """A data file contains less than it could, or probably not what was meant."""


class KeysInSeveralPartitionsWarning(SiltstoneWarning):
    """A table from before the rule lets a key have a row in each partition, which nobody said is meant."""


def require_packages(purpose: str, packages: tuple[str, ...], install: str) -> None:
    """Raise NotInstalledError with the line to run where a package is not installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise NotInstalledError(f"{purpose} needs {', '.join(missing)}: run pip install '{install}'")
