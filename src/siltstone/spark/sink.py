"""Writing by `format("siltstone")`: tasks stage files, the driver commits them, once for each batch of a query.

Spark makes a writer in a process of its own for each step, so nothing is remembered between them but what messages carry.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from siltstone.catalog import main as catalog
from siltstone.change_writes import ChangeStaging, decode_for, events_of
from siltstone.documents.commit import begin_changes, commit_files
from siltstone.documents.intake import check_columns
from siltstone.errors import InvalidInputError, NotFoundError, SiltstoneError
from siltstone.model import DEFAULT_STREAM, Delta, Idempotency, StreamLocator, TableVersion
from siltstone.model.properties import DOCUMENTS_KIND, KIND
from siltstone.objects import open_objects, share_access
from siltstone.spark.options import WriteOptions, write_options
from siltstone.spark.write import Staging, decoded, update_batches
from siltstone.storage import object_store as storage

_STORES = {"s3": "s3", "s3a": "s3", "gs": "gs"}
# An address as Hadoop reads it: nothing in the path is escaped.
_ADDRESS = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/]*))?(.*)", re.DOTALL)


@dataclass
class StagedFiles(WriterCommitMessage):
    """What a task staged: its deltas as JSON, and when the changes to documents among them were made."""

    deltas: str
    began_ms: int = 0


def open_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "SiltstoneWriter":
    """Return a writer of one commit. Raises: InvalidInputError, NotFoundError."""
    return SiltstoneWriter(write_options(options, is_stream=False, overwrite=overwrite), schema)


def open_stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "SiltstoneStreamWriter":
    """Return a writer of one commit for each batch. Raises: InvalidInputError, NotFoundError."""
    chosen = write_options(options, is_stream=True)
    if overwrite:
        raise InvalidInputError(
            f'{chosen.table}: output mode complete would replace the table with each batch; use .outputMode("append"), or '
            "foreachBatch with update mode, where rows with a key replace those before them"
        )
    return SiltstoneStreamWriter(chosen, schema, _app_id(chosen))


def _app_id(options: WriteOptions) -> str:
    """Return what a query is known by: the id that Spark gave the query when its checkpoint was new, or the option.

    Raises: InvalidInputError.
    """
    if options.app_id is not None:
        return options.app_id
    give = f'{options.table}: give the query a name of its own, .option("app_id", "…"), and a new one with each new checkpoint'
    if options.checkpoint is None:
        raise InvalidInputError(
            f'{give}; its id cannot be read, since .option("checkpointLocation", …) does not say where it is'
        )
    try:
        return str(json.loads(_read_metadata(options.checkpoint))["id"])
    except (OSError, SiltstoneError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"{give}; its id cannot be read from {options.checkpoint}/metadata ({type(error).__name__}: {error})"
        ) from error


def _read_metadata(checkpoint: str) -> bytes:
    """Read the file in which Spark keeps the id of a query, as far as this process reaches it."""
    match = _ADDRESS.fullmatch(checkpoint)
    assert match is not None
    scheme, host, path = match.groups()
    if scheme in _STORES:
        return open_objects(f"{_STORES[scheme]}://{host}{path}").read("metadata")
    if scheme not in (None, "file"):
        raise InvalidInputError(f"{scheme} is read by Spark only")
    return Path(path, "metadata").read_bytes()


def _open_intake(options: WriteOptions, schema: StructType) -> "_Intake":
    """Return how rows of a schema are taken in: by the kind of table that they are for."""
    try:
        version = catalog.get_table_version(options.table, root=options.root)
    except NotFoundError as error:
        raise NotFoundError(f"{error}; create it first, in Python or with `siltstone table create`") from error
    if KIND.of(version.properties, options.table) == DOCUMENTS_KIND:
        return _DocumentIntake(options, version, schema)
    return (_Intake if options.format is None else _ChangeIntake)(options, version, schema)


class _Intake:
    """How a task's rows are staged, and how what all tasks staged is committed."""

    def __init__(self, options: WriteOptions, version: TableVersion, schema: StructType) -> None:
        self.options = options
        self._access = share_access(options.root)
        self._staging = self._make_staging(StreamLocator(**version.locator, stream=DEFAULT_STREAM), version.schema)
        # What a write without rows says of the table's columns.
        self.empty = self._check(schema)

    def _make_staging(self, stream: StreamLocator, table_schema: pa.Schema) -> Staging:
        options = self.options
        return Staging(
            stream,
            options.root,
            table_schema,
            options.type,
            options.delete_columns,
            options.op_column,
            options.evolve,
        )

    def _check(self, schema: StructType) -> list[Delta]:
        return self._staging.check(to_arrow_schema(schema))

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedFiles:
        """Write the files of a task's rows, where it runs."""
        self._access.use()
        stream = storage.locate_stream(self._staging.stream, root=self.options.root)
        stream.refresh()
        # A vacuum that comes while this takes long is told; one that comes after it, and before the commit, is not.
        with stream.announced():
            return StagedFiles(json.dumps(self._staging.stage(batches, stream)))

    def commit(
        self,
        staged: Sequence[StagedFiles],
        idempotency: Idempotency | None,
        *,
        rising_ids: bool,
        empty: Sequence[Delta],
    ) -> None:
        """Commit what all tasks staged, or what there is without rows; what is not committed is discarded."""
        deltas = self._combine([decoded(message.deltas) for message in staged]) or empty
        if deltas or self.options.overwrite is not None:
            self._commit(deltas, staged, idempotency, rising_ids)

    def _combine(self, by_task: Sequence[Sequence[Delta]]) -> list[Delta]:
        return self._staging.combine(by_task)

    def _commit(
        self,
        deltas: Sequence[Delta],
        staged: Sequence[StagedFiles],
        idempotency: Idempotency | None,
        rising_ids: bool,
    ) -> None:
        options, root = self.options, self.options.root
        with catalog.discarded_on_error(deltas, root=root):
            catalog.commit_staged(
                deltas,
                self._staging.stream,
                idempotency=idempotency,
                rising_ids=rising_ids,
                overwrite=options.overwrite,
                root=root,
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Discard what tasks staged, unless all of them did: then there was a commit, which may have succeeded."""
        staged = [message for message in messages if isinstance(message, StagedFiles)]
        if len(staged) < len(messages):
            deltas = [delta for message in staged for delta in decoded(message.deltas)]
            storage.discard_deltas(deltas, root=self.options.root)


class _ChangeIntake(_Intake):
    """The same for change events: a column `value`, and perhaps `key`, as Kafka gives them; other columns are left alone.

    Events of one key must be in one task, in their order, where they leave out columns: as in a partition of Kafka's.
    """

    def _check(self, schema: StructType) -> list[Delta]:
        if "value" not in schema.names:
            raise InvalidInputError(
                f"{self.options.table}: {self.options.format} events are in a column value, and perhaps key; there is "
                f"{', '.join(schema.names)}"
            )
        return []

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedFiles:
        """Decode the events of a task and write their files, where it runs."""
        self._access.use()
        options = self.options
        assert options.format is not None
        taken = [batch.select([name for name in ("key", "value") if name in batch.schema.names]) for batch in batches]
        if not taken:
            return StagedFiles("[]")
        stream = storage.locate_stream(self._staging.stream, root=options.root)
        stream.refresh()
        with stream.announced():
            version = catalog.get_table_version(options.table, root=options.root)
            events = events_of(pa.Table.from_batches(taken), options.format)
            found, _ = decode_for(version, events, options.format, options.changes, root=options.root)
            return StagedFiles(json.dumps(ChangeStaging(version, found, options.changes, options.root).stage(stream)))

    def _combine(self, by_task: Sequence[Sequence[Delta]]) -> list[Delta]:
        """Return the deltas of all tasks: one after another as each task has them, of several tasks side by side."""
        combined: list[Delta] = []
        for number in range(max((len({delta.place for delta in task}) for task in by_task), default=0)):
            alike: dict[str, list[list[Delta]]] = {}
            for task in by_task:
                places = sorted({delta.place for delta in task})
                own = [delta for delta in task if number < len(places) and delta.place == places[number]]
                if own:
                    alike.setdefault(json.dumps([own[0].columns, own[0].delete_columns, own[0].floor]), []).append(own)
            for tasks in alike.values():
                place = len({delta.place for delta in combined})
                combined += [Delta(**{**delta, "place": place}) for delta in self._staging.combine(tasks)]
        return combined


class _DocumentIntake(_Intake):
    """The same for updates of documents."""

    def _make_staging(self, stream: StreamLocator, table_schema: pa.Schema) -> Staging:
        return Staging(stream, self.options.root, table_schema, "append")

    def _check(self, schema: StructType) -> list[Delta]:
        check_columns(schema.names)
        options = self.options
        plain = WriteOptions(options.root, options.table)
        for name in ("type", "delete_columns", "op_column", "evolve", "overwrite", "format"):
            if getattr(options, name) != getattr(plain, name):
                raise InvalidInputError(
                    f"{options.table}: is a table of documents, which has no option {name}; leave it out"
                )
        self._have_ids = "change_id" in schema.names
        self._began_ms = begin_changes(options.table, root=options.root)
        return []

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedFiles:
        """Check updates and write their files, where the task runs; those without a change id get one."""
        return replace(super().stage(update_batches(batches, self._began_ms)), began_ms=self._began_ms)

    def _commit(
        self,
        deltas: Sequence[Delta],
        staged: Sequence[StagedFiles],
        idempotency: Idempotency | None,
        rising_ids: bool,
    ) -> None:
        commit_files(
            self.options.table,
            deltas,
            began_ms=min(message.began_ms for message in staged),
            have_ids=self._have_ids,
            idempotency=idempotency,
            rising_ids=rising_ids,
            root=self.options.root,
        )


class SiltstoneWriter(DataSourceArrowWriter):
    """Writes a data frame as one commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._intake = _open_intake(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedFiles:
        """Stage the rows of a task."""
        return self._intake.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what all tasks staged; without rows, what the schema alone says. Raises: as `Table.write`."""
        idempotency = self._intake.options.idempotency
        self._intake.commit(_complete(messages), idempotency, rising_ids=False, empty=self._intake.empty)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard what tasks staged."""
        self._intake.abort(messages)


class SiltstoneStreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a query as one commit: under the id of the query and the batch, so that a repeated one counts once."""

    def __init__(self, options: WriteOptions, schema: StructType, app_id: str) -> None:
        self._app_id = app_id
        self._intake = _open_intake(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedFiles:
        """Stage the rows of a task."""
        return self._intake.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit what all tasks staged, unless that is nothing, or the batch is committed. Raises: as `Table.write`."""
        idempotency = Idempotency(app_id=self._app_id, batch_id=batchId)
        self._intake.commit(_complete(messages), idempotency, rising_ids=True, empty=())

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Discard what tasks staged."""
        self._intake.abort(messages)


def _complete(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFiles]:
    staged = [message for message in messages if isinstance(message, StagedFiles)]
    if len(staged) < len(messages):
        raise InvalidInputError(
            f"{len(messages) - len(staged)} of {len(messages)} tasks say nothing of what they wrote"
        )
    return staged
