"""The IAM policies hold what the agent does in each mode: every call it makes, and none that it never makes."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from actuators.values import Parameters
from agent.admission.cluster import AdmissionService
from agent.admission.gate.gate import Gate
from agent.admission.gate.records import ADMISSION, DECISION
from agent.admission.settings import ClusterSettings
from agent.admission.state import AdmissionStore
from agent.alarms.book import Alarm
from agent.alarms.delivery import SnsTopic
from agent.deferral.capacity import Outlook
from agent.deferral.decision import QUEUE_ACTIONS, DeferralPart
from agent.deferral.ladder import ladder_of
from agent.deferral.pool import DeferralPool
from agent.deferral.queue import ReadyQueue, SubmitQueue
from agent.deferral.settings import SUBJECTS
from agent.deferral.turn import PoolTurns as DeferralTurns
from agent.kernel.checks import Account, State
from agent.kernel.turn import Severity
from agent.oversubscription.pool import Pool
from agent.oversubscription.publisher import Publisher
from agent.oversubscription.state import OversubscriptionStore
from agent.rails.base import RailLimits
from agent.settings import Settings
from collectors.cloudwatch import CloudWatchCpu, CloudWatchOptions, CloudWatchSubmitted, QueueDepthCollector
from collectors.pricing import listed_price_per_hour
from domain.controls import Controls
from domain.decisions import Mode, Reason
from domain.errors import CloudError
from domain.fleet import Fleet
from domain.rules.admission.cluster import ClusterRules, PolicyKind
from domain.rules.admission.population import POPULATIONS
from domain.rules.oversubscription.pool import PoolRules, SubscriberRules
from domain.subject import fleet_subject
from tests.agent.preflight.looking import look, tag
from tests.architecture.product import ROOT
from tests.deploy.policies import grants, grants_of, permission
from tests.faults.world import AGENT_KEY, OWNER_KEY, MakeWorld, World

NO_PERMISSION_NEEDED = {"sts:GetCallerIdentity"}
"""AWS permits it with any policy."""
NOT_ON_THE_LOOK_ALIKE = {
    "iam:SimulatePrincipalPolicy",  # moto has it not; test_permissions.py asks a socket
    "autoscaling:DescribeLaunchConfigurations",  # for discovery of groups older than launch templates
}
CHANGES_A_GROUP = {
    "autoscaling:CompleteLifecycleAction",
    "autoscaling:RecordLifecycleActionHeartbeat",
    "autoscaling:SetDesiredCapacity",
    "autoscaling:SetInstanceProtection",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
}


def collect(world: World) -> None:
    """Ask as the collectors do: depth of the job queue, CPU and submitted jobs from CloudWatch."""
    url = world.sqs.create_queue(QueueName="jobs")["QueueUrl"]
    fleet = Fleet("web", world.plan.groups, url)
    now = world.clock.now()
    QueueDepthCollector(fleet, world.session.client("sqs")).collect(now)
    CloudWatchCpu(fleet, world.session, CloudWatchOptions()).collect(now)
    CloudWatchSubmitted(fleet, world.session, CloudWatchOptions()).collect(now)


def grow_and_shrink(world: World) -> None:
    """Scale out for a full queue, protect the busy, then drain: one VM idle, one at work."""
    world.tick()
    world.submit(60)
    world.tick(3)
    world.busy = {vm: 1.0 for _, vm, _ in world.vms()}
    world.tick(2)
    world.waiting, world.busy = 0, {}
    for _ in range(6):
        world.tick()
        held = [vm for _, vm, state in world.vms() if state == "Terminating:Wait"]
        world.busy = dict.fromkeys(held[:1], 1.0)
    world.busy = {}
    world.tick(3)


def interrupt(world: World) -> None:
    world.control.spot_notice(world.in_service("small")[:1], queue=world.notices)
    world.tick(2)


def alarm(world: World) -> None:
    topic = world._client("sns").create_topic(Name="ops")["TopicArn"]
    SnsTopic(world.session, topic).send(
        Alarm(fleet_subject("web"), Reason.OVERDUE, "small", Severity.WARNING, "text", 0.0)
    )


def discover_and_look(world: World, mode: Mode) -> None:
    """Preflight, with fleets from the settings and with fleets from tags, read as the running agent reads them."""
    look(world, mode)
    assert listed_price_per_hour(world.session, "c6i.large", "eu-west-1") == 0.0912  # as `trimtab init` asks
    tag(world)
    look(world, mode, DISCOVERY__ENABLED="true")


def admit(world: World, mode: Mode) -> None:
    """Turn the gate before a group that fits and one that does not, once with a quota, once with a reservation."""
    world.control.set_quota("L-1216C47A", 8.0)
    machines = world._client("ec2")
    held = machines.create_capacity_reservation(
        InstanceType="m5a.large", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=2
    )["CapacityReservation"]["CapacityReservationId"]
    terms = {
        "quota": ClusterSettings(capacity_cores=1, quota_code="L-1216C47A"),
        "held": ClusterSettings(capacity_cores=1, reservation_id=held),
    }
    for name in terms:
        for wanted in (1, 9):
            tags = {"trimtab:cluster": name, "trimtab:admission": "pending", "trimtab:requested": str(wanted)}
            world.owner.create_auto_scaling_group(
                AutoScalingGroupName=f"{name}-{wanted}",
                LaunchTemplate={"LaunchTemplateName": world.plan.groups[0].name, "Version": "$Latest"},
                MinSize=0,
                MaxSize=10,
                DesiredCapacity=0,
                AvailabilityZones=["us-east-1a"],
                Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
            )
    rules = {
        name: ClusterRules(name, 8, POPULATIONS["T"], PolicyKind.ZEROTH, threshold_cores=1_000.0) for name in terms
    }
    services = {name: AdmissionService(rules[name], AdmissionStore(world.ledger), world.agent_clock) for name in terms}
    gate = Gate(world.session, world.ledger, services, terms, mode, world.agent_clock)
    for _ in range(3):
        world.clock.advance(60.0)
        gate.turn(world.agent_clock.now(), world.loop.leads)
    answers = {} if mode is Mode.OBSERVE else {name: [d.admit for d in services[name].newest()] for name in terms}
    assert answers in ({}, {"quota": [False, True], "held": [False, True]})


def publish(world: World, mode: Mode) -> None:
    """Decide a pool's hour and publish its rates; look at what is there first, as after a lost answer."""
    rules = PoolRules("main", 3, 48.0, 512.0, subscribers={"web": SubscriberRules(internal=True)})
    pool = Pool(rules, OversubscriptionStore(world.ledger), world.agent_clock)
    now, epoch = world.agent_clock.now(), world.epoch
    pool.turn(now, epoch, paused=False)
    parameters, name = Parameters(world.session), "/trimtab/oversubscription/main"
    # The look-alike loads its service with the first call, which may take longer than a call is given.
    with contextlib.suppress(CloudError):
        parameters.get(name)
    assert parameters.get(name) is None
    publisher = Publisher(pool, name, parameters, world.ledger, mode, RailLimits())
    reasons = [event.reason for event in publisher.turn(now, epoch, Controls())]
    assert reasons == [Reason.RATES_PUBLISHED if mode is Mode.ACT else Reason.OBSERVE_MODE]


def defer(world: World, mode: Mode) -> None:
    """Receive a deferred job, start it and send it on; look at both queues first, as preflight does."""
    submit = world.sqs.create_queue(QueueName="deferred")["QueueUrl"]
    ready = world.sqs.create_queue(QueueName="ready.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    now = world.agent_clock.now()
    body = {"job_id": "a", "cores": 1, "duration_steps": 9, "latest_at": now + 36_000.0}
    world.sqs.send_message(QueueUrl=submit, MessageBody=json.dumps(body))
    given = {"policy": "knapsack", "submit_queue_url": submit, "ready_queue_url": ready}
    settings = Settings.model_validate({"mode": mode, "aws": {"region": "us-east-1"}, "deferrals": {"night": given}})
    own = SUBJECTS.of(settings)["night"]
    # Which IAM cannot simulate: the fake AWS could not either.
    account = Account(world.session, "arn:aws:iam::111122223333:root")
    assert [one.detail for one in DeferralPart.preflight(settings, account) if one.state is State.MISSING] == []
    pool = DeferralPool("night", own, world.ledger, world.agent_clock, mode)
    pool.report(10)
    turns = DeferralTurns(
        pool,
        ladder_of(own, "knapsack", {}, {}),
        None,
        lambda decision, subject: None,
        SubmitQueue(world.session, submit, world.agent_clock),
        ReadyQueue(world.session, "night", own),
        Outlook(own.step_s),
    )
    turns.turn(now, world.epoch)
    assert (pool.current().head.totals.started, turns.problem) == (int(mode is Mode.ACT), "")


def permissions_used(world: World) -> set[str]:
    return {permission(call["service"], call["operation"]) for call in world.calls} - NO_PERMISSION_NEEDED


@pytest.fixture
def acting(make_world: MakeWorld) -> World:
    world = make_world(protect_busy=True)
    grow_and_shrink(world)
    interrupt(world)
    collect(world)
    alarm(world)
    discover_and_look(world, Mode.ACT)
    admit(world, Mode.ACT)
    publish(world, Mode.ACT)
    defer(world, Mode.ACT)
    return world


@pytest.fixture
def observing(make_world: MakeWorld) -> World:
    world = make_world(protect_busy=True, mode=Mode.ACT)
    world.submit(60)
    # The intent left open is followed by reading what became of it.
    world.tick()
    calls = len(world.calls)
    world.restart(mode=Mode.OBSERVE)
    grow_and_shrink(world)
    interrupt(world)
    collect(world)
    discover_and_look(world, Mode.OBSERVE)
    admit(world, Mode.OBSERVE)
    defer(world, Mode.OBSERVE)
    assert [call for call in world.calls[calls:] if call["mutating"]] == []
    world.observed_from = calls  # type: ignore[attr-defined]
    return world


@pytest.mark.exhaustive
def test_act_allows_what_acting_takes_and_nothing_else(acting: World) -> None:
    assert permissions_used(acting) | NOT_ON_THE_LOOK_ALIKE == {grant.action for grant in grants("act")}


@pytest.mark.exhaustive
def test_observe_allows_what_observing_takes_and_nothing_else(observing: World) -> None:
    calls: list[dict[str, Any]] = observing.calls[observing.observed_from :]  # type: ignore[attr-defined]
    used = {permission(call["service"], call["operation"]) for call in calls} - NO_PERMISSION_NEEDED
    assert used | NOT_ON_THE_LOOK_ALIKE == {grant.action for grant in grants("observe")}


@pytest.mark.exhaustive
def test_the_look_alike_tells_the_agent_from_the_owner(acting: World) -> None:
    assert acting.control.calls(access_key=OWNER_KEY, operation="SetDesiredCapacity") == []
    assert acting.control.calls(access_key=AGENT_KEY, operation="SetDesiredCapacity") != []


def test_observe_allows_nothing_that_changes_anything() -> None:
    verbs = {grant.action.partition(":")[2] for grant in grants("observe")} - {"SimulatePrincipalPolicy"}
    assert {verb for verb in verbs if not verb.startswith(("Describe", "Get", "List"))} == set()


def test_act_holds_all_of_observe() -> None:
    assert {grant.action for grant in grants("observe")} <= {grant.action for grant in grants("act")}


def test_a_group_is_changed_only_where_its_tag_names_a_fleet_or_a_cluster_of_this_deployment() -> None:
    of_fleets = {"StringEquals": {"autoscaling:ResourceTag/trimtab:fleet": ["FLEET"]}}
    of_clusters = {"StringEquals": {"autoscaling:ResourceTag/trimtab:cluster": ["CLUSTER"]}}
    changing = [grant for grant in grants("act") if grant.action in CHANGES_A_GROUP]
    assert {grant.action for grant in changing if grant.condition == of_fleets} == CHANGES_A_GROUP
    assert {grant.action for grant in changing if grant.condition == of_clusters} == {"autoscaling:SetDesiredCapacity"}
    assert len(changing) == len(CHANGES_A_GROUP) + 1
    for grant in changing:
        assert [resource.partition(":autoScalingGroup:")[1] for resource in grant.resources] == [":autoScalingGroup:"]


def test_tags_are_written_only_on_groups_of_a_cluster_and_only_those_that_answer() -> None:
    (tagging,) = [grant for grant in grants("act") if "Tags" in grant.action]
    assert tagging.action == "autoscaling:CreateOrUpdateTags"
    assert tagging.condition == {
        "StringEquals": {"autoscaling:ResourceTag/trimtab:cluster": ["CLUSTER"]},
        # Without the second, a call without tags would meet the first.
        "ForAllValues:StringEquals": {"aws:TagKeys": [ADMISSION, DECISION]},
        "Null": {"aws:TagKeys": "false"},
    }
    assert [resource.partition(":autoScalingGroup:")[1] for resource in tagging.resources] == [":autoScalingGroup:"]


def test_the_documented_command_fills_every_placeholder(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operate" / "install.md").read_text("utf-8")
    (command,) = re.findall(r"```sh\n(sed .*?)```", page, flags=re.DOTALL)
    subprocess.run(command.replace("> policy.json", f"> {tmp_path / 'policy.json'}"), shell=True, cwd=ROOT, check=True)
    text = (tmp_path / "policy.json").read_text("utf-8")
    filled = list(grants_of(json.loads(text)))
    assert [grant.action for grant in filled] == [grant.action for grant in grants("act")]
    assert re.findall(r'"[A-Z]+"|[A-Z]+-[A-Z]+|111122223333', text) == []
    of_fleets = {
        name
        for grant in filled
        for name in grant.condition.get("StringEquals", {}).get("autoscaling:ResourceTag/trimtab:fleet", ())
    }
    assert of_fleets == {"web", "batch"}


def test_rates_are_published_below_one_path_only() -> None:
    published = [grant for grant in grants("act") if grant.action.startswith("ssm:")]
    assert {grant.action for grant in published} == {"ssm:GetParameter", "ssm:PutParameter"}
    paths = {resource.partition(":parameter")[2] for grant in published for resource in grant.resources}
    assert paths == {"/trimtab/oversubscription/*"}


def test_messages_are_taken_from_two_queues_and_sent_to_one() -> None:
    on: dict[str, set[str]] = {}
    for grant in grants("act"):
        if grant.action.startswith("sqs:"):
            on.setdefault(grant.action, set()).update(one.rpartition(":")[2] for one in grant.resources)
    taken = {"INTERRUPTION-QUEUE", "SUBMIT-QUEUE"}
    assert on == {
        "sqs:GetQueueAttributes": {"JOB-QUEUE", "READY-QUEUE", *taken},
        "sqs:ReceiveMessage": taken,
        "sqs:DeleteMessage": taken,
        "sqs:SendMessage": {"READY-QUEUE"},
    }
    of_pools = {action for actions in QUEUE_ACTIONS.values() for action in actions}
    assert of_pools == set(on) - {"sqs:GetQueueAttributes"}


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_only_what_aws_cannot_scope_reaches_every_resource(mode: str) -> None:
    everywhere = {grant.action for grant in grants(mode) if "*" in grant.resources}
    assert everywhere == {
        "autoscaling:DescribeAutoScalingGroups",
        "autoscaling:DescribeInstanceRefreshes",
        "autoscaling:DescribeLaunchConfigurations",
        "autoscaling:DescribeLifecycleHooks",
        "autoscaling:DescribePolicies",
        "autoscaling:DescribeScalingActivities",
        "autoscaling:DescribeScheduledActions",
        "cloudwatch:GetMetricData",
        "ec2:DescribeCapacityReservations",
        "ec2:DescribeInstanceTypes",
        "ec2:DescribeInstances",
        "ec2:DescribeLaunchTemplateVersions",
        "pricing:GetProducts",
        "servicequotas:GetServiceQuota",
    }
    assert {grant.action for grant in grants(mode) if "*" in grant.action} == set()
