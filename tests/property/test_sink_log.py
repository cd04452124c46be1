"""However damaged or unusual a sink's log is, its two ways of reading give the same entries or the same refusal."""

import uuid

from hypothesis import example, given, settings
from hypothesis import strategies as st

from siltstone.errors import CorruptionError
from siltstone.log import SinkEntry, SinkLog
from siltstone.log.spark_logs import SINK_CODEC
from siltstone.objects import open_objects

SOUND = SINK_CODEC.encode(SinkEntry("file:///o/a", 3, False, 16))
PIECES = st.sampled_from(
    [
        *(b'"', b"\\", b",", b":", b"{", b"}", b"[", b"]", b" ", b"\t", b"\n", b"\r", b"\0", b"-", b"0", b"1e2", b".5"),
        *(b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc3\xa9", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\\ud800", b"\\u0061"),
        *(b"null", b"true", b"NaN", b"99999999999", b"9223372036854775808", b"99999999999999999999", b"//", b'\\":'),
        *(b'"path":"b",', b'"size":1,', b'"size" :1,', b'"isDir":true,', b'"s\\u0069ze":1,', b'"action":null,'),
        *(b'"x":1,"x":2,', b'"x":{"path":"c"},', b'"x":[{"size":2}],', b'"x":NaN,', b'"x":[1,],', b'"":1,', SOUND),
    ]
)


@st.composite
def hostile_lines(draw: st.DrawFn) -> bytes:
    """Return a sound line with some of its bytes replaced, or something put in."""
    line = SOUND
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.sampled_from([1, len(line) - 1]) | st.integers(0, len(line)))
        end = min(len(line), start + draw(st.sampled_from([0, 0, 0, 1, 2, 8])))
        line = line[:start] + draw(PIECES) + line[end:]
    return line


def outcome(log: SinkLog, *, as_table: bool) -> list[SinkEntry] | str:
    try:
        return [SinkEntry(**row) for row in log.to_arrow().to_pylist()] if as_table else log.all_files()
    except CorruptionError as error:
        return "damaged" if "_spark_metadata/0" in str(error) else f"no file named in: {error}"


@example([SOUND.replace(b"/o/a", b"/o/\xff")])
@example([SOUND.replace(b'"size":3', b'"size":1,"size":3')])
@example([SOUND.replace(b'"size":3', b'"size":1,"size" :3')])
@example([SOUND.replace(b'"size":3', b'"s\\u0069ze":1,"size":3')])
@example([SOUND[:-1] + b',"x":"\xff"}'])
@example([b"\xef\xbb\xbf" + SOUND])
@example([b"null" + SOUND])
@settings(deadline=None, max_examples=400)
@given(st.lists(hostile_lines(), min_size=1, max_size=3))
def test_the_list_and_the_table_of_a_log_agree(lines: list[bytes]) -> None:
    root = f"memory://{uuid.uuid4().hex}"
    open_objects(root).create("_spark_metadata/0", b"\n".join([b"v1", *lines]))
    listed = outcome(SinkLog(root), as_table=False)
    assert outcome(SinkLog(root), as_table=True) == listed
    assert isinstance(listed, list) or listed == "damaged"
    if any(line.count(b'"size"') > 1 and b"{" not in line[1:] for line in lines):
        assert listed == "damaged"
