"""`trimtab replay`: the same policy gives the same bytes; another one shows what it would have done."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.autoscaling.decide import decide
from agent.autoscaling.policies.base import Policy
from agent.autoscaling.policies.fallback import STANDING_IN, Proposer, evaluate_directly
from agent.autoscaling.replay import LATE, replay, summaries, what_if
from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.rails.state import Memory
from domain.controls import Pause, PauseScope
from domain.decisions import Proposal
from domain.errors import PolicyFailure
from domain.fleet import Fleet
from domain.snapshot import Snapshot
from tests.agent.commands.conftest import Trimtab
from tests.agent.commands.recorded import POLICY, START, Recorder, fleet, snapshot

THRESHOLD = "threshold:high=0.75,low=0.5,periods=1,exclude_warming=True"


def test_recorded_decisions_come_out_the_same_byte_for_byte(trimtab: Trimtab, ledger: str) -> None:
    result = trimtab("replay")
    assert (result.exit_code, result.stdout.split()[:2]) == (0, ["web:", "4"])
    assert json.loads(trimtab("replay", "--json").stdout) == {"fleet": "web", "same": 4, "differs": None}


def test_operators_switches_are_inputs_too(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path}/l.db") as book:
        recorder = Recorder(book, fleet(), epoch=book.take_epoch("test", START))
        book.pause("autoscaling", "web", Pause(PauseScope.OUT, "ada", "freeze", START, None))
        held = recorder.minute(START, snapshot(recorder.fleet, (1, 0), 32, START)).decision
        assert held.desired == (1, 0)
        book.resume("autoscaling", "web", PauseScope.ALL, at=START + 30, owner="ada")
        assert [item.same for item in replay(FleetStore(book).inputs("web"))] == [True]


def test_the_first_decision_that_differs_is_shown_and_the_exit_status_is_1(trimtab: Trimtab, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with Ledger.open(url) as book:
        recorder = Recorder(book, fleet(), epoch=book.take_epoch("test", START), shadows=())
        recorder.minute(START, snapshot(recorder.fleet, (1, 0), 0, START))
        inputs, _ = next(FleetStore(book).inputs("web"))
        made = decide(replace(inputs, decision_id="web-2", now=START + 60), Proposer(evaluate_directly))
        forged = replace(made, decision=replace(made.decision, desired=(3, 0)))
        FleetStore(book).record([(replace(inputs, decision_id="web-2", now=START + 60), forged)])
    result = trimtab("replay", "--ledger", url)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert ("web-2" in lines[0], lines[0].split()[0]) == (True, "1")
    assert [line for line in lines if line.startswith(("-  ", "+  "))] == ["-    3,", "+    1,"]


def test_a_policy_that_overran_its_deadline_then_does_so_again(tmp_path: Path) -> None:
    overrun = f"{POLICY} did not answer within 1 s"

    def slow(policy: Policy, of: Fleet, seen: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        if policy.name == POLICY:
            raise PolicyFailure(overrun)
        return evaluate_directly(policy, of, seen, memory)

    with Ledger.open(f"sqlite:///{tmp_path}/l.db") as book:
        recorder = Recorder(book, fleet(), epoch=book.take_epoch("test", START), shadows=())
        recorder.minute(START, snapshot(recorder.fleet, (1, 0), 0, START))
        inputs, _ = next(FleetStore(book).inputs("web"))
        late = replace(inputs, decision_id="web-2", now=START + 60)
        decided = decide(late, Proposer(slow))
        assert decided.decision.policy_failures == (overrun,)
        FleetStore(book).record([(late, decided)])
        assert [item.same for item in replay(FleetStore(book).inputs("web"))] == [True, True]


def test_each_shadow_that_overran_its_share_then_does_so_again(tmp_path: Path) -> None:
    late = {"target-tracking": "did not answer within 0 s, which is what others left it", "threshold": LATE[1]}

    def slow(policy: Policy, of: Fleet, seen: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        why = late.get(policy.name.partition(":")[0])
        if why is not None:
            raise PolicyFailure(f"{policy.name} {why}")
        return evaluate_directly(policy, of, seen, memory)

    with Ledger.open(f"sqlite:///{tmp_path}/l.db") as book:
        shadows = ("target-tracking", "hold", "threshold:low=0.5")
        recorder = Recorder(book, fleet(), epoch=book.take_epoch("test", START), shadows=shadows)
        recorder.minute(START, snapshot(recorder.fleet, (1, 0), 0, START))
        inputs, _ = next(FleetStore(book).inputs("web"))
        inputs = replace(inputs, decision_id="web-2", now=START + 60)
        made = decide(inputs, Proposer(slow))
        assert [STANDING_IN in shadow.detail for shadow in made.decision.shadows] == [True, False, True]
        FleetStore(book).record([(inputs, made)])
        assert [item.difference for item in replay(FleetStore(book).inputs("web"))] == ["", ""]


def test_another_policy_on_the_same_minutes(trimtab: Trimtab, ledger: str) -> None:
    data = json.loads(trimtab("replay", "--policy", "threshold:low=0.5", "--json").stdout)
    assert (data["policy"], data["minutes"]) == (THRESHOLD, 4)
    first = data["differing"][0]
    assert (first["id"], first["recorded"], first["other"]) == ("web-1", [1, 2], [2, 1])
    # 60 s each of 3 and 5 VMs, of the 2 that were known while AWS could not be read, and of 3.
    assert data["recorded"]["vm_hours"] == pytest.approx((3 + 5 + 2 + 3) / 60)
    assert data["recorded"]["scale_outs"] == 2
    lines = trimtab("replay", "--policy", "threshold:low=0.5").stdout.splitlines()
    assert lines[0].startswith(f"{THRESHOLD} on 4 recorded minutes: ")
    assert lines[2].split()[:4] == ["web-1", "2026-03-01", "12:00:00", "UTC"]


def test_the_other_policys_memory_goes_on_from_its_own_last_minute(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path}/l.db") as book:
        recorder = Recorder(book, fleet(), epoch=book.take_epoch("test", START), shadows=())
        for minute in range(4):
            at = START + 60 * minute
            recorder.minute(at, snapshot(recorder.fleet, (1, 0), 0, at))
        others = list(what_if(FleetStore(book).inputs("web"), "threshold:periods=3"))
        assert [item.other.desired for item in others] == [(1, 0), (1, 0), (2, 1), (2, 1)]
        recorded, other = summaries(others)
        assert (recorded.outs, other.outs) == (0, 2)
        assert other.vm_hours == pytest.approx((1 + 1 + 3 + 3) / 60)
        assert other.dollars == pytest.approx((0.086 * 6 + 0.344 * 2) / 60)


def test_a_span_of_time_and_a_policy_that_does_not_exist(trimtab: Trimtab, ledger: str) -> None:
    result = trimtab("replay", "--from", "2026-03-01T12:01", "--to", "2026-03-01T12:03", "--json")
    assert json.loads(result.stdout)["same"] == 2
    assert trimtab("replay", "--policy", "magic").exit_code == 2
