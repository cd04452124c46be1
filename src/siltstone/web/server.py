"""Serving the pages from a thread: binding an address, refusing an unsafe one, and a clean end."""

import ipaddress
import logging
import socket
import threading
from collections.abc import Sequence

import uvicorn

from siltstone.errors import InvalidInputError
from siltstone.web.app import create_app
from siltstone.web.connections import KEEP_ALIVE_SECONDS, bounded_connections
from siltstone.web.guard import LOOPBACK_HOSTS, host_name
from siltstone.web.site import Site

_STOP_SECONDS = 10.0
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - known, not bound
_log = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Take an address. Raises: InvalidInputError that says why it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidInputError(f"{host}: is no address of this machine ({error.strerror}); choose --host") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise InvalidInputError(
            f"{host}:{port}: cannot be listened to ({error.strerror}); choose another --port or --host"
        ) from error
    return bound


class WebServer:
    """The pages of a site at an address. Raises: InvalidInputError where the address needs a token, or is taken."""

    def __init__(self, site: Site, *, host: str, port: int, allowed_hosts: Sequence[str] = ()) -> None:
        check_address(host, has_token=site.access.needs_token)
        if site.is_private and not site.access.needs_token:
            raise InvalidInputError("pages cannot be private without a token; give --token-file or SILTSTONE_TOKEN")
        self._socket = bind(host, port)
        hosts = {*LOOPBACK_HOSTS, host_name(host), *map(host_name, allowed_hosts)} if is_loopback(host) else None
        shown = socket.gethostname() if host in _EVERYWHERE else f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._socket.getsockname()[1]}/"
        self._server = uvicorn.Server(
            uvicorn.Config(
                create_app(site, hosts=hosts),
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                http=bounded_connections(),
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=3,
                h11_max_incomplete_event_size=64 * 1024,
            )
        )
        self._thread = threading.Thread(target=self._run, name="siltstone-web", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether it has been started and not ended."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()
        # Connections wait in the socket's queue until the server takes them, so there is nothing to wait for.
        _log.info("web started", extra={"address": self.address})

    def stop(self) -> None:
        """Answer what has been asked, and end."""
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except OSError:
            _log.exception("web ended")


def check_address(host: str, *, has_token: bool) -> None:
    """Refuse to serve controls to others without a token. Raises: InvalidInputError."""
    if not is_loopback(host) and not has_token:
        raise InvalidInputError(
            f"{host}: others reach this address, and could use the controls; give --token-file or SILTSTONE_TOKEN, "
            "or stay at 127.0.0.1"
        )
