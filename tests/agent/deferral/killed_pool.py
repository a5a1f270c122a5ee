"""Kills an agent's pool before and after each call to SQS and each write to the ledger, and says what it left behind.

Jobs lie on a submit queue of a simulated AWS. A first life receives, decides and sends, and is killed at a point; a
second one goes on with the next turn. Then every job must have been started once, and be on the ready queue: once
where that is a FIFO queue, else at least once, with as many repeated as were counted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.deferral.store import DeferralStore
from agent.ledger import Ledger
from agent.rehearsal.scenario import AGENT_KEY, OWNER_KEY, REGION, SECRET, aws_client
from collectors.aws import AwsOptions, AwsSession
from domain.clock import VirtualClock
from domain.units import HOUR_S
from simulator.aws.client import CloudControl
from simulator.aws.process import start_process
from tests.agent.deferral.pools import POOL, START, made, turning

JOBS = 14
"""More than one call of SQS takes."""
CORES = 24
TIMES = [START, START + 60.0, START + HOUR_S, START + 3 * HOUR_S, START + 6 * HOUR_S]
HIDDEN_S = 121.0
"""A message that was received and not deleted is hidden for less."""
Queues = tuple[str, str]
"""The URLs of the submit queue and of the ready queue."""


class Life:
    """A process's turns; killed at the `at`-th point, None for never."""

    def __init__(self, at: int | None) -> None:
        self._at, self.points = at, 0

    def point(self) -> None:
        """Die here, if this is the point."""
        if self.points == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.points += 1

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call with a point before and one after it."""

        def called(*args: Any, **given: Any) -> Any:
            self.point()
            answer = call(*args, **given)
            self.point()
            return answer

        return called

    def live(self, url: str, endpoint: str, queues: Queues, first: int, after: Callable[[int], object]) -> None:
        """Take the turns from `first` on; `after` is called with the number of each that is over."""
        clock = VirtualClock(TIMES[first])
        options = AwsOptions(REGION, endpoint, access_key_id=AGENT_KEY, secret_access_key=SECRET)
        session = AwsSession(options, clock, read_only=False)
        with Ledger.open(url) as ledger:
            epoch = ledger.take_epoch(f"life-{os.getpid()}", clock.now())
            pool = made(ledger, clock, submit_queue_url=queues[0], ready_queue_url=queues[1])
            turns = turning(pool, session=session)
            session.mutate = self.around(session.mutate)  # type: ignore[method-assign]
            turns.pool.store.write = self.around(turns.pool.store.write)  # type: ignore[method-assign]
            for number in range(first, len(TIMES)):
                clock.advance(max(0.0, TIMES[number] - clock.now()))
                pool.report(CORES)
                turns.turn(clock.now(), epoch)
                after(number)
        session.close()


def killed(url: str, endpoint: str, queues: Queues, first: int, at: int | None) -> tuple[int, bool, int]:
    """Let a child live from turn `first`; return the turn to go on with, whether it was killed, and its points."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        life = Life(at)
        try:
            life.live(url, endpoint, queues, first, lambda n: os.write(writing, f"{n + 1}\n".encode()))
            os.write(writing, f"points {life.points}\n".encode())
            os._exit(0)
        except BaseException as error:
            os.write(writing, f"failed {error!r}\n".encode())
            os._exit(3)
    os.close(writing)
    with os.fdopen(reading) as numbers:
        lines = numbers.read().split("\n")
    _, status = os.waitpid(child, 0)
    failed = [line for line in lines if line.startswith("failed")]
    if failed:
        raise RuntimeError(failed[0])
    turns = [int(line) for line in lines if line.isdigit()]
    points = [int(line.split()[1]) for line in lines if line.startswith("points")]
    return (turns[-1] if turns else first), os.WIFSIGNALED(status), (points[0] if points else 0)


def fresh_queues(client: Any, name: str, *, fifo: bool) -> Queues:
    """Return a submit queue with the jobs on it, and an empty ready queue."""
    submit = client.create_queue(QueueName=f"submit-{name}")["QueueUrl"]
    about = {"FifoQueue": "true"} if fifo else {}
    ready = client.create_queue(QueueName=f"ready-{name}.fifo" if fifo else f"ready-{name}", Attributes=about)[
        "QueueUrl"
    ]
    for n in range(JOBS):
        job = {"job_id": f"j{n}", "cores": 4, "duration_steps": 3, "latest_at": START + 30 * HOUR_S}
        client.send_message(QueueUrl=submit, MessageBody=json.dumps(job))
    return submit, ready


def drained(client: Any, url: str) -> Counter[str]:
    """Return how often each job is on a queue, and empty it."""
    found: Counter[str] = Counter()
    while messages := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
        for message in messages:
            found[json.loads(message["Body"])["job_id"]] += 1
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return found


def wrong_after(url: str, client: Any, queues: Queues, *, fifo: bool) -> list[str]:
    """Return what is wrong once the second life is over."""
    wrong = []
    everything = {f"j{n}" for n in range(JOBS)}
    left = drained(client, queues[0])
    sent = drained(client, queues[1])
    with Ledger.open(url, read_only=True) as ledger:
        state = DeferralStore(ledger).read(POOL)
        steps = DeferralStore(ledger).newest(POOL, 1000, "step")
    if left:
        wrong.append(f"still on the submit queue: {dict(left)}")
    if set(state.jobs) != everything:
        wrong.append(f"not recorded: {sorted(everything - set(state.jobs))}")
    waiting = [job.job_id for job in state.jobs.values() if job.stage in ("waiting", "starting", "expired")]
    if waiting:
        wrong.append(f"not started: {waiting}")
    starts = Counter(one.job_id for step in steps for one in getattr(step, "starts", ()))
    twice = [name for name, number in starts.items() if number > 1]
    if twice:
        wrong.append(f"decided twice: {twice}")
    if set(sent) != everything:
        wrong.append(f"not on the ready queue: {sorted(everything - set(sent))}")
    more = sum(sent.values()) - len(sent)
    if more > (0 if fifo else state.head.totals.repeated_starts):
        wrong.append(f"{more} more starts on the ready queue than jobs, {state.head.totals.repeated_starts} counted")
    return wrong


def main(directory: Path, every: int, fifo: bool) -> None:
    """Kill at every n-th point, and print what was wrong after each death."""
    wrong: dict[str, list[str]] = {}
    deaths = 0
    with start_process(["--virtual", repr(START)]) as process:
        client, control = aws_client("sqs", process.endpoint, OWNER_KEY), CloudControl(process.endpoint)
        queues = fresh_queues(client, "whole", fifo=fifo)
        url = f"sqlite:///{directory}/whole.db"
        _, _, points = killed(url, process.endpoint, queues, 0, None)
        if found := wrong_after(url, client, queues, fifo=fifo):
            wrong["none"] = found
        for at in range(0, points, every):
            queues = fresh_queues(client, str(at), fifo=fifo)
            url = f"sqlite:///{directory}/{at}.db"
            following, died, _ = killed(url, process.endpoint, queues, 0, at)
            deaths += died
            control.advance(HIDDEN_S)
            killed(url, process.endpoint, queues, min(following, len(TIMES) - 1), None)
            if found := wrong_after(url, client, queues, fifo=fifo):
                wrong[str(at)] = found
    print(json.dumps({"points": points, "deaths": deaths, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "fifo")
