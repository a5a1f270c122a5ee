"""The cloud in a thread of this process, on a clock that moto then follows; `client.start_process` runs a process."""

from __future__ import annotations

import datetime
import importlib
import io
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from moto.core.base_backend import BackendDict
from moto.core.model_instances import reset_model_data
from moto.moto_api._internal import mock_random
from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import BaseWSGIServer, make_server

from domain.clock import Clock
from simulator.aws.cloud import Cloud
from simulator.aws.lifecycle import Delays
from simulator.aws.server import Endpoint

_running = threading.Lock()
_AMIS = "MOTO_EC2_LOAD_DEFAULT_AMIS"
"""Unless this is off, moto makes 1300 machine images per region, which takes longer than most tests."""


SERVICES = ("autoscaling", "cloudwatch", "ec2", "elb", "elbv2", "events", "iam", "sns", "sqs", "ssm", "sts")


def load_parameter_store() -> None:
    """Load what moto else reads with the first call to Parameter Store; it takes longer than a call may be given."""
    importlib.import_module("moto.ssm.urls")
    backends = importlib.import_module("moto.backends").get_backend("ssm")
    # Asking for one region makes those of the account.
    backends[importlib.import_module("moto.core").DEFAULT_ACCOUNT_ID]["us-east-1"]


def follow(clock: Clock) -> Callable[[], None]:
    """Make moto read `clock` in this process; return the call that gives moto the machine's time back.

    One second of an SQS visibility timeout is then one second of the simulated cloud. Moto reads the time through
    `moto.core.utils.utcnow` and `unix_time`, which most of its modules import by name; this function loads the services
    we serve and replaces these two wherever moto holds them. SQS asks `unix_time` twice for each message on a queue and
    call: moto's own makes two datetimes each time. This is process-wide: one clock at a time. Long polls wait outside
    moto (`queues`).
    """
    for service in SERVICES:
        importlib.import_module(f"moto.{service}.models")
        importlib.import_module(f"moto.{service}.responses")
    core = importlib.import_module("moto.core.utils")
    originals = {name: vars(core)[name] for name in ("utcnow", "unix_time")}

    def utcnow() -> datetime.datetime:
        return datetime.datetime.fromtimestamp(clock.now(), tz=datetime.UTC).replace(tzinfo=None)

    def unix_time(dt: datetime.datetime | None = None) -> float:
        return clock.now() if dt is None else float(originals["unix_time"](dt))

    ours = {"utcnow": utcnow, "unix_time": unix_time}
    holders = [
        (vars(module), name)
        for key, module in list(sys.modules.items())
        if key.startswith("moto.")
        for name, original in originals.items()
        if vars(module).get(name) is original
    ]
    for holder, name in holders:
        holder[name] = ours[name]

    def restore() -> None:
        for holder, name in holders:
            holder[name] = originals[name]

    return restore


class QuietHandler(MotoRequestHandler):
    """Serves without a log line per request or the pause of Nagle's algorithm, and closes where a fault demands it.

    It keeps a connection for the next request, as AWS does and werkzeug does not: a connection with its thread costs
    more than most requests.
    """

    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        """Note the connection, which ends with the cloud."""
        super().setup()
        self._application.connections.add(self.connection)

    def finish(self) -> None:
        """Forget the connection."""
        self._application.connections.discard(self.connection)
        super().finish()

    def run_wsgi(self) -> None:
        """Read one request whole, and write the whole response."""
        environ = self.make_environ()
        # A client may wait for the "100 Continue" that it has asked for.
        self.wfile.flush()
        if environ.get("wsgi.input_terminated"):
            body = environ["wsgi.input"].read()
            environ["CONTENT_LENGTH"] = str(len(body))
        else:
            body = self.rfile.read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        heads: list[tuple[str, list[tuple[str, str]]]] = []
        try:
            answer = b"".join(self._application(environ, lambda status, headers: heads.append((status, headers))))
            status, headers = heads[0]
            self.send_response(int(status[:3]), status[4:])
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else answer)
            self.wfile.flush()
        except OSError as error:
            self.connection_dropped(error, environ)

    @property
    def _application(self) -> Endpoint:
        application: Endpoint = self.server.app  # type: ignore[assignment]
        return application

    def log(self, *about: Any) -> None:
        """Log nothing: the call log has it."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the time of the cloud, which its answers carry as their date."""
        return super().date_time_string(self._application.cloud.clock.now() if timestamp is None else timestamp)

    def connection_dropped(self, error: BaseException, environ: dict[str, Any] | None = None) -> None:
        """Close the connection, which HTTP/1.1 would otherwise keep for the next request."""
        self.close_connection = True


@dataclass(slots=True)
class RunningCloud:
    """A cloud served from a thread of this process."""

    endpoint: str
    cloud: Cloud
    _server: BaseWSGIServer
    _application: Endpoint
    _thread: threading.Thread
    _restore: Callable[[], None]

    def stop(self) -> None:
        """Stop serving and forget everything; a second call does nothing."""
        if not self._thread.is_alive():
            return
        self._application.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in tuple(self._application.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._restore()
        _running.release()


def start_in_thread(
    clock: Clock, *, seed: int = 0, port: int = 0, delays: Delays | None = None, zone_rebalance: bool = False
) -> RunningCloud:
    """Serve a fresh cloud on loopback from a thread and return when it answers.

    Raises: RuntimeError when this process already runs one: moto's state and its time are process-wide.
    """
    if not _running.acquire(blocking=False):
        raise RuntimeError("this process already runs a cloud: stop() it first, or use start_process for a second one")
    amis = os.environ.get(_AMIS)
    os.environ[_AMIS] = "false"
    reset_model_data()
    BackendDict.reset()
    mock_random.seed(seed)
    give_time_back = follow(clock)
    cloud = Cloud(clock, seed, delays if delays is not None else Delays(), zone_rebalance)
    application = Endpoint(cloud)
    server = make_server("127.0.0.1", port, application, threaded=True, request_handler=QuietHandler)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="simulated-cloud", daemon=True
    )
    thread.start()

    def restore() -> None:
        give_time_back()
        if amis is None:
            del os.environ[_AMIS]
        else:
            os.environ[_AMIS] = amis

    return RunningCloud(f"http://127.0.0.1:{server.server_port}", cloud, server, application, thread, restore)
