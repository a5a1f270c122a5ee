"""SIGKILL before and after every call to SQS and every write: no job is lost, none starts twice on a FIFO queue.

Jobs lie on a submit queue of a simulated AWS. A first life receives, decides and sends, and is killed at a point; a
second one goes on with the next turn. Then every job must have been started once, and be on the ready queue: once
where that is a FIFO queue, else at least once, with as many repeated as were counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.deferral.state import DeferralStore
from agent.ledger import Ledger
from agent.rehearsal.scenario import AGENT_KEY, OWNER_KEY, REGION, SECRET, aws_client
from collectors.aws import AwsOptions, AwsSession
from domain.clock import VirtualClock
from domain.units import HOUR_S
from simulator.aws.process import RunningCloud, start_in_thread
from tests.agent.deferral.pools import POOL, START, Queues, job, made, queues_of, turning
from tests.killed import Points, said_before_death

JOBS = {f"j{n}" for n in range(14)}
"""More than one call of SQS takes."""
CORES = 24
TIMES = [START, START + 60.0, START + HOUR_S, START + 3 * HOUR_S, START + 6 * HOUR_S]
HIDDEN_S = 121.0
"""A message that was received and not deleted is hidden for less."""


@dataclass
class Place:
    """A ledger of its own, and two queues of a cloud with the jobs on the first."""

    cloud: RunningCloud
    folder: Path
    fifo: bool
    name: str

    def __post_init__(self) -> None:
        self.url = f"sqlite:///{self.folder}/{self.name}.db"
        self.client = aws_client("sqs", self.cloud.endpoint, OWNER_KEY)
        jobs = [job(one, 4, 3, latest_at=START + 30 * HOUR_S) for one in sorted(JOBS)]
        self.submit, self.ready = queues_of(self.client, self.name, *jobs, fifo=self.fifo)

    @contextmanager
    def opened(self, at: float) -> Iterator[Queues]:
        """A pool of a process that starts at a time."""
        clock = VirtualClock(at)
        options = AwsOptions(REGION, self.cloud.endpoint, access_key_id=AGENT_KEY, secret_access_key=SECRET)
        session = AwsSession(options, clock, read_only=False)
        with Ledger.open(self.url) as ledger:
            pool = made(ledger, clock, submit_queue_url=self.submit, ready_queue_url=self.ready)
            yield Queues(self.client, session, pool, turning(pool, session=session), clock)
        session.close()

    def live(self, points: Points, first: int = 0, after: Callable[[str], object] = lambda said: None) -> None:
        """Take the turns from `first` on, and say the number of the next one after each."""
        with self.opened(TIMES[first]) as q, points.watched():
            q.session.mutate = points.around(q.session.mutate)  # type: ignore[method-assign]
            epoch = q.pool.ledger.take_epoch("a life", q.clock.now())
            for number in range(first, len(TIMES)):
                q.clock.advance(max(0.0, TIMES[number] - q.clock.now()))
                q.pool.report(CORES)
                q.turns.turn(q.clock.now(), epoch)
                after(str(number + 1))

    def check(self) -> None:
        """Every job was started once, and is on the ready queue."""
        with self.opened(TIMES[-1]) as q:
            assert q.left() == 0
            sent = Counter(one["job_id"] for one in q.ready())
        with Ledger.open(self.url, read_only=True) as ledger:
            state, steps = DeferralStore(ledger).read(POOL), DeferralStore(ledger).newest(POOL, 1000, "step")
        assert {name: one.stage for name, one in state.jobs.items() if one.stage in UNSTARTED} == {}
        assert state.jobs.keys() == sent.keys() == JOBS
        starts: Counter[Any] = Counter(one.job_id for step in steps for one in getattr(step, "starts", ()))
        assert starts == dict.fromkeys(JOBS, 1)
        assert sent.total() - len(JOBS) <= (0 if self.fifo else state.head.totals.repeated_starts)


UNSTARTED = ("waiting", "starting", "expired")


@pytest.mark.exhaustive
@pytest.mark.parametrize("fifo", [True, False])
@pytest.mark.parametrize("part", range(4))
def test_a_killed_pool_loses_no_job_and_starts_none_twice(tmp_path: Path, part: int, fifo: bool) -> None:
    cloud = start_in_thread(VirtualClock(START))
    try:
        whole, points = Place(cloud, tmp_path, fifo, "whole"), Points(None)
        whole.live(points)
        whole.check()
        assert points.count >= 4
        for at in range(1 + part, points.count + 1, 4):
            place = Place(cloud, tmp_path, fifo, str(at))
            said = said_before_death(lambda tell, at=at, place=place: place.live(Points(at), 0, tell))
            cloud.cloud.clock.advance(HIDDEN_S)
            place.live(Points(None), min(len(said), len(TIMES) - 1))
            place.check()
    finally:
        cloud.stop()
