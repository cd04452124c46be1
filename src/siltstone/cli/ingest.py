"""`siltstone ingest`: files that are dropped into a folder become deltas of a table."""

import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from siltstone.cli.changes import Create, DecimalsOption, Header, Times, parse_times
from siltstone.cli.options import DryRun, Shell, TableName, argument, command, option, parse_duration_ms
from siltstone.cli.parts import Shown, grid_of
from siltstone.cli.rows import Delimiter, DeltaType, Format, parse_names
from siltstone.text import format_bytes, format_count, format_number, format_time

if TYPE_CHECKING:
    from siltstone.ingest.drop_log import IngestReport
    from siltstone.ingest.drop_options import Ingested

app = typer.Typer()


@command(
    app,
    "ingest",
    "siltstone ingest shop.orders ./drops",
    "siltstone ingest shop.orders ./drops --every 10s --done move --quarantine",
    "siltstone ingest shop.orders s3://acme-drops/orders --pattern '**/*.jsonl.gz' --dry-run",
    "siltstone ingest shop.orders ./events --format debezium --into 'shop.{table}' --create --rejects ./misfits",
    "siltstone ingest shop.orders",
)
def ingest(
    shell: Shell,
    name: TableName,
    source: Annotated[
        str | None, argument("SOURCE", "The folder, or s3://…; without it, show what was taken so far.")
    ] = None,
    every: Annotated[str | None, option("--every TIME", "Look again at this interval until stopped, e.g. 10s.")] = None,
    pattern: Annotated[
        str | None, option("--pattern GLOB", "Only these files, e.g. *.jsonl; **/*.jsonl also in folders below.")
    ] = None,
    done: Annotated[
        Literal["keep", "move", "delete"],
        option("--done", "What to do with a file that was taken; move puts it in done/."),
    ] = "keep",
    quarantine: Annotated[
        bool, option("--quarantine", "Move bad files to rejected/ and go on, rather than stop.")
    ] = False,
    rejects: Annotated[
        str | None,
        option("--rejects DIR", "Where bad files, and change events that do not fit, go; implies --quarantine."),
    ] = None,
    max_files: Annotated[int, option("--max-files N", "At most N files in one commit.", min=1)] = 1000,
    max_bytes: Annotated[
        int, option("--max-bytes N", "At most N bytes in one commit, but at least one file.", min=1)
    ] = 1 << 30,
    settle: Annotated[
        str, option("--settle TIME", "Take a file when it has not changed for this long; 0s: at once.")
    ] = "2s",
    source_id: Annotated[
        str | None, option("--id NAME", "A name for the source, so that its folder can be moved; else its address.")
    ] = None,
    type: Annotated[DeltaType, option("--type", "What the rows mean.")] = "upsert",
    op_column: Annotated[str | None, option("--op-column COLUMN", "The column with each row's operation.")] = None,
    strict: Annotated[bool, option("--strict", "Refuse columns and types that the table does not have.")] = False,
    format: Format = None,
    delimiter: Delimiter = None,
    decimals: DecimalsOption = None,
    times: Times = None,
    header: Header = None,
    into: Annotated[
        str | None,
        option(
            "--into TEMPLATE", "Write change events of several tables, e.g. to shop.{table}; TABLE remembers the files."
        ),
    ] = None,
    create: Create = False,
    dry_run: DryRun = False,
) -> None:
    """Write the files that arrive in a folder, each exactly once.

    What was taken is remembered with the table: several processes may watch one folder, and one that was killed continues
    where it was. Hidden and temporary names (.*, _*, *.tmp, *.part, *.crdownload) are passed over. With --every, Ctrl-C
    ends it at once (exit code 130), SIGTERM after the batch that is being written (0).
    """
    table = shell.lake.table(name)
    if source is None:
        reports = table.ingests()
        shell.emit(reports, _reports_text(name, reports))
        return
    from siltstone.ingest.drop_options import DropOptions, write_options
    from siltstone.ingest.drops import watch

    if every is not None and dry_run:
        raise typer.BadParameter("a dry run looks once; leave out --every", param_hint="--every")
    pause = None if every is None else parse_duration_ms(every, "--every") / 1000
    options = DropOptions(
        pattern=pattern,
        done=done,
        quarantine=quarantine or rejects is not None,
        rejects=rejects,
        max_files=max_files,
        max_bytes=max_bytes,
        settle_seconds=parse_duration_ms(settle, "--settle") / 1000,
        how=write_options(
            format, delimiter, type, op_column, not strict,
            decimals=decimals, times=parse_times(times), header=parse_names(header), into=into, create=create,
        ),
    )  # fmt: skip
    drops = table.open_drops(source, options, source_id=source_id)
    shell.when_interrupted = "Files are committed in whole batches, each file once; run it again to take the rest."
    if pause is None:
        with shell.progress(f"Looking at {drops.source}") as progress:
            taken = drops.take(dry_run=dry_run, progress=progress)
        shell.emit(taken, _taken_text(taken))
        return
    is_stopping = is_interrupted = False

    def stop(number: int, frame: object) -> None:
        # A flag and no event: this thread may hold any lock just now.
        nonlocal is_stopping
        is_stopping = True

    def interrupt(number: int, frame: object) -> None:
        # An error that is raised where Python passes over it, e.g. while an object is deleted, must not be all there is.
        nonlocal is_interrupted
        is_interrupted = True
        stop(number, frame)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    before_interrupt = signal.signal(signal.SIGINT, interrupt)
    try:
        watch(
            drops,
            pause,
            lambda: is_stopping,
            lambda taken: shell.emit(taken, _taken_text(taken), one_line=True),
            lambda error: shell.warning(f"{error}; trying again"),
        )
        if is_interrupted:
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, before_interrupt)


def _taken_text(taken: "Ingested") -> Iterator[Shown]:
    what = f"{format_count(taken.files, 'file')} ({format_bytes(taken.bytes)}, {format_count(taken.rows, 'row')})"
    if taken.dry_run:
        yield f"{taken.table}: would take {what} from {taken.source}."
    elif not taken.files:
        yield f"{taken.table}: {'took no file from' if taken.rejected else 'nothing new in'} {taken.source}."
    else:
        at = "" if taken.stream_position is None else f", up to position {taken.stream_position}"
        batches = f" in {taken.batches} batches" if taken.batches > 1 else ""
        yield f"{taken.table}: took {what}{batches} from {taken.source}{at}."
    for rejected in taken.rejected:
        yield f"Rejected {rejected.file}: {rejected.reason}"
    if taken.waiting_files:
        yield f"{format_count(taken.waiting_files, 'file')} may still be growing; the next look takes them."


def _reports_text(table: str, reports: "Sequence[IngestReport]") -> Iterator[Shown]:
    if not reports:
        yield f"{table}: no files were taken from a folder yet."
        return
    yield grid_of(
        reports,
        {
            "source": lambda report: report.source or report.source_id,
            ">files": lambda report: format_number(report.files),
            ">rows": lambda report: format_number(report.rows),
            ">size": lambda report: format_bytes(report.bytes),
            ">rejected": lambda report: format_number(report.rejected),
            ">waiting": lambda report: format_number(report.waiting_files),
            "last taken (UTC)": lambda report: format_time(report.taken_at) if report.taken_at else "",
        },
    )
    for report in reports:
        for rejected in report.recent_rejects:
            yield f"Rejected {rejected.file}: {rejected.reason}"
        if report.error:
            yield f"{report.source}: {report.error}"
