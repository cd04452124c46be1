"""From events of any format to what they mean for one table."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa

from siltstone.cdc.canal import decode_canal
from siltstone.cdc.changes import ChangeFormat, Decoded, FindRows, Options, Target
from siltstone.cdc.debezium import decode_debezium
from siltstone.cdc.dms import decode_dms
from siltstone.cdc.event_lines import Events
from siltstone.cdc.goldengate import decode_goldengate
from siltstone.cdc.maxwell import decode_maxwell
from siltstone.errors import InvalidInputError

Decoder = Callable[[Events, Target, Options, FindRows | None], Decoded]
_DECODERS: Mapping[ChangeFormat, Decoder] = {
    "debezium": decode_debezium,
    "dms": decode_dms,
    "maxwell": decode_maxwell,
    "canal": decode_canal,
    "goldengate": decode_goldengate,
}


def decode(
    events: "Events | pa.Table",
    format: ChangeFormat,
    target: Target,
    options: Options | None = None,
    find_rows: FindRows | None = None,
) -> Decoded:
    """Decode the events of one table; an event that does not fit is among the rejects, with its reason.

    Rows of DMS files are an Arrow table. Pure: the same events give the same result anywhere. `find_rows` reads rows of the table whose values the source
    did not send again when their key changed; without it, such rows are among the `carries`.
    Raises: InvalidInputError where the events as a whole cannot be decoded, e.g. since they are of several tables.
    """
    options = options or Options()
    if isinstance(events, pa.Table):
        if format != "dms":
            raise InvalidInputError(f"{format} has its events in a column 'value'; only files of DMS are rows")
        return decode_dms(events, target, options, find_rows)
    decoded = _DECODERS[format](events, target, options, find_rows)
    if not any(reject.event == b"" for reject in decoded.rejects):
        return decoded
    places = {int(line): place for place, line in enumerate(events.lines)}
    values = {reject.line: events.values[places[reject.line]].as_py() or b"" for reject in decoded.rejects}
    return replace(decoded, rejects=[replace(each, event=each.event or values[each.line]) for each in decoded.rejects])
