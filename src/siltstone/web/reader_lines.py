"""The lines that read a table in Spark, DuckDB, Polars and on the command line, for people to copy."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from siltstone.publish.outcomes import Publication


@dataclass(frozen=True)
class ReaderLines:
    """What to write in one system to read a table."""

    system: str
    lines: str


def reader_lines(
    root: str, name: str, publications: Sequence[Publication] = (), *, holds_documents: bool = False
) -> list[ReaderLines]:
    """Return the lines for each system; for those that read published versions, too, where there are any."""
    table = f"siltstone.open({root!r})"
    spark = f'spark.read.format("siltstone").option("root", {_quoted(root)}).load({_quoted(name)})'
    query = f'import siltstone\n\n{table}.sql("select * from {name}")'  # noqa: S608 - shown, not run
    if holds_documents:
        spark = f"import siltstone\n\n{table}.document_table({name!r}).to_spark(spark)"
        duckdb, polars = f"{query}.to_arrow()", f"{query}.to_polars()"
        command = f"siltstone --root {shlex.quote(root)} documents scan {name}"
    else:
        scan = f"import siltstone\n\n{table}.table({name!r}).scan()"
        duckdb, polars = f"{scan}.to_duckdb()", f"{scan}.to_polars()"
        command = f"siltstone --root {shlex.quote(root)} read {name}"
    lines = [
        ReaderLines("Spark", spark),
        ReaderLines("DuckDB", duckdb),
        ReaderLines("Polars", polars),
        ReaderLines("Command line", command),
    ]
    for each in publications:
        if each.format == "delta" and each.version is not None:
            lines.append(
                ReaderLines("DuckDB, published as Delta Lake", f"FROM delta_scan({_sql_quoted(each.address)});")
            )
            lines.append(
                ReaderLines(
                    "Polars, published as Delta Lake", f"import polars as pl\n\npl.scan_delta({each.address!r})"
                )
            )
    return lines


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _sql_quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
