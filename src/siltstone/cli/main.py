"""The `siltstone` command: the commands in one place, and how errors become messages and exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 the reader of the output went away.
"""

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from siltstone._version import __version__
from siltstone.cli import (
    compaction_commands,
    cycle_commands,
    data_commands,
    doctor_command,
    document_commands,
    log_commands,
    maintenance_commands,
    reading_commands,
    serve_commands,
    table_commands,
)
from siltstone.cli.shell import DEFAULT_ROOT, ROOT_VARIABLE, Debug, Json, Shell, examples, shell_of
from siltstone.errors import KeysInSeveralPartitionsWarning, SiltstoneError
from siltstone.masks import mask_secrets

INTERRUPTED = 130
READER_GONE = 141


class _Commands(TyperGroup):
    """The root of all commands, where every error arrives that is not about usage."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; turn errors into one message and an exit code."""
        try:
            with _shown_warnings(ctx):
                result = super().invoke(ctx)
            sys.stdout.flush()
        except SiltstoneError as error:
            raise _failed(shell_of(ctx), error, str(error)) from error
        except BrokenPipeError as error:
            _forget_output()
            raise typer.Exit(READER_GONE) from error
        except KeyboardInterrupt as error:
            sys.stderr.write("Interrupted.\n")
            raise typer.Exit(INTERRUPTED) from error
        except Exception as error:
            if type(error).__module__.startswith(("typer", "click")):
                raise
            shell = shell_of(ctx)
            hint = "" if shell.debug else "; --debug shows where, please report it"
            raise _failed(shell, error, f"unexpected {type(error).__name__}: {error}{hint}") from error
        return result


@contextlib.contextmanager
def _shown_warnings(context: Any) -> Iterator[None]:
    """Show warnings of ours as the output shows warnings, each once."""
    shown: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", KeysInSeveralPartitionsWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if not issubclass(category, KeysInSeveralPartitionsWarning):
                others(message, category, *place)
            elif str(message) not in shown:
                shown.add(str(message))
                shell_of(context).output.warning(str(message))

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _failed(shell: Shell, error: Exception, message: str) -> typer.Exit:
    if shell.debug:
        sys.stderr.write(mask_secrets("".join(traceback.format_exception(error))))
    with contextlib.suppress(BrokenPipeError):
        # What a store answers can be a page of XML; a failure is told in one line.
        shell.output.failure(type(error).__name__, mask_secrets(" ".join(message.split())))
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
app.add_typer(table_commands.app, name="table")
app.command("write", epilog=data_commands.WRITE_EXAMPLES)(data_commands.write)
app.command("deltas", epilog=data_commands.DELTAS_EXAMPLES)(data_commands.deltas)
app.command("read", epilog=reading_commands.READ_EXAMPLES)(reading_commands.read)
app.command("lookup", epilog=reading_commands.LOOKUP_EXAMPLES)(reading_commands.lookup)
app.command("explain-key", epilog=reading_commands.EXPLAIN_EXAMPLES)(reading_commands.explain_key)
app.command("compact", epilog=compaction_commands.COMPACT_EXAMPLES)(compaction_commands.compact)
app.command("plan", epilog=compaction_commands.PLAN_EXAMPLES)(compaction_commands.plan)
app.command("rounds", epilog=compaction_commands.ROUNDS_EXAMPLES)(compaction_commands.rounds)
app.command("show", epilog=compaction_commands.SHOW_EXAMPLES)(compaction_commands.show)
app.command("rollback", epilog=maintenance_commands.ROLLBACK_EXAMPLES)(maintenance_commands.rollback)
app.command("fsck", epilog=maintenance_commands.FSCK_EXAMPLES)(maintenance_commands.fsck)
app.command("repair", epilog=maintenance_commands.REPAIR_EXAMPLES)(maintenance_commands.repair)
app.command("vacuum", epilog=maintenance_commands.VACUUM_EXAMPLES)(maintenance_commands.vacuum)
app.add_typer(document_commands.app, name="documents")
app.command("serve", epilog=serve_commands.EXAMPLES)(serve_commands.serve)
app.add_typer(cycle_commands.app, name="cycle")
app.add_typer(log_commands.app, name="log")
app.command("doctor", epilog=doctor_command.EXAMPLES)(doctor_command.doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"siltstone {__version__}")
        raise typer.Exit


@app.callback()
def siltstone(
    context: typer.Context,
    root: Annotated[
        str,
        typer.Option(
            "--root",
            metavar="PATH",
            envvar=ROOT_VARIABLE,
            help="Where the lake is: a local folder, s3://…, gs://… or az://….",
        ),
    ] = DEFAULT_ROOT,
    json: Json = False,
    debug: Debug = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
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
    app(prog_name="siltstone")
