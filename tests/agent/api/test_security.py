"""Who may do what: the unix socket by its mode, TCP by token and role; nothing tells a token or the inside."""

import base64
import json
import logging
import socket
import ssl
import stat
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import structlog
from fastapi import APIRouter
from pydantic import SecretStr

from agent.api.security import Role, Tokens
from agent.api.server import HttpServer
from agent.settings import Settings, load_settings
from agent.settings.names import effective
from domain.errors import BadInput, ConfigurationError
from tests.agent.api.conftest import PATIENCE_S, Serve, asked, serving
from tests.agent.api.running import ASKER, OPERATOR, READER, Running
from tests.golden import check_wording

READS = ["/readyz", "/metrics", "/api/v1/status", "/api/v1/autoscaling", "/api/v1/openapi.json", "/", "/nothing"]
SWITCHES = ["/api/v1/pause", "/api/v1/resume", "/api/v1/pin", "/api/v1/unpin", "/nothing"]
Connect = Callable[..., httpx.Client]


class TestOverTcp:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("path", READS)
    @pytest.mark.parametrize("token", [None, "wrong-token-0123456789", READER[:-1], READER + "x", "ümlaut"])
    def test_without_a_valid_token_nothing_is_told_not_even_what_there_is(
        self, over_tcp: Connect, path: str, token: str | None
    ) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}".encode()}
        answer = over_tcp().get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == 'Basic realm="trimtab", Bearer realm="trimtab"'
        assert answer.json()["error"] == "Unauthorized"
        assert len(answer.content) < 200

    def test_each_role_may_do_its_own(self, over_tcp: Connect) -> None:
        for token, reads, switches in ((None, 401, 401), (READER, 200, 403), (OPERATOR, 200, 422)):
            client = over_tcp(token)
            assert client.get("/api/v1/status").status_code == reads
            for path in SWITCHES[:-1]:
                assert client.post(path, json={}).status_code == switches, (token, path)

    def test_an_allocators_token_opens_nothing_that_is_not_described_for_it(self, over_tcp: Connect) -> None:
        asker = over_tcp(ASKER)
        assert asker.get("/api/v1/openapi.json").status_code == 200
        for path in ("/", "/stream?since=0", "/nothing", "/api/v1/admissionx", "/api/v1/admission/../status"):
            assert asker.get(path).status_code == 403, path
        for path in ("/api/v1/admission/requests/batch/x", "/api/v1/admission", "/api/v1/oversubscription", "/nothing"):
            assert asker.post(path).status_code == 403, path
        assert asker.delete("/api/v1/admission/requests").status_code == 403

    def test_a_refusal_names_the_role_that_is_needed(self, over_tcp: Connect) -> None:
        refused = {
            "read pauses": over_tcp(READER).post("/api/v1/pause", json={}),
            "read asks": over_tcp(READER).post("/api/v1/admission/requests", json={}),
            "ask reads": over_tcp(ASKER).get("/api/v1/status"),
        }
        assert {answer.status_code for answer in refused.values()} == {403}
        check_wording("api_roles", {name: answer.json()["detail"] for name, answer in refused.items()})

    def test_the_description_lists_the_roles_of_each_operation(self, over_tcp: Connect) -> None:
        paths = over_tcp(READER).get("/api/v1/openapi.json").json()["paths"]
        clients = {"read": over_tcp(READER), "ask": over_tcp(ASKER), "control": over_tcp(OPERATOR)}
        for path, methods in paths.items():
            for method, operation in methods.items():
                described = [option.get("bearer") for option in operation["security"] if "bearer" in option]
                concrete = path.replace("{", "").replace("}", "")
                answers = {role: client.request(method, concrete, json={}) for role, client in clients.items()}
                opened = [role for role, answer in answers.items() if answer.status_code != 403]
                assert sorted(described[0] if described else clients) == sorted(opened), (method, path)

    def test_a_refused_client_reads_its_answer_though_it_goes_on_sending(self, over_tcp: Connect) -> None:
        url = over_tcp().base_url
        with socket.create_connection((url.host, url.port or 0), PATIENCE_S) as opened:
            opened.sendall(b"POST /api/v1/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n")
            answer = opened.recv(1)
            for _ in range(2):
                opened.sendall(b" " * 100_000)
            while read := opened.recv(65_536):
                answer += read
        assert answer.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "Unauthorized"

    def test_a_refused_client_that_sends_nothing_more_is_let_go(self, over_tcp: Connect) -> None:
        url = over_tcp().base_url
        with socket.create_connection((url.host, url.port or 0), PATIENCE_S) as opened:
            opened.sendall(b"POST /api/v1/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n")
            answer = b"".join(iter(lambda: opened.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.1 401 Unauthorized\r\n")

    def test_any_method_but_reading_needs_the_operator(self, over_tcp: Connect) -> None:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            assert over_tcp(READER).request(method, "/api/v1/status").status_code == 403
        assert over_tcp(OPERATOR).request("DELETE", "/api/v1/status").status_code == 405

    def test_liveness_needs_no_token(self, over_tcp: Connect) -> None:
        assert over_tcp().get("/healthz").status_code == 200
        assert over_tcp().post("/healthz").status_code == 401

    def test_metrics_need_none_where_a_setting_says_so(self, serve: Serve) -> None:
        server = serve(port=0, token=READER, open_metrics=True)
        assert httpx.get(f"http://127.0.0.1:{server.port}/metrics").status_code == 200
        assert httpx.get(f"http://127.0.0.1:{server.port}/readyz").status_code == 401

    def test_a_browser_may_show_the_token_as_password(self, over_tcp: Connect) -> None:
        assert over_tcp().get("/api/v1/status", auth=("anybody", READER)).status_code == 200
        assert over_tcp().get("/api/v1/status", auth=(READER, "anything")).status_code == 401

    def test_without_an_operator_token_nothing_can_be_switched(self, serve: Serve) -> None:
        server = serve(port=0, token=READER)
        answer = httpx.post(
            f"http://127.0.0.1:{server.port}/api/v1/unpin", json={}, headers={"Authorization": f"Bearer {READER}"}
        )
        assert answer.status_code == 403

    def test_another_sites_page_cannot_use_a_browsers_stored_password(self, over_tcp: Connect) -> None:
        client = over_tcp(OPERATOR)
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            assert client.post("/api/v1/unpin", json={"owner": "x"}, headers=headers).status_code == 403
        own = {"Origin": str(client.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
        assert client.post("/api/v1/unpin", json={"owner": "x"}, headers=own).status_code == 200

    def test_a_form_cannot_switch_anything(self, over_tcp: Connect) -> None:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            answer = over_tcp(OPERATOR).post("/api/v1/unpin", content=b'{"owner": "x"}', headers={"content-type": kind})
            assert answer.status_code == 415


class TestCredentials:
    TOKENS = Tokens(SecretStr(READER), SecretStr(OPERATOR), SecretStr(ASKER))

    @pytest.mark.parametrize(
        ("value", "role"),
        [
            (f"Bearer {READER}", Role.READER),
            (f"bearer  {OPERATOR}", Role.OPERATOR),
            (f"Bearer {ASKER}", Role.ASKER),
            (f"Bearer {ASKER[:-1]}", Role.NOBODY),
            ("Basic " + base64.b64encode(f"u:{OPERATOR}".encode()).decode(), Role.OPERATOR),
            ("Basic " + base64.b64encode(OPERATOR.encode()).decode(), Role.NOBODY),
            ("Basic !!!", Role.NOBODY),
            ("Basic", Role.NOBODY),
            (READER, Role.NOBODY),
            (f"Digest {READER}", Role.NOBODY),
            (f"Bearer {READER} {READER}", Role.NOBODY),
            ("Bearer ", Role.NOBODY),
        ],
    )
    def test_only_a_whole_token_gives_a_role(self, value: str, role: Role) -> None:
        assert self.TOKENS.role([(b"authorization", value.encode())]) is role

    def test_two_headers_give_none(self) -> None:
        header = (b"authorization", f"Bearer {READER}".encode())
        assert self.TOKENS.role([header, header]) is Role.NOBODY


class TestTheSocket:
    def test_its_mode_lets_owner_and_group_in(self, serve: Serve) -> None:
        mode = serve().path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o660

    def test_a_rebound_name_is_turned_away_and_a_forwarded_port_is_not(self, client: httpx.Client) -> None:
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1"):
            assert client.get("/api/v1/status", headers={"Host": host}).status_code == 421, host
        for host in ("localhost", "localhost:8080", "127.0.0.1:1", "[::1]:9", "LOCALHOST"):
            assert client.get("/healthz", headers={"Host": host}).status_code == 200, host

    def test_another_sites_page_is_turned_away(self, client: httpx.Client) -> None:
        answer = client.post("/api/v1/unpin", json={"owner": "x"}, headers={"Origin": "http://evil.example"})
        assert answer.status_code == 403

    def test_what_an_agent_that_was_killed_left_behind_is_replaced(
        self, shared: Running, socket_directory: Path
    ) -> None:
        path = socket_directory / "http.sock"
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(path))
        with serving(shared, socket=path) as server:
            assert asked(server, "/healthz").status_code == 200

    def test_a_second_agent_is_refused_and_the_first_keeps_its_socket(self, serve: Serve, shared: Running) -> None:
        first = serve()
        with pytest.raises(BadInput) as refused:
            shared.server(socket=first.path).start()
        assert refused.value.value == str(first.path)
        assert asked(first, "/healthz").status_code == 200

    def test_a_file_that_is_no_socket_is_left_alone(self, shared: Running, tmp_path: Path) -> None:
        (tmp_path / "precious").write_text("data")
        with pytest.raises(BadInput, match="not a socket"):
            shared.server(socket=tmp_path / "precious").start()
        assert (tmp_path / "precious").read_text() == "data"

    def test_a_path_longer_than_the_kernel_takes_works(self, shared: Running, tmp_path: Path) -> None:
        directory = tmp_path / ("d" * 100)
        directory.mkdir()
        server = shared.server(socket=directory / "http.sock")
        server.start()
        assert stat.S_IMODE((directory / "http.sock").stat().st_mode) == 0o660
        server.stop()
        assert list(directory.iterdir()) == []


class TestStarting:
    def test_a_port_without_a_token_is_a_mistake_in_the_settings(self) -> None:
        with pytest.raises(ConfigurationError) as caught:
            load_settings({"TRIMTAB_HTTP__PORT": "8080"})
        assert [mistake.name for mistake in caught.value.mistakes] == ["TRIMTAB_HTTP__PORT"]

    def test_and_does_not_start_when_the_settings_were_made_otherwise(
        self, shared: Running, socket_directory: Path
    ) -> None:
        server = shared.server(socket=socket_directory / "http.sock", port=0)
        with pytest.raises(ConfigurationError, match="a TCP port needs a token"):
            server.start()
        assert server.port is None

    @pytest.mark.parametrize(
        ("name", "other"), [("OPERATOR_TOKEN", "TOKEN"), ("OPERATOR_TOKEN", "ASK_TOKEN"), ("ASK_TOKEN", "TOKEN")]
    )
    def test_one_token_for_two_roles_is_a_mistake_and_not_shown(self, name: str, other: str) -> None:
        environ = {"TRIMTAB_HTTP__TOKEN": READER, "TRIMTAB_HTTP__PORT": "1"}
        same = {f"TRIMTAB_HTTP__{name}": ASKER, f"TRIMTAB_HTTP__{other}": ASKER}
        with pytest.raises(ConfigurationError) as caught:
            load_settings({**environ, **same})
        (mistake,) = caught.value.mistakes
        assert (mistake.name, mistake.value) == (f"TRIMTAB_HTTP__{name}", "***")
        assert f"TRIMTAB_HTTP__{other}," in mistake.remedy
        assert ASKER not in str(caught.value)

    def test_a_short_token_is_a_mistake_and_not_shown(self) -> None:
        with pytest.raises(ConfigurationError, match="16 letters") as caught:
            load_settings({"TRIMTAB_HTTP__TOKEN": "hunter2"})
        assert "hunter2" not in str(caught.value)

    def test_a_port_in_use_is_reported(self, shared: Running, serve: Serve, tmp_path: Path) -> None:
        first = serve(port=0, token=READER)
        with pytest.raises(BadInput, match=r"TRIMTAB_HTTP__PORT is \d+"):
            shared.server(socket=tmp_path / "other.sock", port=first.port, token=READER).start()

    def test_a_certificate_that_cannot_be_used_is_reported(self, shared: Running, tmp_path: Path) -> None:
        (tmp_path / "bad.pem").write_text("no certificate")
        server = shared.server(
            socket=tmp_path / "s",
            port=0,
            token=READER,
            certificate=tmp_path / "bad.pem",
            private_key=tmp_path / "bad.pem",
        )
        with pytest.raises(ConfigurationError, match="with its key"):
            server.start()

    def test_with_a_certificate_tcp_speaks_tls_only(self, serve: Serve, tmp_path: Path) -> None:
        key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1",
             "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
            check=True, capture_output=True,
        )  # fmt: skip
        server = serve(port=0, token=READER, certificate=certificate, private_key=key)
        trusted = httpx.Client(verify=ssl.create_default_context(cafile=str(certificate)))
        with trusted:
            answer = trusted.get(
                f"https://localhost:{server.port}/api/v1/status", headers={"Authorization": f"Bearer {READER}"}
            )
        assert answer.status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{server.port}/healthz")

    def test_a_connection_over_tcp_sends_without_delay(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        accepted: list[socket.socket] = []
        accept = socket.socket.accept

        def noting(listening: socket.socket) -> tuple[socket.socket, object]:
            opened, address = accept(listening)
            accepted.append(closing.enter_context(opened.dup()))
            return opened, address

        server = serve(port=0, token=READER)
        monkeypatch.setattr(socket.socket, "accept", noting)
        with ExitStack() as closing, httpx.Client() as client:
            assert client.get(f"http://127.0.0.1:{server.port}/healthz").status_code == 200
            ours = [one for one in accepted if one.getsockname()[1] == server.port]
            assert [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in ours] == [1]

    def test_head_and_body_of_an_answer_leave_in_one_piece(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        sent = []
        send = socket.socket.send

        def noting(opened: socket.socket, data: bytes) -> int:
            sent.append(bytes(data))
            return send(opened, data)

        server = serve(port=0, token=READER)
        monkeypatch.setattr(socket.socket, "send", noting)
        with httpx.Client() as client:
            body = client.get(f"http://127.0.0.1:{server.port}/healthz").content
        assert [piece.endswith(body) for piece in sent if piece.startswith(b"HTTP/1.1 200")] == [True]


class TestNothingLeaks:
    @pytest.fixture
    def logged(self) -> list[str]:
        lines: list[str] = []

        def keep(_logger: object, _name: str, event: dict[str, object]) -> dict[str, object]:
            lines.append(repr(event))
            raise structlog.DropEvent

        before = structlog.get_config()
        structlog.configure(processors=[structlog.processors.format_exc_info, keep])
        yield lines
        structlog.configure(**before)

    def test_no_token_in_answers_logs_or_settings_shown(
        self, over_tcp: Connect, shared: Running, logged: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        said = []
        for token in (READER, ASKER, OPERATOR, READER + "x"):
            client = over_tcp(token)
            for path in ["/healthz", *READS, f"/api/v1/decisions/{token}", f"/{token}", f"/api/v1/events?kind={token}"]:
                answer = client.get(path)
                body = answer.text.replace(f"/{token}", "")
                said.append(f"{answer.headers} {body}")
            answer = client.post("/api/v1/pause", json={"owner": "ada", "reason": "x", "token": token})
            said.append(answer.text)
        ours = [record.getMessage() for record in caplog.records if not record.name.startswith("http")]
        settings = Settings(http={"token": READER, "operator_token": OPERATOR, "port": 1})
        shown = effective(settings).items()
        assert dict(shown)["TRIMTAB_HTTP__TOKEN"] == "***"
        everything = "\n".join([*said, *logged, *ours, repr(shown)])
        assert READER not in everything
        assert ASKER not in everything
        assert OPERATOR not in everything

    def test_a_failure_inside_is_a_bare_500(self, shared: Running, socket_directory: Path, logged: list[str]) -> None:
        router = APIRouter()

        @router.get("/boom")
        def boom() -> None:
            raise RuntimeError("the secret is hunter2")

        server = shared.server(router, socket=socket_directory / "http.sock")
        server.start()
        try:
            answer = asked(server, "/boom")
        finally:
            server.stop()
        assert answer.status_code == 500
        assert (answer.json()["error"], answer.json()["wrong"]) == ("Internal Server Error", [])
        assert "hunter2" not in answer.text
        assert [line for line in logged if "request_failed" in line]

    def test_every_answer_has_the_security_headers(self, over_tcp: Connect) -> None:
        for client, path in ((over_tcp(), "/"), (over_tcp(READER), "/api/v1/status"), (over_tcp(READER), "/nothing")):
            headers = client.get(path).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["cache-control"] == "no-store"
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "server" not in headers


def test_a_server_that_was_stopped_leaves_nothing(shared: Running, socket_directory: Path) -> None:
    server = shared.server(socket=socket_directory / "http.sock", port=0, token=READER)
    server.start()
    port = server.port
    server.stop()
    server.stop()
    assert list(socket_directory.iterdir()) == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")
    assert isinstance(server, HttpServer)
