"""Checks of the fleets of the settings: permission to change groups, models, plug-ins, collectors, measurements."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

from agent.autoscaling.fleets import managed_fleets
from agent.autoscaling.inputs import behind_map, collectors_of, inputs_of, inputs_without_a_loop, series_of
from agent.autoscaling.plug_ins import actuator_of
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.policies.registry import VM_INPUTS, inputs_needed
from agent.autoscaling.preflight.groups import check_fleet, check_types
from agent.autoscaling.snapshot.series import ABSENT_ROW
from agent.kernel.checks import (
    Account,
    Arrivals,
    CheckResult,
    advice,
    missing,
    ok,
    permitted,
    principal,
    unknown,
)
from agent.settings import Settings
from agent.settings.discovery import FLEET
from agent.settings.fleet import MeasuredBy
from agent.settings.model import learned_policies
from collectors.aws import AwsSession
from collectors.mapping import InputMap, Query, Rule, SignalName, is_for, read_map
from domain.errors import (
    REFUSED_LINES,
    BadInput,
    CloudError,
    CollectionFailed,
    ConfigurationError,
    RejectReason,
    TrimtabError,
)
from domain.samples import QueueMetric

CHANGES = (
    "autoscaling:SetDesiredCapacity",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
    "autoscaling:SetInstanceProtection",
    "autoscaling:RecordLifecycleActionHeartbeat",
    "autoscaling:CompleteLifecycleAction",
)
"""Actions needed in act mode; deploy/iam/act.json allows them, and a test compares them with the calls made."""

AGE = "trimtab_newest_vm_sample_age_seconds"
OPEN = "trimtab_open_intents"
INSTRUMENT = "see docs/operate/instrument.md"
PLUG_INS = "see docs/operate/plug-ins.md"


def check_fleets(settings: Settings, account: Account) -> Iterator[CheckResult]:
    """Yield the results for the groups of every fleet, and for what their decisions need of account and host."""
    session = account.session
    arns: dict[str, str] = {}
    for key, fleet in settings.fleets.items():
        yield from check_fleet(settings, session, key, arns)
        yield from check_types(session, key, fleet)
    yield from check_windows(settings, time.time())
    yield from check_models(settings)
    yield from check_plug_ins(settings)
    yield _vms_readable(session)
    yield from check_changes(settings, account, arns)
    yield from check_collectors(settings, session)
    yield _interruptions(settings, session)


def _vms_readable(session: AwsSession) -> CheckResult:
    try:
        session.read("ec2", "DescribeInstances", MaxResults=5)
    except CloudError as error:
        return missing("VMs", str(error), "allow ec2:DescribeInstances (deploy/iam/observe.json)")
    return ok("VMs", "launch times can be read")


def _interruptions(settings: Settings, session: AwsSession) -> CheckResult:
    subject, url = "interruption queue", settings.interruption_queue_url
    if url is None:
        return advice(
            subject,
            "none is set, spot notifications are not read",
            "needed for spot VMs: TRIMTAB_INTERRUPTION_QUEUE_URL",
        )
    try:
        session.read("sqs", "GetQueueAttributes", QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    except CloudError as error:
        return missing(subject, str(error), "correct TRIMTAB_INTERRUPTION_QUEUE_URL, or allow sqs:GetQueueAttributes")
    return ok(subject, "can be reached")


def check_changes(settings: Settings, account: Account, arns: Mapping[str, str]) -> Iterator[CheckResult]:
    """Yield whether IAM permits changes of the fleets' groups, by simulation; no change is tried.

    arns: group names and their ARNs.
    """
    if principal(account.identity) is None:
        detail = f"{account.identity} is neither a role nor a user, which IAM could simulate"
        yield unknown("permission to act", detail)
        return
    for key, fleet in settings.fleets.items():
        named = [group.name or group_key for group_key, group in fleet.ordered_groups]
        wanted = [arns[name] for name in named if name in arns]
        if wanted:
            yield permitted(
                settings.mode,
                account,
                f"permission to act on {key}",
                CHANGES,
                wanted,
                "IAM allows every change of groups with the fleet's tag",
                {f"{namespace}:ResourceTag/{FLEET}": key for namespace in ("autoscaling", "aws")},
            )


def check_windows(settings: Settings, now: float) -> Iterator[CheckResult]:
    """Yield the windows of schedules that do not open from `now` on, epoch seconds."""
    for name, fleet in settings.fleets.items():
        for window in fleet.planned:
            if window.at(now) is None:
                times = f"{window.begins} to {window.ends}, {window.zone}" if window.begins else window.cron
                detail = f"it does not open any more: {times}"
                yield advice(f"window {window.name} of {name}", detail, "correct its times, or remove it")


def check_models(settings: Settings) -> Iterator[CheckResult]:
    """Yield which model decides for each fleet with a learned policy, or why none does."""
    shelf = ModelShelf(settings.models_directory, key=settings.promotion_key)
    for setting, text, fleet in learned_policies(settings):
        subject = f"model of {fleet.name}, {setting.rpartition('__')[2].lower()}"
        try:
            shelf.check(text, fleet)
            name = shelf.resolve(text, fleet)
        except BadInput as error:
            yield missing(subject, str(error), "promote a model that was trained for it, or choose another policy")
        else:
            yield ok(subject, f"{name} fits")


def check_plug_ins(settings: Settings) -> Iterator[CheckResult]:
    """Yield what is wrong with the policies and the actuator of the settings; nothing where they are in order."""
    for subject, look in (
        ("policies", lambda: managed_fleets(settings)),
        ("actuator", lambda: actuator_of(settings, os.environ)),
    ):
        try:
            look()
        except ConfigurationError as error:
            yield missing(subject, str(error), PLUG_INS)


def check_collectors(settings: Settings, session: AwsSession) -> Iterator[CheckResult]:
    """Yield the result of one collection by each configured collector."""
    fleets = [settings.fleet(key) for key in settings.fleets]
    try:
        inputs = inputs_without_a_loop(settings, fleets, session)
        collectors = collectors_of(settings, fleets, session, inputs=inputs)
    except TrimtabError as error:
        yield missing("collectors", str(error), PLUG_INS)
        return
    for collector in collectors:
        subject = f"collector {collector.name}"
        try:
            samples = list(collector.collect(time.time()))
        except Exception as error:
            remedy = "correct the address, or allow the call (deploy/iam/observe.json)"
            yield missing(subject, f"{type(error).__name__}: {error}", remedy)
            continue
        if samples:
            yield ok(subject, f"collected {len(samples)} samples")
        else:
            yield advice(subject, "responds without samples", f"check again when VMs run; {INSTRUMENT}")


def check_input_map(settings: Settings) -> Iterator[CheckResult]:
    """Yield whether the map of other senders' paths can be used, where one is set."""
    if settings.input_map is None:
        return
    try:
        rules = read_map(settings.input_map)
    except TrimtabError as error:
        yield missing(
            "input map", str(error), "correct the file; `trimtab inputs try` shows the measurement of each line"
        )
        return
    detail = (
        f"{settings.input_map} has {len(rules.rules)} rules, {len(rules.queries)} queries and {len(rules.hosts)} hosts"
    )
    by_host = ", and finds VMs by host name (ec2:DescribeInstances)" if rules.finds_by_host else ""
    yield ok("input map", detail + by_host)
    unused = list(_unused(settings, rules)) if settings.fleets else []
    if unused:
        remedy = "correct the file or the settings: such readings are refused, or never asked for"
        yield advice("input map", "; ".join(unused), remedy)


def _unused(settings: Settings, rules: InputMap) -> Iterator[str]:
    """Yield what of a map can hold for no fleet of the settings, and why."""
    written: list[tuple[str, Rule | Query]] = [(rule.written, rule) for rule in rules.rules]
    written += [(query.promql, query) for query in rules.queries]
    for text, one in written:
        fleets = {name: fleet for name, fleet in settings.fleets.items() if is_for(one.fleet, name)}
        if not fleets:
            yield f"{text}: no fleet is {one.fleet}"
        elif not any(is_for(one.group, key) for fleet in fleets.values() for key in fleet.groups):
            yield f"{text}: {', '.join(fleets)} has no group {one.group}"
        elif isinstance(one.to, SignalName) and all(one.to.name not in fleet.signals for fleet in fleets.values()):
            yield f"{text}: no fleet has the signal {one.to.name}"
    if rules.queries and settings.prometheus.url is None:
        yield "the queries: TRIMTAB_PROMETHEUS__URL is not set"


def check_arrivals(settings: Settings, arrivals: Arrivals) -> Iterator[CheckResult]:
    """Yield the age of each fleet's measurements, from the running agent, else by listening for a while."""
    needing = [key for key, fleet in settings.fleets.items() if fleet.cpu_from is MeasuredBy.REPORTS]
    if settings.render.url is not None or settings.prometheus.url is not None or not needing:
        return
    try:
        families = list(text_string_to_metric_families(arrivals.metrics()))
    except CollectionFailed:
        yield from _listened(settings, needing, arrivals)
        return
    ages, measured = (
        {one.labels["fleet"]: one.value for family in families for one in family.samples if one.name == name}
        for name in (AGE, OPEN)
    )
    for key in needing:
        subject, age_s = f"measurements of {key}", ages.get(key)
        if age_s is None and key not in measured:
            remedy = "check on the host of the agent that leads it: led_by in /api/v1/autoscaling names it"
            yield unknown(subject, "the running agent does not measure this fleet", remedy)
        elif age_s is None and not _reads_vms(settings, key):
            yield _without_reports(settings, key, "the running agent has none of VMs")
        elif age_s is None:
            yield missing(subject, "the running agent has none", f"send some: {INSTRUMENT}")
        elif age_s > settings.limits(key).max_age_s:
            yield missing(subject, f"the running agent received the last {age_s:.0f} s ago", f"send some: {INSTRUMENT}")
        else:
            yield ok(subject, f"the running agent received the last {age_s:.0f} s ago")


def _listened(settings: Settings, needing: list[str], arrivals: Arrivals) -> Iterator[CheckResult]:
    wait_s = arrivals.wait_s
    if wait_s <= 0:
        yield unknown("measurements", "no agent runs on this host, and the wait was 0 s", "give --wait 15")
        return
    fleets = [settings.fleet(key) for key in settings.fleets]
    store = series_of(settings, fleets)
    try:
        inputs = inputs_of(settings)
    except TrimtabError:
        # The check of the map says why it cannot be used.
        return
    try:
        arrived = arrivals.listen(behind_map(store, inputs))
    except BadInput as error:
        yield missing("listener", str(error), "end the process at that port, or set TRIMTAB_HTTP__SOCKET")
        return
    place = f"{settings.listener.host}:{settings.listener.port}"
    for reason, count in arrived.rejected.items():
        # Names of hosts are known to the agent alone, from its first turn on.
        if count and reason is not RejectReason.UNKNOWN_VM:
            detail = f"{count} lines were refused as {reason}, the last one: {arrived.examples[reason]}"
            yield advice("refused measurements", detail, REFUSED_LINES[reason])
    for fleet in fleets:
        if fleet.name not in needing:
            continue
        vms = {vm for group in fleet.groups for vm in store.vm_rows(fleet.name, group.key)}
        counted = any(store.queue_row(fleet.name, metric) != ABSENT_ROW for metric in QueueMetric)
        subject = f"measurements of {fleet.name}"
        if vms or counted:
            queue = " and its queue" if counted else ""
            yield ok(subject, f"within {wait_s:.0f} s, {len(vms)} VMs{queue} reported to {place}")
        else:
            yield _without_reports(settings, fleet.name, f"within {wait_s:.0f} s, none arrived at {place}")


def _reads_vms(settings: Settings, key: str) -> bool:
    """Return whether the fleet's policy reads VM reports."""
    fleet = settings.fleets[key]
    return not VM_INPUTS.isdisjoint(inputs_needed(fleet.policy, fleet.own_signals))


def _without_reports(settings: Settings, key: str, detail: str) -> CheckResult:
    """Return the result for a fleet without VM reports, with the effect on its decisions."""
    then = "its sizes are held while VMs run" if _reads_vms(settings, key) else "the fleet can grow, scale-in waits"
    return advice(f"measurements of {key}", f"{detail}: {then}", f"expected while no VM runs; otherwise {INSTRUMENT}")
