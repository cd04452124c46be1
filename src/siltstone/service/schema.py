"""The tables of the service's database, as SQLAlchemy Core tables. All times are milliseconds of the database's clock."""

from functools import partial
from typing import Any, Literal

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, MetaData, String, Table, Text

SCHEMA_VERSION = 4
SINGLETON = 1
# What a number of these tables can be at most.
MAX_NUMBER = (1 << 63) - 1
# What a checkpoint did: its rounds, and the rows and bytes they read and wrote.
WORK = ("rounds", "rows", "input_bytes", "written_bytes")

CycleStatus = Literal["IDLE", "STARTED", "COMPLETED", "FAILED"]
CheckpointStatus = Literal["IDLE", "STARTED", "COMPLETED", "FAILED"]
AttemptStatus = Literal["IDLE", "STARTED", "COMPLETED", "FAILED", "EXPIRED", "ABANDONED"]
RequestState = Literal["PENDING", "RUNNING", "TRIMMING", "DONE"]
TriggerReason = Literal["request", "interval", "backlog_bytes", "backlog_age"]
FailureReason = Literal["disabled", "stalled", "partitions"]
"""Why a cycle is FAILED: it was stopped, nobody claimed what was left, or partitions of it failed."""

metadata = MetaData()


def _columns(kind: type[BigInteger] | type[Text], *names: str, **options: Any) -> list[Column[Any]]:
    return [Column(name, kind, **options) for name in names]


def _singleton() -> Column[int]:
    return Column("id", Integer, primary_key=True, autoincrement=False)


_numbers = partial(_columns, BigInteger, autoincrement=False, nullable=False)
_counters = partial(_numbers, default=0)
_optional_numbers = partial(_columns, BigInteger)
_texts = partial(_columns, Text, nullable=False)
_optional_texts = partial(_columns, Text)

schema = Table("siltstone_schema", metadata, _singleton(), *_numbers("version"))

leader_lease = Table(
    "siltstone_leader_lease",
    metadata,
    _singleton(),
    *_numbers("term"),
    *_optional_texts("holder"),
    *_numbers("acquired_at"),
    # When the lease was last taken or renewed, from which on it lasts; 0 where an earlier version did that.
    *_counters("renewed_at"),
    *_numbers("lease_until"),
)

manager = Table(
    "siltstone_manager",
    metadata,
    _singleton(),
    Column("status", String(16), nullable=False),
    *_numbers("cycle_count"),
    *_optional_texts("leader", "trigger_reason"),
    Column("trims_after", Boolean, nullable=False, default=False),
    Column("trim_due", Boolean, nullable=False, default=False),
    # The interval is counted from here: the start of the newest cycle, or the first time there was a leader.
    *_numbers("last_started_at"),
    *_optional_numbers("started_at", "ended_at", "last_completed_at"),
    # Of the last cycle that nobody stopped: health goes by it.
    Column("last_result", String(16)),
    # Totals since the beginning, for metrics: the history forgets.
    *_counters("completed_cycles", "failed_cycles", "evictions", "rows", "input_bytes", "written_bytes"),
    *_counters("stopped_cycles", "planning_ms"),
    Column("failure_reason", String(16)),
    # The leader's settings, for those who ask the database when the next cycle is due.
    *_optional_numbers("interval_ms"),
    *_optional_texts("quiet_hours"),
)

checkpoint_status = Table(
    "siltstone_checkpoint_status",
    metadata,
    *_texts("partition", primary_key=True),
    *_numbers("cycle"),
    *_texts("table_name", "locator"),
    Column("status", String(16), nullable=False),
    # The number of claims in this cycle. All partitions of a claim have the same table, claim id and failures.
    *_counters("attempt", "failures"),
    *_optional_texts("worker", "claim_id"),
    *_counters("backlog_deltas", "backlog_bytes", "retry_at"),
    *_numbers("changed_at"),
    *_optional_numbers("started_at", "ended_at"),
    *_optional_texts("error"),
    *_optional_numbers("high_watermark"),
    *_counters(*WORK),
    *_counters("priority"),
)

# Claims: one row for each, with the first of its partitions and the attempt at that.
active_checkpoints = Table(
    "siltstone_active_checkpoints",
    metadata,
    *_texts("partition", primary_key=True),
    *_numbers("cycle", "attempt"),
    Column("claim_id", Text, nullable=False, unique=True),
    *_texts("worker"),
    *_numbers("claimed_at"),
    *_counters("sync_heartbeat"),
    *_numbers("heartbeat_at", "lease_until"),
    *_counters("progress"),
    *_numbers("progress_at"),
    *_counters("buckets_done", "buckets_total"),
)

checkpoint_detail = Table(
    "siltstone_checkpoint_detail",
    metadata,
    *_numbers("cycle", primary_key=True),
    *_texts("partition", primary_key=True),
    # 0 where a cycle ended before anybody claimed the partition.
    *_numbers("attempt", primary_key=True),
    *_texts("table_name"),
    *_optional_texts("worker", "claim_id"),
    Column("status", String(16), nullable=False),
    *_numbers("started_at"),
    *_optional_numbers("ended_at"),
    *_optional_texts("error"),
    *_optional_numbers("high_watermark"),
    *_counters(*WORK),
)

cycle_history = Table(
    "siltstone_cycle_history",
    metadata,
    *_numbers("cycle_count", primary_key=True),
    Column("status", String(16), nullable=False),
    *_numbers("start_time_ms", "end_time_ms"),
    *_texts("trigger_reason", "leader"),
    *_numbers("partitions", "completed", "failed", "unfinished", "attempts"),
    # A JSON list of {"partition", "error"}; the errors of a great many are cut off, the count is not.
    *_texts("failed_partitions"),
    *_optional_numbers("trimmed_deltas"),
    *_counters(*WORK),
    # Tables with something to do, and those of them with a partition that failed.
    *_counters("tables", "failed_tables"),
    # How long it took to find out what there is to do.
    *_counters("planning_ms"),
    Column("failure_reason", String(16)),
)

trim_marks = Table(
    "siltstone_trim_marks",
    metadata,
    *_texts("partition", primary_key=True),
    *_texts("locator"),
    *_numbers("cycle", "high_watermark"),
)

# Partitions whose last checkpoint failed: how many cycles in a row, and when the next one tries again.
failures = Table(
    "siltstone_failures",
    metadata,
    *_texts("partition", primary_key=True),
    *_texts("table_name"),
    *_numbers("cycle", "failures", "failed_at", "retry_at"),
    *_texts("error"),
)

pauses = Table(
    "siltstone_pauses",
    metadata,
    *_texts("table_name", primary_key=True),
    *_numbers("paused_at"),
    *_texts("requester"),
)

# What waited in each table with something to do when a cycle began.
backlogs = Table(
    "siltstone_backlogs",
    metadata,
    *_numbers("cycle", primary_key=True),
    *_texts("table_name", primary_key=True),
    *_numbers("at", "deltas", "bytes"),
    *_optional_numbers("oldest_at"),
)

# What operators asked of the service, newest last.
audit = Table(
    "siltstone_audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    *_numbers("at"),
    *_texts("requester", "action", "about"),
)

controls = Table(
    "siltstone_controls",
    metadata,
    *_texts("name", primary_key=True),
    *_numbers("set_at"),
    *_optional_numbers("expires_at"),
    *_texts("requester"),
)

trigger_requests = Table(
    "siltstone_trigger_requests",
    metadata,
    *_texts("request_id", primary_key=True),
    *_numbers("requested_at"),
    *_texts("requester"),
    Column("trim", Boolean, nullable=False),
    Column("state", String(16), nullable=False),
    *_optional_numbers("cycle"),
    *_optional_texts("outcome"),
    *_optional_numbers("ended_at"),
    # A JSON list of the tables that it is about; NULL for all.
    *_optional_texts("tables"),
)

nodes = Table(
    "siltstone_nodes",
    metadata,
    *_texts("owner", primary_key=True),
    *_texts("name", "host"),
    *_numbers("pid"),
    *_texts("version"),
    Column("is_worker", Boolean, nullable=False),
    *_numbers("started_at", "seen_at"),
    *_optional_numbers("stopped_at"),
)

Index("siltstone_checkpoint_by_status", checkpoint_status.c.cycle, checkpoint_status.c.status)
Index("siltstone_requests_by_state", trigger_requests.c.state)
Index("siltstone_backlogs_by_table", backlogs.c.table_name)
