"""Whether a cluster's capacity can be read, and what its tagged groups make of it."""

from __future__ import annotations

from collections.abc import Iterator

from agent.admission.gate.requests import is_pending, vms_wanted
from agent.preflight.results import Finding, advice, missing, ok
from agent.settings import Settings
from agent.settings.admission import ClusterSettings
from collectors.aws import AwsSession
from collectors.clusters import ClusterGroup, ClusterReader
from domain.errors import BadInput, CloudError


def check_clusters(settings: Settings, session: AwsSession) -> Iterator[Finding]:
    """Yield what was found about every cluster of tagged groups."""
    gated = {name: cluster for name, cluster in settings.clusters.items() if cluster.tagged_groups}
    if not gated:
        return
    reader = ClusterReader(session)
    try:
        read = reader.groups()
    except CloudError as error:
        yield missing("clusters", str(error), "allow autoscaling:DescribeAutoScalingGroups (deploy/iam/observe.json)")
        return
    groups = read.groups
    for group_name, why in sorted(read.unreadable.items()):
        yield advice(f"group {group_name or '(without a name)'}", why, "look at it: until then nothing is done for it")
    for name, cluster in gated.items():
        yield _capacity(name, cluster, reader)
        yield from _groups(name, [group for group in groups if group.cluster == name])
    strangers = sorted({group.cluster for group in groups} - settings.clusters.keys())
    if strangers:
        detail = f"groups are tagged into clusters that no setting describes: {', '.join(map(repr, strangers))}"
        yield advice("clusters", detail, "correct their tag trimtab:cluster, or describe the cluster")


def _capacity(name: str, cluster: ClusterSettings, reader: ClusterReader) -> Finding:
    subject = f"capacity of {name}"
    try:
        if cluster.quota_code:
            source, cores = f"quota {cluster.quota_code}", reader.quota_cores(cluster.quota_code)
        elif cluster.reservation_id:
            source, cores = f"reservation {cluster.reservation_id}", reader.reserved_cores(cluster.reservation_id)
        else:
            return ok(subject, f"{cluster.capacity_cores} cores, fixed by the settings")
    except CloudError as error:
        remedy = "correct the code or id, or allow the call (deploy/iam/observe.json): until then nobody comes in"
        return missing(subject, str(error), remedy)
    left = cores - cluster.set_aside_cores
    if left < 1:
        remedy = "raise the quota or reservation, or set less aside: nobody can come in"
        return missing(subject, f"{source} has {cores} cores, {cluster.set_aside_cores} are set aside", remedy)
    return ok(subject, f"{left} cores: {source} has {cores}, {cluster.set_aside_cores} are set aside")


def _groups(name: str, groups: list[ClusterGroup]) -> Iterator[Finding]:
    subject = f"groups of {name}"
    if not groups:
        remedy = f"tag those that share its limit trimtab:cluster={name}: docs/decide/admission-gate.md"
        yield advice(subject, "no group is tagged into it", remedy)
        return
    pending = [group for group in groups if is_pending(group)]
    cores = sum(group.cores for group in groups)
    yield ok(subject, f"{len(groups)} groups with {cores} cores in service; {len(pending)} ask to come in")
    for group in pending:
        try:
            vms_wanted(group)
        except BadInput as error:
            yield advice(f"group {group.name}", str(error), "it will be refused: correct the tag")
