"""How a bucket absorbs its changes, and why: beside its files, with its small files merged, or by being rewritten."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from siltstone.model.buckets import MAX_DEPTH, Bucket, CompactedFile
from siltstone.rows.job import Action, RoundJob, Settings

# A bucket that has outgrown its size is rewritten for so many times fewer new rows: each half then costs less to rewrite.
_SPLIT_WORTH = 4
# A file is large, and stays as it is, where it has so many times the rows of all smaller ones and the new ones together.
_LARGE_TIMES = 1.5


class Choice(NamedTuple):
    """How a bucket absorbs its changes, and why; `merged` has the places of the files whose live rows go to the new one."""

    action: Action
    reason: str
    merged: tuple[int, ...] = ()


def choose(job: RoundJob, bucket: Bucket, new_rows: int, dead_rows: Sequence[int]) -> Choice:
    """Return how a bucket absorbs new rows and those that die in each of its files.

    Adding costs by the new rows, rewriting by all rows. So a bucket is rewritten where that costs little more, or is due: since
    readers would pass too many dead rows, or since it is large enough to split. Where it would only have too many files,
    the small ones of these are merged.
    """
    settings, dying = job.settings, sum(dead_rows)
    if settings.full:
        return Choice("major", "a full compaction was asked for")
    if not new_rows and not dying:
        return Choice("untouched", "no row changes")
    if not bucket.files:
        return Choice("major", "the bucket is empty")
    stored, live_rows = bucket.record_count, [file.live_count for file in bucket["files"]]
    rows = sum(live_rows) - dying + new_rows
    dead = stored - rows + new_rows
    if dead > settings.max_dead_fraction * stored:
        return Choice("major", f"{dead} of {stored} rows would be dead, more than {settings.max_dead_fraction:.0%}")
    if new_rows > settings.max_delta_fraction * stored:
        return Choice(
            "major", f"{new_rows} new rows come to {stored}: to rewrite those costs little more than to add to them"
        )
    if new_rows * _SPLIT_WORTH > settings.max_delta_fraction * stored and split_count(job, bucket, rows):
        return Choice(
            "major", f"with {new_rows} new rows it would have {rows}, more than twice {job.bucket_rows}, so it splits"
        )
    live = {
        place: alive - dies
        for place, (file, alive, dies) in enumerate(zip(bucket["files"], live_rows, dead_rows, strict=True))
        if alive > dies and not _is_full(file, settings)
    }
    if len(live) + bool(new_rows) > settings.max_files:
        return _with_fewer_files(job, bucket, new_rows, live, rows)
    return Choice("minor", f"to add {new_rows} new and mark {dying} dead rows costs less than to rewrite {stored}")


def _is_full(file: CompactedFile, settings: Settings) -> bool:
    """Return whether a file is as large as files get, and mostly alive: rewriting would not make fewer of it."""
    is_large = (
        file["content_length"] >= settings.target_file_bytes
        or file["record_count"] >= settings.records_per_compacted_file
    )
    return is_large and file.live_count * 2 >= int(file["record_count"])


def _with_fewer_files(job: RoundJob, bucket: Bucket, new_rows: int, live: Mapping[int, int], rows: int) -> Choice:
    """Return how a bucket gets fewer files, given the live rows of those that count, by place, and all rows after it."""
    count = len(live) + bool(new_rows)
    why = f"it would have {count} files, more than {job.settings.max_files}"
    if split_count(job, bucket, rows):
        return Choice("major", f"{why}, and {rows} rows, more than twice {job.bucket_rows}, so it splits")
    merged = small_files(live, new_rows, job.settings.max_files)
    carried = sum(live[place] for place in merged)
    if carried > job.settings.max_carried_fraction * rows:
        return Choice("major", f"{why}, and {carried} of its {rows} rows in small ones")
    return Choice(
        "tiered",
        f"{why}: the {carried} rows of {len(merged)} small ones are merged with the {new_rows} new ones",
        merged,
    )


def small_files(live: Mapping[int, float], new_rows: float, max_files: int) -> tuple[int, ...]:
    """Return the places of files to merge with new rows, in order, given how many live rows each has.

    The smallest first, as many as it takes to have no more than `max_files` after that; then each that is not much larger than all
    before it. So sizes grow geometrically, and a row is merged about as often as there are sizes.
    """
    needed = len(live) + 1 - max_files
    merged: list[int] = []
    rows = new_rows
    for place in sorted(live, key=lambda place: (live[place], place)):
        if len(merged) >= needed and live[place] > _LARGE_TIMES * rows:
            break
        merged.append(place)
        rows += live[place]
    return tuple(sorted(merged))


def split_count(job: RoundJob, bucket: Bucket, rows: int) -> int:
    """Return how often a bucket is cut in half when so many rows are rewritten."""
    splits = 0
    while job.primary_keys and rows >> splits > 2 * job.bucket_rows and bucket.depth + splits < MAX_DEPTH:
        splits += 1
    return splits
