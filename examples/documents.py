"""Documents that many writers change in small steps: update, read, compact. Run with: python examples/documents.py [lake]"""

import sys
from datetime import UTC, datetime, timedelta

import siltstone


def run(root: str) -> None:
    """Write a review, change it twice, and compact it, as it would be after ten and after twenty minutes."""
    lake = siltstone.open(root)
    reviews = lake.create_document_table("shop.reviews")
    reviews.update("r17", {"stars": 4, "text": "good"})
    reviews.update("r17", '{..,"stars":5,"labels":(..,"edited")}')
    reviews.update("r17", 'if {..,"stars":ge(5)} then {..,"featured":true} end')
    before = reviews.get("r17")
    for minutes in (10, 20):
        (done,) = reviews.compact(now=datetime.now(UTC) + timedelta(minutes=minutes)).rounds
        added, deleted = done.accounting.added_rows, done.accounting.deleted_rows
        print(f"after {minutes} minutes: {added} record{'s' * (added != 1)}, {deleted} deletions")
    assert reviews.get("r17") == before
    print(f"r17 is version {before['~version']} before compaction and after it:")
    print({key: value for key, value in before.items() if not key.startswith("~")})


if __name__ == "__main__":
    run(sys.argv[1] if len(sys.argv) > 1 else "lake")
