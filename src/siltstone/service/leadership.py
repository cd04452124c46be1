"""Who leads: one lease row with a term that only rises. Every transaction of a leader checks that its term still holds."""

from dataclasses import dataclass

from sqlalchemy import Row, select

from siltstone.errors import LeaseLostError
from siltstone.service.database import Database, Transaction
from siltstone.service.schema import leader_lease
from siltstone.service.times import latest_ms


@dataclass(frozen=True)
class Lease:
    """The right to lead, under a term, until a time unless renewed."""

    holder: str
    term: int
    acquired_at: int
    renewed_at: int
    lease_until: int


def is_current(row: Row[tuple[object, ...]], now_ms: int) -> bool:
    """Say whether a lease holds: one that begins ahead does not, whatever its end says."""
    return bool(row.lease_until >= now_ms and max(row.renewed_at, row.acquired_at) <= latest_ms(now_ms))


def take_lead(database: Database, holder: str, lease_ms: int) -> Lease | None:
    """Take or renew the lead; None where somebody else has it. Raises: StorageError.

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
