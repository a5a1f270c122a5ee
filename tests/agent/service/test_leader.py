"""Which process may act, beat by beat: leads count from before they were asked for, and end before they run out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.autoscaling.report import MinuteReport, with_fleets
from agent.kernel.leads import Leads
from agent.kernel.turn import TurnReport
from agent.ledger.leases import OBSERVES, AgentRecord, Lease, Moves, Roster
from agent.service import leader as module
from agent.service.leader import (
    BoundLeader,
    Incapacity,
    LeaseLeader,
    SoleLeader,
    account_of,
    manages_aws,
    region_of,
)
from agent.service.shares import Managed, owner, units
from agent.settings import Settings
from collectors.aws_account import AccountCheck
from collectors.forwarding import Peer
from domain.clock import VirtualClock
from domain.decisions import Decision, Mode, Proposal, Reason
from domain.errors import CloudError, FailureClass, Fenced, LedgerError, LedgerForeign, LedgerUnavailable
from domain.subject import Subject, fleet_subject

LEASE_S, RENEW_S = 30.0, 10.0
USED_S = 27.0
"""Nine tenths of a lease: what leaves in time should arrive in time."""
ACROSS = LedgerUnavailable("the database is away")


WEB, API = fleet_subject("web"), fleet_subject("api")
SHARED = Managed({WEB: "d"}, units([WEB], []))
BEN = AgentRecord("ben", "host:2", "0014", settings={WEB: "d"})


class Site:
    """A shared ledger in memory, the host's time since boot, and the thread's beats one at a time.

    answers: of the next asks, each None or an error; an answer takes `takes_s`. asked: what was asked for.
    """

    def __init__(self) -> None:
        self.now, self.takes_s = 1000.0, 0.0
        self.answers: list[Exception | None] = []
        self.asked: list[Any] = []
        self.checks: list[Exception | None] = []
        self.waits: list[float] = []
        self.joined: list[float | None] = []
        self.beats = 0
        self.run: Callable[[], None] | None = None
        self.checking: Callable[[], None] = lambda: None
        self.others: dict[str, AgentRecord] = {}
        self.ends_in_s: dict[str, float] = {}
        self.leases: dict[Subject, Lease] = {}
        self.newest = 0
        self.older = ""
        self.ended: dict[Subject, str] = {}

    # The ledger

    def _answer(self, *asked: Any) -> None:
        self.asked.append(asked)
        self.now += self.takes_s
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer

    def beat(
        self, me: AgentRecord, known: Collection[int], lease_s: float, at: float, plan: Callable[[Roster], Moves]
    ) -> Roster:
        """Do as `agent.ledger.leases` does; after an error its moves are made all the same."""
        unknown = [
            one for one, lease in self.leases.items() if lease.process == me.process and lease.epoch not in known
        ]
        for subject in unknown:
            del self.leases[subject]
        there = Roster({me.name: me, **self.others}, dict(self.leases), self.older, self.ends_in_s, self.ended)
        moves = plan(there)
        for subject in moves.give:
            del self.leases[subject]
        for subject in sorted(moves.take):
            self.newest += 1
            self.leases[subject] = Lease(me.name, me.process, self.newest)
        self._answer("beat", me.ready, lease_s, at)
        return replace(there, leases=dict(self.leases))

    def give_up(self, process: str) -> None:
        self._answer("give up", process)

    def take_epoch(self, owner: str, at: float) -> int:
        self._answer("epoch", owner, at)
        return 8

    def check_epoch(self, *epochs: int) -> None:
        self.asked.append(("check", *epochs))
        self.checking()
        error = self.checks.pop(0) if self.checks else None
        if error is not None:
            raise error

    # The thread

    def beat_once(self, *answers: Exception | None, after_s: float = RENEW_S) -> float:
        """Let time pass, have one beat with these answers, and return how long the thread waits for the next."""
        self.answers = list(answers)
        self.now += after_s
        self.beats, self.asked = 1, []
        assert self.run is not None
        self.run()
        assert self.answers == []
        return self.waits[-1]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site()

    class Thread:
        def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:
            assert (name, daemon) == ("lease", True)
            self._target, self.ident = target, None

        def start(self) -> None:
            self.ident, made.run = 7, self._target

        def join(self, timeout: float | None = None) -> None:
            made.joined.append(timeout)

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            made.waits.append(timeout)
            made.beats -= 1
            return made.beats < 0 or self.is_set()

    monkeypatch.setattr(module, "threading", SimpleNamespace(Thread=Thread, Event=Event, Lock=threading.Lock))
    monkeypatch.setattr(module, "since_boot", lambda: made.now)
    return made


def a_leader(
    site: Site, *answers: Exception | None, managed: Managed = SHARED, renew_s: float = RENEW_S, relay: str = ""
) -> LeaseLeader:
    """Return an agent that has asked once and been answered so."""
    site.answers = list(answers)
    me = AgentRecord("ana", "host:1", "0014", relay=relay)
    made = LeaseLeader(site, me, VirtualClock(5000.0), LEASE_S, renew_s, lambda: managed)  # type: ignore[arg-type]
    made.start()
    assert site.answers == []
    return made


def led(leader: LeaseLeader) -> dict[Subject, int]:
    return dict(leader.leads().epochs)


def test_a_free_subject_is_led_at_once_for_the_used_part_of_a_lease(site: Site) -> None:
    leader = a_leader(site)
    assert site.asked == [("beat", True, LEASE_S, 5000.0)]
    assert (led(leader), leader.leaders(), leader.failure) == ({WEB: 1}, {WEB: "ana"}, "")
    site.now += USED_S - 0.001
    assert led(leader) == {WEB: 1}
    site.now += 0.001
    assert (led(leader), leader.leaders()) == ({}, {})


def test_the_lead_counts_from_before_it_was_asked_for(site: Site) -> None:
    site.takes_s = 5.0
    leader = a_leader(site)
    site.now += USED_S - 5.001
    assert led(leader) == {WEB: 1}
    site.now += 0.001
    assert led(leader) == {}


def test_the_thread_comes_back_to_renew_and_the_lead_goes_on_from_there(site: Site) -> None:
    leader = a_leader(site)
    assert site.beat_once() == RENEW_S
    site.now += USED_S - 0.001
    assert led(leader) == {WEB: 1}


def test_an_agent_without_subjects_looks_again_soon(site: Site) -> None:
    leader = a_leader(site, managed=Managed())
    assert site.beat_once() == 1.0
    assert (led(leader), leader.failure) == ({}, "")


def test_a_subject_of_another_agent_is_stood_by_and_named(site: Site) -> None:
    site.others, site.leases = {"ben": BEN}, {WEB: Lease("ben", "host:2", 4)}
    leader = a_leader(site)
    assert (led(leader), leader.leaders()) == ({}, {WEB: "ben"})
    with pytest.raises(Fenced, match="lease under epoch 4 is over"):
        leader.fence([4])
    site.now += LEASE_S
    assert leader.leaders() == {}


def test_subjects_of_others_by_the_last_roster_stay_theirs_while_the_ledger_is_away(site: Site) -> None:
    site.others = {"ben": replace(BEN, settings={API: "d"})}
    site.leases = {API: Lease("ben", "host:2", 4)}
    leader = a_leader(site)
    assert (led(leader), leader.leads().others) == ({WEB: 1}, {API})
    for _ in range(10):
        site.beat_once(LedgerUnavailable("away"))
    # What this agent led last is measured by it, and no fleet of another agent.
    assert (led(leader), leader.leads().others, leader.leaders()) == ({}, {API}, {})
    site.leases = {WEB: Lease("ben", "host:2", 5)}
    site.beat_once()
    assert leader.leads().others == {WEB}


@pytest.mark.parametrize(("remaining_s", "wait_s"), [(20.0, RENEW_S), (2.0, 2.05), (9.95, RENEW_S), (0.0, 0.05)])
def test_it_comes_back_as_soon_as_the_lease_of_another_runs_out(site: Site, remaining_s: float, wait_s: float) -> None:
    site.others, site.ends_in_s = {"ben": replace(BEN, settings={})}, {"ben": remaining_s, "ana": 1.0}
    a_leader(site)
    assert site.beat_once() == pytest.approx(wait_s)


def test_subjects_that_are_about_to_move_are_looked_at_each_second(site: Site) -> None:
    two = Managed({WEB: "d", API: "d"}, units([WEB, API], [(WEB, API)]))
    site.leases = {API: Lease("ben", "host:2", 4)}
    site.others = {"ben": replace(BEN, settings={})}
    leader = a_leader(site, managed=two)
    assert site.beat_once() == 1.0
    assert led(leader) == {}
    site.leases.clear()
    assert site.beat_once() == RENEW_S
    assert led(leader) == {API: 1, WEB: 2}


def test_a_subject_is_not_given_away_within_a_turn(site: Site) -> None:
    leader = a_leader(site)
    site.others = {"ben": BEN, "anna": replace(BEN, name="anna", process="host:3")}
    share = next(name for name in ("ben", "anna", "ana") if owner(frozenset({WEB}), ["ana", "ben", "anna"]) == name)
    assert share != "ana", "choose other names: nothing would move"
    with leader.turning():
        site.beat_once()
        leader.fence([1])
    assert led(leader) == {WEB: 1}
    site.beat_once()
    assert led(leader) == {}


def test_a_lead_that_was_not_renewed_in_time_is_led_again_under_a_newer_epoch_only(site: Site) -> None:
    leader = a_leader(site)
    site.beat_once(after_s=USED_S)
    assert led(leader) == {WEB: 2}
    with pytest.raises(Fenced):
        leader.fence([1])


def test_an_answer_that_comes_after_the_lead_ran_out_does_not_bring_it_back(site: Site) -> None:
    leader = a_leader(site)
    site.takes_s = USED_S - RENEW_S
    site.beat_once()
    assert led(leader) == {WEB: 2}


def test_a_database_that_is_away_is_asked_again_soon_and_the_lead_lasts_its_time(site: Site) -> None:
    leader = a_leader(site)
    assert site.beat_once(ACROSS) == 1.0
    assert (led(leader), leader.failure) == ({WEB: 1}, "the database is away")
    site.beat_once()
    assert (led(leader), leader.failure) == ({WEB: 1}, "")


def test_what_was_given_away_by_a_beat_without_an_answer_is_not_led(site: Site) -> None:
    leader = a_leader(site)
    site.others = {"ben": replace(BEN, settings={WEB: "other"})}
    site.beat_once(ACROSS)
    assert led(leader) == {}
    # The subjects that it took neither: another agent may have led them meanwhile.
    site.others = {}
    site.beat_once(ACROSS)
    assert (led(leader), site.leases[WEB].epoch) == ({}, 2)
    site.beat_once()
    assert led(leader) == {WEB: 3}


@pytest.mark.parametrize("after_s", [USED_S, USED_S + 5.0])
def test_a_lead_that_runs_out_while_the_database_is_away_is_lost_for_good(site: Site, after_s: float) -> None:
    leader = a_leader(site)
    site.beat_once(ACROSS, after_s=after_s)
    assert led(leader) == {}
    site.now = 1000.0
    assert led(leader) == {}
    site.beat_once()
    assert led(leader)[WEB] > 1


def test_nothing_that_the_database_does_ends_the_thread(site: Site) -> None:
    leader = a_leader(site, ValueError("odd"))  # type: ignore[arg-type]
    assert (led(leader), leader.failure) == ({}, "ValueError: odd")
    assert site.beat_once(LedgerError("odder")) == 1.0
    assert leader.failure == "odder"
    site.beat_once()
    assert (led(leader), leader.failure) == ({WEB: 3}, "")


def test_a_short_renewal_is_retried_no_later_than_that(site: Site) -> None:
    a_leader(site, ACROSS, renew_s=0.5)
    assert site.beat_once(ACROSS) == 0.5
    assert site.waits == [0.5, 0.5]


def test_the_fence_asks_the_ledger_between_two_looks_at_the_lead(site: Site) -> None:
    leader = a_leader(site)
    leader.fence([1])
    assert site.asked[-1] == ("check", 1)
    for other in ([2], [1, 2], []):
        with pytest.raises(Fenced, match="the lease under epoch"):
            leader.fence(other)
    site.checks = [Fenced("ben leads")]
    with pytest.raises(Fenced, match="ben leads"):
        leader.fence([1])
    site.checks = [ACROSS]
    with pytest.raises(LedgerUnavailable):
        leader.fence([1])

    def slow() -> None:
        site.now += USED_S

    site.checking = slow
    with pytest.raises(Fenced, match="lease under epoch 1"):
        leader.fence([1])
    site.asked.clear()
    with pytest.raises(Fenced):
        leader.fence([1])
    assert site.asked == []


def test_once_closed_nothing_more_is_done_and_the_lease_is_kept(site: Site) -> None:
    leader = a_leader(site)
    leader.close()
    assert led(leader) == {}
    with pytest.raises(Fenced, match="this process is stopping"):
        leader.fence([1])
    site.beat_once()
    assert [asked[0] for asked in site.asked] == ["beat"]


def test_stopping_gives_everything_up_after_the_thread_ended(site: Site) -> None:
    leader = a_leader(site)
    site.asked = []
    leader.stop()
    assert site.asked == [("give up", "host:1")]
    assert site.joined == [2.0 * RENEW_S]
    with pytest.raises(Fenced, match="this process is stopping"):
        leader.fence([1])
    # The thread ends at its next look, and a second stop has nothing to give up.
    site.asked, site.beats = [], 5
    assert site.run is not None
    site.run()
    leader.stop()
    assert site.asked == []


def test_stopping_before_the_start_or_after_the_lead_was_lost_asks_for_nothing(site: Site) -> None:
    me = AgentRecord("ana", "host:1", "0014")
    LeaseLeader(site, me, VirtualClock(0.0), LEASE_S, RENEW_S, lambda: SHARED).stop()  # type: ignore[arg-type]
    assert (site.asked, site.joined) == ([], [])
    leader = a_leader(site)
    site.beat_once(ACROSS, after_s=USED_S)
    site.asked.clear()
    leader.stop()
    assert site.asked == []


def test_a_lease_that_cannot_be_given_up_runs_out_by_itself(site: Site) -> None:
    leader = a_leader(site)
    site.answers = [ACROSS]
    leader.stop()
    assert site.asked[-1] == ("give up", "host:1")
    assert led(leader) == {}


def test_a_lead_that_is_given_away_ends_at_once_and_another_has_time_to_take_it(site: Site) -> None:
    site.others = {"ben": replace(BEN, settings={})}
    leader = a_leader(site)
    assert leader.stand_back()
    assert led(leader) == {}
    site.beat_once()
    assert (site.asked[0][:2], site.leases) == (("beat", False), {})
    for _ in range(int(module.STAND_BACK_LEASES * LEASE_S / RENEW_S) - 2):
        site.beat_once()
        assert (site.asked[0][:2], led(leader)) == (("beat", False), {})
    site.beat_once()
    assert (site.asked[0][:2], led(leader)) == (("beat", True), {WEB: 2})


def test_a_lead_is_not_given_away_where_no_other_agent_could_take_it(site: Site) -> None:
    leader = a_leader(site)
    assert not leader.stand_back()
    assert led(leader) == {WEB: 1}
    site.others = {"ben": replace(BEN, settings={})}
    site.beat_once()
    assert leader.stand_back()
    site.others = {}
    site.beat_once()
    assert led(leader) == {WEB: 1}


def test_an_agent_that_acts_gives_nothing_to_one_that_observes_and_takes_everything_from_it(site: Site) -> None:
    observer = replace(BEN, settings={WEB: f"{OBSERVES}e"})
    site.others, site.leases = {"ben": observer}, {WEB: Lease("ben", "host:2", 4)}
    leader = a_leader(site)
    assert led(leader) == {}
    assert leader.differences() == {}
    site.leases.clear()
    site.beat_once()
    assert led(leader) == {WEB: 1}
    assert not leader.stand_back()
    # It stood back for an agent that acts, which has gone.
    site.others = {"ben": observer, "cleo": replace(BEN, name="cleo")}
    site.beat_once()
    assert leader.stand_back()
    site.beat_once()
    assert led(leader) == {}
    del site.others["cleo"]
    site.beat_once()
    assert {*led(leader)} == {WEB}


def test_subjects_of_agents_that_are_there_or_whose_share_they_would_be_are_elsewhere(site: Site) -> None:
    leader = a_leader(site)
    gone = [fleet_subject(f"gone{n}") for n in range(20)]
    assert not any(map(leader.is_elsewhere, gone))
    site.others = {"ben": replace(BEN, settings={gone[0]: f"{OBSERVES}d"})}
    site.beat_once()
    # Ben observes, leads nothing, and takes no turn in which it could close an intent.
    assert [subject for subject in gone if leader.is_elsewhere(subject)] == [gone[0]]
    site.others, site.leases[gone[0]] = {"ben": replace(BEN, settings={gone[0]: "d"})}, Lease("ben", "host:2", 4)
    site.beat_once()
    mine = [subject for subject in gone[1:] if owner(frozenset({subject}), ["ana", "ben"]) == "ana"]
    assert 0 < len(mine) < 19
    assert [subject for subject in gone if not leader.is_elsewhere(subject)] == mine
    # Cleo acted on it and restarts, which is no reason to close its open intents.
    site.ended = {mine[0]: "cleo"}
    site.beat_once()
    assert [subject for subject in gone if not leader.is_elsewhere(subject)] == mine[1:]


def test_lines_go_to_the_former_leader_until_there_is_another(site: Site) -> None:
    others = [AgentRecord(name, name, "0014", settings={API: "d"}, relay=f"{name}.example:2103") for name in ("b", "c")]
    site.others, site.leases = {one.name: one for one in others}, {API: Lease("b", "b", 4)}
    managed = Managed({WEB: "d"}, units([WEB], []))
    leader = a_leader(site, managed=managed, relay="a.example:2103")
    former = leader.elsewhere()
    assert former[API] == Peer("b", "b.example", 2103)

    del site.others["b"], site.leases[API]
    site.beat_once()
    assert leader.elsewhere() is former
    site.leases[API] = Lease("c", "c", 5)
    site.beat_once()
    assert leader.elsewhere()[API] == Peer("c", "c.example", 2103)
    site.others = {}
    del site.leases[API]
    leader._managed = lambda: Managed({API: "d"}, units([API], []))
    site.beat_once()
    assert (API in led(leader), leader.elsewhere()) == (True, {})


def test_no_line_is_forwarded_to_the_address_of_this_very_agent(site: Site) -> None:
    site.others, site.leases = {"ben": replace(BEN, relay="a.example:2103")}, {WEB: Lease("ben", "host:2", 4)}
    assert a_leader(site, relay="a.example:2103").elsewhere() == {WEB: Peer("ben")}


def test_an_agent_that_must_wait_for_an_older_version_says_for_which(site: Site) -> None:
    site.older = "host:9"
    leader = a_leader(site)
    assert "host:9" in leader.failure
    site.older = ""
    site.beat_once()
    assert leader.failure == ""


def test_settings_that_differ_are_named_as_long_as_they_are_known(site: Site) -> None:
    site.others = {"ben": replace(BEN, settings={WEB: "other"})}
    with capture_logs() as logs:
        leader = a_leader(site)
        site.beat_once()
    assert (led(leader), leader.differences().keys()) == ({}, {WEB})
    (warning,) = (one for one in logs if one["event"] == "settings_differ")
    assert warning["detail"] == leader.differences()[WEB]
    site.now += LEASE_S
    assert leader.differences() == {}


class TestIncapacity:
    """A leader with a wrong clock that decides nothing gives the lead away, ever more rarely."""

    def minutes_given_back(self, incapacity: Incapacity, minutes: int, difference: str, reason: Reason) -> list[int]:
        """Return the minutes after which the lead is given away."""
        proposal = Proposal("web", "hold", (1,), reason)
        decision = Decision("web-1", "web", 0.0, Mode.ACT, proposal, (), (1,), reason, "")
        report = with_fleets(TurnReport(0.0), MinuteReport(0.0, decisions=(decision,)))
        return [n for n in range(minutes) if incapacity.ends_lead(report, difference, 60.0 * n)]

    def test_it_is_given_away_after_five_minutes_then_ten_then_twenty(self) -> None:
        assert self.minutes_given_back(Incapacity(), 40, "61 s ahead", Reason.STALE_INPUT) == [5, 16, 37]

    def test_a_right_clock_or_a_decision_keeps_it(self) -> None:
        incapacity = Incapacity()
        assert self.minutes_given_back(incapacity, 40, "", Reason.STALE_INPUT) == []
        assert self.minutes_given_back(incapacity, 40, "61 s ahead", Reason.QUEUE_COVERED) == []

    def test_a_clock_that_is_right_again_makes_it_as_patient_as_before(self) -> None:
        incapacity = Incapacity()
        self.minutes_given_back(incapacity, 6, "61 s ahead", Reason.STALE_INPUT)
        self.minutes_given_back(incapacity, 1, "", Reason.STALE_INPUT)
        assert self.minutes_given_back(incapacity, 8, "61 s ahead", Reason.STALE_INPUT) == [5]

    def test_a_turn_that_leads_and_reads_nothing_shortens_no_patience(self) -> None:
        incapacity = Incapacity()
        self.minutes_given_back(incapacity, 6, "61 s ahead", Reason.STALE_INPUT)
        assert not incapacity.ends_lead(with_fleets(TurnReport(0.0), MinuteReport(0.0)), "", 400.0)
        assert self.minutes_given_back(incapacity, 12, "61 s ahead", Reason.STALE_INPUT) == [10]


def test_the_sole_leader_leads_from_the_start_until_a_newer_epoch(site: Site) -> None:
    leader = SoleLeader(site, "ana", 77.0)  # type: ignore[arg-type]
    leader.start()
    assert site.asked == [("epoch", "ana", 77.0)]
    assert (leader.leads(), leader.leads().of(WEB), leader.leaders()) == (Leads(every=8), 8, {})
    leader.fence([8])
    assert site.asked[-1] == ("check", 8)
    site.checks = [ACROSS, Fenced("ben leads")]
    with pytest.raises(LedgerUnavailable):
        leader.fence([8])
    assert leader.leads() == Leads(every=8)
    with pytest.raises(Fenced, match="ben leads"):
        leader.fence([8])
    assert (leader.leads(), leader.stand_back(), leader.is_elsewhere(WEB)) == (Leads(), False, False)


@pytest.mark.parametrize("end", [SoleLeader.close, SoleLeader.stop])
def test_the_sole_leader_does_nothing_once_it_is_closed(site: Site, end: Callable[[SoleLeader], None]) -> None:
    leader = SoleLeader(site, "ana", 77.0)  # type: ignore[arg-type]
    end(leader)
    assert leader.leads() == Leads()
    site.asked.clear()
    with pytest.raises(Fenced, match="is stopping"):
        leader.fence([8])
    assert site.asked == []


# Bound to an account first


class Owned:
    """A ledger that is, or is not, this agent's: each ask takes the next answer, None for yes."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Any]] = []

    def _answer(self, what: str, owner: Any) -> None:
        self.asked.append((what, owner))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer

    def refuse_unless_owned(self, owner: Any) -> None:
        self._answer("refuse", owner)

    def bind(self, owner: Any) -> None:
        self._answer("bind", owner)


class Proper:
    """The leadership that is taken up."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def start(self) -> None:
        self.done.append("start")

    def leads(self) -> Leads:
        return Leads(every=7)

    def leaders(self) -> dict[Subject, str]:
        return {WEB: "ana"}

    def fence(self, epochs: Collection[int]) -> None:
        self.done.append(epochs)

    def close(self) -> None:
        self.done.append("close")

    def stop(self) -> None:
        self.done.append("stop")


def bound(ledger: Owned, proper: Proper, account: Callable[[], str] | None = lambda: "1111") -> BoundLeader:
    return BoundLeader(ledger, account, lambda known: known or "nobody", lambda: proper)  # type: ignore[arg-type,return-value]


def test_the_lead_is_taken_up_once_the_ledger_is_bound_to_the_account() -> None:
    ledger, proper = Owned(), Proper()
    leader = bound(ledger, proper)
    assert (leader.leads(), leader.leaders(), leader.trouble(), leader.foreign) == (Leads(), {}, "", "")
    with pytest.raises(Fenced, match="not known yet"):
        leader.fence([7])
    leader.start()
    assert ledger.asked == [("refuse", "nobody"), ("bind", "1111")]
    assert (leader.leads().every, leader.leaders(), leader.failure) == (7, {WEB: "ana"}, "")
    leader.fence([7])
    leader.look()
    leader.close()
    leader.stop()
    assert proper.done == ["start", [7], "close", "stop"]
    assert len(ledger.asked) == 2


def test_where_nothing_on_aws_is_managed_no_account_is_asked_for() -> None:
    ledger = Owned()
    bound(ledger, Proper(), None).start()
    assert ledger.asked == [("refuse", "nobody"), ("bind", "nobody")]


def test_a_ledger_of_others_lets_no_agent_start() -> None:
    with pytest.raises(LedgerForeign, match="theirs"):
        bound(Owned(LedgerForeign("theirs")), Proper()).start()
    proper = Proper()
    leader = bound(Owned(None, LedgerForeign("theirs")), proper)
    with pytest.raises(LedgerForeign, match="theirs"):
        leader.start()
    assert (leader.failure, leader.foreign, leader.failure_reason) == ("theirs", "theirs", Reason.LEDGER_FOREIGN)
    assert (leader.leads(), leader.leaders(), proper.done) == (Leads(), {}, [])
    with pytest.raises(Fenced, match="theirs"):
        leader.fence([7])


def test_until_the_account_is_known_and_the_ledger_answers_it_is_looked_again() -> None:
    answers: list[Any] = [
        CloudError("GetCallerIdentity", FailureClass.UNAVAILABLE, "Timeout", "no route"),
        "1111",
        "1111",
    ]

    def account() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    proper = Proper()
    leader = bound(Owned(None, ACROSS), proper, account)
    assert leader.failure_reason is Reason.LEDGER_UNAVAILABLE
    leader.start()
    assert "(GetCallerIdentity: Timeout: no route)" in leader.failure
    assert (leader.failure_reason, leader.foreign) == (Reason.CLOUD_UNREADABLE, "")
    leader.look()
    assert (leader.failure, leader.failure_reason) == ("the database is away", Reason.LEDGER_UNAVAILABLE)
    assert leader.leads() == Leads()
    leader.look()
    assert (leader.failure, leader.leads().every, proper.done) == ("", 7, ["start"])


@pytest.mark.parametrize("end", [BoundLeader.close, BoundLeader.stop])
def test_once_it_is_closed_no_lead_is_taken_up(end: Callable[[BoundLeader], None]) -> None:
    ledger, proper = Owned(), Proper()
    leader = bound(ledger, proper)
    end(leader)
    leader.look()
    assert (ledger.asked, proper.done, leader.leads()) == ([], [], Leads())


CLUSTER = {"capacity_cores": 100}
POOL = {"machines": 1, "machine_cores": 8, "machine_memory_gb": 64}


@pytest.mark.parametrize(
    ("about", "managed"),
    [
        ({}, False),
        ({"fleets": {"web": {"policy": "hold", "groups": {}}}}, True),
        ({"discovery": {"enabled": True}}, True),
        ({"clusters": {"a": CLUSTER}}, False),
        ({"clusters": {"a": CLUSTER, "b": {**CLUSTER, "tagged_groups": True}}}, True),
        ({"pools": {"a": POOL}}, False),
        ({"pools": {"a": {**POOL, "parameter": "/trimtab/oversubscription/a"}}}, True),
        ({"placements": {"a": {}}}, False),
    ],
)
def test_account_and_region_matter_where_something_on_aws_is_managed(about: dict[str, Any], managed: bool) -> None:
    settings = Settings(**about)
    asked: list[tuple[str, str]] = []

    def read(service: str, operation: str, **about: Any) -> dict[str, Any]:
        asked.append((service, operation))
        return {"Account": 2222, "AutoScalingGroups": []}

    session: Any = SimpleNamespace(region="us-east-1", read=read, account=AccountCheck(time.monotonic))
    assert manages_aws(settings) is managed
    assert region_of(settings, session) == ("us-east-1" if managed else None)
    found = account_of(settings, lambda: session)
    assert (found is not None) is managed
    if found is not None:
        assert asked == []
        assert found() == "2222"
        assert asked == [("sts", "GetCallerIdentity")]
        named = account_of(Settings(aws={"account": "1" * 12}, **about), lambda: session)
        assert named is not None
        assert named() == "1" * 12
        assert asked[1:] == [("autoscaling", "DescribeAutoScalingGroups"), ("sts", "GetCallerIdentity")]


def test_a_subject_moves_right_after_a_turn_only(site: Site) -> None:
    """Later the next leader's turn of this minute may be over already."""
    leader = a_leader(site)
    for _ in range(2):
        site.beat_once(after_s=12.0)
        site.now += 12.0
        with leader.turning():
            pass
    site.others = {"ben": BEN, "anna": replace(BEN, name="anna", process="host:3")}
    site.beat_once(after_s=9.0)
    assert led(leader) == {WEB: 1}
    site.now += 15.0
    with leader.turning():
        pass
    site.beat_once(after_s=7.0)
    assert led(leader) == {}
