"""The fence is the last act before a change leaves: after the connection, whatever it runs over, and within a bound."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from collectors import aws_transport
from collectors.aws import AwsOptions, AwsSession
from collectors.aws_transport import ARRIVES_WITHIN_S, SEND_WITHIN_S
from domain.clock import WallClock
from domain.errors import CloudError, FailureClass, Fenced, LedgerUnavailable
from tests.collectors.surroundings import tcp_server
from tests.waiting import until

ANSWER = (
    b"<SetDesiredCapacityResponse><ResponseMetadata><RequestId>r-1</RequestId></ResponseMetadata>"
    b"</SetDesiredCapacityResponse>"
)
READ_ANSWER = (
    b"<DescribeAutoScalingGroupsResponse><DescribeAutoScalingGroupsResult><AutoScalingGroups/>"
    b"</DescribeAutoScalingGroupsResult><ResponseMetadata><RequestId>r-2</RequestId></ResponseMetadata>"
    b"</DescribeAutoScalingGroupsResponse>"
)


@dataclass
class Door:
    """An AWS that notes when a connection to it stands and which bytes came over it; it may be a proxy as well."""

    tls: ssl.SSLContext | None = None
    before_tls: Callable[[], None] = lambda: None
    reads: bool = True
    connected: list[float] = field(default_factory=list)
    received: bytes = b""
    tunnels: list[bytes] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def serve(self, connection: socket.socket) -> None:
        connection.settimeout(60.0)
        with connection:
            if self.tls is not None:
                first = connection.recv(8, socket.MSG_PEEK)
                if first.startswith(b"CONNECT"):
                    self.tunnels.append(_head(connection).split(b"\r\n")[0])
                    connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self.before_tls()
                try:
                    connection = self.tls.wrap_socket(connection, server_side=True)
                except OSError:
                    return
            with connection:
                self.connected.append(time.monotonic())
                while self.reads and self._one(connection):
                    pass
                while not self.reads and not self.ended.wait(0.01):
                    pass

    def _one(self, connection: socket.socket) -> bool:
        data = b""
        try:
            while b"\r\n\r\n" not in data or not data.partition(b"\r\n\r\n")[2]:
                more = connection.recv(65_536)
                if not more:
                    return False
                self.received += more
                data += more
            answer = READ_ANSWER if b"Action=Describe" in data else ANSWER
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer)
            )
        except OSError:
            return False
        return True


def _head(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1)
    return data


@contextmanager
def opened(door: Door) -> Iterator[str]:
    """Serve the door; gives host and port."""
    with tcp_server(door.serve) as port:
        yield f"127.0.0.1:{port}"
        door.ended.set()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a certificate for 127.0.0.1, its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return file


def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


READ_TIMEOUT_S = 60.0


def session(url: str, fence: Callable[[], None]) -> AwsSession:
    options = AwsOptions(
        "us-east-1",
        url,
        read_timeout_s=READ_TIMEOUT_S,
        read_attempts=1,
        access_key_id="AKIA",
        secret_access_key="simulated",
    )
    return AwsSession(options, WallClock(), read_only=False, fence=fence)


def set_size(aws: AwsSession) -> None:
    aws.mutate("autoscaling", "SetDesiredCapacity", AutoScalingGroupName="web", DesiredCapacity=9)


def look_at(door: Door, seen: list[tuple[int, bytes]]) -> Callable[[], None]:
    """A fence that notes how many connections exist, and what they received, when it is checked."""

    def fence() -> None:
        until(lambda: door.connected)
        seen.append((len(door.connected), door.received))

    return fence


@pytest.mark.parametrize("way", ["http", "https", "https through a proxy", "http through a proxy"])
def test_the_fence_is_asked_when_the_connection_stands_and_no_byte_was_sent(
    way: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(tls=server_tls(certificate) if way.startswith("https") else None)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    with opened(door) as place:
        scheme = way.partition(" ")[0]
        if "proxy" in way:
            monkeypatch.setenv(f"{scheme}_proxy", f"http://{place}")
            monkeypatch.setenv("no_proxy", "")
            place = "127.0.0.1:9"
        seen: list[tuple[int, bytes]] = []
        aws = session(f"{scheme}://{place}", look_at(door, seen))
        set_size(aws)
        assert seen == [(1, b"")]
        assert b"Action=SetDesiredCapacity" in door.received
        set_size(aws)
        # The connection is used again, and the fence asked again.
        assert [connections for connections, _ in seen] == [1, 1]
        assert door.received.count(b"Action=SetDesiredCapacity") == 2
        assert [tunnel.split()[1] for tunnel in door.tunnels] == [b"127.0.0.1:9"] * (way == "https through a proxy")
        aws.close()


@pytest.mark.parametrize("refusal", [Fenced("epoch 1 is over"), LedgerUnavailable("the disk is full")])
def test_what_the_fence_refuses_after_the_connection_was_made_is_not_sent(refusal: Exception) -> None:
    def fence() -> None:
        raise refusal

    door = Door()
    with opened(door) as place:
        aws = session(f"http://{place}", fence)
        with pytest.raises(type(refusal), match=str(refusal)):
            set_size(aws)
        until(lambda: door.connected)
        assert (len(door.connected), door.received) == (1, b"")
        assert aws.budget.counts == {("autoscaling change", "fenced"): 1}
        aws.close()


def test_a_lead_that_is_lost_during_the_tls_handshake_lets_nothing_out(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = threading.Event()

    def fence() -> None:
        if lost.is_set():
            raise Fenced("epoch 1 is over")

    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    door = Door(tls=server_tls(certificate), before_tls=lost.set)
    with opened(door) as place:
        aws = session(f"https://{place}", fence)
        with pytest.raises(Fenced, match="epoch 1 is over"):
            set_size(aws)
        assert door.received == b""
        aws.close()


def test_a_certificate_of_a_stranger_is_still_refused(certificate: Path) -> None:
    asked: list[int] = []
    door = Door(tls=server_tls(certificate))
    with opened(door) as place:
        aws = session(f"https://{place}", lambda: asked.append(1))
        with pytest.raises(CloudError, match="CERTIFICATE_VERIFY_FAILED"):
            set_size(aws)
        assert (asked, door.received) == ([], b"")
        aws.close()


def test_reads_do_not_ask_the_fence(certificate: Path) -> None:
    door = Door()
    with opened(door) as place:
        aws = session(f"http://{place}", lambda: pytest.fail("asked"))
        assert aws.read("autoscaling", "DescribeAutoScalingGroups")["AutoScalingGroups"] == []
        aws.close()


@pytest.mark.parametrize("stopped_before", ["the head", "the body"])
def test_a_process_stopped_between_the_fence_and_the_bytes_sends_no_whole_request(
    stopped_before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of the request is not sent: AWS carries out no half of one."""
    readings = [0.0, 0.1] if stopped_before == "the body" else [0.0]
    monkeypatch.setattr(aws_transport, "since_boot", lambda: readings.pop(0) if readings else SEND_WITHIN_S)
    door = Door()
    with opened(door) as place:
        aws = session(f"http://{place}", lambda: None)
        with pytest.raises(CloudError, match=r"not sent within 1 s ") as late:
            set_size(aws)
        assert late.value.failure is FailureClass.UNAVAILABLE
        assert b"Action=" not in door.received
        aws.close()


def test_a_request_that_the_network_does_not_take_is_given_up_within_the_bound() -> None:
    door = Door(reads=False)
    with opened(door) as place:
        aws = session(f"http://{place}", lambda: None)
        began = time.monotonic()
        with pytest.raises(CloudError) as failed:
            aws.mutate("ssm", "PutParameter", Name="rates", Value="x" * 30_000_000)
        assert failed.value.failure is FailureClass.UNKNOWN_OUTCOME
        assert time.monotonic() - began < READ_TIMEOUT_S / 2.0
        aws.close()


def test_the_window_that_remains_is_below_two_seconds_and_the_kernel_holds_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: list[tuple[object, ...]] = []
    plain = socket.socket.setsockopt
    monkeypatch.setattr(socket.socket, "setsockopt", lambda self, *about: options.append(about) or plain(self, *about))
    door = Door()
    with opened(door) as place:
        aws = session(f"http://{place}", lambda: None)
        set_size(aws)
        aws.close()
    unacknowledged_ms = [value for level, name, value in options if name == socket.TCP_USER_TIMEOUT]
    assert len(unacknowledged_ms) == 1
    assert SEND_WITHIN_S + unacknowledged_ms[0] / 1000.0 == pytest.approx(ARRIVES_WITHIN_S)
    assert ARRIVES_WITHIN_S < 2.0
