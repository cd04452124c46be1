"""`siltstone documents …`"""

import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from siltstone.cli import document_table_commands as tables
from siltstone.cli.shell import Debug, Json, examples, shell_of
from siltstone.errors import InvalidInputError, SiltstoneError

app = typer.Typer(no_args_is_help=True, help="Work with documents and the deltas they are made of.")
app.command("create", epilog=tables.CREATE_EXAMPLES)(tables.create)
app.command("update", epilog=tables.UPDATE_EXAMPLES)(tables.update)
app.command("import", epilog=tables.IMPORT_EXAMPLES)(tables.import_)
app.command("get", epilog=tables.GET_EXAMPLES)(tables.get)
app.command("timeline", epilog=tables.TIMELINE_EXAMPLES)(tables.timeline)
app.command("history", epilog=tables.HISTORY_EXAMPLES)(tables.history)
app.command("compact", epilog=tables.COMPACT_EXAMPLES)(tables.compact)
app.command("hold", epilog=tables.HOLD_EXAMPLES)(tables.hold)
app.command("export", epilog=tables.EXPORT_EXAMPLES)(tables.export)

CasesFile = Annotated[
    str | None,
    typer.Argument(metavar="FILE", help="Where the cases are, one JSON object a line.  [default: standard input]"),
]


@app.callback()
def documents(context: typer.Context, json: Json = False, debug: Debug = False) -> None:
    """Work with documents and the deltas they are made of."""
    shell_of(context, None, json, debug)


@app.command(
    "eval",
    epilog=examples(
        """siltstone documents eval --delta '{..,"n":1}' --on '{"a":2}'""",
        """siltstone documents eval --delta '{..,"tags":(..,"new",~"old")}' --on '{"tags":["old"]}'""",
        """siltstone documents eval --delta 'if ~ then {"n":0} else {..,"n":~} end'""",
        "siltstone documents eval < cases.jsonl",
    ),
)
def evaluate(
    context: typer.Context,
    delta: Annotated[
        str | None,
        typer.Option("--delta", metavar="DELTA", help="The delta. Without one, cases are read from standard input."),
    ] = None,
    on: Annotated[
        str | None, typer.Option("--on", metavar="JSON", help="What it is applied to.  [default: ~, nothing]")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Apply a delta to a value and print the result; ~ means that nothing is left.

    Cases are read as {"delta": text, "on": value}, one a line, and answered as {"content", "deleted"}, one a line.
    """
    shell = shell_of(context, None, json, debug)
    from siltstone.documents.cases import apply_case
    from siltstone.documents.language import UNDEFINED, parse_delta, parse_value, value_text

    if delta is None:
        if on is not None:
            raise typer.BadParameter("--on needs a --delta to apply", param_hint="--delta")
        _answer(_cases(None), lambda line: _dumps(apply_case(_loads(line))))
        return
    change = parse_delta(delta)
    result = change.apply(UNDEFINED if on is None or on.strip() == "~" else parse_value(on, "--on"))
    if shell.json:
        _print(_dumps({"content": None if result is UNDEFINED else result, "deleted": result is UNDEFINED}))
    else:
        _print("~" if result is UNDEFINED else value_text(result))


@app.command(
    "expand",
    epilog=examples("siltstone documents expand < case.json", "siltstone documents expand cases.jsonl | jq .write"),
)
def expand(context: typer.Context, file: CasesFile = None, json: Json = False, debug: Debug = False) -> None:
    """Show what documents are, and what compaction would write and delete.

    A case is {"deltas": [{"id", "delta", "tags"}], "compactions": [{"id", "count", "first", "cutoff",
    "cutoff_signature", "last_content_mutation", "last_mutation", "compacted_delta", "last_tags"}], "fct": ms,
    "raw": ms, "ctl": ms or null, "new_id": id}: the row of a document; the times before which deltas, and records,
    are complete everywhere; the time up to which nothing is deleted; and the id of a record to write. Each case is
    answered on a line of its own, a bad one by {"error"}; exit code 1 if there was one.
    """
    shell_of(context, None, json, debug)
    from siltstone.documents.cases import expand_case

    _answer(_cases(file), lambda line: _dumps(expand_case(_loads(line))))


@app.command(
    "canonical",
    epilog=examples(
        """siltstone documents canonical '{"b":1, "a":(2,1), "c":~}'""",
        """siltstone documents canonical --condition 'or(1, in(3,2))'""",
        "siltstone documents canonical < deltas.txt",
    ),
)
def canonical(
    context: typer.Context,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="DELTA...", help="Deltas.  [default: the lines of standard input]"),
    ] = None,
    condition: Annotated[bool, typer.Option("--condition", help="Read conditions, not deltas.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print deltas in their canonical text: simplified, sorted, without blanks.

    Lines of standard input are answered one by one, a bad one by {"error"}; exit code 1 if there was one.
    """
    shell = shell_of(context, None, json, debug)
    from siltstone.documents.language import parse_condition, parse_delta

    def answer(text: str) -> str:
        found = str(parse_condition(text) if condition else parse_delta(text))
        return _dumps({"canonical": found}) if shell.json else found

    if not texts:
        _answer(_lines(sys.stdin.buffer), lambda line: answer(_decoded(line)))
        return
    for text in texts:
        _print(answer(text))


def _answer(lines: Iterator[bytes], answer: Callable[[bytes], str]) -> None:
    """Print an answer to each line; go on after a bad one, and end with exit code 1 then."""
    failed = False
    for line in lines:
        try:
            _print(answer(line))
        except SiltstoneError as error:
            failed = True
            _print(_dumps({"error": str(error)}))
    if failed:
        raise typer.Exit(1)


def _cases(file: str | None) -> Iterator[bytes]:
    """Give the cases of a file, one a line; one case may also be spread over all lines."""
    if file is None or file == "-":
        yield from _one_or_lines(_lines(sys.stdin.buffer))
        return
    try:
        with open(file, "rb") as opened:
            yield from _one_or_lines(_lines(opened))
    except OSError as error:
        raise InvalidInputError(f"{file}: {error.strerror or error}; give a file that can be read") from error


def _one_or_lines(lines: Iterator[bytes]) -> Iterator[bytes]:
    first = next(lines, None)
    if first is None:
        return
    if _is_json(first):
        yield first
        yield from lines
        return
    rest = list(lines)
    whole = b"".join([first, *rest])
    yield from [whole] if _is_json(whole) else [first, *rest]


def _lines(stream: Iterator[bytes]) -> Iterator[bytes]:
    return (line for line in stream if line.strip())


def _is_json(text: bytes) -> bool:
    import orjson

    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _loads(line: bytes) -> object:
    from siltstone.documents.language import parse_value

    return parse_value(_decoded(line), "case")


def _decoded(line: bytes) -> str:
    try:
        return line.decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"byte {error.start + 1} is no UTF-8; write the text in UTF-8") from error


def _dumps(value: object) -> str:
    import orjson

    return orjson.dumps(value).decode()


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
