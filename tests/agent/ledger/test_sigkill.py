"""SIGKILL at any moment: what was confirmed is there, and no transaction is there by half."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Kind, Ledger
from domain.decisions import Event, Reason, Status
from domain.subject import fleet_subject
from tests.agent.ledger.records import START, made, outcome_of

GROUPS = ("workers_2", "workers_4")


def record_for_ever(url: str, told: int) -> None:
    """Record minute after minute; each number is told once its minute is durable."""
    with Ledger.open(url) as ledger:
        store = FleetStore(ledger)
        number = store.loop_state("web").decisions
        while True:
            for intent in ledger.open_intents():
                state = replace(store.loop_state("web"), policy=f"settled {intent.decision_id}")
                settled = [(intent, outcome_of(intent, Status.DONE, Reason.DONE))]
                store.record((), outcomes=settled, states={"web": state})
            event = Event(fleet_subject("web"), START, Reason.STARTED, f"minute {number}")
            store.record([made(number, groups=GROUPS), made(number, "api")], events=[event])
            os.write(told, f"{number}\n".encode())
            number += 1


def death(url: str, delay_s: float) -> int:
    """Let a child record for a while after its first minute, kill it, and return the last number that it told."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            record_for_ever(url, writing)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as numbers:
        first = numbers.readline()
        time.sleep(delay_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        lines = (first + numbers.read()).split(b"\n")
    return int(lines[-2])


def check(url: str, path: Path, told: int) -> None:
    """Look through the ledger after a death."""
    with closing(sqlite3.connect(path)) as direct:
        assert direct.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert direct.execute("PRAGMA foreign_key_check").fetchall() == []
    with Ledger.open(url, read_only=True) as ledger:
        store = FleetStore(ledger)
        web, settled = store.loop_state("web").decisions, store.loop_state("web").policy
        assert web == store.loop_state("api").decisions >= told + 1
        entries = ledger.journal(limit=10**6)
        of_kind = {kind: [e for e in entries if e.kind is kind] for kind in Kind}
        counts = [len(of_kind[kind]) for kind in (Kind.DECISION, Kind.INTENT, Kind.EVENT)]
        assert counts == [2 * web, 2 * web, web]
        assert [inputs for inputs, _ in store.inputs("web")] == [made(n)[0] for n in range(web)]
        assert len(ledger.open_intents()) + len(of_kind[Kind.OUTCOME]) == 2 * web
        last = [e.ref for e in of_kind[Kind.OUTCOME]][-1:]
        # An outcome is written with its state.
        if last and len(ledger.open_intents()) == 1:
            assert settled == f"settled {last[0].rsplit('-', 1)[0]}"


@pytest.mark.parametrize("deaths", [6, pytest.param(40, marks=pytest.mark.exhaustive)])
def test_writers_killed_in_the_middle_of_it_leave_a_whole_ledger(tmp_path: Path, deaths: int) -> None:
    path = tmp_path / "ledger.db"
    url, dice, told = f"sqlite:///{path}", random.Random(5), -1
    Ledger.open(url).close()
    for _ in range(deaths):
        told = death(url, dice.uniform(0.0, 0.012))
        check(url, path, told)
    assert told + 1 >= deaths
