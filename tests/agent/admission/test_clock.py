"""A clock that is set, or that differs between two agents, ends no reservation; time that passed does."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from agent.admission.cluster import AdmissionService
from agent.admission.state import AdmissionStore
from agent.ledger import Kind, Ledger
from agent.service import daemon
from agent.settings import Settings
from domain.clock import VirtualClock, WallClock
from domain.decisions import Reason
from domain.errors import BadInput
from domain.rules.admission.cluster import PolicyKind
from tests.agent.admission.clusters import HOUR_S, START, ask, event
from tests.agent.admission.conftest import Make

SMALL: Final = {"capacity_cores": 100, "policy": PolicyKind.ZEROTH, "kappa": None, "threshold_cores": 101.0}
"""A cluster of 100 cores that takes whatever fits; an admission holds for an hour."""


def lapses(ledger: Ledger) -> list[str]:
    """Those whose admission lapsed, in order."""
    return [entry.ref for entry in ledger.journal() if (entry.kind, entry.reason) == (Kind.EVENT, "admission_lapsed")]


@pytest.fixture
def service(make: Make) -> AdmissionService:
    return make(**SMALL)


@pytest.mark.parametrize("step_s", [2 * HOUR_S, -2 * HOUR_S, 30 * 24 * HOUR_S])
def test_a_clock_that_is_set_ends_no_reservation(
    service: AdmissionService, ledger: Ledger, clock: VirtualClock, step_s: float
) -> None:
    assert service.answer([ask("a", 90)])[0].admit
    clock.advance(600.0)
    clock.step(step_s)
    assert service.answer([ask("b", 90)])[0].reason is Reason.REJECTED_FEASIBILITY
    assert (service.gauges(clock.now()).total_cores, lapses(ledger)) == (90, [])
    assert service.observe([event("a", "started", 90, clock.now())])[0].cores == 90


@pytest.mark.parametrize("step_s", [0.0, -2 * HOUR_S, 2 * HOUR_S])
def test_a_reservation_lapses_when_its_hour_has_passed_whatever_the_clock_says(
    service: AdmissionService, ledger: Ledger, clock: VirtualClock, step_s: float
) -> None:
    service.answer([ask("a", 90)])
    clock.step(step_s)
    clock.advance(HOUR_S)
    assert not service.answer([ask("b", 90)])[0].admit
    clock.advance(1.0)
    assert service.answer([ask("c", 90)])[0].admit
    assert lapses(ledger) == ["a"]


@pytest.mark.parametrize("ahead_s", [2 * HOUR_S, -2 * HOUR_S])
def test_two_agents_whose_clocks_differ_do_not_end_each_other_s_reservations(
    service: AdmissionService, ledger: Ledger, path: Path, clock: VirtualClock, ahead_s: float
) -> None:
    theirs = VirtualClock(START + ahead_s)
    with Ledger.open(f"sqlite:///{path}") as shared:
        other = AdmissionService(service.rules, AdmissionStore(shared), theirs)
        service.answer([ask("a", 50)])
        other.answer([ask("b", 40)])
        assert other.answer([ask("c", 20)])[0].reason is Reason.REJECTED_FEASIBILITY
        assert service.answer([ask("c", 20)])[0].reason is Reason.REJECTED_FEASIBILITY
        for one in (clock, theirs):
            one.advance(HOUR_S + 1.0)
        # Each has waited an hour for both by its own monotonic clock.
        assert other.answer([ask("d", 90)])[0].admit
        assert service.gauges(clock.now()).total_cores == 90
    assert lapses(ledger) == ["a", "b"]


def test_a_restart_begins_the_wait_anew_as_nobody_could_tell_of_a_start_before(
    service: AdmissionService, ledger: Ledger, clock: VirtualClock
) -> None:
    service.answer([ask("a", 90)])
    clock.advance(2 * HOUR_S)
    again = AdmissionService(service.rules, AdmissionStore(ledger), clock)
    again.refresh()
    clock.advance(HOUR_S)
    assert not again.answer([ask("b", 90)])[0].admit
    clock.advance(1.0)
    assert again.answer([ask("c", 90)])[0].admit


def test_what_runs_is_still_observed_after_the_clock_was_set_back(
    service: AdmissionService, clock: VirtualClock
) -> None:
    service.observe([event("a", "started", 10, clock.now())])
    clock.step(-2 * HOUR_S)
    # The time of the last event, as the gate gives it: no later one may be ahead of the clock.
    assert service.observe([event("a", "scaled", 5, START)])[0].cores == 15
    with pytest.raises(BadInput, match="ahead of the agent's clock"):
        service.observe([event("a", "scaled", 5, START + 1.0)])


class SteppedClock(WallClock):
    """The machine's clock, set by this many seconds."""

    set_by_s = 0.0

    def now(self) -> float:
        return super().now() + self.set_by_s


def test_an_agent_that_runs_keeps_its_promises_when_its_clock_is_set(tmp_path: Path) -> None:
    """As it was found: 90 of 100 cores were taken, the clock went forward by two hours, and 90 more came in."""
    # Paths of sockets are short.
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    given: dict[str, Any] = {
        "mode": "act",
        "state_directory": tmp_path,
        "listener": {"port": 0},
        "discovery": {"enabled": False},
        "http": {"socket": directory / "s.sock"},
        "clusters": {"main": {"capacity_cores": 100, "policy": "zeroth", "threshold_cores": 101}},
    }
    clock, stop, up = SteppedClock(), threading.Event(), threading.Event()
    settings = Settings.model_validate(given)
    agent = threading.Thread(target=lambda: daemon.run(settings, clock, stop, started=up.set))
    agent.start()
    try:
        assert up.wait(60.0)
        transport = httpx.HTTPTransport(uds=str(directory / "s.sock"))
        with httpx.Client(transport=transport, base_url="http://localhost/api/v1", timeout=30.0) as client:
            assert client.post("/admission/requests", json={"deployment_id": "a", "cores": 90}).json()["admit"]
            clock.set_by_s = 2 * HOUR_S
            answer = client.post("/admission/requests", json={"deployment_id": "b", "cores": 90}).json()
            assert (answer["admit"], answer["reason"]) == (False, "rejected_feasibility")
            assert client.get("/admission/main").json()["total_cores"] == 90
    finally:
        stop.set()
        agent.join(30.0)
        shutil.rmtree(directory)
