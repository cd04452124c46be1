"""By this module Spark finds `format("siltstone")`: it looks for modules whose names begin with `pyspark_`.

One that fails while it is imported would make Spark give up on all of them, so nothing is imported before it is used.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from siltstone.spark.change_source import ChangeReader, ChangeStreamReader
    from siltstone.spark.delta_source import DeltaStreamReader
    from siltstone.spark.sink import SiltstoneStreamWriter, SiltstoneWriter
    from siltstone.spark.source import SiltstoneReader

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """A table of a lake: its rows to read, and what is written to it as one commit, or one for each batch of a query."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "siltstone"

    def schema(self) -> "StructType":
        """Return the columns asked for. Raises: InvalidInputError, NotFoundError."""
        from siltstone.spark.source import schema_of

        return schema_of(self.options)

    def reader(self, schema: "StructType") -> "SiltstoneReader | ChangeReader":
        """Return a reader of the columns asked for. Raises: InvalidInputError."""
        from siltstone.spark.source import open_reader

        return open_reader(self.options, schema)

    def streamReader(self, schema: "StructType") -> "ChangeStreamReader | DeltaStreamReader":  # noqa: N802
        """Return a reader of changes, or of deltas, as they come. Raises: InvalidInputError."""
        from siltstone.spark.source import open_stream_reader

        return open_stream_reader(self.options, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "SiltstoneWriter":
        """Return a writer of one commit. Raises: InvalidInputError, NotFoundError."""
        from siltstone.spark.sink import open_writer

        return open_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "SiltstoneStreamWriter":  # noqa: N802
        """Return a writer of one commit for each batch. Raises: InvalidInputError, NotFoundError."""
        from siltstone.spark.sink import open_stream_writer

        return open_stream_writer(self.options, schema, overwrite=overwrite)
