"""Logs of the service: records as lines of JSON or of text, without secrets."""

import logging
import sys
import traceback
from typing import Literal

import orjson

from siltstone.text import format_iso_time, mask_secrets, mask_values

_NOISY = ("py4j", "pyspark", "uvicorn.error", "asyncio")
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


def _extra_fields(record: logging.LogRecord) -> dict[str, object]:
    names = [name for name in vars(record) if name not in _STANDARD and not name.startswith("_")]
    fields: dict[str, object] = mask_values({name: getattr(record, name) for name in names})
    return fields


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON: time, level, logger, message, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": format_iso_time(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask_secrets(record.getMessage()),
        }
        line |= _extra_fields(record)
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = mask_secrets("".join(traceback.format_exception(*record.exc_info)).rstrip())
        return orjson.dumps(
            line, default=lambda value: mask_secrets(str(value)), option=orjson.OPT_NON_STR_KEYS
        ).decode()


class TextFormatter(logging.Formatter):
    """Writes a record as one line for people: time, level, message, then the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = format_iso_time(int(record.created * 1000)).partition(".")[0]
        fields = "".join(f" {name}={value}" for name, value in _extra_fields(record).items() if value is not None)
        line = f"{moment}Z {record.levelname.lower():<7} {record.getMessage()}{fields}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return mask_secrets(line)


def set_up_logs(format: Literal["text", "json"], *, debug: bool = False) -> None:
    """Send the logs of this process to standard error, without secrets."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    # Its connections break when Spark stops, which is no news.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
