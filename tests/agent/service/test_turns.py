"""Turning the loop: nothing that goes wrong in one turn, or in who is told of it, keeps the next from coming."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.autoscaling.decision import AutoscalingPart
from agent.autoscaling.state import FleetStore
from agent.kernel.rounds import LOOK_EVERY_S
from agent.kernel.turn import TurnReport
from agent.models.rounds import Ending, status_file
from agent.service.assembly import Agent, AwsKeys, assembled, subject_of
from agent.service.chores import check_itself
from agent.service.daemon import Loop, summary
from agent.service.schedule import Schedule
from agent.settings import Settings
from agent.view.board import ServiceBoard, ServiceState
from domain.clock import VirtualClock
from domain.decisions import Mode, Reason
from domain.errors import CloudError, FailureClass, RejectReason
from domain.subject import AGENT, Subject, fleet_subject
from tests.simulator.aws.world import START, World
from tests.waiting import until
from trainer.promotion.directory import write_round

GROUP = {"name": "web-s", "vm_type": "m5a.large", "cores": 2, "memory_gb": 8.0, "price_per_hour": 0.086, "max": 5}


@dataclass
class Turning:
    """An agent on the simulated cloud, its loop and its board."""

    agent: Agent
    board: ServiceBoard
    loop: Loop


@pytest.fixture
def turning(cloud: World, tmp_path: Path) -> Iterator[Turning]:
    cloud.group("web-s", size=(0, 1, 5))
    cloud.control.ready_now()
    settings = Settings(
        mode=Mode.ACT,
        state_directory=tmp_path,
        listener={"port": 0},
        aws={"region": "us-east-1", "endpoint_url": cloud.running.endpoint, "read_timeout_s": 0.5},
        fleets={"web": {"policy": "hold", "groups": {"workers": GROUP}}},
    )
    with assembled(settings, VirtualClock(START + 5.0), AwsKeys("agent", "simulated")) as agent:
        board = ServiceBoard(START)
        yield Turning(agent, board, Loop(agent, board))


@pytest.mark.exhaustive
def test_the_board_knows_each_turn(turning: Turning) -> None:
    turning.loop.turn()
    state = turning.board.read()
    assert (state.turns, state.failed_turns, state.leader, state.epoch) == (1, 0, True, 1)
    assert state.last_turn_at == START + 5.0
    assert " web: " in state.latest
    assert summary(state, turning.agent).startswith("act; 1 fleet; ")
    assert " web: " in summary(state, turning.agent)


@pytest.mark.exhaustive
def test_a_listener_that_fails_stops_neither_the_loop_nor_the_listeners_after_it(turning: Turning) -> None:
    told: list[int] = []

    def broken(state: ServiceState, report: TurnReport) -> None:
        raise RuntimeError("out of order")

    turning.board.listen(broken)
    turning.board.listen(lambda state, report: told.append(state.turns))
    turning.loop.turn()
    turning.loop.turn()
    assert told == [1, 2]


@pytest.mark.exhaustive
def test_a_turn_that_raises_is_a_failed_turn(turning: Turning, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(self: Agent) -> TurnReport:
        raise RuntimeError("something nobody thought of")

    monkeypatch.setattr(Agent, "turn", explode)
    turning.loop.turn()
    monkeypatch.undo()
    assert turning.board.read().ledger_failure.startswith("RuntimeError: ")
    turning.loop.turn()
    state = turning.board.read()
    assert (state.turns, state.failed_turns, state.ledger_failure) == (2, 1, "")


@pytest.mark.exhaustive
def test_another_agent_that_takes_the_lead_on_the_same_file_is_reported_and_this_one_only_measures(
    turning: Turning,
) -> None:
    turning.loop.turn()
    turning.agent.ledger.take_epoch("another", START)
    turning.loop.turn()
    assert "since epoch 2" in turning.board.read().ledger_failure
    decided = len(FleetStore(turning.agent.ledger).decisions("web"))
    turning.loop.turn()
    state = turning.board.read()
    assert (state.leader, state.ledger_failure) == (False, "")
    assert len(turning.agent.part(AutoscalingPart).minute.snapshots) == 1
    assert len(FleetStore(turning.agent.ledger).decisions("web")) == decided == 1
    lost = [entry for entry in turning.agent.ledger.journal(subject=AGENT.name) if entry.reason == Reason.LEAD_LOST]
    assert [entry.body["detail"].split(":")[0] for entry in lost] == ["epoch 1 is over"]


def test_once_stopping_a_turn_records_nothing_new(turning: Turning) -> None:
    turning.loop.turn()
    before = turning.agent.ledger.newest_seq()
    turning.agent.leadership.close()
    turning.loop.turn()
    assert turning.agent.ledger.newest_seq() == before + 1  # the loss of the lead
    assert turning.board.read().leader is False


def test_calls_begin_only_within_the_turn_s_time(turning: Turning) -> None:
    session = turning.agent.session
    with session.within(1.0):
        session.read("autoscaling", "DescribeAutoScalingGroups")
        time.sleep(1.05)
        with pytest.raises(CloudError) as refused:
            session.read("autoscaling", "DescribeAutoScalingGroups")
    assert (refused.value.failure, refused.value.code) == (FailureClass.UNAVAILABLE, "TurnDeadline")
    session.read("autoscaling", "DescribeAutoScalingGroups")


def test_the_loop_is_alive_while_turns_begin() -> None:
    schedule = Schedule()
    job = schedule.add("tick", lambda: None, 10.0)
    loop = Loop.__new__(Loop)
    loop.watch(job)
    job.started = time.monotonic() - 24.0
    assert loop.alive()
    job.started = time.monotonic() - 26.0
    assert not loop.alive()


def test_jobs_begin_at_once_without_a_time_and_overruns_are_counted() -> None:
    schedule = Schedule()
    called, over = threading.Event(), threading.Event()

    def slow() -> None:
        called.set()
        over.wait()

    job = schedule.add("chore", slow, 3600.0, deadline_s=0.1)
    later = schedule.add("later", slow, 3600.0, time.time() + 3600.0)
    schedule.start()
    assert called.wait(60.0)
    time.sleep(0.15)
    assert schedule.stop(0.01) is False
    over.set()
    assert schedule.stop(60.0) is True
    assert (job.turns, job.overruns, later.turns) == (1, 1, 0)


@pytest.mark.exhaustive
def test_a_promotion_that_was_rolled_back_goes_with_the_turn_and_into_the_ledger(turning: Turning) -> None:
    told: list[tuple[Reason, str]] = []
    turning.board.listen(lambda state, report: told.extend((event.reason, event.detail) for event in report.events))
    models = turning.agent.settings.models_directory
    write_round(models, Subject("autoscaling", "web"), Ending.ROLLED_BACK, "web cost 9 % more", START)
    turning.loop.turn()
    turning.loop.turn()
    assert [one for one in told if one[0] is Reason.PROMOTION_ROLLED_BACK] == [
        (Reason.PROMOTION_ROLLED_BACK, "web cost 9 % more")
    ]
    kept = [entry for entry in turning.agent.ledger.journal() if entry.reason == Reason.PROMOTION_ROLLED_BACK]
    assert [(entry.subject.name, entry.body["detail"]) for entry in kept] == [("web", "web cost 9 % more")]
    status_file(models, Subject("autoscaling", "web")).write_text("{")
    turning.agent.clock.sleep(LOOK_EVERY_S)
    check_itself(turning.agent.settings, turning.agent, turning.board)
    assert "learn-autoscaling-web.json" in turning.board.read().problems["learning"]


def test_the_disks_of_state_directory_and_ledger_are_watched(
    turning: Turning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(turning.agent.ledger.database, "path", tmp_path / "elsewhere" / "ledger.db")
    monkeypatch.setattr("shutil.disk_usage", lambda path: asked.append(path) or SimpleNamespace(total=100, free=4))
    check_itself(turning.agent.settings, turning.agent, turning.board)
    assert asked == [tmp_path, tmp_path / "elsewhere"]
    assert turning.board.read().problems["disk"].count("4%") == 2


@pytest.mark.exhaustive
def test_a_vm_is_found_by_its_host_name_from_the_first_turn_that_sees_it(cloud: World, tmp_path: Path) -> None:
    cloud.group("web-s", size=(0, 1, 5))
    cloud.control.ready_now()
    rules = tmp_path / "inputs.toml"
    rules.write_text('[[series]]\nfrom = "collectd.{host}.busy"\nto = "cpu_percent"\n')
    settings = Settings(
        state_directory=tmp_path,
        listener={"port": 0},
        input_map=rules,
        aws={"region": "us-east-1", "endpoint_url": cloud.running.endpoint, "read_timeout_s": 0.5},
        fleets={"web": {"policy": "hold", "groups": {"workers": GROUP}}},
    )
    with assembled(settings, VirtualClock(START + 5.0), AwsKeys("agent", "simulated")) as agent:
        (part,) = (one for one in agent.parts if isinstance(one, AutoscalingPart))
        (vm,) = part.loop.actuator.observe([part.loop.fleets[0].fleet], START).names.items()
        host = vm[1][0].replace(".", "_")

        def say(value: float) -> bool:
            counters = agent.listener.counters
            before = counters.accepted + counters.rejected_total
            with socket.create_connection((agent.listener.host, agent.listener.port), timeout=60.0) as sender:
                sender.sendall(f"collectd.{host}.busy {value} {START + 4.0}\n".encode())
            until(lambda: counters.accepted + counters.rejected_total > before)
            return part.series.vm_rows("web", "workers").get(vm[0]) is not None

        assert not say(71.0)
        assert agent.listener.counters.rejected[RejectReason.UNKNOWN_VM] == 1
        Loop(agent, ServiceBoard(START)).turn()
        assert say(72.0)


def test_the_subject_of_a_path_is_the_pool_or_the_fleet_that_it_names(cloud: World, tmp_path: Path) -> None:
    cloud.group("web-s", size=(0, 1, 5))
    rules = tmp_path / "inputs.toml"
    rules.write_text(
        '[[series]]\nfrom = "app.{fleet}.jobs"\nto = "waiting"\n[[series]]\nfrom = "host.{host}"\nto = "cpu_percent"\n'
    )
    settings = Settings(
        state_directory=tmp_path,
        listener={"port": 0},
        input_map=rules,
        aws={"region": "us-east-1", "endpoint_url": cloud.running.endpoint},
        fleets={"web": {"policy": "hold", "groups": {"workers": GROUP}}},
        pools={"dense": {"machines": 1, "machine_cores": 8, "machine_memory_gb": 64}},
    )
    of = {
        "trimtab.web.workers.i-1.cpu_percent": fleet_subject("web"),
        "trimtab.cpu_percent;fleet=web;group=workers;vm=i-1": fleet_subject("web"),
        "trimtab.web.queue.waiting": fleet_subject("web"),
        "app.web.jobs": fleet_subject("web"),
        "trimtab.dense.customer.vm-1.cpu_percent": Subject("oversubscription", "dense"),
        "trimtab.other.queue.waiting": None,
        "app.other.jobs": None,
        "host.ip-10-0-0-1": None,
        "app.web.other": None,
    }
    with assembled(settings, VirtualClock(START + 5.0), AwsKeys("agent", "simulated")) as agent:
        assert {path: subject_of(agent.parts, path.encode()) for path in of} == of
        assert subject_of(agent.parts, b"\xff") is None
