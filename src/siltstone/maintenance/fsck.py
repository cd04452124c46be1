"""Checking a compacted partition: its log, files, deletion vectors, indices; in depth, every row."""

from collections.abc import Callable, Container, Sequence

import numpy as np
import pyarrow as pa

from siltstone.errors import CorruptionError
from siltstone.ingest.drop_log import drop_logs
from siltstone.log.inspect import Finding
from siltstone.model import Delta
from siltstone.model.buckets import Bucket
from siltstone.model.rounds import RoundCompletion
from siltstone.model.schema import nullable, schema_from_json
from siltstone.objects import open_objects
from siltstone.rows.columns import equal_ids, hash_keys
from siltstone.rows.files import SharedObjects, StoredFile
from siltstone.storage.parquet import read_data_file
from siltstone.table.completion import Destination, current_completion, current_entry, find_problems, list_rounds
from siltstone.table.followers import (
    own_partition,
    refuse_lost_commits,
    round_source,
    trimmed_position,
    unregistered_destinations,
)

_REBASE = "restore it from a copy, or rebase the partition"
_REPAIR = "restore it from a copy, or run siltstone repair"


def check_partition(destination: Destination, *, deep: bool = False) -> list[Finding]:
    """Check the current state of a compacted partition; no findings means sound."""
    try:
        entry = current_entry(destination)
        while True:
            try:
                completion = current_completion(destination, entry)
                return [] if completion is None else _check_state(destination, completion, deep=deep)
            except CorruptionError:
                # Another round may have been committed since, and this one vacuumed.
                before, entry = entry, current_entry(destination)
                if entry == before:
                    raise
    except CorruptionError as error:
        return [Finding("state", str(destination.locator), str(error), _REBASE)]


def _check_state(destination: Destination, completion: RoundCompletion, *, deep: bool) -> list[Finding]:
    """Check a state. Raises: CorruptionError where it cannot be told what it consists of."""
    try:
        refuse_lost_commits(completion, destination.locator, root=destination.root)
    except CorruptionError as error:
        return [Finding("lost-commits", str(completion.source_partition_locator), str(error), "restore it from a copy")]
    problems = find_problems(destination, completion.buckets)
    findings = [Finding("compacted-file", expected.uri, problem, _REPAIR) for expected, problem in problems]
    bad = {finding.file for finding in findings}
    shared = SharedObjects(destination.root)
    for bucket in completion.buckets:
        found = check_bucket(destination, completion, bucket, bad, shared, deep=deep)
        findings += found
        # What buckets share is told once.
        bad |= {finding.file for finding in found if finding.code == "compacted-file"}
    return findings + _check_trimmed(destination, completion)


def _check_trimmed(destination: Destination, completion: RoundCompletion) -> list[Finding]:
    """Find out whether deltas are trimmed that the next round would need."""
    reachable = reachable_rounds(destination)
    if completion.round_id in reachable:
        return []
    message = (
        f"is compacted up to position {completion.high_watermark} of {completion.source_partition_locator}, and deltas "
        "after it are trimmed, so that it cannot be compacted further"
    )
    action = (
        f"roll back to round {reachable[-1]}, which has them" if reachable else "rebase it from rows that have them"
    )
    return [Finding("trimmed", str(destination.locator), message, action)]


def reachable_rounds(destination: Destination) -> list[int]:
    """Return the rounds, oldest first, after which all deltas of their source are still there."""
    root, own = destination.root, own_partition(destination.locator)
    trimmed: dict[str, int] = {}
    reachable = []
    for entry in list_rounds(destination):
        folder = str(entry["source_folder"])
        if folder not in trimmed:
            source = round_source(entry, own, root=root)
            trimmed[folder] = 0 if source is None else trimmed_position(source, root=root)
        if trimmed[folder] <= int(entry["high_watermark"]):
            reachable.append(int(entry["round_id"]))
    return reachable


def check_registered(name: str, *, root: str) -> list[Finding]:
    """Find compacted partitions of a table that the table does not know, so that nobody reads their rows."""
    try:
        hidden = unregistered_destinations(name, root=root)
    except CorruptionError as error:
        return [Finding("state", name, str(error), _REBASE)]
    findings = []
    for destination in hidden:
        entry = current_entry(destination) or {}
        message = f"has {entry['live_rows']} rows, compacted from {entry['source']}, which no reader of the table finds"
        findings.append(Finding("partition", destination.folder, message, "run siltstone repair, or compact it again"))
    return findings


def check_drop_logs(root: str, version_folder: str) -> list[Finding]:
    """Check what is known of the folders that files are taken from: without it, they cannot go on."""
    findings = []
    for log in drop_logs(root, version_folder):
        try:
            newest = log.newest()
            log.known(newest)
            if newest is not None and newest.batch_id and log.ended(newest.batch_id - 1) is None:
                message = f"batch {newest.batch_id} is there, but not how batch {newest.batch_id - 1} ended"
                findings.append(Finding("ingest-log", log.address(), message, "restore it from a copy"))
        except CorruptionError as error:
            findings.append(Finding("ingest-log", log.address(), str(error), "restore it from a copy"))
    return findings


def check_deltas(root: str, deltas: Sequence[Delta], *, deep: bool = False) -> list[Finding]:
    """Check the files of deltas that are not trimmed."""
    findings = []
    for delta in deltas:
        for entry in delta.manifest.entries:
            info, problem = open_objects(root).info(entry.uri), None
            if info is None:
                problem = "the file is missing"
            elif info.size != entry.content_length:
                problem = f"has {info.size} bytes instead of {entry.content_length}"
            elif deep:
                try:
                    read_data_file(root, entry)
                except CorruptionError as error:
                    problem = str(error)
            if problem is not None:
                findings.append(Finding("delta-file", entry.uri, problem, "restore it from a copy"))
    return findings


def check_bucket(
    destination: Destination,
    completion: RoundCompletion,
    bucket: Bucket,
    bad: Container[str],
    shared: SharedObjects,
    *,
    deep: bool,
) -> list[Finding]:
    """Check the files of a bucket, or its slices of them; those that are known to be bad are not opened."""
    findings: list[Finding] = []
    sound: list[StoredFile] = []
    for file in bucket.files:
        stored = StoredFile(destination.root, file, shared=shared)
        parts: list[tuple[str, Callable[[], object]]] = [(file.uri, lambda stored=stored: stored.parquet)]  # type: ignore[misc]
        if file.deletion_vector is not None:
            parts.append((file.deletion_vector.uri, lambda stored=stored: stored.dead))  # type: ignore[misc]
        if file.index_uri is not None:
            parts.append((file.index_uri, lambda stored=stored: stored.hashes_by_row()))  # type: ignore[misc]
        problems = [problem for uri, check in parts if uri not in bad for problem in _problems(uri, check)]
        findings += problems
        if not problems and not any(uri in bad for uri, _ in parts):
            sound.append(stored)
    tombstones = bucket.tombstones
    if tombstones is not None and tombstones.uri not in bad:
        stored = StoredFile(destination.root, tombstones, shared=shared)
        findings += _problems(tombstones.uri, lambda: [*stored.scan(stored.parquet.schema_arrow)])
    if deep:
        findings += _check_rows(completion, bucket, sound)
    return findings


def _problems(uri: str, check: Callable[[], object]) -> list[Finding]:
    try:
        check()
    except CorruptionError as error:
        return [Finding("compacted-file", uri, str(error), _REPAIR)]
    return []


def _check_rows(completion: RoundCompletion, bucket: Bucket, stored: Sequence[StoredFile]) -> list[Finding]:
    """Read every value of a bucket's files; with a key, compare it with index and bucket, and for duplicates."""
    findings: list[Finding] = []
    schema = nullable(schema_from_json(completion.fields))
    # In a history, a key has a row for each of its versions.
    identity = dict.fromkeys(completion.primary_keys)
    identity |= dict.fromkeys(completion.sort_keys if completion.merge_engine == "history" else ())
    keys = pa.schema([schema.field(name) for name in identity])
    live: list[pa.Table] = [keys.empty_table()]
    for file in stored:
        try:
            table = pa.concat_tables([keys.empty_table(), *(rows.select(keys.names) for _, rows in file.scan(schema))])
        except CorruptionError as error:
            findings.append(Finding("compacted-file", file.file.uri, str(error), _REPAIR))
            continue
        if not completion.primary_keys:
            continue
        hashes = hash_keys(table, completion.primary_keys)
        if not np.array_equal(hashes, file.hashes_by_row()):
            findings.append(Finding("index", file.file.index_uri or "", "does not match the keys of its file", _REPAIR))
        if bucket.depth and np.any(hashes >> np.uint64(64 - bucket.depth) != np.uint64(bucket.bits)):
            findings.append(Finding("bucket", file.file.uri, f"has rows of other buckets than {bucket.name}", _REPAIR))
        live.append(table.filter(pa.array(file.live_flags())))
    if completion.primary_keys and completion.drop_duplicates:
        rows = pa.concat_tables(live)
        (_,), distinct = equal_ids([rows], keys.names)
        if distinct != rows.num_rows:
            message = f"bucket {bucket.name} has {rows.num_rows} rows for {distinct} keys"
            findings.append(Finding("duplicate-key", str(completion.destination_partition_locator), message, _REPAIR))
    return findings
