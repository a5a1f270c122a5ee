"""Starting and stopping the cloud: in a thread for tests, or as a process of its own that ends with its parent."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    `moto.core.utils.utcnow`, which most of its modules import by name; this function loads the services we serve and
    replaces that one wherever moto holds it. `moto.core.utils.unix_time`, which SQS uses for visibility, delay and
    retention, calls it. This is process-wide: one clock at a time. Long polls wait outside moto (`queues`).
    """
    for service in SERVICES:
        importlib.import_module(f"moto.{service}.models")
        importlib.import_module(f"moto.{service}.responses")
    core = importlib.import_module("moto.core.utils")
    original = core.utcnow

    def utcnow() -> datetime.datetime:
        return datetime.datetime.fromtimestamp(clock.now(), tz=datetime.UTC).replace(tzinfo=None)

    holders = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("moto.") and vars(module).get("utcnow") is original
    ]
    for module in holders:
        vars(module)["utcnow"] = utcnow

    def restore() -> None:
        for module in holders:
            vars(module)["utcnow"] = original

    return restore


class QuietHandler(MotoRequestHandler):
    """Serves without a log line per request or the pause of Nagle's algorithm, and closes where a fault demands it."""

    disable_nagle_algorithm = True

    def log(self, *about: Any) -> None:
        """Log nothing: the call log has it."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the time of the cloud, which its answers carry as their date."""
        application: Endpoint = self.server.app  # type: ignore[assignment]
        return super().date_time_string(application.cloud.clock.now() if timestamp is None else timestamp)

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


@dataclass(frozen=True, slots=True)
class CloudProcess:
    """A cloud served by a process of its own."""

    endpoint: str
    popen: subprocess.Popen[str]


@contextmanager
def start_process(arguments: Sequence[str] = (), *, ready_timeout_s: float = 30.0) -> Iterator[CloudProcess]:
    """Run `python -m simulator.aws` with `arguments` until the block ends; it also ends when this process does.

    Raises: RuntimeError when it is not ready within `ready_timeout_s`.
    """
    command = [sys.executable, "-m", "simulator.aws", "--port", "0", "--parent", str(os.getpid()), *arguments]
    popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    watchdog = threading.Timer(ready_timeout_s, popen.kill)
    watchdog.start()
    try:
        line = popen.stdout.readline() if popen.stdout is not None else ""
        watchdog.cancel()
        if not line:
            raise RuntimeError(
                f"the simulated cloud did not start (exit {popen.wait()}): run {' '.join(command)} to see why"
            )
        yield CloudProcess(json.loads(line)["endpoint"], popen)
    finally:
        watchdog.cancel()
        popen.terminate()
        try:
            popen.wait(5.0)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()
        if popen.stdout is not None:
            popen.stdout.close()
