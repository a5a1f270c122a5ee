"""What a failed call means: every kind of error in its class, on real sockets where the error is about one."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from botocore.exceptions import ClientError, NoCredentialsError, ParamValidationError, UnauthorizedSSOTokenError

from collectors.aws import AwsOptions, AwsSession
from collectors.aws_failures import classify
from domain.clock import WallClock
from domain.errors import CloudError, FailureClass

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
        (KeyError("surprise"), FailureClass.PERMANENT),
        (ConnectionResetError("gone"), FailureClass.UNKNOWN_OUTCOME),
    ],
)
def test_what_botocore_raises_itself_is_classed_too(error: Exception, failure: FailureClass) -> None:
    assert classify(error, CHANGE).failure is failure


def test_a_classified_error_stays_what_it_is() -> None:
    error = CloudError(CHANGE, FailureClass.READ_ONLY, "ReadOnly", "observe mode")
    assert classify(error, CHANGE) is error


def test_a_long_message_is_cut() -> None:
    said = ClientError({"Error": {"Code": "AccessDenied", "Message": "x" * 10_000}}, CHANGE)
    assert len(str(classify(said, CHANGE))) < 500


def never_answer(connection: socket.socket) -> None:
    threading.Event().wait(1.0)


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


@contextmanager
def server(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve connections that behave badly, one after the other."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                behave(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


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


def test_a_request_that_found_nobody_was_never_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    aws = session(url)
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
