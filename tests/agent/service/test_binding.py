"""Whose ledger it is: an agent of another account, region or deployment neither leads nor acts on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.alarms.book import alarms
from agent.autoscaling.decision import AutoscalingPart
from agent.commands.main import app
from agent.ledger import Ledger, LedgerOwner
from agent.service.assembly import Agent, AwsKeys, assembled
from agent.service.http import lead_check
from agent.service.leader import COMPARED_EVERY_S
from agent.settings import Settings
from domain.clock import VirtualClock
from domain.decisions import Decision, Mode, Reason
from domain.errors import CloudError, FailureClass, Fenced, LedgerForeign
from tests.agent.service.test_turns import GROUP
from tests.simulator.aws.world import START, World

ACCOUNT = "123456789012"
Start = Callable[..., AbstractContextManager[Agent]]


@pytest.fixture
def start(cloud: World, tmp_path: Path) -> Start:
    """Starts agents, each with a state directory of its own, on one ledger."""
    cloud.group("web-s", size=(0, 1, 5))
    cloud.control.ready_now()
    numbers = iter(range(9))

    def make(region: str = "us-east-1", account: str | None = None, **about: Any) -> AbstractContextManager[Agent]:
        settings = Settings(
            mode=about.pop("mode", Mode.ACT),
            state_directory=tmp_path / f"agent-{next(numbers)}",
            ledger={"url": f"sqlite:///{tmp_path / 'ledger.db'}"},
            listener={"port": 0},
            aws={
                "region": region,
                "account": account,
                "endpoint_url": cloud.running.endpoint,
                "read_timeout_s": 0.5,
            },
            fleets={"web": {"policy": "hold", "groups": {"workers": GROUP}}},
            **about,
        )
        return assembled(settings, VirtualClock(START + 5.0), AwsKeys("agent", "simulated"))

    return make


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


def test_the_first_agent_binds_the_ledger_and_its_partner_is_let_in(start: Start, ledger: str) -> None:
    for _ in range(2):
        with start() as agent:
            assert agent.turn().failure is None
    with Ledger.open(ledger, read_only=True) as opened:
        assert opened.owned_by() == LedgerOwner(ACCOUNT, "us-east-1", "default")
        assert opened.epoch() == 2


@pytest.mark.parametrize("mode", [Mode.ACT, Mode.OBSERVE])
@pytest.mark.parametrize(
    ("stranger", "difference"),
    [
        ({"region": "eu-west-1"}, "region us-east-1, not eu-west-1"),
        ({"account": "999999999999"}, f"AWS account {ACCOUNT}, not 999999999999"),
        ({"deployment": "staging"}, "deployment default, not staging"),
    ],
)
def test_a_stranger_is_refused_before_it_leads(
    start: Start, ledger: str, mode: Mode, stranger: dict[str, str], difference: str
) -> None:
    with start():
        pass
    refusal = pytest.raises(LedgerForeign, match=f"belongs to {difference}")
    with refusal, start(mode=mode, **stranger):
        pass
    with Ledger.open(ledger, read_only=True) as opened:
        assert opened.epoch() == 1


def test_while_sts_does_not_answer_the_agent_is_up_and_leads_nowhere(start: Start, cloud: World, ledger: str) -> None:
    cloud.control.add_fault("access_denied", operations=["GetCallerIdentity"])
    with start() as agent:
        report = agent.turn()
        assert "TRIMTAB_AWS__ACCOUNT" in str(report.failure)
        assert [alarm.reason for alarm in alarms(report, lasting=True).values()] == [Reason.CLOUD_UNREADABLE]
        assert decisions(agent) == ()
        assert agent.ledger.epoch() == 0
        with pytest.raises(Fenced, match="account is not known"):
            agent.leadership.fence([0])
        assert not lead_check(agent).ok
        cloud.control.clear_faults()
        report = agent.turn()
        assert (report.failure, len(decisions(agent))) == (None, 1)
        assert agent.ledger.owned_by().account == ACCOUNT
        assert lead_check(agent).detail == "this agent leads"


@pytest.mark.exhaustive
def test_an_account_found_out_later_to_be_another_never_leads(start: Start, cloud: World, ledger: str) -> None:
    with Ledger.open(ledger) as opened:
        opened.bind(LedgerOwner("999999999999", "us-east-1", "default"))
    cloud.control.add_fault("access_denied", operations=["GetCallerIdentity"])
    with start() as agent:
        cloud.control.clear_faults()
        for _ in range(2):
            report = agent.turn()
            assert "999999999999, not 123456789012" in str(report.failure)
            assert report.failure_reason is Reason.LEDGER_FOREIGN
        assert agent.ledger.epoch() == 0


def test_a_named_account_needs_no_sts(start: Start, cloud: World) -> None:
    cloud.control.add_fault("access_denied", operations=["GetCallerIdentity"])
    with start(account=ACCOUNT) as agent:
        assert agent.turn().failure is None


def test_a_ledger_that_shall_change_hands_is_freed(start: Start, tmp_path: Path) -> None:
    with start():
        pass
    done = CliRunner().invoke(app, ["ledger", "restore", "--another", "--ledger", str(tmp_path / "ledger.db")])
    assert done.exit_code == 0, done.output
    with start(region="eu-west-1") as agent:
        assert agent.ledger.owned_by() == LedgerOwner(ACCOUNT, "eu-west-1", "default")


def test_an_agent_that_lost_its_lead_on_sqlite_is_not_ready(start: Start) -> None:
    with start() as agent:
        agent.turn()
        assert lead_check(agent).ok
        agent.ledger.take_epoch("another", START)
        agent.turn()
        assert not lead_check(agent).ok


OTHER = "999999999999"


def decisions(agent: Agent) -> tuple[Decision, ...]:
    """The fleets' decisions of the last turn."""
    return agent.part(AutoscalingPart).minute.decisions


def changes(cloud: World) -> list[str]:
    """Return what the agent changed at AWS."""
    return [call["operation"] for call in cloud.control.mutations(access_key="agent")]


def test_credentials_that_lead_to_another_account_take_the_lead_until_they_lead_back(
    start: Start, cloud: World
) -> None:
    with start() as agent:
        assert agent.turn().failure is None
        cloud.control.set_account(OTHER)
        agent.turn()
        (held,) = decisions(agent)
        assert (held.reason, held.desired) == (Reason.CLOUD_UNREADABLE, ())
        report = agent.turn()
        assert report.failure_reason is Reason.ACCOUNT_FOREIGN
        assert ACCOUNT in str(report.failure)
        assert OTHER in str(report.failure)
        assert [alarm.reason for alarm in alarms(report, lasting=True).values()] == [Reason.ACCOUNT_FOREIGN]
        assert (decisions(agent), lead_check(agent).ok, changes(cloud)) == ((), False, [])
        with pytest.raises(CloudError, match=OTHER):
            agent.session.mutate("autoscaling", "SetDesiredCapacity", AutoScalingGroupName="web-s", DesiredCapacity=0)
        cloud.control.set_account(ACCOUNT)
        # This minute has its decision already.
        agent.clock.sleep(60.0)
        report = agent.turn()
        assert (report.failure, len(decisions(agent)), lead_check(agent).ok) == (
            None,
            1,
            True,
        )


def test_an_account_in_the_settings_is_compared_with_that_of_aws(start: Start, cloud: World) -> None:
    cloud.control.set_account(OTHER)
    cloud.control.add_fault("access_denied", operations=["GetCallerIdentity"])
    with start(account=ACCOUNT) as agent:
        report = agent.turn()
        assert report.failure_reason is Reason.ACCOUNT_FOREIGN
        assert ACCOUNT in str(report.failure)
        assert OTHER in str(report.failure)
        assert (lead_check(agent).ok, changes(cloud), agent.ledger.epoch()) == (False, [], 0)
        cloud.control.set_account(ACCOUNT)
        assert agent.turn().failure is None


def test_sts_is_asked_again_where_no_group_shows_the_account(start: Start, cloud: World) -> None:
    with start(account=ACCOUNT) as agent:
        assert agent.turn().failure is None
        cloud.groups.delete_auto_scaling_group(AutoScalingGroupName="web-s", ForceDelete=True)
        cloud.control.advance(600.0)
        agent.clock.sleep(COMPARED_EVERY_S / 2)
        cloud.control.set_account(OTHER)
        assert agent.turn().failure is None
        agent.clock.sleep(COMPARED_EVERY_S)
        assert agent.turn().failure_reason is Reason.ACCOUNT_FOREIGN


def test_a_quota_and_a_parameter_of_another_account_stop_the_agent(start: Start, cloud: World) -> None:
    with start(account=ACCOUNT) as agent:
        agent.turn()
        cloud.control.set_quota("L-1216C47A", 96.0)
        agent.session.client("ssm").put_parameter(Name="/trimtab/cores", Value="8", Type="String")
        calls = [
            ("service-quotas", "GetServiceQuota", {"ServiceCode": "ec2", "QuotaCode": "L-1216C47A"}),
            ("ssm", "GetParameter", {"Name": "/trimtab/cores"}),
        ]
        for service, operation, parameters in calls:
            agent.session.read(service, operation, **parameters)
            cloud.control.set_account(OTHER)
            with pytest.raises(CloudError) as refused:
                agent.session.read(service, operation, **parameters)
            assert refused.value.code == "ForeignAccount"
            assert agent.turn().failure_reason is Reason.ACCOUNT_FOREIGN
            cloud.control.set_account(ACCOUNT)
            agent.turn()


def test_a_queue_of_another_account_is_refused_unless_the_settings_name_it(start: Start) -> None:
    url = f"https://sqs.us-east-1.amazonaws.com/{OTHER}/jobs"
    with start() as agent:
        for call in (
            lambda: agent.session.read("sqs", "GetQueueAttributes", QueueUrl=url),
            lambda: agent.session.client("sqs").get_queue_attributes(QueueUrl=url),
        ):
            with pytest.raises(CloudError, match="TRIMTAB_AWS__QUEUE_ACCOUNTS") as refused:
                call()
            assert refused.value.failure is FailureClass.PERMANENT
        agent.session.account.queue_accounts = [OTHER]
        with pytest.raises(CloudError) as refused:
            agent.session.read("sqs", "GetQueueAttributes", QueueUrl=url)
        assert refused.value.code != "ForeignAccount"


def test_an_account_in_the_settings_is_compared_by_sts_where_groups_may_not_be_read(start: Start, cloud: World) -> None:
    cloud.control.set_account(OTHER)
    cloud.control.add_fault("access_denied", operations=["DescribeAutoScalingGroups"])
    with start(account=ACCOUNT) as agent:
        assert agent.turn().failure_reason is Reason.ACCOUNT_FOREIGN
