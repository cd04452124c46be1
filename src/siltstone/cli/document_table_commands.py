"""`siltstone documents create`, `update`, `get`, `timeline`, `compact`, `hold` and `export`: documents in tables."""

from typing import Annotated

import typer

from siltstone.cli.shell import Debug, Json, Root, examples, shell_of
from siltstone.cli.table_commands import TableName
from siltstone.cli.units import parse_duration_ms

CREATE_EXAMPLES = examples(
    "siltstone documents create shop.reviews",
    "siltstone documents create shop.reviews --full-consistency-delay 15m --description 'what people write'",
)
UPDATE_EXAMPLES = examples(
    """siltstone documents update shop.reviews r17 '{"stars":4,"text":"good"}'""",
    """siltstone documents update shop.reviews r17 '{..,"stars":5}' --tag edit""",
    "siltstone documents update shop.reviews --from updates.jsonl",
)
IMPORT_EXAMPLES = examples(
    "siltstone documents import shop.reviews old-store.jsonl --dry-run",
    "siltstone documents import shop.reviews old-store.jsonl --skip-existing",
)
GET_EXAMPLES = examples(
    "siltstone documents get shop.reviews r17 r18",
    "siltstone documents get shop.reviews r17 --change febb5880-2c64-11e4-8000-000000000000",
)
TIMELINE_EXAMPLES = examples("siltstone documents timeline shop.reviews r17")
HISTORY_EXAMPLES = examples(
    "siltstone documents history shop.reviews r17",
    "siltstone documents history shop.reviews r17 --json | jq '.[].version'",
)
COMPACT_EXAMPLES = examples(
    "siltstone documents compact shop.reviews", "siltstone documents compact shop.reviews --full --master 'local[4]'"
)
HOLD_EXAMPLES = examples(
    "siltstone documents hold shop.reviews --for 2h --reason 'nightly export'",
    "siltstone documents hold shop.reviews",
    "siltstone documents hold shop.reviews --release 0d6f1c5e8f3b4a0c9a51f7e2b7c3d4e5",
)
EXPORT_EXAMPLES = examples(
    "siltstone documents export shop.reviews reviews.jsonl",
    "siltstone documents export shop.reviews --include-deleted | jq .stars",
    "siltstone documents export shop.reviews reviews.jsonl --hold 0d6f1c5e8f3b4a0c9a51f7e2b7c3d4e5",
)


def create(
    context: typer.Context,
    name: TableName,
    delay: Annotated[
        str,
        typer.Option(
            "--full-consistency-delay", metavar="TIME", help="How old a change may be when it is written, e.g. 15m."
        ),
    ] = "5m",
    keep_history: Annotated[
        bool, typer.Option("--keep-history", help="Keep each delta that compaction absorbs, for `documents history`.")
    ] = False,
    description: Annotated[str, typer.Option("--description", metavar="TEXT", help="What it is for.")] = "",
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Create a table of JSON documents."""
    shell = shell_of(context, root, json, debug)
    delay_ms = parse_duration_ms(delay, "--full-consistency-delay")
    from siltstone.cli import documents

    documents.create(shell, name, delay_ms, description, keep_history=keep_history)


def update(
    context: typer.Context,
    name: TableName,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="The document.", show_default=False)] = None,
    delta: Annotated[
        str | None,
        typer.Argument(metavar="DELTA", help='A JSON map, or what to change, e.g. {..,"n":1}.', show_default=False),
    ] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag, at most three.")] = None,
    change_id: Annotated[
        str | None, typer.Option("--change-id", metavar="ID", help="Its id, so that it is safe to update again.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="FILE", help="Updates as JSON lines with key, delta, tags, change_id; - for stdin."
        ),
    ] = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Apply a delta to a document, or many deltas from a file, as one commit."""
    shell = shell_of(context, root, json, debug)
    if (file is None) != (key is not None and delta is not None) or (file is not None and (key or tags or change_id)):
        raise typer.BadParameter("give a key and a delta, or a file with --from", param_hint="KEY DELTA")
    from siltstone.cli import documents

    if file is not None:
        documents.update_from(shell, name, file)
    else:
        assert key is not None
        assert delta is not None
        documents.update(shell, name, key, delta, tags or [], change_id)


def import_(
    context: typer.Context,
    name: TableName,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="JSON lines, one a document; - for stdin.", show_default=False)
    ],
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Leave out documents of which something is stored already.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check them, and tell what would be done.")] = False,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Bring in documents of another store with their past, as one commit.

    A line is {"key": text, "deltas": [{"id", "delta", "tags"}], "compactions": [{"id", "count", "first", "cutoff",
    "cutoff_signature", "last_content_mutation", "last_mutation", "compacted_delta", "last_tags"}]}. A record without
    compacted_delta is a legacy one: its content is the delta at its cutoff.
    """
    shell = shell_of(context, root, json, debug)
    from siltstone.cli import documents

    documents.import_from(shell, name, file, skip_existing=skip_existing, dry_run=dry_run)


def get(
    context: typer.Context,
    name: TableName,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="The documents.", show_default=False)],
    change_id: Annotated[
        str | None,
        typer.Option("--change", metavar="ID", help="Tell what became of a change: resolved, redundant or pending."),
    ] = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print documents, each with what is known about it under keys that begin with ~."""
    shell = shell_of(context, root, json, debug)
    if change_id is not None and len(keys) != 1:
        raise typer.BadParameter("a change is of one document; give one key", param_hint="--change")
    from siltstone.cli import documents

    documents.get(shell, name, keys, change_id)


def timeline(
    context: typer.Context,
    name: TableName,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The document.", show_default=False)],
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show all that is stored of a document: deltas, compactions, and which deltas are redundant and why."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli import documents

    documents.timeline(shell, name, key)


def history(
    context: typer.Context,
    name: TableName,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The document.", show_default=False)],
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show every change of a document with the version and the content after it, also those that are compacted.

    The table must keep its history: `documents create --keep-history`, or `table alter --set keep_history=true`.
    """
    shell = shell_of(context, root, json, debug)
    from siltstone.cli import documents

    documents.history(shell, name, key)


def compact(
    context: typer.Context,
    name: TableName,
    full: Annotated[bool, typer.Option("--full", help="Rewrite all buckets, also those without changes.")] = False,
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Where Spark runs, e.g. local[4] or spark://host:7077."),
    ] = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compact documents that changed, or that are due; `siltstone compact` does the same.

    Deltas older than the full consistency delay become one record a document; once that record is itself so old, the
    deltas go.
    """
    shell = shell_of(context, root, json, debug)
    from siltstone.cli import documents
    from siltstone.cli.compacting import compact_table
    from siltstone.cli.compaction_commands import watched_progress
    from siltstone.rounds.request import TableRequest

    documents.find(shell, name)
    output = shell.output
    with watched_progress(shell) as tell:
        done = compact_table(shell.lake, TableRequest(name, shell.lake.root, full=full), master=master, tell=tell)
    output.compacted(done)


def hold(
    context: typer.Context,
    name: TableName,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Begin a hold that lasts so long, e.g. 90m or 10h.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="What it is for.")] = "",
    release: Annotated[str | None, typer.Option("--release", metavar="ID", help="End a hold before its time.")] = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Keep what is stored now from being deleted, for an export that is running; without options, list holds.

    Compaction goes on; only its deletions wait.
    """
    shell = shell_of(context, root, json, debug)
    if duration is not None and release is not None:
        raise typer.BadParameter("begin a hold or end one, not both", param_hint="--release")
    from siltstone.cli import documents

    if release is not None:
        documents.release(shell, name, release)
    elif duration is not None:
        documents.hold(shell, name, parse_duration_ms(duration, "--for"), reason)
    else:
        documents.holds(shell, name)


def export(
    context: typer.Context,
    name: TableName,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="Where to.  [default: standard output]", show_default=False)
    ] = None,
    hold_id: Annotated[
        str | None, typer.Option("--hold", metavar="ID", help="Documents as they were when this hold began.")
    ] = None,
    include_deleted: Annotated[
        bool, typer.Option("--include-deleted", help="Also documents that are deleted.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write all documents as JSON lines, in no order, with the deltas that are not compacted yet."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli import documents

    documents.export(shell, name, file, hold_id, include_deleted=include_deleted, overwrite=overwrite)
