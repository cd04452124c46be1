"""The readers: each reads some columns of a file, or all, into memory in its own form, and returns how many rows."""

import functools
import os
from collections.abc import Callable, Sequence

import duckdb
import polars
import pyarrow.parquet as pq

from benchmarks.parquet_reads_files import Place, session
from siltstone.objects.s3 import S3Settings, find_settings, fresh_keys

Columns = Sequence[str] | None


class Unavailable(Exception):  # noqa: N818
    """The reader cannot read from there."""


def is_in_s3(place: Place) -> bool:
    return place.uri.startswith("s3://")


@functools.cache
def s3_settings() -> S3Settings:
    return find_settings()


def read_by_pyarrow(place: Place, columns: Columns) -> int:
    if not is_in_s3(place):
        return int(pq.read_table(place.uri, columns=columns).num_rows)
    from pyarrow import fs

    settings = s3_settings()
    keys = fresh_keys(settings)
    options = {} if keys is None else {"access_key": keys.access_key_id, "secret_key": keys.secret_access_key}
    if keys is not None and keys.session_token:
        options["session_token"] = keys.session_token
    endpoint = (settings.endpoint or "").rpartition("//")[2] or None
    scheme = "http" if (settings.endpoint or "").startswith("http://") else "https"
    files = fs.S3FileSystem(region=settings.region, endpoint_override=endpoint, scheme=scheme, **options)
    return int(pq.read_table(place.uri.removeprefix("s3://"), columns=columns, filesystem=files).num_rows)


@functools.cache
def duckdb_connection(in_s3: bool) -> duckdb.DuckDBPyConnection:
    """DuckDB's own S3 needs an extension that it downloads; without it, there is no figure."""
    connection = duckdb.connect()
    if not in_s3:
        return connection
    try:
        connection.execute("LOAD httpfs")
    except duckdb.Error as error:
        raise Unavailable("no httpfs extension") from error
    settings = s3_settings()
    keys = fresh_keys(settings)
    connection.execute(f"SET s3_region='{settings.region or 'us-east-1'}'")
    if keys is not None:
        connection.execute(f"SET s3_access_key_id='{keys.access_key_id}'")
        connection.execute(f"SET s3_secret_access_key='{keys.secret_access_key}'")
        connection.execute(f"SET s3_session_token='{keys.session_token or ''}'")
    if settings.endpoint:
        connection.execute(f"SET s3_endpoint='{settings.endpoint.rpartition('//')[2]}'")
        connection.execute("SET s3_url_style='path'")
        connection.execute(f"SET s3_use_ssl={settings.endpoint.startswith('https')}")
    return connection


def read_by_duckdb(place: Place, columns: Columns) -> int:
    names = "*" if columns is None else ", ".join(f'"{name}"' for name in columns)
    query = f"SELECT {names} FROM read_parquet('{place.uri}')"
    return int(duckdb_connection(is_in_s3(place)).sql(query).to_arrow_table().num_rows)


def read_by_polars(place: Place, columns: Columns) -> int:
    options: dict[str, str] = {}
    if is_in_s3(place):
        settings = s3_settings()
        keys = fresh_keys(settings)
        if keys is not None:
            options = {"aws_access_key_id": keys.access_key_id, "aws_secret_access_key": keys.secret_access_key}
            options |= {"aws_session_token": keys.session_token} if keys.session_token else {}
        options["aws_region"] = settings.region or "us-east-1"
        if settings.endpoint:
            options |= {"aws_endpoint_url": settings.endpoint, "aws_allow_http": "true"}
    names = None if columns is None else list(columns)
    return int(polars.read_parquet(place.uri, columns=names, storage_options=options or None).height)


def read_by_spark(place: Place, columns: Columns) -> int:
    """Spark reads S3 by a Hadoop jar that neither its wheel has nor Siltstone needs; SPARK_HAS_S3A=1 says it is there."""
    if is_in_s3(place) and not os.environ.get("SPARK_HAS_S3A"):
        raise Unavailable("no S3 jar")
    frame = session().read.parquet(place.uri.replace("s3://", "s3a://"))
    rows = frame.select(*columns) if columns is not None else frame
    rows.write.format("noop").mode("overwrite").save()
    return place.rows


def read_by_siltstone(place: Place, columns: Columns) -> int:
    return int(place.table.to_arrow(columns).num_rows)


def read_by_siltstone_on_spark(place: Place, columns: Columns) -> int:
    place.table.to_spark(session(), columns).write.format("noop").mode("overwrite").save()
    return place.rows


READERS: dict[str, Callable[[Place, Columns], int]] = {
    "pyarrow": read_by_pyarrow,
    "DuckDB": read_by_duckdb,
    "Polars": read_by_polars,
    "Spark": read_by_spark,
    "Siltstone": read_by_siltstone,
    "Siltstone on Spark": read_by_siltstone_on_spark,
}
