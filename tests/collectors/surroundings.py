"""What tests of several collectors share: to wait, ports, HTTP servers, and the maps of the documentation."""

import socket
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from collectors.listener import GraphiteListener
from collectors.mapping import InputMap, map_of

T0 = 1_795_209_000.0
WITHIN_S = 60.0

Serve = Callable[..., GraphiteListener]
"""The fixture `serve`."""


def closed_port() -> int:
    """Return a port of this machine at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def tcp_server(serve: Callable[[socket.socket], None], port: int = 0) -> Iterator[int]:
    """Serve connections, each in a thread of its own, until the block ends; yields the port."""
    listening = socket.create_server(("127.0.0.1", port))

    def serve_and_close(connection: socket.socket) -> None:
        with connection:
            serve(connection)

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve_and_close, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


@contextmanager
def http_server(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Serve requests of each method by `answer` until the block ends; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            try:
                answer(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        do_GET = do_PUT = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def body_of(handler: BaseHTTPRequestHandler) -> bytes:
    """Return the body of a request."""
    return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))


def respond(handler: BaseHTTPRequestHandler, body: bytes = b"", status: int = 200) -> None:
    """Send a response."""
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def map_in_the_docs(sender: str) -> InputMap:
    """Return the map that docs/operate/inputs.md gives for a sender."""
    text = Path("docs/operate/inputs.md").read_text("utf-8")
    return map_of(tomllib.loads(text.split(f"```toml {sender}\n")[1].split("```")[0]))
