"""A real carbon-cache and a real graphite-web as processes of their own, on free ports, in a directory of their own."""

import os
import pickle
import socket
import struct
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STARTS_WITHIN_S = 30.0
RETENTIONS = "1s:1h"

CARBON = """\
[cache]
STORAGE_DIR = {place}
CONF_DIR = {place}/conf
LOG_DIR = {place}/log
PID_DIR = {place}
LOCAL_DATA_DIR = {place}/whisper/
LINE_RECEIVER_INTERFACE = 127.0.0.1
LINE_RECEIVER_PORT = {lines}
ENABLE_UDP_LISTENER = True
UDP_RECEIVER_INTERFACE = 127.0.0.1
UDP_RECEIVER_PORT = {lines}
PICKLE_RECEIVER_INTERFACE = 127.0.0.1
PICKLE_RECEIVER_PORT = {pickles}
CACHE_QUERY_INTERFACE = 127.0.0.1
CACHE_QUERY_PORT = {queries}
MAX_CACHE_SIZE = inf
MAX_CREATES_PER_MINUTE = inf
MAX_UPDATES_PER_SECOND = {updates_per_s}
USE_FLOW_CONTROL = False
LOG_UPDATES = False
LOG_CREATES = False
LOG_CACHE_HITS = False
LOG_LISTENER_CONN_SUCCESS = False
CARBON_METRIC_INTERVAL = {own_interval_s}
ENABLE_TAGS = {tags}
GRAPHITE_URL = http://127.0.0.1:{web}
TAG_BATCH_SIZE = 1
TAG_UPDATE_INTERVAL = 1
"""

RELAY = """\
[relay]
STORAGE_DIR = {place}
CONF_DIR = {place}/conf
LOG_DIR = {place}/log
PID_DIR = {place}
LINE_RECEIVER_INTERFACE = 127.0.0.1
LINE_RECEIVER_PORT = {lines}
PICKLE_RECEIVER_INTERFACE = 127.0.0.1
PICKLE_RECEIVER_PORT = {pickles}
RELAY_METHOD = rules
DESTINATIONS = 127.0.0.1:{destination}:ours
DESTINATION_PROTOCOL = line
TIME_TO_DEFER_SENDING = 0.01
USE_FLOW_CONTROL = False
CARBON_METRIC_INTERVAL = 0
"""

WEB_SETTINGS = """\
from graphite.settings import *
SECRET_KEY = "only for tests"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
CARBONLINK_HOSTS = ["127.0.0.1:{queries}"]
TIME_ZONE = "UTC"
"""


@dataclass(frozen=True)
class Carbon:
    """A running carbon-cache."""

    place: Path
    port: int
    query_port: int
    web_port: int
    process: subprocess.Popen[bytes]

    def cached(self, metric: str) -> list[tuple[float, float]]:
        """Ask carbon's own query port for what its cache holds of a metric: (time, value) pairs."""
        question = pickle.dumps({"type": "cache-query", "metric": metric}, protocol=2)
        with socket.create_connection(("127.0.0.1", self.query_port), timeout=60.0) as link:
            link.sendall(struct.pack("!L", len(question)) + question)
            answer = _exactly(link, struct.unpack("!L", _exactly(link, 4))[0])
        points = pickle.loads(answer).get("datapoints", [])
        return [(float(at), float(value)) for at, value in points]

    @property
    def own_prefix(self) -> str:
        """What carbon calls its counters about itself."""
        return f"carbon.agents.{socket.gethostname().replace('.', '_')}-a"


@dataclass(frozen=True)
class Graphite:
    """A running graphite-web over the files and the cache of a carbon."""

    url: str
    carbon: Carbon


@contextmanager
def running_carbon(
    programs: Path,
    place: Path,
    *,
    port: int | None = None,
    updates_per_s: str = "inf",
    tags: bool = False,
    own_interval_s: int = 60,
) -> Iterator[Carbon]:
    """Run carbon-cache below `place` until the block ends."""
    lines, pickles, queries, web = free_ports(4)
    lines = port or lines
    _make_room(place)
    text = CARBON.format(
        place=place,
        lines=lines,
        pickles=pickles,
        queries=queries,
        web=web,
        updates_per_s=updates_per_s,
        tags=tags,
        own_interval_s=own_interval_s,
    )
    (place / "conf" / "carbon.conf").write_text(text)
    with _carbon_program(programs, "cache", place) as process:
        carbon = Carbon(place, lines, queries, web, process)
        wait_until(lambda: _listens(lines) and _listens(queries), process, place / "cache.log")
        yield carbon


@contextmanager
def running_relay(programs: Path, place: Path, destination: int) -> Iterator[int]:
    """Run carbon-relay, which passes on to the port `destination` as lines; yields its own port."""
    lines, pickles = free_ports(2)
    _make_room(place)
    (place / "conf" / "carbon.conf").write_text(
        RELAY.format(place=place, lines=lines, pickles=pickles, destination=destination)
    )
    rules = f"[all]\ndefault = true\ndestinations = 127.0.0.1:{destination}:ours\n"
    (place / "conf" / "relay-rules.conf").write_text(rules)
    with _carbon_program(programs, "relay", place) as process:
        wait_until(lambda: _listens(lines), process, place / "relay.log")
        yield lines


def _make_room(place: Path) -> None:
    for name in ("conf", "log", "whisper"):
        (place / name).mkdir(parents=True, exist_ok=True)
    (place / "conf" / "storage-schemas.conf").write_text(f"[all]\npattern = .*\nretentions = {RETENTIONS}\n")


@contextmanager
def _carbon_program(programs: Path, name: str, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    python, program = str(programs / "python"), str(programs / f"carbon-{name}.py")
    command = [python, "-W", "ignore", program, f"--config={place}/conf/carbon.conf", "--nodaemon", "start"]
    with child(command, place / f"{name}.log", {"GRAPHITE_ROOT": str(place)}) as process:
        yield process


@contextmanager
def running_web(programs: Path, carbon: Carbon) -> Iterator[Graphite]:
    """Run graphite-web over a carbon until the block ends."""
    place = carbon.place
    (place / "web_settings.py").write_text(WEB_SETTINGS.format(queries=carbon.query_port))
    (place / "log" / "webapp").mkdir(parents=True, exist_ok=True)
    about = {
        "PYTHONPATH": str(place),
        "DJANGO_SETTINGS_MODULE": "web_settings",
        "GRAPHITE_STORAGE_DIR": str(place),
        "GRAPHITE_CONF_DIR": str(place / "conf"),
    }
    python = str(programs / "python")
    migrate = [python, "-W", "ignore", "-m", "django", "migrate", "--run-syncdb", "--verbosity=0"]
    subprocess.run(migrate, env=_environment(about), check=True, timeout=60, capture_output=True)
    serve = [python, "-W", "ignore", "-m", "django", "runserver", "--noreload", f"127.0.0.1:{carbon.web_port}"]
    url = f"http://127.0.0.1:{carbon.web_port}"
    with child(serve, place / "web.log", about) as process:
        wait_until(lambda: _answers(f"{url}/render?format=json&target=none"), process, place / "web.log")
        yield Graphite(url, carbon)


@contextmanager
def child(command: list[str], log: Path, about: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends; what it writes goes to `log`."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=_environment(about))
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the program is up; AssertionError with the end of its log when it ends or takes too long."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode}:\n{log.read_text()[-2000:]}"
        assert time.monotonic() < deadline, f"not up after {STARTS_WITHIN_S:g} s:\n{log.read_text()[-2000:]}"
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Return free ports."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _environment(about: Mapping[str, str]) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "TRIMTAB_", "DJANGO_"))}
    return {**kept, **about}


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _exactly(link: socket.socket, count: int) -> bytes:
    taken = b""
    while len(taken) < count:
        piece = link.recv(count - len(taken))
        assert piece, "carbon closed the connection"
        taken += piece
    return taken
