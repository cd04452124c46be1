"""Bytes of batch files."""

import orjson
import pytest

from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.log import JsonCodec, SinkEntry
from siltstone.log.codec import dumps
from siltstone.log.spark_logs import SINK_CODEC
from siltstone.log.wire import (
    check_objects,
    encode,
    parse_version,
    read_blocks,
    split_block,
)


def lines_of(chunks: list[bytes]) -> list[bytes]:
    return [line for block in read_blocks(chunks, "x/0") for line in block.split(b"\n")]


def test_a_batch_is_its_version_and_a_line_per_entry_without_a_last_newline() -> None:
    codec = JsonCodec()
    assert encode([codec.encode("e1"), codec.encode("e2")]) == b'v1\n"e1"\n"e2"'
    assert encode([]) == b"v1"


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"v1", []),
        (b"v1\n", []),
        (b'v1\n"a"\n', [b'"a"']),
        (b'v1\r\n"a"', [b'"a"']),
        (b'v1\r"a"\r"b"\r', [b'"a"', b'"b"']),
        (b'v1\r\n"a"\r\n"b"\r\n', [b'"a"', b'"b"']),
        ('v1\n"a\u2028b\u0085c"'.encode(), ['"a\u2028b\u0085c"'.encode()]),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 1000])
def test_lines_end_at_newlines_only_wherever_chunks_are_cut(data: bytes, lines: list[bytes], chunk_bytes: int) -> None:
    chunks = [data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes)]
    assert lines_of(chunks) == lines


def test_an_empty_file_is_incomplete() -> None:
    with pytest.raises(CorruptionError, match=r"Failed to read log file x/0\. Incomplete log file"):
        lines_of([b""])


@pytest.mark.parametrize("data", [b"v1\n\n1", b"v1\n1\n\n2", b"v1\n1\n\n", b"v1\n\n"])
@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 1000])
def test_a_blank_line_is_no_entry_wherever_chunks_are_cut(data: bytes, chunk_bytes: int) -> None:
    chunks = [data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes)]
    assert b"" in lines_of(chunks)
    codec = JsonCodec()
    with pytest.raises(ValueError, match="line"):
        list(map(codec.check_block, read_blocks(chunks, "x/0")))
    with pytest.raises(orjson.JSONDecodeError):
        list(map(codec.decode_block, read_blocks(chunks, "x/0")))


@pytest.mark.parametrize("block", [b"", b"{}\n", b"\n{}", b"{}\n\n{}", b"{}\n{", b"{}\n}\n{}", b"{}\n{\n{}"])
def test_torn_lines_show_without_parsing(block: bytes) -> None:
    with pytest.raises(ValueError, match="is not a whole entry"):
        check_objects(block)


def test_looking_at_the_edges_finds_a_block_cut_short() -> None:
    check_objects(b'{}\n{"a":{}}', edges_only=True)
    with pytest.raises(ValueError, match="is not a whole entry"):
        check_objects(b'{}\n{"a":', edges_only=True)


@pytest.mark.parametrize("text", ["", "xyz", "v10.x", "10", "v0", "v-10", "v", "v 1", "v01", "V1", "v\u0661"])
def test_what_is_no_version_is_damage(text: str) -> None:
    with pytest.raises(CorruptionError, match="Log file was malformed: failed to read correct log version from"):
        parse_version(text, 100)


def test_a_version_up_to_the_highest_known_is_read() -> None:
    assert parse_version("v10", 100) == 10
    assert parse_version("v10", 10) == 10


@pytest.mark.parametrize("text", ["v200", "v" + "9" * 5000])
def test_a_version_from_the_future_asks_for_an_upgrade(text: str) -> None:
    with pytest.raises(
        CorruptionError, match=r"maximum supported log version is v100, but encountered v.*need to upgrade"
    ):
        parse_version(text, 100)


def test_a_first_line_without_end_is_not_read_to_its_end() -> None:
    def endless() -> object:
        while True:
            yield b"v1" * 1000

    with pytest.raises(CorruptionError, match="failed to read correct log version"):
        list(read_blocks(endless(), "x/0"))  # type: ignore[arg-type]


def test_a_block_is_cut_between_lines_only() -> None:
    block = b"\n".join(b"%d" % each for each in range(1000))
    parts = list(split_block(block, 100))
    assert b"\n".join(parts) == block
    assert len(parts) > 30
    assert list(split_block(b"x" * 1000, 100)) == [b"x" * 1000]


def test_text_is_written_as_spark_writes_it() -> None:
    text = 'é / \u2028 \x7f \x01 \x1f \t \b \f \n " \\ \\u001f \U0001f600'
    expected = r'"é / ' + "\u2028 \x7f " + r"\u0001 \u001F \t \b \f \n \" \\ \\u001f " + '\U0001f600"'
    assert dumps(text) == expected.encode()
    assert JsonCodec().decode(dumps(text)) == text


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="cannot be written as JSON"):
        dumps("\ud800")


def test_a_record_of_wrong_types_is_neither_written_nor_read() -> None:
    with pytest.raises(InvalidInputError, match="size must be int, not str"):
        SINK_CODEC.encode(SinkEntry("file:///a", "1", False, 1))  # type: ignore[arg-type]
    good = SINK_CODEC.encode(SinkEntry("file:///a", 1, False, 1))
    for bad in (
        good.replace(b'"size":1', b'"size":"1"'),
        good.replace(b'"size":1', b'"size":1.0'),
        good.replace(b'"size":1', b'"size":true'),
        good.replace(b'"size":1,', b""),
        good.replace(b"false", b"null"),
        b"[1]",
        good + b"," + good,
        good[:-1],
    ):
        with pytest.raises((ValueError, TypeError, LookupError)):
            SINK_CODEC.decode(bad)


def test_unknown_fields_of_a_record_are_passed_over() -> None:
    entry = SinkEntry("file:///a", 1, False, 1)
    line = SINK_CODEC.encode(entry)
    assert SINK_CODEC.decode(line[:-1] + b',"later":{"size":5}}') == entry
