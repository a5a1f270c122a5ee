"""The first hour of an operator: from `trimtab init` to the first useful decision, by the commands that it prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.autoscaling.state import FleetStore
from agent.commands.main import app
from agent.kernel.checks import State
from agent.preflight.check import check_everything
from agent.service.assembly import AwsKeys, assembled
from agent.settings import load_settings
from domain.clock import VirtualClock
from domain.decisions import Reason
from tests.simulator.aws.world import START, World
from tests.waiting import until

KEYS = AwsKeys("AKIATRIMTABAGENT0001", "simulated")
MOST_STEPS, MOST_MINUTES = 6, 3


def test_a_queue_and_two_groups_come_to_a_useful_decision_in_six_steps_and_three_minutes(
    cloud: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS.secret_access_key)
    monkeypatch.chdir(tmp_path)
    cloud.template("large", "m5a.2xlarge")
    cloud.template("small", "c6i.large")
    for name in ("large", "small"):
        about = {"LaunchTemplate": {"LaunchTemplateName": name, "Version": "$Latest"}}
        cloud.ready_group(f"web-{name}", size=(1, 1, 10), **about)
    queue = cloud.client("sqs").create_queue(QueueName="jobs")["QueueUrl"]
    for number in range(60):
        cloud.client("sqs").send_message(QueueUrl=queue, MessageBody=str(number))

    account = ["--region", "us-east-1", "--endpoint-url", cloud.running.endpoint]
    groups = ["--group", "web-small", "--group", "web-large"]
    made = CliRunner().invoke(app, ["init", "web.env", *groups, "--queue-url", queue, "--job-length", "2m", *account])
    assert made.exit_code == 0, made.output
    assert re.search(r"would grow .*60 jobs wait", made.output)
    steps = [re.sub(r"\s{2,}.*", "", line.strip()) for line in made.output.partition("next:\n")[2].splitlines()]
    assert 1 + len(steps) <= MOST_STEPS

    environ = {"TRIMTAB_STATE_DIRECTORY": str(tmp_path / "state"), "TRIMTAB_LISTENER__PORT": "0"}
    for step in steps:
        if step == "set -a; . ./web.env; set +a":
            lines = [one for one in Path("web.env").read_text("utf-8").splitlines() if not one.startswith("#")]
            environ |= dict(shlex.split(one)[0].split("=", 1) for one in lines)
        elif step == "trimtab preflight":
            clock = VirtualClock(START)
            found = list(check_everything(load_settings(environ), clock, keys=KEYS, wait=lambda s: None))
            (arrivals,) = [one for one in found if one.subject == "measurements of web"]
            assert (arrivals.state, "scale-in waits" in arrivals.detail) == (State.ADVICE, True)
        else:
            assert step == "trimtab run"
            assert _minutes_to_grow(environ) <= MOST_MINUTES


def _minutes_to_grow(environ: dict[str, str]) -> int:
    """Virtual minutes from the start of the agent to a decision that would add VMs."""
    clock = VirtualClock(START + 5.0)
    with assembled(load_settings(environ), clock, KEYS) as agent:
        for minute in range(1, MOST_MINUTES + 2):
            health = agent.poller.health["queue:web"]
            before = health.successes if minute > 1 else 0
            clock.advance(30.0)
            until(lambda health=health, before=before: health.successes > before)
            clock.advance(30.0)
            agent.turn()
            decision = FleetStore(agent.ledger).decisions("web")[-1].decision
            limits = {effect.reason: effect.before for effect in decision.effects}
            wanted = limits.get(Reason.OBSERVE_MODE)
            if decision.proposal.reason is Reason.QUEUE_GREW and wanted is not None and sum(wanted) > 2:
                assert "no VM reports: scale-in waits" in decision.sentence
                return minute
    raise AssertionError("no decision would add VMs")
