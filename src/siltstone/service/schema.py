"""The tables of the service's database, as SQLAlchemy Core tables. All times are milliseconds of the database's clock."""

from typing import Literal

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, MetaData, String, Table, Text

SCHEMA_VERSION = 2
SINGLETON = 1
# What a number of these tables can be at most.
MAX_NUMBER = (1 << 63) - 1

CycleStatus = Literal["IDLE", "STARTED", "COMPLETED", "FAILED"]
CheckpointStatus = Literal["IDLE", "STARTED", "COMPLETED", "FAILED"]
AttemptStatus = Literal["IDLE", "STARTED", "COMPLETED", "FAILED", "EXPIRED", "ABANDONED"]
RequestState = Literal["PENDING", "RUNNING", "TRIMMING", "DONE"]
TriggerReason = Literal["request", "interval", "backlog_bytes", "backlog_age"]

metadata = MetaData()


def _number(name: str, *, default: int | None = None, primary_key: bool = False) -> Column[int]:
    return Column(name, BigInteger, primary_key=primary_key, autoincrement=False, nullable=False, default=default)


def _optional_number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=True)


def _text(name: str, *, primary_key: bool = False) -> Column[str]:
    return Column(name, Text, primary_key=primary_key, nullable=False)


def _optional_text(name: str) -> Column[str]:
    return Column(name, Text, nullable=True)


def _singleton() -> Column[int]:
    return Column("id", Integer, primary_key=True, autoincrement=False)


def _work() -> list[Column[int]]:
    """What a checkpoint did: its rounds, and the rows and bytes they read and wrote."""
    return [_number(name, default=0) for name in ("rounds", "rows", "input_bytes", "written_bytes")]


schema = Table("siltstone_schema", metadata, _singleton(), _number("version"))

leader_lease = Table(
    "siltstone_leader_lease",
    metadata,
    _singleton(),
    _number("term"),
    _optional_text("holder"),
    _number("acquired_at"),
    # When the lease was last taken or renewed, from which on it lasts; 0 where an earlier version did that.
    _number("renewed_at", default=0),
    _number("lease_until"),
)

manager = Table(
    "siltstone_manager",
    metadata,
    _singleton(),
    Column("status", String(16), nullable=False),
    _number("cycle_count"),
    _optional_text("leader"),
    _optional_text("trigger_reason"),
    Column("trims_after", Boolean, nullable=False, default=False),
    Column("trim_due", Boolean, nullable=False, default=False),
    # The interval is counted from here: the start of the newest cycle, or the first time there was a leader.
    _number("last_started_at"),
    _optional_number("started_at"),
    _optional_number("ended_at"),
    _optional_number("last_completed_at"),
    Column("last_result", String(16), nullable=True),
    # Totals since the beginning, for metrics: the history forgets.
    _number("completed_cycles", default=0),
    _number("failed_cycles", default=0),
    _number("evictions", default=0),
    _number("rows", default=0),
    _number("input_bytes", default=0),
    _number("written_bytes", default=0),
)

checkpoint_status = Table(
    "siltstone_checkpoint_status",
    metadata,
    _text("partition", primary_key=True),
    _number("cycle"),
    _text("table_name"),
    _text("locator"),
    Column("status", String(16), nullable=False),
    # The number of claims in this cycle: with the cycle, what a release is checked against.
    _number("attempt", default=0),
    _number("failures", default=0),
    _optional_text("worker"),
    _optional_text("claim_id"),
    _number("backlog_deltas", default=0),
    _number("backlog_bytes", default=0),
    _number("retry_at", default=0),
    _number("changed_at"),
    _optional_number("started_at"),
    _optional_number("ended_at"),
    _optional_text("error"),
    _optional_number("high_watermark"),
    *_work(),
)

active_checkpoints = Table(
    "siltstone_active_checkpoints",
    metadata,
    _text("partition", primary_key=True),
    _number("cycle"),
    _number("attempt"),
    Column("claim_id", Text, nullable=False, unique=True),
    _text("worker"),
    _number("claimed_at"),
    _number("sync_heartbeat", default=0),
    _number("heartbeat_at"),
    _number("lease_until"),
    _number("progress", default=0),
    _number("progress_at"),
    _number("buckets_done", default=0),
    _number("buckets_total", default=0),
)

checkpoint_detail = Table(
    "siltstone_checkpoint_detail",
    metadata,
    _number("cycle", primary_key=True),
    _text("partition", primary_key=True),
    # 0 where a cycle ended before anybody claimed the partition.
    _number("attempt", primary_key=True),
    _text("table_name"),
    _optional_text("worker"),
    _optional_text("claim_id"),
    Column("status", String(16), nullable=False),
    _number("started_at"),
    _optional_number("ended_at"),
    _optional_text("error"),
    _optional_number("high_watermark"),
    *_work(),
)

cycle_history = Table(
    "siltstone_cycle_history",
    metadata,
    _number("cycle_count", primary_key=True),
    Column("status", String(16), nullable=False),
    _number("start_time_ms"),
    _number("end_time_ms"),
    _text("trigger_reason"),
    _text("leader"),
    _number("partitions"),
    _number("completed"),
    _number("failed"),
    _number("unfinished"),
    _number("attempts"),
    # A JSON list of {"partition", "error"}; the errors of a great many are cut off, the count is not.
    _text("failed_partitions"),
    _optional_number("trimmed_deltas"),
    *_work(),
)

trim_marks = Table(
    "siltstone_trim_marks",
    metadata,
    _text("partition", primary_key=True),
    _text("locator"),
    _number("cycle"),
    _number("high_watermark"),
)

controls = Table(
    "siltstone_controls",
    metadata,
    _text("name", primary_key=True),
    _number("set_at"),
    _optional_number("expires_at"),
    _text("requester"),
)

trigger_requests = Table(
    "siltstone_trigger_requests",
    metadata,
    _text("request_id", primary_key=True),
    _number("requested_at"),
    _text("requester"),
    Column("trim", Boolean, nullable=False),
    Column("state", String(16), nullable=False),
    _optional_number("cycle"),
    _optional_text("outcome"),
    _optional_number("ended_at"),
)

nodes = Table(
    "siltstone_nodes",
    metadata,
    _text("owner", primary_key=True),
    _text("name"),
    _text("host"),
    _number("pid"),
    _text("version"),
    Column("is_worker", Boolean, nullable=False),
    _number("started_at"),
    _number("seen_at"),
    _optional_number("stopped_at"),
)

Index("siltstone_checkpoint_by_status", checkpoint_status.c.cycle, checkpoint_status.c.status)
Index("siltstone_requests_by_state", trigger_requests.c.state)
