"""pgbouncer in transaction mode in front of a PostgreSQL server, which it can leave for another one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.agent.ledger.postgres.server import as_user, free_port, unprivileged_directory

START_TIMEOUT_S = 30.0
SETTINGS = """
[databases]
{name} = host=127.0.0.1 port={to}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {directory}/users
pool_mode = transaction
default_pool_size = {pool_size}
server_connect_timeout = 1
server_login_retry = 0.2
query_wait_timeout = 1
"""


class Pooler:
    """A running pgbouncer that leads to one database."""

    def __init__(self, directory: Path, name: str, pool_size: int) -> None:
        self._directory, self._name, self._pool_size = directory, name, pool_size
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The database's URL through it."""
        return f"postgresql+psycopg://trimtab@127.0.0.1:{self.port}/{self._name}"

    def lead_to(self, port: int) -> None:
        """Lead to the server at a port from here on."""
        words = {"name": self._name, "to": port, "port": self.port, "directory": self._directory}
        (self._directory / "pooler.ini").write_text(SETTINGS.format(pool_size=self._pool_size, **words))
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        (self._directory / "users").write_text('"trimtab" ""\n')
        path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(shutil.which("pgbouncer", path=path)), str(self._directory / "pooler.ini")],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **as_user(),
            )
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return
            assert self._process.poll() is None, (self._directory / "log").read_text()
            assert time.monotonic() < end, "pgbouncer takes no connections"
            time.sleep(0.02)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def running_pooler(port: int, name: str, pool_size: int) -> Iterator[Pooler]:
    """Run pgbouncer in front of the database `name` of the server at a port until the block ends.

    pool_size: how many connections to the server all clients share.
    """
    with unprivileged_directory() as directory:
        pooler = Pooler(directory, name, pool_size)
        pooler.lead_to(port)
        try:
            pooler.start()
            yield pooler
        finally:
            pooler.stop()
