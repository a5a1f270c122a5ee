"""Who may act, beat by beat: the lead is counted from before it was asked for, and given up before it runs out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agent.autoscaling.report import MinuteReport, with_fleets
from agent.kernel.turn import TurnReport
from agent.ledger.postgresql import OtherLease, OwnLease
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
from agent.settings import Settings
from collectors.aws_account import AccountCheck
from domain.clock import VirtualClock
from domain.decisions import Decision, Mode, Proposal, Reason
from domain.errors import CloudError, FailureClass, Fenced, LedgerError, LedgerForeign, LedgerUnavailable

LEASE_S, RENEW_S = 30.0, 10.0
USED_S = 27.0
"""Nine tenths of a lease: what leaves in time should arrive in time."""
ACROSS = LedgerUnavailable("the database is away")


class Site:
    """A ledger that answers as the test says, the host's time since boot, and the thread's beats one at a time.

    answers: of the next asks, each a value or an error; an answer takes `takes_s`. asked: (what, its arguments).
    """

    def __init__(self) -> None:
        self.now, self.takes_s = 1000.0, 0.0
        self.answers: list[Any] = []
        self.asked: list[tuple[Any, ...]] = []
        self.checks: list[Exception | None] = []
        self.waits: list[float] = []
        self.joined: list[float | None] = []
        self.beats = 0
        self.run: Callable[[], None] | None = None
        self.checking: Callable[[], None] = lambda: None

    # The ledger

    def _answer(self, *asked: Any) -> Any:
        self.asked.append(asked)
        self.now += self.takes_s
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def take_lease(self, owner: str, lease_s: float, at: float) -> Any:
        return self._answer("take", owner, lease_s, at)

    def renew_lease(self, epoch: int, lease_s: float) -> Any:
        return self._answer("renew", epoch, lease_s)

    def give_up_lease(self, epoch: int) -> None:
        self._answer("give up", epoch)

    def take_epoch(self, owner: str, at: float) -> int:
        return int(self._answer("epoch", owner, at))

    def check_epoch(self, epoch: int) -> None:
        self.asked.append(("check", epoch))
        self.checking()
        error = self.checks.pop(0) if self.checks else None
        if error is not None:
            raise error

    # The thread

    def beat(self, *answers: Any, after_s: float = RENEW_S) -> float:
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

    monkeypatch.setattr(module, "threading", SimpleNamespace(Thread=Thread, Event=Event))
    monkeypatch.setattr(module, "since_boot", lambda: made.now)
    return made


def a_leader(site: Site, *answers: Any) -> LeaseLeader:
    """Return an agent that has asked once and been answered so."""
    site.answers = list(answers)
    made = LeaseLeader(site, "ana", VirtualClock(5000.0), LEASE_S, RENEW_S)  # type: ignore[arg-type]
    made.start()
    assert site.answers == []
    return made


def test_a_free_lease_is_taken_at_once_for_its_used_part(site: Site) -> None:
    leader = a_leader(site, OwnLease(3))
    assert site.asked == [("take", "ana", LEASE_S, 5000.0)]
    assert (leader.epoch(), leader.led_by(), leader.rival, leader.failure) == (3, "ana", "", "")
    site.now += USED_S - 0.001
    assert leader.epoch() == 3
    site.now += 0.001
    assert leader.epoch() is None
    assert leader.led_by() == ""


def test_the_lead_counts_from_before_it_was_asked_for(site: Site) -> None:
    site.takes_s = 5.0
    leader = a_leader(site, OwnLease(3))
    site.now = 1000.0 + USED_S - 0.001
    assert leader.epoch() == 3
    site.now = 1000.0 + USED_S
    assert leader.epoch() is None


def test_the_thread_comes_back_to_renew_and_the_lead_goes_on_from_there(site: Site) -> None:
    leader = a_leader(site, OwnLease(3))
    assert site.beat(True) == RENEW_S
    assert site.waits == [RENEW_S, RENEW_S]
    assert site.asked == [("renew", 3, LEASE_S)]
    site.now += USED_S - 0.001
    assert leader.epoch() == 3


def test_a_renewal_counts_from_before_it_was_asked_for_too(site: Site) -> None:
    leader = a_leader(site, OwnLease(3))
    site.takes_s = 4.0
    site.beat(True)
    site.now = 1000.0 + RENEW_S + USED_S - 0.001
    assert leader.epoch() == 3
    site.now += 0.001
    assert leader.epoch() is None


def test_while_another_holds_the_lease_it_is_stood_by(site: Site) -> None:
    leader = a_leader(site, OtherLease("ben", 20.0))
    assert (leader.epoch(), leader.led_by(), leader.rival) == (None, "ben", "ben")
    site.now += 19.999
    assert leader.led_by() == "ben"
    site.now += 0.001
    assert leader.led_by() == ""
    assert leader.rival == "ben"


@pytest.mark.parametrize(("remaining_s", "wait_s"), [(20.0, RENEW_S), (2.0, 2.05), (9.95, RENEW_S), (0.0, 0.05)])
def test_it_comes_back_as_soon_as_the_lease_runs_out(site: Site, remaining_s: float, wait_s: float) -> None:
    a_leader(site, OtherLease("ben", 20.0))
    assert site.beat(OtherLease("ben", remaining_s)) == pytest.approx(wait_s)


def test_a_lease_that_ran_out_is_taken(site: Site) -> None:
    leader = a_leader(site, OtherLease("ben", 20.0))
    assert site.beat(OwnLease(4)) == RENEW_S
    assert (leader.epoch(), leader.led_by(), leader.rival) == (4, "ana", "")


def test_a_lead_that_another_took_over_is_lost_and_asked_for_anew(site: Site) -> None:
    leader = a_leader(site, OwnLease(3))
    assert site.beat(False, OtherLease("ben", 25.0)) == RENEW_S
    assert [what for what, *_ in site.asked] == ["renew", "take"]
    assert (leader.epoch(), leader.rival) == (None, "ben")
    site.beat(OwnLease(5))
    assert leader.epoch() == 5


def test_a_lead_that_was_not_renewed_in_time_is_never_renewed(site: Site) -> None:
    leader = a_leader(site, OwnLease(3))
    site.beat(OwnLease(4), after_s=USED_S)
    assert [what for what, *_ in site.asked] == ["take"]
    assert leader.epoch() == 4
    site.beat(True, after_s=USED_S - 0.001)
    assert leader.epoch() == 4


def test_an_answer_that_comes_after_the_lead_ran_out_does_not_bring_it_back(site: Site) -> None:
    leader = a_leader(site, OwnLease(3))
    site.takes_s = USED_S - RENEW_S
    site.beat(True, OtherLease("ben", 5.0))
    assert [what for what, *_ in site.asked] == ["renew", "take"]
    assert leader.epoch() is None
    # Just in time is in time.
    site.takes_s = 0.0
    site.beat(OwnLease(6))
    site.takes_s = USED_S - RENEW_S - 0.001
    site.beat(True)
    assert leader.epoch() == 6


def test_a_database_that_is_away_is_asked_again_soon_and_the_lead_lasts_its_time(site: Site) -> None:
    leader = a_leader(site, OwnLease(3))
    assert site.beat(ACROSS) == 1.0
    assert (leader.epoch(), leader.failure) == (3, "the database is away")
    site.beat(True, after_s=1.0)
    assert (leader.epoch(), leader.failure) == (3, "")


@pytest.mark.parametrize("after_s", [USED_S, USED_S + 5.0])
def test_a_lead_that_runs_out_while_the_database_is_away_is_lost_for_good(site: Site, after_s: float) -> None:
    leader = a_leader(site, OwnLease(3))
    site.takes_s = after_s - RENEW_S
    site.beat(ACROSS)
    site.takes_s = 0.0
    assert leader.epoch() is None
    # It is asked for again, and not renewed.
    site.beat(OwnLease(4), after_s=1.0)
    assert [what for what, *_ in site.asked] == ["take"]
    assert leader.epoch() == 4


def test_nothing_that_the_database_does_ends_the_thread(site: Site) -> None:
    leader = a_leader(site, ValueError("odd"))
    assert leader.failure == "ValueError: odd"
    assert leader.epoch() is None
    assert site.beat(LedgerError("odder")) == 1.0
    assert leader.failure == "odder"
    site.beat(OwnLease(1))
    assert (leader.epoch(), leader.failure) == (1, "")


def test_a_short_renewal_is_retried_no_later_than_that(site: Site) -> None:
    site.answers = [ACROSS]
    leader = LeaseLeader(site, "ana", VirtualClock(0.0), 3.0, 0.5)  # type: ignore[arg-type]
    leader.start()
    assert site.beat(OwnLease(1)) == 0.5
    assert site.waits == [0.5, 0.5]


def test_the_fence_asks_the_ledger_between_two_looks_at_the_lead(site: Site) -> None:
    leader = a_leader(site, OwnLease(3))
    leader.fence(3)
    assert site.asked[-1] == ("check", 3)
    for other in (2, 4):
        with pytest.raises(Fenced, match=f"the lease under epoch {other} is over"):
            leader.fence(other)
    site.checks = [Fenced("ben leads")]
    with pytest.raises(Fenced, match="ben leads"):
        leader.fence(3)
    site.checks = [ACROSS]
    with pytest.raises(LedgerUnavailable):
        leader.fence(3)

    def slow() -> None:
        site.now += USED_S

    site.checking = slow
    with pytest.raises(Fenced, match="lease under epoch 3"):
        leader.fence(3)
    site.asked.clear()
    with pytest.raises(Fenced):
        leader.fence(3)
    assert site.asked == []


def test_once_closed_nothing_more_is_done_and_the_lease_is_kept(site: Site) -> None:
    leader = a_leader(site, OwnLease(3))
    leader.close()
    assert (leader.epoch(), leader.led_by()) == (None, "")
    with pytest.raises(Fenced, match="this process is stopping"):
        leader.fence(3)
    site.beat(True)
    assert site.asked == [("renew", 3, LEASE_S)]


def test_stopping_gives_the_lease_up_after_the_thread_ended(site: Site) -> None:
    leader = a_leader(site, OwnLease(3))
    site.answers, site.asked = [None], []
    leader.stop()
    assert site.asked == [("give up", 3)]
    assert site.joined == [2.0 * RENEW_S]
    with pytest.raises(Fenced, match="this process is stopping"):
        leader.fence(3)
    # The thread ends at its next look, and a second stop has nothing to give up.
    site.asked, site.beats = [], 5
    assert site.run is not None
    site.run()
    leader.stop()
    assert site.asked == []


def test_stopping_without_a_lead_or_before_the_start_gives_nothing_up(site: Site) -> None:
    leader = a_leader(site, OtherLease("ben", 5.0))
    site.asked.clear()
    leader.stop()
    LeaseLeader(site, "ana", VirtualClock(0.0), LEASE_S, RENEW_S).stop()  # type: ignore[arg-type]
    assert site.asked == []
    assert site.joined == [2.0 * RENEW_S]


def test_a_lead_that_ran_out_while_the_database_was_away_is_not_given_up(site: Site) -> None:
    leader = a_leader(site, OwnLease(3))
    site.takes_s = USED_S
    site.beat(ACROSS)
    site.asked.clear()
    leader.stop()
    assert site.asked == []


@pytest.mark.parametrize("takes_s", [0.0, USED_S])
def test_a_lead_that_ran_out_is_not_given_up_for_it_is_anothers_by_now(site: Site, takes_s: float) -> None:
    leader = a_leader(site, OwnLease(3))
    site.takes_s = takes_s
    # Asked too late, or answered too late.
    answers = [OtherLease("ben", 5.0)] if takes_s == 0.0 else [True, OtherLease("ben", 5.0)]
    site.beat(*answers, after_s=USED_S if takes_s == 0.0 else RENEW_S)
    site.asked.clear()
    leader.stop()
    assert site.asked == []


def test_a_lease_that_cannot_be_given_up_runs_out_by_itself(site: Site) -> None:
    leader = a_leader(site, OwnLease(3))
    site.answers = [ACROSS]
    leader.stop()
    assert site.asked[-1] == ("give up", 3)
    assert leader.epoch() is None


# On a SQLite ledger


def test_a_lead_that_is_given_away_ends_at_once_and_another_has_time_to_take_it(
    site: Site,
) -> None:
    leader = a_leader(site, OwnLease(3))
    leader.stand_back()
    assert leader.epoch() is None
    assert site.beat(None) == RENEW_S
    assert site.asked == [("give up", 3)]
    for _ in range(int(module.STAND_BACK_LEASES * LEASE_S / RENEW_S) - 2):
        assert site.beat() == RENEW_S
        assert site.asked == []
    site.beat(OwnLease(4))
    assert (site.asked[0][0], leader.epoch()) == ("take", 4)


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


def test_the_sole_leader_leads_from_the_start_until_a_newer_epoch(site: Site) -> None:
    site.answers = [8]
    leader = SoleLeader(site, "ana", 77.0)  # type: ignore[arg-type]
    leader.start()
    assert site.asked == [("epoch", "ana", 77.0)]
    assert (leader.epoch(), leader.led_by()) == (8, "ana")
    leader.fence(8)
    assert site.asked[-1] == ("check", 8)
    site.checks = [ACROSS, Fenced("ben leads")]
    with pytest.raises(LedgerUnavailable):
        leader.fence(8)
    assert leader.epoch() == 8
    with pytest.raises(Fenced, match="ben leads"):
        leader.fence(8)
    assert (leader.epoch(), leader.led_by()) == (None, "")


@pytest.mark.parametrize("end", [SoleLeader.close, SoleLeader.stop])
def test_the_sole_leader_does_nothing_once_it_is_closed(site: Site, end: Callable[[SoleLeader], None]) -> None:
    site.answers = [8]
    leader = SoleLeader(site, "ana", 77.0)  # type: ignore[arg-type]
    end(leader)
    assert (leader.epoch(), leader.led_by()) == (None, "")
    site.asked.clear()
    with pytest.raises(Fenced, match="is stopping"):
        leader.fence(8)
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

    def epoch(self) -> int:
        return 7

    def led_by(self) -> str:
        return "ana"

    def fence(self, epoch: int) -> None:
        self.done.append(epoch)

    def stand_back(self) -> None:
        self.done.append("stand back")

    def close(self) -> None:
        self.done.append("close")

    def stop(self) -> None:
        self.done.append("stop")


def bound(ledger: Owned, proper: Proper, account: Callable[[], str] | None = lambda: "1111") -> BoundLeader:
    return BoundLeader(ledger, account, lambda known: known or "nobody", lambda: proper)  # type: ignore[arg-type,return-value]


def test_the_lead_is_taken_up_once_the_ledger_is_bound_to_the_account() -> None:
    ledger, proper = Owned(), Proper()
    leader = bound(ledger, proper)
    assert (leader.epoch(), leader.led_by(), leader.failure, leader.foreign) == (None, "", "", "")
    with pytest.raises(Fenced, match="not known yet"):
        leader.fence(7)
    leader.start()
    assert ledger.asked == [("refuse", "nobody"), ("bind", "1111")]
    assert (leader.epoch(), leader.led_by(), leader.failure) == (7, "ana", "")
    leader.fence(7)
    leader.look()
    leader.close()
    leader.stop()
    assert proper.done == ["start", 7, "close", "stop"]
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
    assert (leader.epoch(), leader.led_by(), proper.done) == (None, "", [])
    with pytest.raises(Fenced, match="theirs"):
        leader.fence(7)


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
    assert leader.epoch() is None
    leader.look()
    assert (leader.failure, leader.epoch(), proper.done) == ("", 7, ["start"])


@pytest.mark.parametrize("end", [BoundLeader.close, BoundLeader.stop])
def test_once_it_is_closed_no_lead_is_taken_up(end: Callable[[BoundLeader], None]) -> None:
    ledger, proper = Owned(), Proper()
    leader = bound(ledger, proper)
    end(leader)
    leader.look()
    assert (ledger.asked, proper.done, leader.epoch()) == ([], [], None)


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
