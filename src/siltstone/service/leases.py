"""Who leads and who takes part: the lease of the leader, and the registry of nodes."""

import os
import socket
import uuid
from dataclasses import dataclass, field

from sqlalchemy import Row, delete, func, select

from siltstone._version import __version__
from siltstone.errors import InvalidInputError, LeaseLostError
from siltstone.service.database import Database, Transaction
from siltstone.service.results import NodeInfo
from siltstone.service.schema import active_checkpoints, leader_lease, nodes
from siltstone.service.settings import DAY_SECONDS, ServiceSettings, latest_ms, to_ms


@dataclass(frozen=True)
class Lease:
    """The right to lead, under a term, until a time unless renewed."""

    holder: str
    term: int
    acquired_at: int
    renewed_at: int
    lease_until: int


def is_current(row: Row[tuple[object, ...]], now_ms: int) -> bool:
    """Return whether a lease holds: one that begins ahead does not, whatever its end says."""
    return bool(row.lease_until >= now_ms and max(row.renewed_at, row.acquired_at) <= latest_ms(now_ms))


def take_lead(database: Database, holder: str, lease_ms: int) -> Lease | None:
    """Take or renew the lead, and return the term, or None if another node leads. Raises: StorageError.

    A holder that overslept its lease gets a new term, so that nothing it began before can still be committed.
    """

    def change(transaction: Transaction) -> Lease | None:
        row = transaction.execute(select(leader_lease).with_for_update()).one()
        now_ms = transaction.now_ms()
        is_free = not is_current(row, now_ms)
        if not is_free and row.holder != holder:
            return None
        lease = Lease(
            holder=holder,
            term=row.term + 1 if is_free else row.term,
            acquired_at=now_ms if is_free else row.acquired_at,
            renewed_at=now_ms,
            lease_until=now_ms + lease_ms,
        )
        transaction.execute(leader_lease.update().values(**vars(lease)))
        return lease

    return database.change("take or renew the lead", change)


def give_up_lead(database: Database, lease: Lease) -> None:
    """Let others lead at once. Raises: StorageError."""

    def change(transaction: Transaction) -> None:
        mine = (leader_lease.c.holder == lease.holder) & (leader_lease.c.term == lease.term)
        transaction.execute(leader_lease.update().where(mine).values(lease_until=0))

    database.change("give up the lead", change)


def check_lead(transaction: Transaction, lease: Lease) -> int:
    """Make sure, until the end of the transaction, that a lease holds; return the time. Raises: LeaseLostError."""
    row = transaction.execute(select(leader_lease).with_for_update()).one()
    now_ms = transaction.now_ms()
    if row.holder != lease.holder or row.term != lease.term or not is_current(row, now_ms):
        raise LeaseLostError(
            f"{lease.holder}: no longer leads: its term is {lease.term}, the newest is {row.term} of {row.holder}; "
            "it takes part again when the lead is free"
        )
    return now_ms


_NAME_LIMIT = 200


@dataclass(frozen=True)
class NodeIdentity:
    """A node's name, and what distinguishes this process from others of the same name."""

    name: str
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > _NAME_LIMIT or not self.name.isprintable() or "#" in self.name:
            raise InvalidInputError(
                f"node name {self.name[:40]!r} must have 1 to {_NAME_LIMIT} printable characters, and no #"
            )

    @property
    def owner(self) -> str:
        """What leases and claims of this process are held under."""
        return f"{self.name}#{self.incarnation}"


def default_node_name() -> str:
    """Return a name for this process: that of the host, and the process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


def register_node(database: Database, identity: NodeIdentity, *, is_worker: bool) -> None:
    """Record that a node is alive, the first time and later; forget those not seen for a day. Raises: StorageError."""

    def change(transaction: Transaction) -> None:
        now_ms = transaction.now_ms()
        is_new = transaction.insert_if_absent(
            nodes,
            owner=identity.owner,
            name=identity.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            is_worker=is_worker,
            started_at=now_ms,
            seen_at=now_ms,
        )
        if not is_new:
            transaction.execute(nodes.update().where(nodes.c.owner == identity.owner).values(seen_at=now_ms))
        else:
            transaction.execute(delete(nodes).where(nodes.c.seen_at < now_ms - to_ms(DAY_SECONDS)))

    database.change("register the node", change)


def unregister_node(database: Database, identity: NodeIdentity) -> None:
    """Record that a node has stopped. Raises: StorageError."""

    def change(transaction: Transaction) -> None:
        values = {"stopped_at": transaction.now_ms()}
        transaction.execute(nodes.update().where(nodes.c.owner == identity.owner).values(**values))

    database.change("unregister the node", change)


def list_nodes(database: Database, settings: ServiceSettings | None = None) -> list[NodeInfo]:
    """Return the nodes of the last day by name, the newest process of a name first. Raises: StorageError."""
    alive_ms = to_ms(3 * (settings or ServiceSettings()).tick_seconds)

    def read(transaction: Transaction) -> list[NodeInfo]:
        now_ms = transaction.now_ms()
        lease = transaction.execute(select(leader_lease)).one()
        by_worker = select(active_checkpoints.c.worker, func.count()).group_by(active_checkpoints.c.worker)
        claims = dict(transaction.execute(by_worker).all())
        rows = transaction.execute(select(nodes).order_by(nodes.c.name, nodes.c.started_at.desc())).all()
        return [
            NodeInfo(
                **row._mapping,
                is_leader=row.owner == lease.holder and is_current(lease, now_ms),
                is_alive=row.stopped_at is None and now_ms - alive_ms <= row.seen_at <= latest_ms(now_ms),
                claims=claims.get(row.owner, 0),
            )
            for row in rows
        ]

    return database.read("read the nodes", read)
