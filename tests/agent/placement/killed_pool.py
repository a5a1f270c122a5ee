"""Kills an agent's pool that is asked as fast as it can be, again and again, and says what each death left behind.

A seeded history of requests, confirmations, releases and failures of hosts is fed one by one. Each step's number is
reported once it was answered. After a death the next process goes on from the first step that was not answered, as a
client would that repeats it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.ledger import Ledger, codec
from agent.placement.pool import PlacementPool
from agent.placement.records import HostState
from domain.clock import VirtualClock
from domain.errors import BadInput
from tests.agent.placement.hosts import START, app, ask, inventory, kind, made

DOCUMENT = inventory(app("shop", limit=2, excludes=["mail"]), app("mail", 2), hosts=[kind(count=5), kind("big", 32)])
Step = tuple[str, str, Any]


def steps(seed: int, count: int) -> list[Step]:
    """Return a history in which containers come and go and hosts drain and fail, some of it impossible or repeated."""
    dice = random.Random(seed)
    found: list[Step] = []
    asked = 0
    for _ in range(count):
        what = dice.choice(["ask", "ask", "ask", "confirm", "confirm", "cancel", "release", "part", "host", "again"])
        about = f"r{dice.randrange(max(1, asked))}"
        if what == "ask":
            found.append(("ask", f"r{asked}", (dice.choice(["shop", "mail"]), dice.randint(1, 6), dice.random() < 0.5)))
            asked += 1
        elif what == "host":
            order = dice.choice(["drain", "resume", "fail", "join"])
            found.append((order, f"large-{dice.randint(1, 5)}", None))
        elif what == "again" and found:
            found.append(dice.choice(found))
        else:
            found.append(("confirm" if what == "again" else what, about, None))
    return found


def take(pool: PlacementPool, step: Step) -> None:
    """Carry out a step; what cannot be is refused without a trace."""
    what, name, more = step
    try:
        if what == "ask":
            pool.request(ask(name, more[0], more[1], partial=more[2]))
        elif what == "part":
            pool.release(name, [0])
        elif what == "join":
            record = pool.hosts.records().get(name)
            if record is not None:
                # As over HTTP: it is up, whatever it was. One that stayed failed would join again at a repetition.
                pool.hosts.join(replace(record, state=HostState.UP, ordered=False))
        elif what in ("drain", "resume", "fail"):
            getattr(pool.hosts, what)(name)
        else:
            getattr(pool, what)(name)
    except BadInput:
        pass


def feed(url: str, history: list[Step], start: int, after: Callable[[int], object]) -> None:
    """Feed the steps from `start` on; `after` is called with the number of each once it was answered."""
    with Ledger.open(url) as ledger:
        pool = made(ledger, VirtualClock(START), confirm_within_s=86_400.0)
        for n in range(start, len(history)):
            take(pool, history[n])
            after(n)


def death(url: str, history: list[Step], start: int, delay_s: float) -> int:
    """Let a child go on from `start`, kill it after a while, and return the number of the last step it answered."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        feed(url, history, start, lambda n: os.write(writing, f"{n}\n".encode()))
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
    """Return everything that the ledger holds of the pool, but for how long decisions took."""
    with Ledger.open(url) as ledger:
        pool = made(ledger, VirtualClock(START))
        decisions = [codec.plain(one) for one in pool.store.newest("main", 10_000)]
        for one in decisions:
            one.pop("evaluation_us", None)
        hosts = [codec.plain(one) for one in pool.hosts.all()]
        held = [codec.plain(one) for one in pool.reservations()]
        events = [(entry.reason, entry.ref) for entry in ledger.journal()]
        return {"held": held, "hosts": hosts, "decisions": decisions, "events": events}


def main(directory: Path, seed: int, count: int) -> None:
    """Feed one history without and one with deaths, and compare what is known after each death."""
    history = steps(seed, count)
    dice = random.Random(seed)
    whole, dying = f"sqlite:///{directory}/whole.db", f"sqlite:///{directory}/dying.db"
    for url in (whole, dying):
        with Ledger.open(url) as ledger:
            made(ledger, VirtualClock(START), DOCUMENT)
    known = [belief(whole)]
    feed(whole, history, 0, lambda n: known.append(belief(whole)))
    wrong, deaths, done = list[str](), 0, -1
    while done < count - 1:
        done = death(dying, history, done + 1, dice.uniform(0.0, 0.08))
        deaths += 1
        now = belief(dying)
        # The step under way at the death may have been taken and not answered.
        can_be = known[done + 1 : done + 3]
        if now not in can_be:
            apart = [key for key in now if now[key] not in [one[key] for one in can_be]]
            wrong.append(f"after step {done}, at {history[done + 1 :][:1]}: {apart} differ")
    print(json.dumps({"deaths": deaths, "steps": count, "wrong": wrong, "decisions": len(known[-1]["decisions"])}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
