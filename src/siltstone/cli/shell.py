"""What every command shares: where the lake is, how to show things, and the options that say so."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import typer

from siltstone.cli.output import Output
from siltstone.cli.output_json import JsonOutput

if TYPE_CHECKING:
    from siltstone.lake import Lake

DEFAULT_ROOT = "./lake"
ROOT_VARIABLE = "SILTSTONE_ROOT"
DEBUG_VARIABLE = "SILTSTONE_DEBUG"

Root = Annotated[
    str | None,
    typer.Option("--root", metavar="PATH", help=f"Where the lake is: a folder or s3://…, else {ROOT_VARIABLE}."),
]
Json = Annotated[bool, typer.Option("--json", help="Show JSON instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an unexpected error came from.", hidden=True)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check and show what would happen, and change nothing.")]

Report = Callable[[str], None]


@dataclass
class Shell:
    """The settings of one command line; given before or after the command, the later ones win."""

    root: str = DEFAULT_ROOT
    json: bool = False
    debug: bool = False

    @property
    def output(self) -> Output:
        """Where results go."""
        if self.json:
            return JsonOutput()
        from siltstone.cli.output_text import TextOutput

        return TextOutput()

    @property
    def lake(self) -> "Lake":
        """The lake. Raises: InvalidInputError."""
        from siltstone.lake import Lake

        return Lake(self.root)

    @property
    def is_watched(self) -> bool:
        """Whether somebody sees how far long work is."""
        return not self.json and sys.stderr.isatty()

    @contextlib.contextmanager
    def progress(self) -> Iterator[Report]:
        """Give a function that shows how far long work is, as long as somebody watches."""
        if not self.is_watched:
            yield _ignore
            return
        from rich.text import Text

        from siltstone.cli.text_parts import new_console

        with new_console(sys.stderr).status("") as status:
            yield lambda message: status.update(Text(message))


def _ignore(message: str) -> None:
    """Show nothing."""


def examples(*lines: str) -> str:
    """Write examples for the end of a command's help, one per line however long."""
    return "\n".join(["\b", "Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)])


def shell_of(context: typer.Context, root: str | None = None, json: bool = False, debug: bool = False) -> Shell:
    """Return the settings of this command line, after these were added."""
    if context.obj is None or not isinstance(context.obj, Shell):
        context.obj = Shell(
            root=os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT, debug=bool(os.environ.get(DEBUG_VARIABLE))
        )
    shell = cast("Shell", context.obj)
    if root is not None:
        shell.root = root
    shell.json = shell.json or json
    shell.debug = shell.debug or debug
    return shell
