"""What every command shares: where the lake is, how to show things, the options that say so, and durations."""

import contextlib
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from siltstone.cli.completion import complete_table
from siltstone.cli.output import Output

if TYPE_CHECKING:
    from siltstone.cli.spark import SparkStarting
    from siltstone.ingest.file_rows import FilesRead
    from siltstone.lake import Lake
    from siltstone.rounds.events import Event

DEFAULT_ROOT = "./lake"
ROOT_VARIABLE = "SILTSTONE_ROOT"
DEBUG_VARIABLE = "SILTSTONE_DEBUG"
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|[smhdw])", re.IGNORECASE)


def option(text: str, help: str, *aliases: str, **settings: Any) -> Any:
    """Return an option as its help writes it: its name, and a word for its value, e.g. `--limit N`."""
    name, _, metavar = text.partition(" ")
    return typer.Option(name, *aliases, metavar=metavar or None, help=help, **settings)


def argument(metavar: str, help: str, **settings: Any) -> Any:
    """Return an argument as its help writes it; a default is part of the help text."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **settings)


Root = Annotated[str | None, option("--root PATH", f"Where the lake is: a folder or s3://…, else {ROOT_VARIABLE}.")]
Json = Annotated[bool, option("--json", "Show JSON instead of text.")]
Debug = Annotated[bool, option("--debug", "Show where an unexpected error came from.", hidden=True)]
DryRun = Annotated[bool, option("--dry-run", "Check and show what would happen, and change nothing.")]
TableName = Annotated[str, argument("TABLE", "The table, e.g. shop.orders.", autocompletion=complete_table)]
Partition = Annotated[
    list[str] | None, option("--partition KEY=VALUE", "Which partition, if there are several; or only its values: A,B.")
]
Master = Annotated[str | None, option("--master URL", "Where Spark runs, e.g. local[4] or spark://host:7077.")]
Params = ParamSpec("Params")
Command = Callable[Concatenate["Shell", Params], None]


@dataclass
class Shell(Output):
    """The settings of one command line, and its output; given before or after the command, the later ones win."""

    root: str = DEFAULT_ROOT
    debug: bool = False
    when_interrupted: str = ""
    """What Ctrl-C means for the data from here on, for the message."""

    @property
    def lake(self) -> "Lake":
        """The lake. Raises: InvalidInputError."""
        from siltstone.lake import Lake

        return Lake(self.root)

    @property
    def is_watched(self) -> bool:
        """Whether progress is shown: standard error is a terminal."""
        return not self.json and sys.stderr.isatty()

    def progress(self, message: str = "") -> "AbstractContextManager[Callable[[str | FilesRead], None]]":
        """Show the progress of long work, if it is watched; the context yields a function that shows what comes next."""
        if not self.is_watched:
            return contextlib.nullcontext(lambda message: None)
        from siltstone.cli.progress import shown_messages

        return shown_messages(message)

    def compaction_progress(self) -> "AbstractContextManager[Callable[[Event | SparkStarting], None]]":
        """Show the progress of a compaction, if it is watched; the context yields a function that shows events."""
        if not self.is_watched:
            return contextlib.nullcontext(lambda event: None)
        from siltstone.cli.progress import shown_progress

        return shown_progress()


def shell_of(context: typer.Context, root: str | None = None, json: bool = False, debug: bool = False) -> Shell:
    """Return the settings of this command line, after these were added."""
    if not isinstance(context.obj, Shell):
        context.obj = Shell(
            root=os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT, debug=bool(os.environ.get(DEBUG_VARIABLE))
        )
    shell: Shell = context.obj
    shell.root = shell.root if root is None else root
    shell.json = shell.json or json
    shell.debug = shell.debug or debug
    return shell


def command(
    app: typer.Typer, name: str, *example_lines: str, has_root: bool = True
) -> Callable[[Command[Params]], Command[Params]]:
    """Register a function as a command that also takes `--root`, where it has a lake, `--json` and `--debug`."""

    def register(function: Command[Params]) -> Command[Params]:
        app.command(name, epilog=examples(*example_lines))(_with_shared_options(function, has_root=has_root))
        return function

    return register


def new_group(help: str, *example_lines: str, has_root: bool = True) -> typer.Typer:
    """Return a group of commands, whose shared options can also stand before the command."""

    def group(shell: Shell) -> None:
        pass

    group.__doc__ = help
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help, epilog=examples(*example_lines))
    app.callback()(_with_shared_options(group, has_root=has_root))
    return app


def _with_shared_options(function: Callable[..., None], *, has_root: bool) -> Callable[..., None]:
    """Return a function with the shared options, which makes a shell of them and hands on the rest."""

    @functools.wraps(function)
    def run(context: typer.Context, json: bool, debug: bool, root: str | None = None, **options: Any) -> None:
        function(shell_of(context, root, json, debug), **options)

    keyword = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    own = list(inspect.signature(function).parameters.values())[1:]
    parameters = [
        keyword("context", annotation=typer.Context),
        *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
        *([keyword("root", default=None, annotation=Root)] if has_root else []),
        keyword("json", default=False, annotation=Json),
        keyword("debug", default=False, annotation=Debug),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def examples(*lines: str) -> str:
    """Write examples for the end of a command's help, one per line however long."""
    return "\n".join(["\b", "Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)])


def parse_duration_ms(text: str, param_hint: str) -> int:
    """Read a duration such as 200ms, 1.5s, 15m, 12h, 7d or 2w, as milliseconds. Raises: typer.BadParameter."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a duration; write a number and a unit, e.g. 200ms, 90s, 15m, 12h, 7d, 2w",
            param_hint=param_hint,
        )
    return round(Decimal(match[1]) * _UNITS_MS[match[2].lower()])
