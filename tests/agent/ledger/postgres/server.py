"""A real PostgreSQL server in a directory of its own, and a TCP proxy in front of it that can be cut."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import queue
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent.ledger import Ledger

START_TIMEOUT_S = 60
EMPTY_LEDGER = "empty_ledger"
"""The database of the shared server that is copied where a test wants a ledger."""
_SHARED: pytest.StashKey[Server] = pytest.StashKey()


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; every test makes databases of its own in it."""

    port: int
    directory: Path

    def connected(self) -> psycopg.Connection[Any]:
        """Connect to it as its administrator, in no database of a test."""
        return psycopg.connect(f"host=127.0.0.1 port={self.port} user=trimtab dbname=postgres", autocommit=True)

    def new_database(self, name: str, template: str = "template1") -> str:
        """Make a database and return its URL."""
        with self.connected() as admin:
            admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')  # type: ignore[arg-type]
        return self.url(name, self.port)

    def url(self, name: str, port: int) -> str:
        """The URL of a database through this port."""
        return f"postgresql+psycopg://trimtab@127.0.0.1:{port}/{name}"

    def freeze(self) -> None:
        """Stop every process of the server, as a hung machine does: it takes connections and says nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        postmaster = int((self.directory / "data/postmaster.pid").read_text().splitlines()[0])
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(postmaster)], capture_output=True, text=True, check=False
        )
        for pid in (postmaster, *map(int, children.stdout.split())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        """Stop it at once, as a crash would: what it has not sent to a replica is not sent any more."""
        self._control("-m", "immediate", "stop")

    def start(self, **more: object) -> None:
        """Start it; more: further settings."""
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.directory,
            # What a crash of the machine would cost is not what these tests are about.
            "fsync": "off",
            "max_connections": 60,
            **more,
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._control("-t", START_TIMEOUT_S, "-o", options, "-l", self.directory / "log", "start")

    def promote(self) -> None:
        """Let a replica take writes from here on."""
        self._control("promote")

    def _control(self, *words: object) -> None:
        run_unprivileged(self.directory, programs() / "pg_ctl", "-D", self.directory / "data", "-w", *words)


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """Make and run a server until the block ends."""
    with unprivileged_directory() as directory:
        data = directory / "data"
        run_unprivileged(directory, programs() / "initdb", "-D", data, "-U", "trimtab", "-A", "trust", "-N")
        with _until_the_end(Server(free_port(), directory)) as server:
            yield server


@contextlib.contextmanager
def running_replica(primary: Server) -> Iterator[Server]:
    """Copy a server and run a replica of it, without which it confirms nothing from here on, until the block ends."""
    with unprivileged_directory() as directory:
        place = ("-h", "127.0.0.1", "-p", primary.port, "-U", "trimtab", "-D", directory / "data")
        run_unprivileged(directory, programs() / "pg_basebackup", *place, "-R", "-c", "fast")
        with _until_the_end(Server(free_port(), directory)) as replica:
            with primary.connected() as admin:
                admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                admin.execute("SELECT pg_reload_conf()")
            yield replica


@contextlib.contextmanager
def _until_the_end(server: Server) -> Iterator[Server]:
    server.start()
    try:
        yield server
    finally:
        with contextlib.suppress(RuntimeError):
            server.stop()


def shared_server(config: pytest.Config) -> Server:
    """Return the one server that all tests of a process use, and end it when pytest ends."""
    if _SHARED not in config.stash:
        running = contextlib.ExitStack()
        server = running.enter_context(running_server())
        config.add_cleanup(running.close)
        Ledger.open(server.new_database(EMPTY_LEDGER)).close()
        config.stash[_SHARED] = server
    return config.stash[_SHARED]


class Proxy:
    """Forwards connections to a port until it is cut; while cut, it takes bytes and connections and passes on none.

    One thread owns every socket; what tests ask for is done there, and done when the asking returns.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sinks: dict[socket.socket, socket.socket] = {}
        self._is_cut = self._is_closed = False
        self._orders: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = queue.SimpleQueue()
        self._bell, self._ring = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Pass on nothing any more, silently, as a network that swallows packets."""
        self._do(lambda: setattr(self, "_is_cut", True))

    def reset(self) -> None:
        """Cut, and end every connection, as a firewall that restarts."""
        self.cut()
        self._do(self._end_all)

    def lead_to(self, port: int) -> None:
        """Connect to another server from here on, and end every connection."""
        self._do(lambda: setattr(self, "_target", port))
        self._do(self._end_all)

    def mend(self) -> None:
        """Connect anew from here on; connections that were cut are ended, for what they lost is lost."""
        self._do(self._end_all)
        self._do(lambda: setattr(self, "_is_cut", False))

    def close(self) -> None:
        """End everything; connecting is refused from here on."""
        if self._thread.is_alive():
            self._do(lambda: setattr(self, "_is_closed", True))
            self._thread.join()

    def _do(self, order: Callable[[], None]) -> None:
        done = threading.Event()
        self._orders.put((order, done))
        self._ring.send(b".")
        assert done.wait(60.0), "the proxy does not answer"

    def _run(self) -> None:
        with self._listener, self._bell, self._ring:
            while not self._is_closed:
                # Not select(): a long run of the tests has descriptors above its limit of 1024.
                sources = {one.fileno(): one for one in (self._listener, self._bell, *self._sinks)}
                ready = select.poll()
                for number in sources:
                    ready.register(number, select.POLLIN)
                for number, _ in ready.poll():
                    self._serve(sources[number])
            self._end_all()

    def _serve(self, source: socket.socket) -> None:
        if source is self._bell:
            source.recv(1)
            order, done = self._orders.get()
            order()
            done.set()
        elif source is self._listener:
            client, _ = source.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                # The server is down.
                client.close()
                return
            self._sinks[client], self._sinks[server] = server, client
        elif source in self._sinks:
            try:
                data = source.recv(65_536)
                if data and not self._is_cut:
                    self._sinks[source].sendall(data)
            except OSError:
                data = b""
            if not data:
                self._end(source)

    def _end(self, source: socket.socket) -> None:
        sink = self._sinks.pop(source)
        self._sinks.pop(sink)
        source.close()
        sink.close()

    def _end_all(self) -> None:
        while self._sinks:
            self._end(next(iter(self._sinks)))


@contextlib.contextmanager
def unprivileged_directory() -> Iterator[Path]:
    """Make a directory of the user that the server runs as; pytest's own lets no other user in."""
    directory = Path(tempfile.mkdtemp(prefix="trimtab-pg-"))
    try:
        if (user := unprivileged_user()) is not None:
            os.chown(directory, user.pw_uid, user.pw_gid)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def unprivileged_user() -> pwd.struct_passwd | None:
    """Return the user of the server where the tests run as root, which initdb refuses; None where they do not."""
    if os.geteuid():
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def as_user() -> dict[str, Any]:
    """Return how `subprocess` starts a process of that user."""
    user = unprivileged_user()
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def run_unprivileged(directory: Path, *command: object) -> None:
    """Run a command as that user to its end; RuntimeError with its error output when it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=2 * START_TIMEOUT_S,
        check=False,
        **as_user(),
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed: {done.stderr}")


def programs() -> Path:
    """Return where the server's commands are; Debian keeps them out of PATH, one directory per version."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda path: int(Path(path).parts[4]))
    initdb = Path(found[-1]) if found else Path(str(shutil.which("initdb")))
    return initdb.resolve().parent


def free_port() -> int:
    """Return a TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
