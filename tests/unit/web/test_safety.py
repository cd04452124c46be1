"""Who may do what: tokens, sessions, forms of other sites, hosts, sizes, and what browsers are told to refuse."""

import datetime
import http.client
import ipaddress
import logging
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import siltstone
from siltstone.errors import InvalidInputError
from siltstone.service import service_status
from siltstone.web.app import MAX_REQUEST_BYTES, WebServer, check_address, check_certificate, host_name, is_loopback
from siltstone.web.site import (
    MAX_TRIES,
    SESSION_COOKIE,
    SESSION_SECONDS,
    TRIES_SECONDS,
    VISIT_COOKIE,
    Access,
    LakeReader,
    Site,
    TooManyTriesError,
    is_from_elsewhere,
)
from tests.unit.web.serving import HERE, READ_TOKEN, TOKEN, Service

JSON = {"Content-Type": "application/json"}


def asked_for(service: Service) -> int:
    return len(service_status(service.database).pending_requests)


class TestForms:
    def test_every_button_does_what_it_says(self, service: Service) -> None:
        browser = service.browser()
        for action, disabled, frozen in (
            ("freeze", False, True),
            ("unfreeze", False, False),
            ("disable", True, False),
            ("enable", False, False),
        ):
            assert browser.press(f"/controls/{action}") == 303
            status = service_status(service.database)
            assert (status.disabled is not None, status.frozen is not None) == (disabled, frozen)
        browser.press("/controls/trim")
        (request,) = service_status(service.database).pending_requests
        assert request.trim

    def test_a_freeze_lasts_as_long_as_chosen(self, service: Service) -> None:
        assert service.browser().press("/controls/freeze", seconds="1800") == 303
        frozen = service_status(service.database).frozen
        assert frozen is not None
        assert frozen.expires_at == frozen.set_at + 1_800_000
        assert service.browser().press("/controls/freeze", seconds="1e99") == 404

    def test_an_unknown_control_is_none(self, service: Service) -> None:
        assert service.browser().press("/controls/explode") == 404

    @pytest.mark.parametrize("key", ["", "0" * 64, "é"])
    def test_a_form_without_our_key_does_nothing(self, service: Service, key: str) -> None:
        browser = service.browser()
        browser.page("/")
        assert browser.post("/controls/trigger", data={"key": key}).status_code == 403
        assert browser.post("/controls/trigger").status_code == 403
        assert asked_for(service) == 0

    def test_a_key_is_of_no_use_to_another_browser(self, service: Service) -> None:
        browser = service.browser()
        browser.page("/")
        key = Access().form_key(browser.cookies[VISIT_COOKIE])
        assert browser.post("/controls/trigger", data={"key": key}).status_code == 403
        browser.cookies.clear()
        browser.cookies[VISIT_COOKIE] = ""
        assert browser.post("/controls/trigger", data={"key": key}).status_code == 403
        assert asked_for(service) == 0

    @pytest.mark.parametrize(
        "headers",
        [
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:9999"},
        ],
    )
    def test_another_sites_page_cannot_press_buttons(self, service: Service, headers: dict[str, str]) -> None:
        browser = service.browser()
        browser.headers.update(headers)
        assert browser.press("/controls/trigger") == 403
        assert browser.post("/api/trigger", json={}).status_code == 403
        assert asked_for(service) == 0

    @pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "same-origin", "Origin": "null"}, {"Origin": HERE}])
    def test_our_own_page_can(self, service: Service, headers: dict[str, str]) -> None:
        browser = service.browser()
        browser.headers.update(headers)
        assert browser.press("/controls/trigger") == 303
        assert asked_for(service) == 1

    def test_cookies_are_out_of_reach_of_scripts_and_other_sites(self, service: Service) -> None:
        cookie = service.browser().get("/").headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie


class TestTables:
    def test_a_table_is_compacted_now_paused_and_resumed_by_its_own_page(self, service: Service) -> None:
        browser = service.browser()
        page = "/tables/shop.orders"
        assert browser.press(f"{page}/compact", page) == 303
        (request,) = service_status(service.database).pending_requests
        assert request.tables == ["shop.orders"]
        assert browser.press(f"{page}/pause", page) == 303
        assert ">Resume<" in browser.page(page)
        assert browser.press(f"{page}/compact", page) == 400, "it is paused"
        assert browser.press(f"{page}/resume", page) == 303
        assert ">Pause<" in browser.page(page)
        assert service.wakings == 3

    def test_what_is_no_table_or_no_control_does_nothing(self, service: Service) -> None:
        browser = service.browser()
        assert browser.press("/tables/shop.nothing/pause") == 404
        assert browser.press("/tables/shop.orders/explode") == 404
        assert not service_status(service.database).paused

    def test_without_the_token_there_are_no_buttons(self, service: Service) -> None:
        browser = service.browser(token=TOKEN)
        assert "Compact now" not in browser.page("/tables/shop.orders")
        assert browser.press("/tables/shop.orders/pause", "/login") == 303
        assert not service_status(service.database).paused

    def test_programs_do_the_same_and_who_did_is_kept(self, service: Service) -> None:
        browser = service.browser()
        for action in ("compact", "pause", "resume"):
            assert browser.post(f"/api/tables/shop.orders/{action}", headers=JSON).status_code in (200, 202)
        assert browser.post("/api/tables/shop.nothing/pause", headers=JSON).status_code == 404
        *entries, created = browser.get("/api/audit?table=shop.orders").json()
        assert [entry["action"] for entry in entries] == ["resume", "pause", "trigger"]
        assert {(entry["about"], entry["table"]) for entry in entries} == {("shop.orders", "shop.orders")}
        assert all(entry["requester"].startswith("api from ") for entry in entries)
        assert (created["action"], created["through"]) == ("create", "python")
        whole = browser.get("/api/audit").json()
        assert [entry["about"] for entry in whole if entry["action"] == "create"] == ["shop.items", "shop.orders"]
        assert browser.get("/api/audit?table=shop.nothing").status_code == 404


def write_certificate(folder: Path) -> tuple[str, str]:
    """Write a certificate for 127.0.0.1 that nobody has signed, and its key; return where they are."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, *private))
    return str(folder / "certificate.pem"), str(folder / "key.pem")


class TestCertificate:
    def test_pages_are_served_by_https(self, service: Service, tmp_path: Path) -> None:
        files = write_certificate(tmp_path)
        site = Site(service.database, LakeReader(siltstone.open(service.root)))
        server = WebServer(site, host="127.0.0.1", port=0, tls=files)
        server.start()
        try:
            assert server.address.startswith("https://127.0.0.1:")
            trusting = ssl.create_default_context(cafile=files[0])
            with urllib.request.urlopen(f"{server.address}healthz", context=trusting) as answer:
                assert answer.read() == b"ok\n"
        finally:
            server.stop()

    def test_what_is_none_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="no such file"):
            check_certificate(str(tmp_path / "a.pem"), str(tmp_path / "b.pem"))
        (tmp_path / "a.pem").write_text("not a certificate")
        with pytest.raises(InvalidInputError, match="no certificate with its key"):
            check_certificate(str(tmp_path / "a.pem"), str(tmp_path / "a.pem"))


class TestToken:
    def test_without_logging_in_the_controls_are_not_there(self, service: Service) -> None:
        browser = service.browser(token=TOKEN)
        assert "Trigger a cycle" not in browser.page("/")
        assert browser.press("/controls/trigger", "/login") == 303
        assert asked_for(service) == 0

    def test_logging_in_with_the_token_and_out_again(self, service: Service) -> None:
        browser = service.browser(token=TOKEN)
        assert browser.press("/login", "/login", token="wrong") == 401
        assert browser.press("/login", "/login", token=f" {TOKEN} ") == 303
        assert "Trigger a cycle" in browser.page("/")
        assert TOKEN not in browser.cookies[SESSION_COOKIE]
        assert browser.press("/controls/trigger") == 303
        assert asked_for(service) == 1
        assert browser.press("/logout") == 303
        assert "Trigger a cycle" not in browser.page("/")

    @pytest.mark.parametrize("session", ["", "x", "..", "9999999999.ab.cd", "é.é.é", "9" * 5000])
    def test_a_session_that_is_not_ours_is_none(self, service: Service, session: str) -> None:
        access = Access(TOKEN)
        assert access.session_role(session) is None
        claim, _, signature = access.new_session().rpartition(".")
        assert access.session_role(f"9{claim}.{signature}") is None
        assert Access(TOKEN).session_role(f"{claim}.{signature}") is None, "another process"

    def test_the_token_for_reading_reads_and_controls_nothing(self, service: Service) -> None:
        browser = service.browser(token=TOKEN, read_token=READ_TOKEN, is_private=True)
        assert browser.get("/tables").status_code == 401
        assert browser.get("/api/status", headers={"Authorization": f"Bearer {READ_TOKEN}"}).status_code == 200
        headers = {**JSON, "Authorization": f"Bearer {READ_TOKEN}"}
        answer = browser.post("/api/trigger", headers=headers)
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            403,
            "This token is for reading; the controls need the other one.",
        )
        assert browser.press("/login", "/login", token=READ_TOKEN) == 303
        assert "Trigger a cycle" not in browser.page("/")
        assert browser.press("/controls/trigger", "/login") == 303
        assert asked_for(service) == 0

    @pytest.mark.parametrize("token", [None, READ_TOKEN])
    def test_a_token_for_reading_needs_another_one_for_the_controls(self, token: str | None) -> None:
        with pytest.raises(InvalidInputError, match="needs another one for the controls"):
            Access(token, READ_TOKEN)

    def test_who_shows_wrong_tokens_again_and_again_has_to_wait(self, service: Service) -> None:
        browser = service.browser(token=TOKEN)
        for _ in range(MAX_TRIES):
            assert browser.press("/login", "/login", token="wrong") == 401
        assert browser.press("/login", "/login", token=TOKEN) == 429, "the right one is not told from a wrong one"
        answer = browser.post("/api/trigger", headers={**JSON, "Authorization": f"Bearer {TOKEN}"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "300")
        assert "Too many wrong tokens" in answer.text

    def test_wrong_tokens_are_forgotten_and_those_of_others_do_not_count(self) -> None:
        now = [0.0]
        access = Access(TOKEN, monotonic=lambda: now[0])
        for _ in range(MAX_TRIES):
            assert access.role_of("wrong", "10.0.0.1") is None
        with pytest.raises(TooManyTriesError):
            access.role_of(TOKEN, "10.0.0.1")
        assert access.role_of(TOKEN, "10.0.0.2") == "control"
        now[0] += TRIES_SECONDS
        assert access.role_of(TOKEN, "10.0.0.1") == "control"

    def test_a_session_runs_out(self) -> None:
        now = [1000.0]
        access = Access(TOKEN, now=lambda: now[0])
        session = access.new_session()
        assert access.session_role(session) == "control"
        now[0] += SESSION_SECONDS
        assert access.session_role(session) is None

    def test_programs_send_it_as_bearer(self, service: Service) -> None:
        browser = service.browser(token=TOKEN)
        for header in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN):
            answer = browser.post("/api/trigger", json={}, headers={"Authorization": header})
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert asked_for(service) == 0
        answer = browser.post("/api/trigger", json={"trim": True}, headers={"Authorization": f"bearer {TOKEN}"})
        assert answer.status_code == 202
        assert answer.json()["trim"] is True

    def test_a_session_is_not_enough_for_the_api(self, service: Service) -> None:
        browser = service.browser(token=TOKEN)
        browser.press("/login", "/login", token=TOKEN)
        assert browser.post("/api/disable", headers=JSON).status_code == 401

    def test_private_pages_need_it_for_reading_too(self, service: Service) -> None:
        browser = service.browser(token=TOKEN, is_private=True)
        paths = ("/", "/tables", "/tables/shop.orders", "/api", "/api/status", "/api/tables", "/metrics")
        for path in paths:
            answer = browser.get(path)
            assert answer.status_code == 401, path
            assert "shop" not in answer.text
            assert service.root not in answer.text
            assert browser.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert browser.get("/healthz").status_code == browser.head("/readyz").status_code == 200
        browser.press("/login", "/login", token=TOKEN)
        assert [browser.get(path).status_code for path in paths] == [200] * len(paths)

    def test_a_short_token_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="at least 16"):
            Access("short")

    def test_it_is_neither_shown_nor_logged(self, service: Service, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        browser = service.browser(token=TOKEN)
        browser.press("/login", "/login", token=TOKEN)
        browser.post("/api/trigger", json={}, headers={"Authorization": f"Bearer {TOKEN}"})
        assert TOKEN not in caplog.text
        assert TOKEN not in browser.page("/")
        assert TOKEN not in repr(Access(TOKEN))


class TestGuard:
    def test_browsers_are_told_what_to_refuse(self, service: Service) -> None:
        for path in ("/", "/api/status", "/static/style.css", "/metrics", "/nosuch"):
            headers = service.browser().get(path).headers
            policy = headers["content-security-policy"]
            assert "unsafe" not in policy
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "same-origin"
            assert "server" not in headers
            assert "access-control-allow-origin" not in headers

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "localhost.:1"]
    )
    def test_a_name_that_was_pointed_at_us_is_not_served(self, service: Service, host: str) -> None:
        answer = service.browser().get("/", headers={"Host": host})
        assert answer.status_code == 421
        assert "siltstone" not in answer.text.lower()

    @pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8765", "[::1]:80", "[::1]"])
    def test_our_own_names_are(self, service: Service, host: str) -> None:
        assert service.browser().get("/healthz", headers={"Host": host}).status_code == 200

    def test_requests_are_bounded(self, service: Service) -> None:
        browser = service.browser()
        big = b"x" * (MAX_REQUEST_BYTES + 1)

        def in_pieces() -> Iterator[bytes]:
            for start in range(0, len(big), 1000):
                yield big[start : start + 1000]

        for path in ("/login", "/api/trigger", "/controls/trigger"):
            assert browser.post(path, content=big, headers=JSON).status_code == 413
            headers = {"Content-Type": "application/x-www-form-urlencoded"} if "api" not in path else JSON
            assert browser.post(path, content=in_pieces(), headers=headers).status_code == 413
        assert browser.post("/login", headers={"Content-Length": "many"}).status_code == 413
        assert asked_for(service) == 0

    def test_host_names_without_ports(self) -> None:
        assert [host_name(each) for each in ("A:1", "a", "[::1]:2", "[::1]", "a:b")] == [
            "a", "a", "[::1]", "[::1]", "a:b",
        ]  # fmt: skip

    def test_who_says_nothing_is_a_program(self) -> None:
        assert not is_from_elsewhere({"host": "a"})
        assert is_from_elsewhere({"host": "a", "origin": "http://b"})


class TestAddress:
    def test_only_loopback_is_served_without_a_token(self, service: Service) -> None:
        for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1"):
            assert is_loopback(host)
            check_address(host, has_token=False)
        for host in ("0.0.0.0", "::", "192.168.1.5", "db.example"):
            assert not is_loopback(host)
            check_address(host, has_token=True)
            with pytest.raises(InvalidInputError, match="SILTSTONE_TOKEN"):
                check_address(host, has_token=False)

    def test_an_address_is_served_and_a_taken_port_is_told(self, service: Service) -> None:
        site = Site(service.database, LakeReader(service.tables[0].lake))
        server = WebServer(site, host="127.0.0.1", port=0, allowed_hosts=["Proxy.example:443"])
        port = int(server.address.rstrip("/").rpartition(":")[2])
        with pytest.raises(InvalidInputError, match=f"127.0.0.1:{port}: cannot listen there"):
            WebServer(site, host="127.0.0.1", port=port)
        with pytest.raises(InvalidInputError, match="cannot be private without a token"):
            WebServer(Site(service.database, site.lake, is_private=True), host="127.0.0.1", port=0)
        with pytest.raises(InvalidInputError, match="not an address of this machine"):
            WebServer(Site(service.database, site.lake, access=Access(TOKEN)), host="no.such.invalid", port=0)
        server.start()
        assert server.is_running
        for host, code in ((f"127.0.0.1:{port}", 200), ("proxy.example", 200), ("evil.example", 421)):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/healthz", headers={"Host": host})
            assert connection.getresponse().status == code
            connection.close()
        server.stop()
        assert not server.is_running
