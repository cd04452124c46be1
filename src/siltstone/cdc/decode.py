"""From events of any format to what they mean for one table."""

from dataclasses import replace

from siltstone.cdc.changes import ChangeFormat, Decoded, FindRows, Options, Target
from siltstone.cdc.debezium import decode_debezium
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
    options = options or Options()
    decoded = _DECODERS[format](events, target, options, find_rows)
    if not any(reject.event == b"" for reject in decoded.rejects):
        return decoded
    places = {int(line): place for place, line in enumerate(events.lines)}
    values = {reject.line: events.values[places[reject.line]].as_py() or b"" for reject in decoded.rejects}
    return replace(decoded, rejects=[replace(each, event=each.event or values[each.line]) for each in decoded.rejects])


_DECODERS = {"debezium": decode_debezium}
