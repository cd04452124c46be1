"""Structured logs, without secrets."""

import json
import logging
import sys

from siltstone.service import JsonFormatter, TextFormatter


def formatted(message: str, *given: object, **extra: object) -> dict[str, object]:
    record = logging.makeLogRecord(
        {"name": "siltstone.service.x", "levelno": 20, "levelname": "INFO", "msg": message, "args": given, **extra}
    )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    parsed: dict[str, object] = json.loads(line)
    return parsed


def test_a_record_is_one_line_of_json_with_its_fields() -> None:
    line = formatted("cycle %s", 7, partitions=3, reason='with "quotes"\nand lines')
    assert line["message"] == "cycle 7"
    assert line["level"] == "info"
    assert line["partitions"] == 3
    assert line["reason"] == 'with "quotes"\nand lines'
    assert str(line["time"]).endswith("Z")


def test_people_see_a_partition_as_pages_and_commands_show_it() -> None:
    fields = {"partition": "shop/orders/1/default/2026,eu", "table": "shop.orders"}
    record = logging.makeLogRecord({"levelname": "WARNING", "msg": "partition not trimmed", **fields})
    line = TextFormatter().format(record)
    assert line.endswith("warning partition not trimmed partition=shop.orders 2026, eu table=shop.orders")
    assert formatted("partition not trimmed", **fields)["partition"] == fields["partition"]


def test_what_json_does_not_know_is_written_as_text() -> None:
    assert formatted("x", odd={1}, nested={2: ValueError("no")})["odd"] == "{1}"


def test_an_error_brings_its_traceback() -> None:
    try:
        raise ValueError("postgresql://me:hush@host/db is wrong")
    except ValueError:
        line = formatted("failed", exc_info=sys.exc_info())
    assert "Traceback" in str(line["error"])
    assert "hush" not in str(line["error"])


def test_secrets_are_hidden_by_name_and_in_text_however_deep() -> None:
    line = formatted(
        "%s", "Bearer hush", address="postgresql://me:hush@host/db", password="hush", nested={"a": [{"token": "hush"}]}
    )
    assert "hush" not in json.dumps(line)
    assert line["password"] == "***"
    assert line["nested"] == {"a": [{"token": "***"}]}
