"""Connections of clients that are slow, or mean to be: none of them may cost others anything.

A connection is being answered from when its whole request has come until the answer has gone; otherwise it waits. How long
one waits is bounded, and how many do: the one that has waited longest makes room for the next.
"""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

# For a whole request, headers and body; and for a client to take what it is sent.
REQUEST_SECONDS = 20.0
TAKING_SECONDS = 20.0
KEEP_ALIVE_SECONDS = 15
MAX_WAITING = 200


class BoundedConnection(H11Protocol):
    """A connection of HTTP that ends where its client takes too long."""

    waiting: ClassVar[dict["BoundedConnection", None]]
    _deadline: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        self._stop_taking()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request, which gains no time for the rest of it."""
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        """Give the client some time to take what it was sent."""
        self.flow.pause_writing()
        self._stop_taking()
        self._taking = self.loop.call_later(TAKING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on to send."""
        self._stop_taking()
        self.flow.resume_writing()

    def _follow(self) -> None:
        cycle = self.cycle
        is_answered = cycle is not None and not cycle.more_body and not cycle.response_complete
        if is_answered or self.transport.is_closing():
            self._stop_waiting()
        elif self not in self.waiting:
            self.waiting[self] = None
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)
            if len(self.waiting) > MAX_WAITING:
                oldest = next(iter(self.waiting))
                oldest._stop_waiting()
                oldest.transport.abort()

    def _stop_waiting(self) -> None:
        self.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None


def bounded_connections() -> type[BoundedConnection]:
    """Return the class of a server's connections, which know of each other."""
    return type("ServerConnection", (BoundedConnection,), {"waiting": {}})
