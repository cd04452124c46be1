"""What comes of publishing a table, in any format."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """What a publish did, or found done: `version` of the table in `format` at `address` has these rounds of partitions."""

    table: str
    format: str
    address: str
    version: int
    is_new: bool
    rounds: dict[str, int]
    added_files: int = 0
    removed_files: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Publication:
    """A table in a format: where, its newest version, the rounds that it has, and how many rounds came since, from when on.

    Without a `version`, the table is to be published, but was not yet, or what was published cannot be read. `error` is
    why the last publish failed, `failed_at` when, where none has made up for it.
    """

    table: str
    format: str
    address: str
    version: int | None
    published_at: int | None
    rounds: dict[str, int]
    behind_rounds: int
    oldest_unpublished_at: int | None
    files: int
    error: str | None = None
    failed_at: int | None = None


@dataclass(frozen=True)
class PublishFailure:
    """Why a table could not be published in a format; its rounds are as they are, and the next publish tries again."""

    table: str
    format: str
    error: str
    kind: str
