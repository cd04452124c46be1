"""The compaction service: one leader, many workers, cycles over all tables, and their history."""

from siltstone.errors import require_packages

require_packages("the service", ("sqlalchemy", "psycopg"), "siltstone[service]")

from siltstone.service.controls import (
    disable,
    enable,
    freeze,
    get_request,
    obstacle_to_cycles,
    pause_table,
    resume_table,
    trigger_cycle,
    unfreeze,
    wait_for_request,
)
from siltstone.service.database import Database, default_address, open_database
from siltstone.service.health import TableHealth, table_health
from siltstone.service.history import (
    audit_trail,
    cycle_details,
    cycle_records,
    list_nodes,
    measured_status,
    service_status,
)
from siltstone.service.lake_tables import LakeTables
from siltstone.service.node import JsonFormatter, Node, TextFormatter, set_up_logs
from siltstone.service.settings import ServiceSettings, parse_quiet_hours, service_settings

__all__ = [
    "Database",
    "JsonFormatter",
    "LakeTables",
    "Node",
    "ServiceSettings",
    "TableHealth",
    "TextFormatter",
    "audit_trail",
    "cycle_details",
    "cycle_records",
    "default_address",
    "disable",
    "enable",
    "freeze",
    "get_request",
    "list_nodes",
    "measured_status",
    "obstacle_to_cycles",
    "open_database",
    "parse_quiet_hours",
    "pause_table",
    "resume_table",
    "service_settings",
    "service_status",
    "set_up_logs",
    "table_health",
    "trigger_cycle",
    "unfreeze",
    "wait_for_request",
]
