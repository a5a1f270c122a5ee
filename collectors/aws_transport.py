"""The last step before a changing request leaves: connect, check the fence, then send within a bound.

botocore announces a request before it has a connection, and a connection may take any time: name service, TCP, a proxy,
TLS, or a process that is stopped in between. So the fence is checked on the connection itself, when only the bytes are
left to be written, and from then on:

    fence checked -> SEND_WITHIN_S to hand every byte to the kernel -> UNACKNOWLEDGED_S for the peer to confirm them

What is not written in time is not written at all, and what is not confirmed in time the kernel gives up, so a request
arrives at most ARRIVES_WITHIN_S after the fence let it through, or never. One gap is left, which nothing can close: a
process stopped in the few microseconds between the last look at the clock and the kernel's write. A proxy may also hold
what it has confirmed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
    AWSPreparedRequest,
)
from botocore.exceptions import HTTPClientError
from botocore.httpsession import URLLib3Session

from domain.clock import since_boot
from domain.errors import CloudError, FailureClass, TrimtabError

SEND_WITHIN_S: Final = 1.0
UNACKNOWLEDGED_S: Final = 0.9
ARRIVES_WITHIN_S: Final = SEND_WITHIN_S + UNACKNOWLEDGED_S

Gate = Callable[[], str | None]
"""Called once the connection is made: returns the operation of a change that may be sent, None for a read; raises
when the change may not be sent."""


class GatedTransport:
    """Replaces a botocore client's HTTP session; every connection checks the gate before it sends.

    Certificates, proxies, pools and time-outs stay botocore's own. What the gate raises comes through unchanged.
    """

    def __init__(self, session: URLLib3Session, gate: Gate) -> None:
        self._session = session
        # The session's managers, those of proxies made later included, share this one mapping.
        classes: dict[str, Any] = session._pool_classes_by_scheme  # type: ignore[attr-defined]
        if session._manager.pool_classes_by_scheme is not classes:  # type: ignore[attr-defined]
            raise RuntimeError("this botocore keeps its connection classes elsewhere: the fence cannot be put in place")
        classes.update(_gated_pools(gate))

    def send(self, request: AWSPreparedRequest) -> Any:
        """Send a request and return its response."""
        try:
            return self._session.send(request)
        except HTTPClientError as error:
            refusal = error.kwargs.get("error")
            if isinstance(refusal, TrimtabError):
                raise refusal from None
            raise

    def close(self) -> None:
        """Close the connections."""
        self._session.close()


def _gated_pools(gate: Gate) -> dict[str, type]:
    class PlainConnection(_GatedConnection, AWSHTTPConnection):  # type: ignore[misc]
        gate_of_client = staticmethod(gate)

    class TlsConnection(_GatedConnection, AWSHTTPSConnection):  # type: ignore[misc]
        gate_of_client = staticmethod(gate)

    class PlainPool(AWSHTTPConnectionPool):
        ConnectionCls = PlainConnection

    class TlsPool(AWSHTTPSConnectionPool):
        ConnectionCls = TlsConnection

    return {"http": PlainPool, "https": TlsPool}


class _GatedConnection:
    """A connection that checks its gate when it is made, and sends a change within SEND_WITHIN_S of that."""

    gate_of_client: Gate
    sock: socket.socket | None
    connect: Callable[[], None]
    _operation: str | None = None
    _send_by = 0.0

    def request(self, *args: Any, **kwargs: Any) -> Any:
        """Connect, check the gate, and send the request."""
        if self.sock is None:
            self.connect()
        operation = self.gate_of_client()
        if operation is None:
            return super().request(*args, **kwargs)  # type: ignore[misc]
        self._operation, self._send_by = operation, since_boot() + SEND_WITHIN_S
        _give_up_unacknowledged(self.sock)
        try:
            return super().request(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._operation = None

    def send(self, data: Any) -> Any:
        """Write bytes, unless they belong to a change whose time is up; the connection is then closed by its pool."""
        if self._operation is not None and self.sock is not None:
            left_s = self._send_by - since_boot()
            if left_s <= 0.0:
                late = (
                    f"the request was not sent within {SEND_WITHIN_S:g} s of the check that this process may act, "
                    "so it was dropped; the next turn decides again"
                )
                raise CloudError(self._operation, FailureClass.UNAVAILABLE, "SendDeadline", late)
            self.sock.settimeout(left_s)
        return super().send(data)  # type: ignore[misc]


def _give_up_unacknowledged(sock: Any) -> None:
    """Have the kernel end the connection when the other side does not confirm what was sent.

    Left alone it repeats the bytes for a quarter of an hour, and AWS would carry out an outdated request.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None and hasattr(sock, "setsockopt"):
        sock.setsockopt(socket.IPPROTO_TCP, option, int(1000 * UNACKNOWLEDGED_S))
