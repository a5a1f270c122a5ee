"""A ledger of its own, at a time that only the test moves."""

from collections.abc import Iterator
from typing import Any

import pytest

from agent.ledger import Ledger
from agent.rehearsal.scenario import AGENT_KEY, OWNER_KEY, REGION, SECRET, aws_client
from collectors.aws import AwsOptions, AwsSession
from domain.clock import VirtualClock
from simulator.aws.process import RunningCloud
from tests.agent.deferral.pools import START, Make, Queues, made, queues_of, turning
from tests.agent.simulated_cloud import cloud
from tests.agent.sqlite_ledger import ledger, path

__all__ = ["cloud", "ledger", "path"]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
def make(cloud: RunningCloud, ledger: Ledger, clock: VirtualClock) -> Iterator[Make]:
    client = aws_client("sqs", cloud.endpoint, OWNER_KEY)
    options = AwsOptions(
        REGION, cloud.endpoint, access_key_id=AGENT_KEY, secret_access_key=SECRET, calls_per_minute=6000
    )
    session = AwsSession(options, clock, read_only=False)

    def queues(*, fifo: bool = True, **settings: Any) -> Queues:
        submit, ready = queues_of(client, fifo=fifo)
        pool = made(ledger, clock, submit_queue_url=submit, ready_queue_url=ready, **settings)
        return Queues(client, session, pool, turning(pool, session=session), clock)

    yield queues
    session.close()
