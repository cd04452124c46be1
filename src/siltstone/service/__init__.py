"""The compaction service: one leader, many workers, cycles over all tables, and their history."""

from siltstone.service.controls import (
    disable,
    enable,
    freeze,
    get_request,
    trigger_cycle,
    unfreeze,
    wait_for_request,
)
from siltstone.service.database import Database, default_address, open_database
from siltstone.service.history import cycle_records
from siltstone.service.lake_tables import LakeTables
from siltstone.service.logs import JsonFormatter
from siltstone.service.node import Node
from siltstone.service.nodes import list_nodes
from siltstone.service.overview import TableOverview, list_overviews, table_overview
from siltstone.service.settings import ServiceSettings
from siltstone.service.status import cycle_details, service_status

__all__ = [
    "Database",
    "JsonFormatter",
    "LakeTables",
    "Node",
    "ServiceSettings",
    "TableOverview",
    "cycle_details",
    "cycle_records",
    "default_address",
    "disable",
    "enable",
    "freeze",
    "get_request",
    "list_nodes",
    "list_overviews",
    "open_database",
    "service_status",
    "table_overview",
    "trigger_cycle",
    "unfreeze",
    "wait_for_request",
]
