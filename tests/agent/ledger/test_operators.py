"""Operators and leadership: switches the daemon never overwrites, from any process, and epochs that only grow."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.rails.state import LoopState
from domain.controls import Controls, Pause, PauseScope, Pin
from domain.errors import Fenced
from tests.agent.ledger.records import START, made

ROOT = Path(__file__).parents[3]
PAUSE = Pause(PauseScope.IN, "ana", "deploy", START, START + 600)
PIN = Pin({"workers_8": 2, "workers_2": 4}, "ben", "load test", START, START + 7200)


def said(ledger: Ledger) -> list[tuple[str, str]]:
    return [(str(e.body["about"]), str(e.body["detail"])) for e in ledger.journal() if e.reason == "operator"]


def test_nothing_is_switched_at_first(ledger: Ledger) -> None:
    assert ledger.controls("autoscaling", "web") == Controls()


def test_the_daemon_never_overwrites_what_operators_switched(ledger: Ledger) -> None:
    ledger.pause("autoscaling", "web", PAUSE)
    ledger.pin("autoscaling", "web", PIN)
    for n in range(5):
        FleetStore(ledger).record([made(n)], states={"web": LoopState(decisions=n)})
        FleetStore(ledger).record((), outcomes=[], states={"web": LoopState(decisions=n)})
    assert ledger.controls("autoscaling", "web") == Controls((PAUSE,), PIN)
    assert ledger.controls("autoscaling", "api") == Controls()
    assert FleetStore(ledger).loop_state("web").decisions == 4


def test_memory_and_switches_of_many_fleets_are_read_at_once_and_alike(ledger: Ledger) -> None:
    FleetStore(ledger).record([made(4)])
    ledger.pause("autoscaling", "web", PAUSE)
    ledger.pin("autoscaling", "api", PIN)
    names = ["api", "web", "new"]
    assert FleetStore(ledger).loop_states(names) == {name: FleetStore(ledger).loop_state(name) for name in names}
    assert FleetStore(ledger).loop_states(["web"])["web"].decisions == 5
    assert ledger.all_controls("autoscaling", names) == {
        "api": Controls((), PIN),
        "web": Controls((PAUSE,)),
        "new": Controls(),
    }
    assert (FleetStore(ledger).loop_states([]), ledger.all_controls("autoscaling", [])) == ({}, {})


def test_every_switch_says_who_threw_it_and_until_when(ledger: Ledger) -> None:
    ledger.pause("autoscaling", "web", PAUSE)
    ledger.pause("autoscaling", "web", Pause(PauseScope.ALL, "ben", "incident", START))
    ledger.pin("autoscaling", "web", PIN)
    assert ledger.unpin("autoscaling", "web", at=START + 1, owner="ana")
    assert ledger.resume("autoscaling", "web", PauseScope.IN, at=START + 2, owner="ana")
    assert said(ledger) == [
        ("pause.autoscaling.in", "ana paused scale-in of autoscaling until 2026-11-20 21:20:00 UTC: deploy"),
        ("pause.autoscaling.all", "ben paused every change of autoscaling until resumed: incident"),
        ("pin.autoscaling", "ben pinned workers_2 at 4, workers_8 at 2 until 2026-11-20 23:10:00 UTC: load test"),
        ("pin.autoscaling", "ana lifted the pin"),
        ("pause.autoscaling.in", "ana resumed scale-in of autoscaling"),
    ]


def test_a_switch_holds_the_subject_of_one_decision_where_another_has_its_name(ledger: Ledger) -> None:
    ledger.pause("deferral", "web", PAUSE)
    ledger.pin("autoscaling", "web", PIN)
    assert ledger.controls("deferral", "web") == Controls((PAUSE,))
    assert ledger.controls("autoscaling", "web") == ledger.all_controls("autoscaling", ["web"])["web"]
    assert ledger.controls("autoscaling", "web") == Controls((), PIN)
    assert ledger.controls("placement", "web") == Controls()
    assert not ledger.resume("autoscaling", "web", PauseScope.ALL, at=START, owner="ana")
    assert ledger.controls("deferral", "web") == Controls((PAUSE,))


def test_lifting_what_is_not_there_says_so_and_leaves_no_event(ledger: Ledger) -> None:
    assert not ledger.unpin("autoscaling", "web", at=START, owner="ana")
    assert not ledger.resume("autoscaling", "web", PauseScope.OUT, at=START, owner="ana")
    assert said(ledger) == []


def test_a_new_pause_replaces_the_one_of_its_scope_only(ledger: Ledger) -> None:
    longer = Pause(PauseScope.IN, "ben", "longer", START, None)
    out = Pause(PauseScope.OUT, "ana", "budget", START, None)
    for pause in (PAUSE, out, longer):
        ledger.pause("autoscaling", "web", pause)
    assert ledger.controls("autoscaling", "web").pauses == (longer, out)
    assert ledger.resume("autoscaling", "web", PauseScope.IN, at=START, owner="ana")
    assert ledger.controls("autoscaling", "web").pauses == (out,)


def test_resuming_all_lifts_every_pause_of_that_fleet(ledger: Ledger) -> None:
    for fleet in ("web", "api"):
        ledger.pause("autoscaling", fleet, PAUSE)
        ledger.pause("autoscaling", fleet, Pause(PauseScope.OUT, "ana", "budget", START))
    assert ledger.resume("autoscaling", "web", PauseScope.ALL, at=START, owner="ana")
    assert ledger.controls("autoscaling", "web").pauses == ()
    assert len(ledger.controls("autoscaling", "api").pauses) == 2


VERBS = """
import sys
from agent.ledger import Ledger
from domain.controls import Pause, PauseScope
ledger = Ledger.open(sys.argv[1])
for n in range(40):
    ledger.pause("autoscaling", "web", Pause(PauseScope.IN, "ana", f"turn {n}", float(n)))
    assert ledger.controls("autoscaling", "web").pauses[0].reason == f"turn {n}"
    ledger.resume("autoscaling", "web", PauseScope.IN, at=float(n), owner="ana")
ledger.pause("autoscaling", "web", Pause(PauseScope.OUT, "ana", "the end", 99.0))
"""


@pytest.mark.exhaustive
def test_another_process_switches_while_the_daemon_records(url: str, ledger: Ledger) -> None:
    with subprocess.Popen([sys.executable, "-c", VERBS, url], cwd=ROOT) as verbs:
        n = 0
        while verbs.poll() is None:
            FleetStore(ledger).record([made(n)])
            n += 1
    assert verbs.returncode == 0
    assert FleetStore(ledger).loop_state("web").decisions == n
    assert [pause.reason for pause in ledger.controls("autoscaling", "web").pauses] == ["the end"]
    assert len(said(ledger)) == 81


def test_threads_share_one_ledger(ledger: Ledger) -> None:
    failures: list[BaseException] = []

    def work(fleet: str) -> None:
        try:
            for n in range(30):
                FleetStore(ledger).record([made(n, fleet)])
                assert FleetStore(ledger).loop_state(fleet).decisions == n + 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("web", "api", "jobs")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [entry.seq for entry in ledger.journal()] == list(range(1, 91))


def test_epochs_grow_and_an_old_one_is_fenced(url: str, ledger: Ledger) -> None:
    assert ledger.epoch() == 0
    first = ledger.take_epoch("host-a:1", START)
    ledger.check_epoch(first)
    with Ledger.open(url) as other:
        second = other.take_epoch("host-b:2", START + 1)
    assert (first, second, ledger.epoch()) == (1, 2, 2)
    ledger.check_epoch(second)
    with pytest.raises(Fenced, match=r"epoch 1 .* host-b:2 .* epoch 2"):
        ledger.check_epoch(first)
