"""Reads Delta Lake and Iceberg tables with DuckDB, for whoever asks: a line of JSON in, a line that begins with `answer:` out.

It runs in an environment of its own, whose DuckDB is a release that has packages of the extensions.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa


def load(connection: Any, extension: str) -> None:
    """Load an extension from its package, since none can be downloaded."""
    module = importlib.import_module(f"duckdb_extension_{extension}")
    (file,) = Path(str(module.__file__)).parent.glob("extensions/*/*.duckdb_extension")
    connection.execute(f"LOAD '{file}'")


def read(connection: Any, request: dict[str, Any]) -> pa.Table:
    """Return the rows of a table, perhaps of an older version."""
    path = request["path"].replace("'", "''")
    version = request.get("version")
    if request["format"] == "delta":
        query = f"SELECT * FROM delta_scan('{path}'{'' if version is None else f', version = {version}'})"  # noqa: S608
    else:
        at = "" if version is None else f", snapshot_from_id = {version}::UBIGINT"
        query = f"SELECT * FROM iceberg_scan('{path}'{at})"  # noqa: S608
    return connection.execute(query).to_arrow_table()


def main() -> None:
    """Answer requests until there are no more."""
    connection = duckdb.connect()
    for extension in ("avro", "delta", "iceberg"):
        load(connection, extension)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            rows = read(connection, request)
            with pa.OSFile(request["out"], "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
                writer.write_table(rows)
            answer: dict[str, Any] = {"rows": rows.num_rows}
        except Exception as error:  # noqa: BLE001
            answer = {"error": str(error)}
        print(f"answer: {json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
