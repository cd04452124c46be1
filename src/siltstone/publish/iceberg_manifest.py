"""Iceberg's manifests, which list data files or what is dead of them, and the lists of manifests, as Avro files."""

import importlib
import io
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from siltstone.errors import CorruptionError, require_packages

ADDED, EXISTING, DELETED = 1, 0, 2
DATA, DELETES = 0, 1
Entry = dict[str, Any]
"""A file in a manifest, with the names that Iceberg's specification gives."""
Manifest = dict[str, Any]
"""A manifest in a list of manifests, with the names that Iceberg's specification gives."""


def _field(number: int, name: str, kind: Any, *, required: bool = False) -> dict[str, Any]:
    field = {"name": name, "type": kind if required else ["null", kind], "field-id": number}
    return field if required else {**field, "default": None}


def _map(key_id: int, value_id: int, value: str) -> dict[str, Any]:
    record = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_field(key_id, "key", "int", required=True), _field(value_id, "value", value, required=True)],
    }
    return {"type": "array", "items": record, "logicalType": "map"}


def _entry_schema(partition: Sequence[dict[str, Any]], format_version: int) -> dict[str, Any]:
    own = [
        _field(134, "content", "int", required=True),
        _field(100, "file_path", "string", required=True),
        _field(101, "file_format", "string", required=True),
        _field(102, "partition", {"type": "record", "name": "r102", "fields": partition}, required=True),
        _field(103, "record_count", "long", required=True),
        _field(104, "file_size_in_bytes", "long", required=True),
        _field(109, "value_counts", _map(119, 120, "long")),
        _field(110, "null_value_counts", _map(121, 122, "long")),
        _field(125, "lower_bounds", _map(126, 127, "bytes")),
        _field(128, "upper_bounds", _map(129, 130, "bytes")),
        _field(140, "sort_order_id", "int"),
        _field(143, "referenced_data_file", "string"),
    ]
    if format_version > 2:
        own += [
            _field(142, "first_row_id", "long"),
            _field(144, "content_offset", "long"),
            _field(145, "content_size_in_bytes", "long"),
        ]
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field(0, "status", "int", required=True),
            _field(1, "snapshot_id", "long"),
            _field(3, "sequence_number", "long"),
            _field(4, "file_sequence_number", "long"),
            _field(2, "data_file", {"type": "record", "name": "r2", "fields": own}, required=True),
        ],
    }


_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _field(509, "contains_null", "boolean", required=True),
        _field(518, "contains_nan", "boolean"),
        _field(510, "lower_bound", "bytes"),
        _field(511, "upper_bound", "bytes"),
    ],
}
_MANIFEST_FIELDS = [
    _field(500, "manifest_path", "string", required=True),
    _field(501, "manifest_length", "long", required=True),
    _field(502, "partition_spec_id", "int", required=True),
    _field(517, "content", "int", required=True),
    _field(515, "sequence_number", "long", required=True),
    _field(516, "min_sequence_number", "long", required=True),
    _field(503, "added_snapshot_id", "long", required=True),
    _field(504, "added_files_count", "int", required=True),
    _field(505, "existing_files_count", "int", required=True),
    _field(506, "deleted_files_count", "int", required=True),
    _field(512, "added_rows_count", "long", required=True),
    _field(513, "existing_rows_count", "long", required=True),
    _field(514, "deleted_rows_count", "long", required=True),
    _field(507, "partitions", {"type": "array", "items": _SUMMARY, "element-id": 508}),
]


def write_manifest(
    entries: Sequence[Entry],
    *,
    content: int,
    schema: dict[str, Any],
    spec: dict[str, Any],
    partition: Sequence[tuple[str, Any]],
    format_version: int,
) -> bytes:
    """Return a manifest. `partition` has the name and the Avro type of each partition column."""
    partition_fields = [
        _field(each["field-id"], name, kind) for each, (name, kind) in zip(spec["fields"], partition, strict=True)
    ]
    metadata = {
        "schema": orjson.dumps(schema).decode(),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": orjson.dumps(spec["fields"]).decode(),
        "partition-spec-id": str(spec["spec-id"]),
        "format-version": str(format_version),
        "content": "deletes" if content == DELETES else "data",
    }
    return _write(_entry_schema(partition_fields, format_version), entries, metadata)


def write_manifest_list(manifests: Sequence[Manifest], snapshot: dict[str, Any], format_version: int) -> bytes:
    """Return the list of the manifests of a snapshot."""
    fields = [*_MANIFEST_FIELDS, *([_field(520, "first_row_id", "long")] if format_version > 2 else [])]
    metadata = {
        "snapshot-id": str(snapshot["snapshot-id"]),
        "parent-snapshot-id": str(snapshot.get("parent-snapshot-id", "null")),
        "sequence-number": str(snapshot["sequence-number"]),
        "format-version": str(format_version),
    }
    if format_version > 2:
        metadata["first-row-id"] = str(snapshot["first-row-id"])
    return _write({"type": "record", "name": "manifest_file", "fields": fields}, manifests, metadata)


def _write(schema: dict[str, Any], records: Iterable[dict[str, Any]], metadata: dict[str, str]) -> bytes:
    fastavro = _fastavro()
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(schema), records, codec="deflate", metadata=metadata)
    return sink.getvalue()


def read_avro(data: bytes, where: str) -> list[dict[str, Any]]:
    """Return the entries of a manifest, or the manifests of a list. Raises: CorruptionError."""
    try:
        return list(_fastavro().reader(io.BytesIO(data)))
    except (ValueError, EOFError, IndexError, KeyError, TypeError) as error:
        raise CorruptionError(f"{where}: not a valid Avro file ({error}); unpublish, and publish again") from error


def _fastavro() -> Any:
    require_packages("publishing as Iceberg", ("fastavro",), "siltstone[iceberg]")
    return importlib.import_module("fastavro")
