"""CSV text on its way to Arrow's reader, which takes a quote that is never closed for the rest of the file.

A quoted field ends with a quote before a separator, a line's end or the end of the file; a quote inside is doubled. A quote
inside a field that is not quoted is text.
"""

import re
from typing import IO

from siltstone.cli.input_place import spell_limit
from siltstone.errors import InvalidInputError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CheckedText:
    """A file that refuses to be read further than to the first row that is not well-formed, or too long."""

    def __init__(self, stream: IO[bytes], name: str, delimiter: str, row_bytes_limit: int) -> None:
        self._stream = stream
        self._name = name
        self._limit = row_bytes_limit
        self._delimiter = delimiter.encode()
        separator = re.escape(self._delimiter)
        quoted = rb'"[^"]*+(?:""[^"]*+)*+"'
        field = rb'(?:%b|[^"%b\r\n][^%b\r\n]*+|)' % (quoted, separator, separator)
        # Possessive all the way: text is read once, however long, and without a stack of alternatives.
        self._field = re.compile(field)
        self._rows = re.compile(rb'(?:[^"\r\n]*+(?:\r\n?|\n)|%b(?:%b%b)*+(?:\r\n?|\n))*+' % (field, separator, field))
        self._held = b""
        self._rest = b""
        self._line = 1
        self._is_first = True

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._stream.closed

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def read(self, size: int) -> bytes:
        """Read on. Raises: InvalidInputError that names the file and the line."""
        data, is_last = self._held, False
        while not is_last and len(data) < size:
            part = self._stream.read(size - len(data))
            data, is_last = data + part, not part
        # Arrow forgets a line feed that begins a block after a carriage return, also inside quotes.
        self._held = b"\r" if len(data) > 1 and data.endswith(b"\r") and not is_last else b""
        data = data.removesuffix(self._held)
        # The end is checked before the last rows are handed out: Arrow parses what it has.
        self._check(data.removeprefix(BYTE_ORDER_MARK) if self._is_first else data, is_last=is_last)
        self._is_first = False
        return data

    def _check(self, data: bytes, *, is_last: bool) -> None:
        if b"\0" in data:
            line = self._line + _lines(self._rest + data[: data.index(b"\0")])
            raise InvalidInputError(
                f"{self._name}: line {line} has a NUL byte, so it is not text in UTF-8; convert the file"
            )
        text = self._rest + data
        if b'"' in text:
            match = self._rows.match(text)
            assert match is not None
            end = match.end()
        else:
            end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        self._line += _lines(text[:end])
        self._rest = text[end:]
        if b'"' in self._rest:
            self._check_row(is_last=is_last)
        if len(self._rest) > self._limit:
            raise InvalidInputError(
                f"{self._name}: the row that starts in line {self._line} is longer than {spell_limit(self._limit)}; "
                "is a quote left open? Longer rows need another format, e.g. Parquet"
            )

    def _check_row(self, *, is_last: bool) -> None:
        """Check the fields of a row whose end has not been read, or that has none."""
        text, position = self._rest, 0
        field = self._field.match(text)
        while field is not None and field.end() < len(text) and text.startswith(self._delimiter, field.end()):
            position = field.end() + len(self._delimiter)
            field = self._field.match(text, position)
        assert field is not None
        if field.end() == len(text) or (not is_last and field.end() == position):
            return
        line = self._line + _lines(text[:position])
        if field.end() == position:
            raise InvalidInputError(
                f"{self._name}: line {line}: a quote is opened and never closed; close it, or double it if it is text"
            )
        after = text[field.end() : field.end() + 20].splitlines()[0].decode(errors="replace")
        raise InvalidInputError(
            f"{self._name}: line {line}: the quote that is opened there is closed before {after!r}, not at the "
            "field's end; double the quotes inside quoted text"
        )


def _lines(text: bytes) -> int:
    return text.count(b"\n") or text.count(b"\r")
