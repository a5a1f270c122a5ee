"""The metadata client against a real HTTP server that insists on tokens as AWS does, and the use of its responses."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event

import pytest

from agent.service.vm_agent import vm_id
from collectors.instance_metadata import InstanceMetadata
from collectors.run_directory import RunDirectory
from collectors.vm_reporter import DrainWatch
from domain.errors import CollectionFailed
from tests.collectors.surroundings import closed_port, http_server, respond

TARGET = "autoscaling/target-lifecycle-state"
SPOT = "spot/instance-action"


@dataclass
class Metadata:
    """What the service knows, the tokens it gave out, and which of them it still takes."""

    url: str
    items: dict[str, str] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    revoked: set[str] = field(default_factory=set)
    status: int = 200


@pytest.fixture
def service() -> Iterator[Metadata]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.command == "PUT":
            assert handler.path == "/latest/api/token"
            assert 0 < int(handler.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21_600
            there.tokens.append(f"token-{len(there.tokens)}")
            return respond(handler, there.tokens[-1].encode(), there.status)
        token = handler.headers.get("X-aws-ec2-metadata-token")
        item = there.items.get(handler.path.removeprefix("/latest/meta-data/"))
        if token not in there.tokens or token in there.revoked:
            return respond(handler, status=401)
        return respond(handler, status=404) if item is None else respond(handler, item.encode())

    with http_server(answer) as url:
        there = Metadata(url, {"instance-id": "i-0abc"})
        yield there


def nobody() -> str:
    return f"http://127.0.0.1:{closed_port()}"


def test_one_token_serves_until_it_is_refused(service: Metadata) -> None:
    metadata = InstanceMetadata(service.url)
    assert [metadata.instance_id() for _ in range(3)] == ["i-0abc"] * 3
    assert service.tokens == ["token-0"]
    service.revoked.add("token-0")
    assert metadata.instance_id() == "i-0abc"
    assert service.tokens == ["token-0", "token-1"]


def test_without_a_token_there_is_no_answer_and_no_older_protocol(service: Metadata) -> None:
    service.status = 403
    with pytest.raises(CollectionFailed, match="latest/api/token: status 403"):
        InstanceMetadata(service.url).instance_id()


def test_a_vm_leaves_when_its_group_terminates_it_or_aws_takes_it_back(service: Metadata) -> None:
    metadata = InstanceMetadata(service.url)
    assert metadata.leaving() is None
    service.items[TARGET] = "InService"
    assert metadata.leaving() is None
    service.items[SPOT] = '{"action": "terminate", "time": "2026-11-21T08:22:00Z"}'
    assert metadata.leaving() == "spot interruption: terminate"
    service.items[SPOT] = "\x1b[31mnonsense"
    assert metadata.leaving() == "spot interruption: unknown action"
    service.items[TARGET] = "Terminated"
    assert metadata.leaving() == "the group terminates it"


@pytest.mark.parametrize(
    ("target", "leaves"),
    [
        ("InService", False),
        ("Standby", False),
        ("Detached", False),
        ("Terminated", True),
        ("Warmed:Stopped", True),
        ("Warmed:Hibernated", True),
        ("Warmed:Running", True),
        ("Warmed:Terminated", True),
        ("RootVolumeReplaced", True),
    ],
)
def test_a_vm_leaves_towards_each_state_in_which_it_does_no_work(service: Metadata, target: str, leaves: bool) -> None:
    service.items[TARGET] = f"{target}\n"
    assert (InstanceMetadata(service.url).leaving() is not None) is leaves


def test_a_silent_service_is_given_up_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        metadata = InstanceMetadata(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
        began = time.monotonic()
        with pytest.raises(CollectionFailed, match="TimeoutError"):
            metadata.instance_id()
        assert time.monotonic() - began < 20.0


def test_the_drain_file_follows_the_metadata_and_stays_when_there_is_no_answer(
    service: Metadata, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path)
    watch = DrainWatch(InstanceMetadata(service.url), directory, lambda: 1_795_209_000.0)
    drain = tmp_path / "drain"
    watch.poll()
    assert not drain.exists()
    service.items[SPOT] = '{"action": "stop"}'
    watch.poll()
    assert drain.read_text() == "1795209000 spot interruption: stop\n"
    service.status = 500
    service.revoked.update(service.tokens)
    watch.poll()
    assert (watch.reason, drain.exists()) == ("spot interruption: stop", True)
    service.status = 200
    del service.items[SPOT]
    watch.poll()
    assert (watch.reason, drain.exists()) == (None, False)


def test_a_collector_that_starts_anew_keeps_a_drain_until_it_knows_better(service: Metadata, tmp_path: Path) -> None:
    drain = tmp_path / "drain"
    drain.write_text("1795209000 the group terminates it\n")
    DrainWatch(InstanceMetadata(nobody()), RunDirectory(tmp_path), time.time).poll()
    assert drain.exists()
    DrainWatch(InstanceMetadata(service.url), RunDirectory(tmp_path), time.time).poll()
    assert not drain.exists()


def test_a_vm_is_called_by_its_instance_id_and_elsewhere_by_its_host_name(service: Metadata) -> None:
    stopping = Event()
    assert vm_id(InstanceMetadata(service.url), stopping, on_ec2=True) == "i-0abc"
    elsewhere = vm_id(InstanceMetadata(nobody()), stopping, on_ec2=False, host_name=lambda: "worker-7.example.org")
    assert elsewhere == "worker-7"


def test_on_ec2_a_vm_waits_for_its_id_and_can_be_stopped_meanwhile() -> None:
    stopping = Event()
    threading.Timer(0.2, stopping.set).start()
    assert vm_id(InstanceMetadata(nobody()), stopping, on_ec2=True) is None
