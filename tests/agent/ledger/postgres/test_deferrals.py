"""Deferral pools on PostgreSQL: two agents record each job once, and a start that changes hands arrives once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent.deferral.records import SubmissionResult
from agent.ledger import Ledger
from agent.rehearsal.scenario import AGENT_KEY, OWNER_KEY, REGION, SECRET, aws_client
from collectors.aws import AwsOptions, AwsSession
from domain.clock import VirtualClock
from domain.errors import Fenced
from simulator.aws.process import start_in_thread
from tests.agent.deferral.pools import START, job, made, order, queues_of, stages, taken_off, turning

pytestmark = pytest.mark.needs_postgresql

OpenLedger = Callable[..., Ledger]


def test_two_agents_asked_at_once_take_each_job_once(open_ledger: OpenLedger) -> None:
    clock = VirtualClock(START)
    pools = [made(open_ledger(busy_timeout_s=30.0), clock) for _ in range(2)]

    def asked(n: int) -> SubmissionResult:
        # Every job is given to both agents; some are cancelled by the other one.
        answer = pools[n % 2].submit(order(f"j{n // 2}"))
        if n % 3 == 0:
            pools[(n + 1) % 2].cancel(answer.job.job_id)
        return answer

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(asked, range(20)))
    assert sorted(one.already for one in answers) == [False] * 10 + [True] * 10
    assert stages(pools[0]) == stages(pools[1])
    totals = pools[1].current().head.totals
    assert (totals.submitted, totals.cancelled) == (10, 7)


@pytest.mark.parametrize("fifo", [True, False])
@pytest.mark.parametrize("deposed_at", ["ReceiveMessage", "DeleteMessageBatch", "SendMessageBatch"])
def test_what_one_agent_began_the_next_one_ends(open_ledger: OpenLedger, fifo: bool, deposed_at: str) -> None:
    clock = VirtualClock(START)
    running = start_in_thread(clock)
    client = aws_client("sqs", running.endpoint, OWNER_KEY)
    options = AwsOptions(REGION, running.endpoint, access_key_id=AGENT_KEY, secret_access_key=SECRET)
    sessions = [AwsSession(options, clock, read_only=False) for _ in range(2)]
    try:
        jobs = [job(f"j{n}", 4, 3) for n in range(14)]
        submit, ready = queues_of(client, "both", *jobs, fifo=fifo)
        ledgers = [open_ledger(), open_ledger()]
        turns = [
            turning(made(ledger, clock, submit_queue_url=submit, ready_queue_url=ready), session=session)
            for ledger, session in zip(ledgers, sessions, strict=True)
        ]
        epochs = [ledgers[0].take_epoch("one", clock.now())]
        mutate = sessions[0].mutate

        def deposed(service: str, operation: str, /, **about: Any) -> dict[str, Any]:
            answer = mutate(service, operation, **about)
            if operation == deposed_at and len(epochs) == 1:
                epochs.append(ledgers[1].take_epoch("two", clock.now()))
            return answer

        sessions[0].mutate = deposed  # type: ignore[method-assign]
        turns[0].pool.report(100)
        with pytest.raises(Fenced):
            turns[0].turn(clock.now(), epochs[0])
        clock.advance(121.0)
        for _ in range(2):
            turns[1].turn(clock.now(), epochs[1])
        found = Counter(one["job_id"] for one in taken_off(client, ready))
        state = turns[1].pool.current()
        assert set(found) == set(state.jobs) == {f"j{n}" for n in range(14)}
        assert set(stages(turns[1].pool).values()) == {"running"}
        twice = found.total() - len(found)
        # Ten arrived before; of the four others the second agent cannot know that they were not sent.
        sent_before = deposed_at == "SendMessageBatch" and not fifo
        assert (twice, state.head.totals.repeated_starts) == ((10, 14) if sent_before else (0, 0))
        assert not taken_off(client, submit)
    finally:
        for session in sessions:
            session.close()
        running.stop()
