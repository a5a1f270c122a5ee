"""SQS as workers need it under load and any clock: one call at a time inside moto, long polls waiting outside it.

Moto's queues are not safe against two receives at once: sixteen receivers on one queue soon get messages twice and
errors ("Set changed size during iteration"). Its long poll waits in wall seconds while holding a thread. So each call
runs alone, and a wait is repeated short receives until the wait is over on the cloud's clock. On a virtual clock,
where nothing happens while one waits, a long poll answers at once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from moto.sqs import sqs_backends

from domain.clock import Clock, VirtualClock
from simulator.aws.machines import ACCOUNT_ID
from simulator.aws.requests import AwsRequest, Response

POLL_WALL_S = 0.02


class Queues:
    """Serialized access to moto's SQS."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._one_at_a_time = threading.Lock()

    def call(self, request: AwsRequest, forward: Callable[[bytes], Response], closing: threading.Event) -> Response:
        """Answer one SQS request; `forward(body)` hands a body to moto, `closing` ends a long poll early."""
        if request.operation != "ReceiveMessage" or request.protocol != "json":
            with self._one_at_a_time:
                return forward(request.body)
        body = json.dumps({**request.document, "WaitTimeSeconds": 0}).encode()
        until = self._clock.now() + self._wait_s(request)
        while True:
            with self._one_at_a_time:
                answer = forward(body)
            nothing = answer[0] == 200 and not json.loads(answer[2] or b"{}").get("Messages")
            over = isinstance(self._clock, VirtualClock) or self._clock.now() >= until or closing.is_set()
            if not nothing or over:
                return answer
            time.sleep(POLL_WALL_S)

    def send(self, region: str, queue_name: str, body: str) -> bool:
        """Put a message on a queue from inside the cloud; return False when there is no such queue."""
        backend = sqs_backends[ACCOUNT_ID][region]
        if queue_name not in backend.queues:
            return False
        with self._one_at_a_time:
            backend.send_message(queue_name, body)
        return True

    def _wait_s(self, request: AwsRequest) -> float:
        if "WaitTimeSeconds" in request.document:
            return float(request.document["WaitTimeSeconds"])
        name = str(request.document.get("QueueUrl", "")).rsplit("/", 1)[-1]
        queue = sqs_backends[ACCOUNT_ID][request.region].queues.get(name)
        return float(getattr(queue, "receive_message_wait_time_seconds", 0) or 0) if queue is not None else 0.0
