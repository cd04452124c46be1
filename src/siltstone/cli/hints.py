"""Guesses at what was meant, where a name is not known."""

from siltstone.errors import InvalidInputError, NotFoundError, SiltstoneError
from siltstone.lake import Lake, Table
from siltstone.model.names import did_you_mean
from siltstone.objects import local_folder


def find_table(lake: Lake, name: str) -> Table:
    """Return a table. Raises: NotFoundError that also guesses which one was meant."""
    try:
        return lake.table(name)
    except NotFoundError as error:
        folder = local_folder(lake.root)
        if folder is not None and not folder.is_dir():
            raise NotFoundError(f"{error}; the folder {folder} does not exist, is the root right?") from error
        raise NotFoundError(f"{error}{_guess(lake, name)}") from error
    except InvalidInputError as error:
        raise InvalidInputError(f"{error}{_guess(lake, name)}") from error


def _guess(lake: Lake, name: str) -> str:
    try:
        return did_you_mean(name, [table.name for table in lake.tables()])
    except SiltstoneError:
        return ""
