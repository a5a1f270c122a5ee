"""Kills a process that records as fast as it can, again and again, and says what each death left behind."""

import json
import os
import random
import signal
import sqlite3
import sys
import time
from dataclasses import replace
from pathlib import Path

from agent.autoscaling.store import FleetStore
from agent.ledger import Kind, Ledger
from domain.decisions import Event, Reason, Status
from tests.agent.ledger.records import START, made, outcome_of

GROUPS = ("workers_2", "workers_4")


def record_for_ever(url: str, told: int) -> None:
    """Record minute after minute; each number is told once its minute is durable."""
    with Ledger.open(url) as ledger:
        number = FleetStore(ledger).loop_state("web").decisions
        while True:
            for intent in ledger.open_intents():
                state = replace(FleetStore(ledger).loop_state("web"), policy=f"settled {intent.decision_id}")
                FleetStore(ledger).record(
                    (), states={"web": state}, outcomes=[(intent, outcome_of(intent, Status.DONE, Reason.DONE))]
                )
            event = Event("web", START, Reason.STARTED, f"minute {number}")
            FleetStore(ledger).record([made(number, groups=GROUPS), made(number, "api")], events=[event])
            os.write(told, f"{number}\n".encode())
            number += 1


def death(url: str, delay_s: float) -> int:
    """Let a child record for a while after its first minute, kill it, and return the last number that it told."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        record_for_ever(url, writing)
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as numbers:
        first = numbers.readline()
        time.sleep(delay_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        lines = (first + numbers.read()).split(b"\n")
    return int(lines[-2])


def wrongs(url: str, path: Path, told: int) -> list[str]:
    """Return what is wrong with the ledger after a death: nothing, one hopes."""
    found = []
    direct = sqlite3.connect(path)
    check = direct.execute("PRAGMA integrity_check").fetchall()
    if check != [("ok",)] or direct.execute("PRAGMA foreign_key_check").fetchall():
        found.append(f"integrity: {check}")
    direct.close()
    with Ledger.open(url, read_only=True) as ledger:
        web, api = FleetStore(ledger).loop_state("web").decisions, FleetStore(ledger).loop_state("api").decisions
        if not web == api >= told + 1:
            found.append(f"told {told}, but the states stand at {web} and {api}")
        entries = ledger.journal(limit=10**6)
        of_kind = {kind: [e for e in entries if e.kind is kind] for kind in Kind}
        counts = [len(of_kind[kind]) for kind in (Kind.DECISION, Kind.INTENT, Kind.EVENT)]
        if counts != [2 * web, 2 * web, web]:
            found.append(f"after {web} minutes the journal holds {counts}")
        if [inputs for inputs, _ in FleetStore(ledger).inputs("web")] != [made(n)[0] for n in range(web)]:
            found.append("inputs are missing")
        if len(ledger.open_intents()) + len(of_kind[Kind.OUTCOME]) != 2 * web:
            found.append("an intent is neither open nor settled")
        last = [e.ref for e in of_kind[Kind.OUTCOME]][-1:]
        settled = FleetStore(ledger).loop_state("web").policy
        if last and len(ledger.open_intents()) == 1 and settled != f"settled {last[0].rsplit('-', 1)[0]}":
            found.append(f"outcome of {last[0]} without the state written with it: {settled!r}")
    return found


def main(path: Path, deaths: int) -> None:
    """Kill `deaths` writers of one ledger at random moments."""
    url = f"sqlite:///{path}"
    dice = random.Random(5)
    Ledger.open(url).close()
    found: list[str] = []
    told = -1
    for _ in range(deaths):
        told = death(url, dice.uniform(0.0, 0.012))
        found += wrongs(url, path, told)
    print(json.dumps({"deaths": deaths, "minutes": told + 1, "wrong": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
