"""Kills a service that is asked and told as fast as it can be, again and again, and says what each death left behind.

A seeded history of requests and events is fed one by one. Each step's number is told once it was answered. After a
death the next process goes on from the first step that was not answered, as a client would that repeats it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.admission.records import AdmissionDecision, AdmissionRequest, DeploymentEvent
from agent.admission.service import AdmissionService
from agent.admission.store import AdmissionStore
from agent.ledger import Ledger
from domain.clock import VirtualClock
from domain.errors import BadInput
from tests.agent.admission.clusters import START, ask, event, rules

Step = AdmissionRequest | DeploymentEvent


def steps(seed: int, count: int) -> list[Step]:
    """Return a history in which deployments ask, start, grow, shrink and end, some of it impossible or told twice."""
    dice = random.Random(seed)
    made: list[Step] = []
    for n in range(count):
        at, name = START + 600.0 * n, f"d{dice.randrange(12)}"
        kind = dice.choice(["ask", "ask", "started", "scaled", "core_ended", "refused", "shutdown", "again"])
        if kind == "ask":
            made.append(ask(name, dice.randint(1, 60), request_id=f"r{n}"))
        elif kind == "again" and made:
            made.append(dice.choice(made))
        else:
            kind = "started" if kind == "again" else kind
            made.append(event(name, kind, dice.randint(1, 8), at, event_id=f"e{n}"))
    return made


def take(service: AdmissionService, step: Step) -> None:
    """Ask or tell; what cannot be is refused without a trace."""
    try:
        if isinstance(step, AdmissionRequest):
            service.admit(step)
        else:
            service.observe(step)
    except BadInput:
        pass


def feed(url: str, made: list[Step], start: int, after: Callable[[int], object]) -> None:
    """Feed the steps from `start` on; `after` hears the number of each once it was answered."""
    # With a tolerance of 0 no decision depends on when a future was last computed.
    clock = VirtualClock(START)
    with Ledger.open(url) as ledger:
        service = AdmissionService(rules(tolerance=0.0), AdmissionStore(ledger), clock)
        for n in range(start, len(made)):
            clock.step(START + 600.0 * n - clock.now())
            take(service, made[n])
            after(n)


def death(url: str, made: list[Step], start: int, delay_s: float) -> int:
    """Let a child go on from `start`, kill it after a while, and return the number of the last step that it told."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        feed(url, made, start, lambda n: os.write(writing, f"{n}\n".encode()))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as numbers:
        first = numbers.readline()
        time.sleep(delay_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        lines = (first + numbers.read()).split(b"\n")
    return int(lines[-2]) if len(lines) > 1 else start - 1


def belief(url: str) -> dict[str, Any]:
    """Return everything that the ledger holds of the cluster, but for how long decisions took."""
    with Ledger.open(url) as ledger:
        inside = AdmissionStore(ledger).inside("main")
        made = [
            (d.decision_id, d.deployment_id, d.cores, d.admit, d.reason.value, d.at, d.total_cores, _rounded(d))
            for d in AdmissionStore(ledger).newest("main", limit=10_000)
        ]
        events = sorted(item.event_id for item in AdmissionStore(ledger).events_since("main", 0.0))
        service = AdmissionService(rules(tolerance=0.0), AdmissionStore(ledger), VirtualClock(START))
        total = service.gauges(START).total_cores
    return {"inside": inside.deployments, "counts": inside.counts, "decisions": made, "events": events, "total": total}


def _rounded(decision: AdmissionDecision) -> float | None:
    # Sums that grew step by step differ in their last digits from those added up at a start.
    return None if decision.expected_cores is None else round(decision.expected_cores, 6)


def main(directory: Path, seed: int, count: int) -> None:
    """Feed one history without and one with deaths, and compare what is known after each death."""
    made = steps(seed, count)
    dice = random.Random(seed)
    whole, dying = f"sqlite:///{directory}/whole.db", f"sqlite:///{directory}/dying.db"
    for url in (whole, dying):
        Ledger.open(url).close()
    known = [belief(whole)]
    feed(whole, made, 0, lambda n: known.append(belief(whole)))
    wrong, deaths, done = list[str](), 0, -1
    while done < count - 1:
        done = death(dying, made, done + 1, dice.uniform(0.0, 0.06))
        deaths += 1
        now = belief(dying)
        # The step under way at the death may have been taken and not answered.
        can_be = known[done + 1 : done + 3]
        if now not in can_be:
            apart = [key for key in now if now[key] not in [one[key] for one in can_be]]
            wrong.append(f"after step {done}, at {made[done + 1 :][:1]}: {apart} differ: {now} is none of {can_be}")
    print(json.dumps({"deaths": deaths, "steps": count, "wrong": wrong, "decisions": len(known[-1]["decisions"])}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
