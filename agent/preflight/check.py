"""Puts the checks in their order: identity first, since without it nothing else can be asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from agent.preflight.clusters import check_clusters
from agent.preflight.groups import check_fleet, check_types
from agent.preflight.host import check_arrivals, check_collectors, check_encryption, check_ledger, check_models
from agent.preflight.permissions import check_changes, check_identity
from agent.preflight.results import Finding, advice, missing, ok
from agent.service.assembly import AwsKeys, aws_session
from agent.settings import Settings
from agent.settings.discovery import discover
from collectors.aws import AwsSession
from collectors.tagged_groups import TaggedGroups
from domain.clock import Clock
from domain.decisions import Mode
from domain.errors import CloudError


def check_everything(
    settings: Settings,
    clock: Clock,
    *,
    wait_s: float = 15.0,
    keys: AwsKeys | None = None,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[Finding]:
    """Yield what was found, as it is found. No call that changes anything can leave: the session refuses it.

    wait_s: how long to listen for measurements where no agent runs on this host.
    """
    observing = settings.model_copy(update={"mode": Mode.OBSERVE})
    session = aws_session(observing, clock, keys, lambda: None)
    try:
        yield ok("mode", f"{settings.mode}")
        yield check_ledger(settings)
        yield from check_encryption(settings)
        if session.region is None:
            yield missing("region", "none is set or found", "set TRIMTAB_AWS__REGION, such as eu-west-1")
            return
        identity, findings = check_identity(session, clock.now())
        yield from findings
        if identity is None:
            return
        if not settings.fleets and settings.discovery.enabled:
            settings, findings = _discovered(settings, session, session.region)
            yield from findings
        yield from check_clusters(settings, session)
        if not settings.fleets and settings.clusters:
            return
        if not settings.fleets:
            yield missing("fleets", "there is none", "set one, or tag its groups: docs/operate/install.md")
            return
        yield from _account(settings, session, identity)
    finally:
        session.close()
    yield from check_arrivals(settings, clock, wait_s, wait)


def _discovered(settings: Settings, session: AwsSession, region: str) -> tuple[Settings, list[Finding]]:
    """Return the settings with the fleets that tags describe, and what was found about them."""
    try:
        found = discover(TaggedGroups(session), settings, region)
    except CloudError as error:
        remedy = "allow the call (deploy/iam/observe.json)"
        return settings, [missing("discovery", str(error), remedy)]
    fleets = [
        ok("discovery", f"tags describe the fleet {name} with {len(fleet.groups)} groups")
        for name, fleet in found.settings.fleets.items()
    ]
    refused = [missing("discovery", detail, "correct the tags") for detail in found.refused.values()]
    return found.settings, fleets + refused


def _account(settings: Settings, session: AwsSession, identity: str) -> Iterator[Finding]:
    arns: dict[str, str] = {}
    for key, fleet in settings.fleets.items():
        yield from check_fleet(settings, session, key, arns)
        yield from check_types(session, key, fleet)
    yield from check_models(settings)
    yield _vms_readable(session)
    yield from check_changes(settings, session, identity, arns)
    yield from check_collectors(settings, session)
    yield _interruptions(settings, session)


def _vms_readable(session: AwsSession) -> Finding:
    try:
        session.read("ec2", "DescribeInstances", MaxResults=5)
    except CloudError as error:
        return missing("VMs", str(error), "allow ec2:DescribeInstances (deploy/iam/observe.json)")
    return ok("VMs", "launch times can be read")


def _interruptions(settings: Settings, session: AwsSession) -> Finding:
    subject, url = "interruption queue", settings.interruption_queue_url
    if url is None:
        return advice(
            subject, "none is set: spot notices are not read", "needed with spot VMs: TRIMTAB_INTERRUPTION_QUEUE_URL"
        )
    try:
        session.read("sqs", "GetQueueAttributes", QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    except CloudError as error:
        return missing(subject, str(error), "correct TRIMTAB_INTERRUPTION_QUEUE_URL, or allow sqs:GetQueueAttributes")
    return ok(subject, "can be reached")
