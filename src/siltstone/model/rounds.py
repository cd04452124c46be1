"""What a compacted partition consists of: buckets of data files, each with its deletion vector and key index."""

from siltstone.errors import InvalidInputError
from siltstone.model import ManifestEntry, Model, PartitionLocator, field
from siltstone.model.locators import check_path
from siltstone.model.schema import SchemaField

FORMAT_VERSION = 1
MAX_DEPTH = 32


class DeletionVector(Model):
    """The dead rows of one data file; the checksum is the CRC-32 of the stored bytes."""

    uri: str = field(check=check_path)
    record_count: int
    content_length: int
    checksum: int


class CompactedFile(ManifestEntry):
    """A data file of compacted rows; dead ones are in the deletion vector.

    `index_length` has the bytes of its key index; where it is None, they follow from the number of rows.
    """

    deletion_vector: DeletionVector | None = None
    index_uri: str | None = field(default=None, check=check_path)
    index_length: int | None = None

    @property
    def live_count(self) -> int:
        """Rows that are not dead."""
        return self.record_count - (self.deletion_vector.record_count if self.deletion_vector else 0)


class Bucket(Model):
    """All rows whose key hash begins with the `depth` bits `bits`.

    From the time `due_at` on there is something to do even if no delta comes; also, where a hold up to `held_at` kept
    rows from being deleted, as soon as that hold is over.
    """

    depth: int
    bits: int
    files: list[CompactedFile] = field(default_factory=list)
    tombstones: ManifestEntry | None = None
    due_at: int | None = None
    held_at: int | None = None

    @property
    def name(self) -> str:
        """The bits as text; `all` where there are none."""
        return format(self.bits, f"0{self.depth}b") if self.depth else "all"

    def has(self, key_hash: int) -> bool:
        """Return whether a key with this hash belongs here."""
        return not self.depth or key_hash >> (64 - self.depth) == self.bits

    @property
    def first_hash(self) -> int:
        """The smallest hash of the bucket."""
        return self.bits << (64 - self.depth)

    @property
    def live_count(self) -> int:
        """Rows that are not dead."""
        return sum(file.live_count for file in self.files)

    @property
    def record_count(self) -> int:
        """Rows in all files, dead ones included."""
        return sum(file.record_count for file in self.files)

    @property
    def dead_count(self) -> int:
        """Rows in files that are dead."""
        return self.record_count - self.live_count

    @property
    def tombstone_count(self) -> int:
        """Deleted keys that are remembered."""
        return self.tombstones.record_count if self.tombstones else 0

    @property
    def content_length(self) -> int:
        """Bytes of all data files."""
        return sum(file.content_length for file in self.files)


class Accounting(Model):
    """Where the rows of a round went: what came in or was added is what is left, superseded, deleted or duplicated."""

    base_rows: int = 0
    delta_rows: int = 0
    added_rows: int = 0
    removal_rows: int = 0
    live_rows: int = 0
    superseded_rows: int = 0
    deleted_rows: int = 0
    duplicate_rows: int = 0
    # Rows of files that are damaged, given up by a repair.
    lost_rows: int = 0

    @property
    def input_rows(self) -> int:
        """Rows of the deltas that were read."""
        return self.delta_rows + self.removal_rows

    @property
    def is_balanced(self) -> bool:
        """Whether nothing was lost and nothing appeared."""
        gone = self.superseded_rows + self.deleted_rows + self.duplicate_rows + self.lost_rows
        return self.base_rows + self.delta_rows + self.added_rows == self.live_rows + gone

    def plus(self, other: "Accounting") -> "Accounting":
        """Return the sum."""
        return Accounting(**{name: self[name] + other[name] for name in self._fields})


class Origin(Model):
    """The round that a compacted partition began with, where that was not one that read its deltas from the first on.

    It read all of `partition`; None if it was asked to start elsewhere than where the round before had stopped.
    `is_from_deltas` where what it read are the very deltas that come before the next round's.
    """

    round_id: int
    partition: PartitionLocator | None = None
    is_from_deltas: bool = False


class RoundCompletion(Model):
    """The round completion file: what a round did, and where the next one starts."""

    format_version: int = FORMAT_VERSION
    round_id: int
    previous_round_id: int | None = None
    source_partition_locator: PartitionLocator
    source_folder: str
    destination_partition_locator: PartitionLocator
    rebase_source_partition_locator: PartitionLocator | None = None
    origin: Origin | None = None
    high_watermark: int
    read_watermark: int
    primary_keys: list[str]
    sort_keys: list[str]
    merge_engine: str
    drop_duplicates: bool
    fields: list[SchemaField]
    buckets: list[Bucket]
    delta_count: int = 0
    input_bytes: int = 0
    written_files: int = 0
    written_bytes: int = 0
    written_rows: int = 0
    carried_files: int = 0
    copied_by_reference_ratio: float = 0.0
    bucket_actions: dict[str, int] = field(default_factory=dict)
    accounting: Accounting
    seconds: dict[str, float] = field(default_factory=dict)
    completed_at: int = 0

    def validate(self) -> None:
        """Refuse files of a newer format, and buckets that leave out or double a part of the hash space."""
        if self.format_version > FORMAT_VERSION:
            raise InvalidInputError(
                f"round completion format {self.format_version} is newer than this version of Siltstone reads "
                f"({FORMAT_VERSION}); upgrade"
            )
        check_cover(self.buckets)

    @property
    def live_rows(self) -> int:
        """Rows of the partition."""
        return sum(bucket.live_count for bucket in self.buckets)

    @property
    def record_count(self) -> int:
        """Rows in all files, dead ones included."""
        return sum(bucket.record_count for bucket in self.buckets)

    @property
    def dead_rows(self) -> int:
        """Rows in files that are no longer in the partition."""
        return self.record_count - self.live_rows

    @property
    def content_length(self) -> int:
        """Bytes of all data files."""
        return sum(bucket.content_length for bucket in self.buckets)

    @property
    def carried_bytes(self) -> int:
        """Bytes of data files that the round did not write."""
        return self.content_length - self.written_bytes

    @property
    def write_amplification(self) -> float | None:
        """Bytes written per byte of deltas, or None if none were read."""
        return ratio(self.written_bytes, self.input_bytes)

    @property
    def read_amplification(self) -> float | None:
        """Rows in files per row of the partition, or None if it is empty."""
        return ratio(self.record_count, self.live_rows)

    @property
    def files(self) -> list[CompactedFile]:
        """The data files of all buckets."""
        return [file for bucket in self.buckets for file in bucket.files]


def ratio(numerator: int, denominator: int) -> float | None:
    """Return numerator / denominator, or None if the denominator is 0."""
    return numerator / denominator if denominator else None


def check_cover(buckets: list[Bucket]) -> None:
    """Check that every hash is in exactly one bucket. Raises: InvalidInputError."""
    expected = 0
    for bucket in sorted(buckets, key=lambda bucket: bucket.first_hash):
        if bucket.first_hash != expected or not 0 <= bucket.depth <= MAX_DEPTH:
            raise InvalidInputError(f"buckets do not cover the hash space at {expected:016x}")
        expected = bucket.first_hash + (1 << (64 - bucket.depth))
    if expected != 1 << 64:
        raise InvalidInputError(f"buckets do not cover the hash space from {expected:016x}")


def even_buckets(depth: int) -> list[Bucket]:
    """Return empty buckets that share the hash space evenly."""
    return [Bucket(depth=depth, bits=bits) for bits in range(1 << depth)]
