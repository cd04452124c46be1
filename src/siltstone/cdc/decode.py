"""From events of any format to what they mean for one table."""

from siltstone.cdc.changes import ChangeFormat, Decoded, FindRows, Options, Target
from siltstone.cdc.events import Events


def decode(
    events: Events,
    format: ChangeFormat,
    target: Target,
    options: Options | None = None,
    find_rows: FindRows | None = None,
) -> Decoded:
    """Decode the events of one table; an event that does not fit is among the rejects, with its reason.

    Pure: the same events give the same result anywhere. `find_rows` reads rows of the table whose values the source
    did not send again when their key changed; without it, such rows are among the `carries`.
    Raises: InvalidInputError where the events as a whole cannot be decoded, e.g. since they are of several tables.
    """
    raise NotImplementedError
