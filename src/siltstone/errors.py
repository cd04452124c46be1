"""The whole error tree: one root, branches named for what the caller does next."""

from siltstone.masks import mask_secrets


class SiltstoneError(Exception):
    """Root of everything Siltstone raises on purpose.

    The message says what failed, where, with which values, and what to do next. Errors take one
    argument, so that they survive the pickling between Spark's executors and the driver. Passwords and other secrets
    in it are hidden, whoever shows it.
    """

    def __str__(self) -> str:
        return mask_secrets(super().__str__())


class InvalidInputError(SiltstoneError, ValueError):
    """The call is wrong: change it. Nothing was written."""


class NotFoundError(SiltstoneError, LookupError):
    """The thing named does not exist."""


class AlreadyExistsError(SiltstoneError):
    """The thing to create exists already."""


class ConflictError(SiltstoneError):
    """Somebody else changed the state meanwhile: read again and plan again."""


class CommitUnknownError(SiltstoneError):
    """The answer to a commit got lost: read back before trying again."""


class StorageError(SiltstoneError):
    """The store failed or was not reached: the same call may succeed later."""


class AccessDeniedError(StorageError):
    """The store answered, and said no: fix permissions or credentials first."""


class CorruptionError(SiltstoneError):
    """What is stored is damaged or incomplete: stop, then repair or rebase."""


class LeaseLostError(SiltstoneError):
    """The right to act passed to somebody else: stop, and commit nothing."""


class NotInstalledError(SiltstoneError):
    """Something that is needed beside Python is missing on this machine, or too old: install it."""


class KeysInSeveralPartitionsWarning(UserWarning):
    """A table from before the rule lets a key have a row in each partition, which nobody said is meant."""
