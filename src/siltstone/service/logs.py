"""Structured logs: one JSON object a line, and no secrets in it."""

import datetime
import logging
import traceback

import orjson

from siltstone.masking import mask_secrets, mask_values

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON: time, level, logger, message, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask_secrets(record.getMessage()),
        }
        fields = {
            name: value for name, value in vars(record).items() if name not in _STANDARD and not name.startswith("_")
        }
        line |= mask_values(fields)
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = mask_secrets("".join(traceback.format_exception(*record.exc_info)).rstrip())
        return orjson.dumps(
            line, default=lambda value: mask_secrets(str(value)), option=orjson.OPT_NON_STR_KEYS
        ).decode()
