"""The `siltstone` command: all commands, and how errors become messages and exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 the reader of the output went away.
"""

import contextlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from siltstone import __version__
from siltstone.actor import acting_through
from siltstone.cli import (
    audit,
    backups,
    cycles,
    doctor,
    documents,
    erasure,
    feed,
    ingest,
    logs,
    maintenance,
    publish,
    rounds,
    rows,
    serve,
    sql,
    tables,
    tags,
)
from siltstone.cli.interrupts import heed_interrupts
from siltstone.cli.options import DEFAULT_ROOT, ROOT_VARIABLE, Debug, Json, Shell, examples, option, shell_of
from siltstone.errors import SiltstoneError, SiltstoneWarning
from siltstone.text import mask_secrets

INTERRUPTED = 130
READER_GONE = 141


class _Commands(TyperGroup):
    """The root of all commands, where every error arrives that is not about usage."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; turn errors into one message and an exit code."""
        try:
            try:
                with _shown_warnings(ctx), acting_through("command"):
                    return super().invoke(ctx)
            finally:
                # Also where a command ends with an exit code of its own.
                sys.stdout.flush()
        except SiltstoneError as error:
            raise _failed(shell_of(ctx), error, str(error)) from error
        except BrokenPipeError as error:
            _forget_output()
            raise typer.Exit(READER_GONE) from error
        except KeyboardInterrupt as error:
            raise _interrupted(shell_of(ctx)) from error
        except Exception as error:
            if isinstance(error.__context__, KeyboardInterrupt) and isinstance(error, typer.Abort):
                # Where the answer to a question was awaited.
                raise _interrupted(shell_of(ctx)) from error
            if type(error).__module__.startswith(("typer", "click")):
                raise
            shell = shell_of(ctx)
            hint = "" if shell.debug else "; --debug shows where, please report it"
            raise _failed(shell, error, f"unexpected {type(error).__name__}: {error}{hint}") from error


@contextlib.contextmanager
def _shown_warnings(context: Any) -> Iterator[None]:
    """Show each Siltstone warning once, through the output."""
    shown: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", SiltstoneWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *location: Any) -> None:
            if not issubclass(category, SiltstoneWarning):
                others(message, category, *location)
            elif str(message) not in shown:
                shown.add(str(message))
                shell_of(context).warning(str(message))

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _interrupted(shell: Shell) -> typer.Exit:
    progress = sys.modules.get("siltstone.cli.progress")
    if progress is not None:
        progress.clear()
    with contextlib.suppress(OSError):
        sys.stderr.write(f"Interrupted.{shell.when_interrupted and ' ' + shell.when_interrupted}\n")
    return typer.Exit(INTERRUPTED)


def _failed(shell: Shell, error: Exception, message: str) -> typer.Exit:
    if shell.debug:
        sys.stderr.write(mask_secrets("".join(traceback.format_exception(error))))
    with contextlib.suppress(BrokenPipeError):
        # What a store answers can be a page of XML; a failure is one line.
        shell.failure(
            type(error).__name__, getattr(error, "kind", "unexpected"), mask_secrets(" ".join(message.split()))
        )
        sys.stdout.flush()
        return typer.Exit(1)
    _forget_output()
    return typer.Exit(READER_GONE)


def _forget_output() -> None:
    # Python flushes once more when it ends; what is left goes nowhere instead of into a closed pipe.
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples("siltstone table create shop.orders --key order_id --from orders.csv --write"),
)
for commands in (rows, sql, feed, ingest, rounds, publish, tags, backups, erasure, maintenance, audit, doctor, serve):
    app.add_typer(commands.app)
app.add_typer(tables.app, name="table")
app.add_typer(documents.app, name="documents")
app.add_typer(cycles.app, name="cycle")
app.add_typer(logs.app, name="log")


def _show_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"siltstone {__version__}")
        raise typer.Exit


@app.callback()
def siltstone(
    context: typer.Context,
    root: Annotated[
        str, option("--root PATH", "Where the lake is: a local folder, s3://…, gs://… or az://….", envvar=ROOT_VARIABLE)
    ] = DEFAULT_ROOT,
    json: Json = False,
    debug: Debug = False,
    version: Annotated[bool, option("--version", "Show the version.", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Compact streams of change deltas into query-ready tables and documents.

    --root and --json can be given before or after any command.
    """
    shell_of(context, root, json, debug)


def main() -> None:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    heed_interrupts()
    try:
        app(prog_name="siltstone")
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            # The process is ending; a second Ctrl-C ends it without further ado.
            signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        raise
