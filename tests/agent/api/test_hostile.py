"""Row 22 of the fault plan: hostile clients on real sockets get 413, 408, 401 or 414, are cut off, learn nothing."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from agent.api.server import HttpServer
from tests.agent.api.conftest import Serve, asked
from tests.agent.api.running import OPERATOR, READER
from tests.waiting import until

INSIDE = (b"Traceback", b".py", b"uvicorn", b"starlette", b"sqlite", b"ledger.db", READER.encode(), OPERATOR.encode())
DEADLINE_S = 0.4
AUTHORIZED = f"Host: localhost\r\nAuthorization: Bearer {OPERATOR}\r\n"
ORDER = f"POST /api/v1/pause HTTP/1.1\r\n{AUTHORIZED}Content-Type: application/json\r\n"
BODIES_TO_COME = [
    f"{ORDER}{length}\r\n\r\n".encode() for length in ("Content-Length: 100", "Transfer-Encoding: chunked")
]


@pytest.fixture
def hasty(serve: Serve) -> HttpServer:
    """A server that waits a moment for a request, on the socket and on TCP."""
    server = serve(port=0, token=READER, operator_token=OPERATOR, request_timeout_s=DEADLINE_S, max_connections=16)
    # Once it has answered, it has also seen that the clients of the test before are gone.
    assert asked(server, "/healthz").status_code == 200
    return server


@pytest.fixture
def patient(serve: Serve) -> HttpServer:
    """One that gives a busy client time."""
    server = serve(port=0, token=READER, operator_token=OPERATOR, request_timeout_s=60.0, max_connections=16)
    assert asked(server, "/healthz").status_code == 200
    return server


@pytest.fixture
def keeping(serve: Serve) -> HttpServer:
    """A server that keeps a connection for a second after an answer, the shortest time that the settings allow."""
    return serve(port=0, token=READER, request_timeout_s=1.0)


@contextmanager
def connected(server: HttpServer, over: str = "tcp") -> Iterator[socket.socket]:
    """A raw connection to the server."""
    family = socket.AF_UNIX if over == "unix" else socket.AF_INET
    with socket.socket(family) as opened:
        opened.settimeout(60.0)
        opened.connect(str(server.path) if over == "unix" else ("127.0.0.1", server.port))
        yield opened


def answer(opened: socket.socket) -> bytes:
    """Everything the server says until it closes."""
    said = b""
    try:
        while chunk := opened.recv(65_536):
            said += chunk
    except ConnectionResetError:
        pass
    return said


def status(said: bytes) -> int:
    assert said.startswith(b"HTTP/1.1 "), said[:80]
    for secret in INSIDE:
        assert secret not in said
    return int(said.split()[1])


def talk(server: HttpServer, request: str | bytes, over: str = "tcp") -> bytes:
    with connected(server, over) as opened:
        opened.sendall(request.encode() if isinstance(request, str) else request)
        return answer(opened)


class TestSlowClients:
    def test_a_head_or_a_body_that_does_not_come_is_408_after_the_deadline(self, hasty: HttpServer) -> None:
        heads = [b"", b"GET /hea", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: "]
        began = time.monotonic()
        with ExitStack() as stack:
            waiting = []
            for sent in (*heads, *BODIES_TO_COME):
                for over in ("tcp", "unix"):
                    waiting.append((sent, over, stack.enter_context(connected(hasty, over))))
                    waiting[-1][2].sendall(sent)
            for sent, over, opened in waiting:
                assert status(answer(opened)) == 408, (sent, over)
        assert time.monotonic() - began > 0.9 * DEADLINE_S

    def test_a_byte_now_and_then_buys_no_time(self, hasty: HttpServer) -> None:
        began = time.monotonic()
        with connected(hasty) as opened:
            for byte in b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: loris\r\n" * 10:
                try:
                    opened.sendall(bytes([byte]))
                except OSError:
                    break
                time.sleep(DEADLINE_S / 10)
                if time.monotonic() - began > 30.0:
                    pytest.fail("the server still listens after many deadlines")
            assert status(answer(opened)) == 408

    def test_the_second_request_of_a_connection_has_the_same_deadline(self, keeping: HttpServer) -> None:
        with connected(keeping) as opened:
            opened.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            said = opened.recv(65_536)
            opened.sendall(b"GET /hea")
            said += answer(opened)
        first, _, second = said.partition(b"HTTP/1.1 408")
        assert status(first) == 200
        assert second.startswith(b" Request Timeout")

    def test_a_connection_that_says_no_more_is_closed(self, keeping: HttpServer) -> None:
        with connected(keeping) as opened:
            opened.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            began = time.monotonic()
            assert status(answer(opened)) == 200
            assert time.monotonic() - began > 0.5


class TestLargeRequests:
    @pytest.mark.parametrize("length", [32_769, 10**18])
    def test_an_announced_body_too_large_is_413_before_it_is_read(self, patient: HttpServer, length: int) -> None:
        assert status(talk(patient, f"{ORDER}Content-Length: {length}\r\n\r\n")) == 413

    def test_a_chunked_one_is_413_as_soon_as_it_is_too_large(self, patient: HttpServer) -> None:
        body = b"1000\r\n" + b"x" * 4096 + b"\r\n"
        assert status(talk(patient, f"{ORDER}Transfer-Encoding: chunked\r\n\r\n".encode() + body * 9)) == 413

    @pytest.mark.parametrize("size", [5_000, 1_000_000])
    def test_a_huge_target_is_414(self, patient: HttpServer, size: int) -> None:
        for target in ("/" + "a" * size, "/api/v1/status?x=" + "a" * size):
            assert status(talk(patient, f"GET {target} HTTP/1.1\r\n{AUTHORIZED}\r\n")) == 414

    def test_a_huge_head_is_431(self, patient: HttpServer) -> None:
        head = f"GET /healthz HTTP/1.1\r\n{AUTHORIZED}X-Large: {'a' * 100_000}\r\n\r\n"
        assert status(talk(patient, head)) == 431

    def test_a_stranger_is_401_however_much_he_sends(self, patient: HttpServer) -> None:
        head = "POST /api/v1/pause HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        assert status(talk(patient, f"{head}Content-Length: 1000000000\r\n\r\n")) == 401


class TestTricks:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        "path",
        [
            "/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/../../../etc/passwd",
            "/static/%2e%2e/%2e%2e/agent.py", "//etc/passwd", "/api/v1//status", "/api/v1/status/", "/api/v1/status%00",
            "/api/v1/decisions/..%2f..%2fetc%2fpasswd", "/api/v1/decisions/%00", "/api/v1/autoscaling/%2e%2e",
            "/API/V1/STATUS", "/api/v1/./status", "/api/v1/status;x=1", "/%", "/%zz", "/\\..\\", "/%ff%fe",
            "/api/v1/decisions/' OR 1=1 --".replace(" ", "%20"),
        ],
    )  # fmt: skip
    def test_a_path_that_is_none_of_ours_is_404(self, patient: HttpServer, path: str) -> None:
        said = talk(patient, f"GET {path} HTTP/1.1\r\n{AUTHORIZED}Connection: close\r\n\r\n")
        assert status(said) == 404
        assert b"root:" not in said

    @pytest.mark.parametrize(
        "garbage",
        [
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
            b"GET\r\n\r\n",
            b"GET / HTTP/9\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: a\r\nBad Header: x\r\n\r\n",
            b"\0\0\0\0\r\n\r\n",
            b"trimtab.web.small.i-1.cpu_percent 71 1795209000\n\n",
        ],
    )
    def test_what_is_no_http_is_400(self, patient: HttpServer, garbage: bytes) -> None:
        assert status(talk(patient, garbage)) == 400

    def test_length_and_chunks_together_cannot_smuggle_a_second_request(self, patient: HttpServer) -> None:
        smuggled = b"0\r\n\r\nGET /api/v1/status HTTP/1.1\r\nHost: x\r\n\r\n"
        head = "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        said = talk(patient, head.encode() + smuggled)
        assert said.count(b"HTTP/1.1 ") == 1
        assert status(said) in (400, 401)

    def test_an_upgrade_is_answered_as_an_ordinary_request(self, patient: HttpServer) -> None:
        upgrade = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\nConnection: Upgrade\r\n"
        assert status(talk(patient, f"GET /api/v1/status HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n")) == 401


class TestCrowds:
    def test_beyond_the_cap_a_connection_is_turned_away_and_the_socket_stays_open_to_operators(
        self, patient: HttpServer
    ) -> None:
        with ExitStack() as stack:
            for _ in range(16):
                stack.enter_context(connected(patient))
            # Connections are taken in the order in which they were made.
            assert status(talk(patient, b"")) == 503
            assert asked(patient, "/healthz").status_code == 200
        # A place is free again once the server has seen that a client is gone.
        request = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        until(lambda: status(talk(patient, request)) == 200, every_s=0.02)

    def test_a_hundred_at_once_that_say_nothing_are_gone_after_the_deadline(self, hasty: HttpServer) -> None:
        with ExitStack() as stack:
            crowd = [stack.enter_context(connected(hasty)) for _ in range(100)]
            said = [answer(opened) for opened in crowd]
        codes = [status(text) for text in said if text]
        assert set(codes) <= {408, 503}
        assert codes.count(408) >= 16

    def test_it_answers_while_others_dawdle_over_their_bodies(self, patient: HttpServer) -> None:
        with ExitStack() as stack:
            for _ in range(10):
                stack.enter_context(connected(patient)).sendall(f"{ORDER}Content-Length: 9\r\n\r\n".encode())
            quick = talk(patient, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert status(quick) == 200

    def test_many_askers_get_whole_answers(self, patient: HttpServer) -> None:
        codes: list[int] = []
        request = f"GET /api/v1/status HTTP/1.1\r\n{AUTHORIZED}Connection: close\r\n\r\n"
        threads = [threading.Thread(target=lambda: codes.append(status(talk(patient, request)))) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert codes == [200] * 12


def test_the_tricks_above_are_refused_over_the_socket_too(patient: HttpServer) -> None:
    talks: list[tuple[str, int]] = [
        ("GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        ("GET /" + "a" * 50_000 + " HTTP/1.1\r\n", 414),
        ("POST /api/v1/pause HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
         "Content-Length: 99999\r\n\r\n", 413),
        ("POST /api/v1/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 415),
    ]  # fmt: skip
    assert [status(talk(patient, request, "unix")) for request, _ in talks] == [code for _, code in talks]
