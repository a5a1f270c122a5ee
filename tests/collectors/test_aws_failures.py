"""What a failed call means: every kind of error in its class, on real sockets where the error is about one."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from botocore.exceptions import (
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    SSLError,
    UnauthorizedSSOTokenError,
)

from collectors.aws import AwsOptions, AwsSession
from collectors.aws_failures import classify
from domain.clock import WallClock
from domain.errors import CloudError, FailureClass
from tests.collectors.surroundings import closed_port, tcp_server
from tests.golden import check_wording

CHANGE, READ = "TerminateInstanceInAutoScalingGroup", "DescribeAutoScalingGroups"


def answered(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "said"}, "ResponseMetadata": {"HTTPStatusCode": status}}, CHANGE
    )


@pytest.mark.parametrize(
    ("code", "status", "failure"),
    [
        ("Throttling", 400, FailureClass.THROTTLE),
        ("RequestLimitExceeded", 503, FailureClass.THROTTLE),
        ("ThrottlingException", 400, FailureClass.THROTTLE),
        ("Surprise", 429, FailureClass.THROTTLE),
        ("InsufficientInstanceCapacity", 500, FailureClass.CAPACITY),
        ("VcpuLimitExceeded", 400, FailureClass.CAPACITY),
        ("AccessDenied", 403, FailureClass.CREDENTIALS),
        ("UnauthorizedOperation", 403, FailureClass.CREDENTIALS),
        ("ExpiredToken", 403, FailureClass.CREDENTIALS),
        ("InvalidClientTokenId", 403, FailureClass.CREDENTIALS),
        ("ScalingActivityInProgress", 400, FailureClass.UNAVAILABLE),
        ("ResourceContention", 500, FailureClass.UNAVAILABLE),
        ("ValidationError", 400, FailureClass.PERMANENT),
        ("NoSuchThing", 404, FailureClass.PERMANENT),
    ],
)
def test_an_answer_is_classed_by_its_code(code: str, status: int, failure: FailureClass) -> None:
    error = classify(answered(code, status), CHANGE)
    assert (error.failure, error.code, str(error)) == (failure, code, f"{CHANGE}: {code}: said")


def test_a_server_error_may_have_had_its_effect_on_a_change_and_none_on_a_read() -> None:
    assert classify(answered("InternalFailure", 500), CHANGE).failure is FailureClass.UNKNOWN_OUTCOME
    assert classify(answered("InternalFailure", 500), READ).failure is FailureClass.UNAVAILABLE


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (NoCredentialsError(), FailureClass.CREDENTIALS),
        (UnauthorizedSSOTokenError(), FailureClass.CREDENTIALS),
        (ParamValidationError(report="no such field"), FailureClass.PERMANENT),
        (KeyError("surprise"), FailureClass.UNKNOWN_OUTCOME),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), FailureClass.UNKNOWN_OUTCOME),
        (SSLError(endpoint_url="https://aws", error="bad record mac"), FailureClass.UNKNOWN_OUTCOME),
        (ConnectionResetError("gone"), FailureClass.UNKNOWN_OUTCOME),
    ],
)
def test_what_botocore_raises_itself_is_classed_too(error: Exception, failure: FailureClass) -> None:
    assert classify(error, CHANGE).failure is failure


def test_a_classified_error_stays_what_it_is() -> None:
    error = CloudError(CHANGE, FailureClass.READ_ONLY, "ReadOnly", "observe mode")
    assert classify(error, CHANGE) is error


def test_a_long_message_is_cut() -> None:
    refusal = ClientError({"Error": {"Code": "AccessDenied", "Message": "x" * 10_000}}, CHANGE)
    assert len(str(classify(refusal, CHANGE))) < 500


def never_answer(connection: socket.socket) -> None:
    while connection.recv(65_536):
        pass


def hang_up(connection: socket.socket) -> None:
    connection.recv(65_536)


def reset(connection: socket.socket) -> None:
    connection.recv(10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def half_an_answer(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\nContent-Type: text/xml\r\n\r\n<half")


def nonsense(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<not-xml<")


def whole_request(connection: socket.socket) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)^content-length: *(\d+)", head, re.MULTILINE)
    assert length is not None
    while len(body) < int(length[1]):
        body += connection.recv(65_536)


def answer_with(body: bytes, kind: str, status: int = 200, more: bytes = b"") -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        whole_request(connection)
        head = f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\nConnection: close\r\n".encode()
        connection.sendall(head + more + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    return answer


WELL_FORMED = b"<html><head><title>Gateway</title></head><body>Please sign in</body></html>"
PAGES = {
    "a page that is also XML": (WELL_FORMED, "text/html"),
    "a page": (b"<!DOCTYPE html><html><meta charset=utf-8><br>&nbsp;Please sign in</html>", "text/html"),
    "a page in Latin-1": ("<html>Zugriff verweigert für Sie</html>".encode("latin-1"), "text/html"),
    "nothing": (b"", "text/xml"),
    "a word": (b"OK", "text/plain"),
    "other XML": (b"<Health><Status>up</Status></Health>", "text/xml"),
    "other JSON": (b'{"status": "up"}', "application/json"),
    "a JSON list": (b"[1, 2]", "application/json"),
    "bytes": (bytes(range(256)), "application/octet-stream"),
}
CHANGES = [
    ("autoscaling", "SetDesiredCapacity", {"AutoScalingGroupName": "web", "DesiredCapacity": 3}),
    ("autoscaling", CHANGE, {"InstanceId": "i-00000001", "ShouldDecrementDesiredCapacity": True}),
    ("ssm", "PutParameter", {"Name": "rates", "Value": "{}"}),
]
READS = [
    ("autoscaling", READ, {}),
    ("ec2", "DescribeInstances", {}),
    ("sqs", "GetQueueAttributes", {"QueueUrl": "https://sqs.us-east-1.amazonaws.com/1/jobs"}),
]


@contextmanager
def server(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve connections that behave badly."""
    with tcp_server(behave) as port:
        yield f"http://127.0.0.1:{port}"


def session(url: str) -> AwsSession:
    options = AwsOptions(
        "us-east-1", url, read_timeout_s=0.3, read_attempts=1, access_key_id="AKIA", secret_access_key="simulated"
    )
    return AwsSession(options, WallClock(), read_only=False)


@pytest.mark.parametrize("behave", [never_answer, hang_up, reset, half_an_answer, nonsense])
def test_a_request_that_left_and_was_not_answered_is_unknown_for_a_change(
    behave: Callable[[socket.socket], None],
) -> None:
    with server(behave) as url:
        aws = session(url)
        with pytest.raises(CloudError) as failed:
            aws.mutate("autoscaling", CHANGE, InstanceId="i-00000001", ShouldDecrementDesiredCapacity=True)
        assert failed.value.failure is FailureClass.UNKNOWN_OUTCOME
        with pytest.raises(CloudError) as failed:
            aws.read("autoscaling", READ)
        assert failed.value.failure is FailureClass.UNAVAILABLE
        aws.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("status", [200, 302, 403, 502])
@pytest.mark.parametrize("page", PAGES)
def test_a_response_of_another_server_confirms_no_change_and_is_no_reading(page: str, status: int) -> None:
    """A gateway, a proxy or a captive portal in between: whether AWS carried the change out is to be read back."""
    with server(answer_with(*PAGES[page], status)) as url:
        aws = session(url)
        for service, operation, about in CHANGES:
            with pytest.raises(CloudError) as failed:
                aws.mutate(service, operation, **about)
            assert failed.value.failure is FailureClass.UNKNOWN_OUTCOME, operation
        for service, operation, about in READS:
            with pytest.raises(CloudError) as failed:
                aws.read(service, operation, **about)
            assert failed.value.failure is FailureClass.UNAVAILABLE, operation
        aws.close()


def short(connection: socket.socket) -> None:
    # All of the request first: a connection closed over unread bytes is reset, and the answer may be lost.
    whole_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nx-amzn-RequestId: r-1\r\nContent-Length: 50\r\n\r\n{}")


def test_a_foreign_response_is_reported_with_its_content_and_source() -> None:
    """And one cut short: JSON that breaks off is read by botocore as an empty response, and so is a missing body."""
    request_id = b"x-amzn-RequestId: r-1\r\n"
    answers = {
        "a page": answer_with(WELL_FORMED, "text/html"),
        "JSON that breaks off": answer_with(b'{"Parameter": {"Na', "application/x-amz-json-1.1", more=request_id),
        "2 bytes of 50": short,
    }
    said: dict[str, str] = {}
    for name, behave in answers.items():
        with server(behave) as url:
            aws = session(url)
            with pytest.raises(CloudError) as failed:
                aws.mutate("ssm", "PutParameter", Name="rates", Value="{}")
            aws.close()
        assert (failed.value.failure, failed.value.code) == (FailureClass.UNKNOWN_OUTCOME, "UnreadableAnswer")
        said[name] = str(failed.value)
    check_wording("aws_answers", said)


def test_what_aws_itself_refuses_stays_permanent() -> None:
    refusal = b"<ErrorResponse><Error><Code>ValidationError</Code><Message>too many</Message></Error></ErrorResponse>"
    with server(answer_with(refusal, "text/xml", 400)) as url:
        aws = session(url)
        with pytest.raises(CloudError, match="ValidationError: too many") as failed:
            aws.mutate(*CHANGES[0][:2], **CHANGES[0][2])
        assert failed.value.failure is FailureClass.PERMANENT
        aws.close()


def test_a_request_without_a_connection_was_never_sent() -> None:
    aws = session(f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(CloudError) as failed:
        aws.mutate("autoscaling", CHANGE, InstanceId="i-00000001", ShouldDecrementDesiredCapacity=True)
    assert failed.value.failure is FailureClass.UNAVAILABLE
    aws.close()


def test_a_change_is_sent_once_and_a_read_as_often_as_set() -> None:
    connections: list[int] = []

    def count_and_hang_up(connection: socket.socket) -> None:
        connections.append(1)
        connection.recv(65_536)

    with server(count_and_hang_up) as url:
        options = AwsOptions("us-east-1", url, read_attempts=2, access_key_id="AKIA", secret_access_key="simulated")
        aws = AwsSession(options, WallClock(), read_only=False)
        with pytest.raises(CloudError):
            aws.mutate("autoscaling", CHANGE, InstanceId="i-00000001", ShouldDecrementDesiredCapacity=True)
        assert len(connections) == 1
        with pytest.raises(CloudError):
            aws.read("autoscaling", READ)
        assert len(connections) == 3
        aws.close()


def test_the_secret_is_not_shown() -> None:
    assert "hidden" not in repr(AwsOptions("us-east-1", access_key_id="AKIA", secret_access_key="hidden"))
