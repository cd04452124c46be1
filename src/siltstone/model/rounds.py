"""The round completion file: what a round did, what the compacted partition consists of after it, and where the next starts."""

from collections.abc import Iterable

from siltstone.errors import InvalidInputError
from siltstone.model import Model, PartitionLocator, field
from siltstone.model.buckets import Buckets, CompactedFile
from siltstone.model.locators import check_path
from siltstone.model.schema import SchemaField

# Format 2: buckets may be in pages, and key indices are packed. Where one page would hold all buckets, they are in the file itself.
# Format 3: buckets may share data files, of which each has a slice, and objects of deletion vectors.
# Format 4: deletion vectors are framed as in Delta Lake.
FORMAT_VERSION = 4


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
        # By key: a round asks one of each bucket.
        gone = self["superseded_rows"] + self["deleted_rows"] + self["duplicate_rows"] + self["lost_rows"]
        return bool(self["base_rows"] + self["delta_rows"] + self["added_rows"] == self["live_rows"] + gone)

    @classmethod
    def sum(cls, parts: "Iterable[Accounting]") -> "Accounting":
        """Return the sum."""
        several = list(parts)
        return cls(**{name: sum(each[name] for each in several) for name in cls._fields})


class Origin(Model):
    """The round that a compacted partition began with, where that was not one that read its deltas from the first on.

    It read all of `partition`; None if it was asked to start elsewhere than where the round before had stopped.
    `is_from_deltas` where what it read are the very deltas that come before the next round's.
    """

    round_id: int
    partition: PartitionLocator | None = None
    is_from_deltas: bool = False


class DeathRecord(Model):
    """Which rows died of files that a round did not carry on: here, as JSON, or in an object; in neither if none did."""

    inline: str | None = None
    uri: str | None = field(default=None, check=check_path)
    content_length: int = 0
    checksum: int = 0


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
    # No row has a lower sort key, and none that comes later may have; see `Delta.floor`.
    floor: str | None = None
    merge_engine: str
    drop_duplicates: bool
    fields: list[SchemaField]
    buckets: Buckets
    # Set where all files that the round wrote have rows of the round before, and `carried_rows` says which.
    deaths: DeathRecord | None = None
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
        """Refuse files of a newer format."""
        if self.format_version > FORMAT_VERSION:
            raise InvalidInputError(
                f"round completion format {self.format_version} is newer than this version of Siltstone reads "
                f"({FORMAT_VERSION}); upgrade"
            )

    @property
    def live_rows(self) -> int:
        """Rows of the partition."""
        return self.buckets.totals.live_count

    @property
    def record_count(self) -> int:
        """Rows in all files, dead ones included."""
        return self.buckets.totals.record_count

    @property
    def dead_rows(self) -> int:
        """Rows in files that are no longer in the partition."""
        return self.record_count - self.live_rows

    @property
    def content_length(self) -> int:
        """Bytes of all data files."""
        return self.buckets.totals.content_length

    @property
    def file_count(self) -> int:
        """Data files of all buckets."""
        return self.buckets.totals.file_count

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
