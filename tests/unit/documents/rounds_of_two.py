"""A table of documents in two buckets, so that a fault can come between them."""

from dataclasses import replace

from tests.unit.documents.tables import ROOMY, Written, make

TWO_BUCKETS = 2
FEW = replace(ROOMY, bucket_rows=12)


def build(root: str) -> Written:
    """Make documents of some deltas each: old ones and recent ones, redundant, conditional, with tags, deleted."""
    written = make(root)
    for number in range(1, 5):
        written.write(number, f"r{number}", f'{{"n":{number}}}', "x")
        written.write(number + 1, f"r{number}", '{..,"a":1}', "x")
        written.write(number + 2, f"r{number}", '{..,"a":1}', "x")
    written.write(7, "r2", 'if {..,"n":2} then {..,"two":true} end')
    written.write(25, "r3", "~")
    written.write(26, "r4", '{..,"s":(..,"b","a")}')
    return written
