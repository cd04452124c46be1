"""Stored times, and a clock that may be set back.

What the database has written down is past, by its own clock. Where it lies ahead, the clock was set back since, by an unknown
amount: nobody can wait until it is as late again. So a lease that begins ahead is over, and what is to happen some time after
a moment that lies ahead is due.
"""

# Clocks are corrected by a little all the time, and another server after a failover may be a little behind.
TOLERANCE_MS = 1_000


def latest_ms(now_ms: int) -> int:
    """Return how late a time can be that was stored by now; what is later is from before the clock was set back."""
    return now_ms + TOLERANCE_MS
