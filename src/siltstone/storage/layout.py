"""Where things are under a root, and under which keys the logs know them.

    catalog/                                  log: namespaces and tables
    tables/<namespace>/<table>/<version>-<id>/
        log/                                  log: the version, its streams, partitions and deltas
        <stream>/<partition>/<file>.parquet   data files
        ingest/<source>/                      log: the files that were taken from a folder

Folders keep their name when a table is renamed, and the entries inside them carry no table name: a rename is one
entry in the catalog log.
"""

import uuid

from siltstone.log.commit import CommitLog, commit_log

CATALOG_FOLDER = "catalog"
TABLES_FOLDER = "tables"
EVERY_PARTITION = "!every"
VERSION_KEY = "version"
NAMESPACE_PREFIX = "namespace/"
TABLE_PREFIX = "table/"
DROPPED_PREFIX = "dropped/"
STREAM_PREFIX = "stream/"
DELTA_KIND = "delta"


def catalog_log(root: str) -> CommitLog:
    """Return the log of namespaces and tables."""
    return commit_log(root, CATALOG_FOLDER)


def version_log(root: str, folder: str) -> CommitLog:
    """Return the log of the table version in `folder`."""
    return commit_log(root, f"{folder}/log")


def new_version_folder(namespace: str, table: str, version: str) -> str:
    """Return a folder that no other table version ever had or will have."""
    return f"{TABLES_FOLDER}/{namespace}/{table}/{version}-{uuid.uuid4().hex[:12]}"


def namespace_key(namespace: str) -> str:
    """Return the key of a namespace in the catalog log."""
    return f"{NAMESPACE_PREFIX}{namespace}"


def table_key(namespace: str, table: str) -> str:
    """Return the key of a table in the catalog log."""
    return f"{TABLE_PREFIX}{namespace}/{table}"


def dropped_key(folder: str) -> str:
    """Return the key under which the catalog log remembers the folder of a table version that was dropped."""
    return f"{DROPPED_PREFIX}{folder}"


def stream_key(stream: str) -> str:
    """Return the key of a stream in a version's log."""
    return f"{STREAM_PREFIX}{stream}"


def partition_prefix(stream: str) -> str:
    """Return what the keys of a stream's partitions begin with."""
    return f"partition/{stream}/"


def partition_key(stream: str, partition_id: str) -> str:
    """Return the key of a partition in a version's log."""
    return f"{partition_prefix(stream)}{partition_id}"


def delta_prefix(stream: str) -> str:
    """Return what the keys of a stream's deltas begin with."""
    return f"{DELTA_KIND}/{stream}/"


def delta_key(stream: str, position: int, partition_id: str) -> str:
    """Return the key of a delta in a version's log."""
    return f"{delta_prefix(stream)}{position}/{partition_id}"


def follower_prefix(stream: str) -> str:
    """Return what the keys of a stream's followers begin with."""
    return f"follower/{stream}/"


def follower_key(stream: str, partition_id: str, folder: str) -> str:
    """Return the key of a follower of a partition in the log of the partition's version."""
    return f"{follower_prefix(stream)}{partition_id}/{folder}"
