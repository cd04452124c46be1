"""Clients that are slow, or pretend to be: others are answered all the same."""

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from fastapi.testclient import TestClient

from siltstone.web import app as serving
from siltstone.web.app import WebServer, create_app
from siltstone.web.site import LakeReader, Site
from tests.unit.web.serving import HERE, Service
from tests.waiting import LIMIT_SECONDS

HALF_SENT = [
    b"",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nhalf",
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP/1.1\r\n",
]


@pytest.fixture
def port(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    # However slow this machine is: who has not sent anything yet has just come.
    monkeypatch.setattr(serving, "SENDING_SECONDS", float(LIMIT_SECONDS))
    server = WebServer(Site(service.database, LakeReader(service.tables[0].lake)), host="127.0.0.1", port=0)
    server.start()
    yield int(server.address.rstrip("/").rpartition(":")[2])
    server.stop()


def ask(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def connect(port: int, data: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_SECONDS)
    client.sendall(data)
    return client


def ask_for_ever(client: socket.socket) -> None:
    """Ask, and take no answer."""
    while True:
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100)


def read_all(client: socket.socket) -> bytes:
    """Read until the server ends the connection."""
    data = b""
    try:
        while piece := client.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize("half_sent", HALF_SENT)
def test_400_clients_that_send_half_a_request_keep_nobody_out(port: int, half_sent: bytes) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(port, half_sent)) for _ in range(400)]
        for path in ("/healthz", "/readyz", "/"):
            assert ask(port, path) == 200
        assert len(clients) == 400


def test_a_client_that_has_just_come_is_not_pushed_out_by_those_that_come_with_it(port: int) -> None:
    with ExitStack() as stack:
        late = stack.enter_context(connect(port, b""))
        for _ in range(2 * serving.MAX_WAITING):
            stack.enter_context(connect(port, b""))
        late.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert read_all(late).startswith(b"HTTP/1.1 200 ")


def test_those_that_wait_longest_go_first_where_too_many_do(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SENDING_SECONDS", -1.0)
    monkeypatch.setattr(serving, "MAX_WAITING", 3)
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(port, b"")) for _ in range(5)]
        assert [read_all(client) for client in clients[:2]] == [b"", b""]
        assert ask(port, "/healthz") == 200


@pytest.mark.parametrize("half_sent", HALF_SENT)
def test_a_request_must_come_to_an_end_in_time(port: int, half_sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.05)
    with connect(port, half_sent) as client:
        assert read_all(client).count(b"HTTP/1.1 ") <= half_sent.count(b"/healthz")


def test_a_client_that_takes_no_answers_is_let_go(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "TAKING_SECONDS", 0.05)
    with connect(port, b"") as client, pytest.raises((ConnectionResetError, BrokenPipeError)):
        ask_for_ever(client)
    assert ask(port, "/healthz") == 200


def test_too_many_requests_at_once_are_told_so_and_health_is_not(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_ANSWERING", 1)
    is_asked, may_answer = threading.Event(), threading.Event()
    site = Site(service.database, LakeReader(service.tables[0].lake))

    def render_slowly(site: Site) -> bytes:
        is_asked.set()
        may_answer.wait()
        return b""

    monkeypatch.setattr("siltstone.web.app.render_metrics", render_slowly)
    app = create_app(site)
    with TestClient(app, base_url=HERE) as client:
        slow = threading.Thread(target=client.get, args=("/metrics",))
        slow.start()
        is_asked.wait()
        assert client.get("/").status_code == 503
        assert client.get("/healthz").status_code == 200
        may_answer.set()
        slow.join()
        assert client.get("/").status_code == 200
