"""What a catalog implementation provides: module-level functions with these signatures.

A catalog speaks of tables by name, `namespace.table`; versions, streams and partitions are found for the caller.
An implementation is any module that has all functions of `Catalog`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from siltstone.model import (
    Delta,
    DeltaType,
    Idempotency,
    Namespace,
    Overwrite,
    StreamLocator,
    Table,
    TableRules,
    TableVersion,
)
from siltstone.storage.interface import ArrowData, StreamLog


class Catalog(Protocol):
    """The functions of a catalog."""

    def list_namespaces(self, *, root: str) -> list[Namespace]:
        """List all namespaces by name."""

    def create_namespace(self, namespace: str, *, properties: Mapping[str, str] | None = None, root: str) -> Namespace:
        """Create a namespace. Raises: AlreadyExistsError."""

    def drop_namespace(self, namespace: str, *, root: str) -> None:
        """Drop an empty namespace. Raises: NotFoundError, ConflictError."""

    def list_tables(self, namespace: str | None = None, *, root: str) -> list[Table]:
        """List the tables of one namespace or of all, by name. Raises: NotFoundError."""

    def get_table(self, name: str, *, recall: bool = False, root: str) -> Table:
        """Get a table. Raises: NotFoundError.

        With `recall`, one that this process knows already, though it may have changed since, or be dropped.
        """

    def table_exists(self, name: str, *, root: str) -> bool:
        """Return whether the table exists."""

    def create_table(
        self,
        name: str,
        *,
        schema: pa.Schema,
        rules: TableRules | None = None,
        description: str = "",
        properties: Mapping[str, str] | None = None,
        reserved_properties: Mapping[str, str] | None = None,
        dry_run: bool = False,
        root: str,
    ) -> TableVersion:
        """Create a table with its first version, and its namespace where that is missing, in one commit.

        Without rules, rows have no key. `reserved_properties` are for what the system keeps. A dry run makes all checks,
        and creates nothing. Raises: AlreadyExistsError, InvalidInputError.
        """

    def get_table_version(
        self, name: str, table_version: str | None = None, *, recall: bool = False, root: str
    ) -> TableVersion:
        """Get a version of a table, by default the newest active one; `recall` as in `get_table`. Raises: NotFoundError."""

    def alter_table(
        self,
        name: str,
        table_version: str | None = None,
        *,
        add_columns: pa.Schema | None = None,
        rename_columns: Mapping[str, str] | None = None,
        drop_columns: Sequence[str] = (),
        unique_within_partition: bool | None = None,
        description: str | None = None,
        properties: Mapping[str, str | None] | None = None,
        dry_run: bool = False,
        root: str,
    ) -> TableVersion:
        """Drop, rename and add columns (or widen them), describe, set properties (None removes one).

        A dry run returns what the version would be. Raises: NotFoundError, InvalidInputError.
        """

    def rename_table(self, name: str, new_name: str, *, root: str) -> Table:
        """Rename a table, also into another namespace that exists. Raises: NotFoundError, AlreadyExistsError."""

    def drop_table(self, name: str, *, root: str) -> None:
        """Drop a table; its files become orphans. Raises: NotFoundError."""

    def write_to_table(
        self,
        data: ArrowData,
        name: str,
        *,
        type: DeltaType = "upsert",
        delete_columns: Sequence[str] | None = None,
        op_column: str | None = None,
        evolve: bool = True,
        idempotency: Idempotency | None = None,
        stream_position: int | None = None,
        expected_properties: Mapping[str, str | None] | None = None,
        overwrite: Overwrite | None = None,
        root: str,
    ) -> int:
        """Write data as one commit and return its stream position.

        Nothing is committed where a property of the table is not what is expected (None: not set). With `overwrite`, the
        table, or some of its partitions, has these rows and no others from then on.
        Raises: InvalidInputError, NotFoundError, ConflictError, CommitUnknownError.
        """

    def list_deltas(
        self,
        name: str,
        *,
        first_stream_position: int | None = None,
        last_stream_position: int | None = None,
        root: str,
    ) -> list[Delta]:
        """List the committed deltas of a table, all partitions, by stream position. Raises: NotFoundError."""

    def write_staged(
        self,
        name: str,
        stage: Callable[[StreamLog], list[Delta]],
        *,
        idempotency: Idempotency | None = None,
        rising_ids: bool = False,
        stream_position: int | None = None,
        expected_properties: Mapping[str, str | None] | None = None,
        overwrite: Overwrite | None = None,
        root: str,
    ) -> int:
        """Commit what `stage` makes for a table's stream of deltas; what was committed before is not staged again.

        Raises: as `write_to_table`.
        """

    def commit_staged(
        self,
        staged: Sequence[Delta],
        stream: StreamLocator | None = None,
        *,
        idempotency: Idempotency | None = None,
        rising_ids: bool = False,
        expected_properties: Mapping[str, str | None] | None = None,
        overwrite: Overwrite | None = None,
        root: str,
    ) -> int:
        """Commit what other processes staged for one stream of deltas; return the stream position.

        Without a stream, it is that of the first delta. Where that fails, the files stay. Raises: as `commit_deltas`; ConflictError where the table is another one by now.
        """

    def delta_stream(self, name: str, *, root: str) -> StreamLocator:
        """Return the stream of deltas of a table's newest active version. Raises: NotFoundError."""

    def version_folder(self, name: str, *, root: str) -> str:
        """Return the folder of a table's newest active version. Raises: NotFoundError."""
