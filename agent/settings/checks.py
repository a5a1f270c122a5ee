"""Checks between settings; the bounds of a single setting are part of its definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address

from agent.rails.schedule import shortest_gap_minutes
from agent.settings.fleet import FleetSettings, GroupSettings, MeasuredBy, PolicyName, WindowSettings
from agent.settings.model import LOOPBACK, HttpSettings, PrometheusSettings, Settings
from agent.settings.subjects import Conflict, SettingPath, described_subjects
from domain.decisions import Mode
from domain.samples import QUEUE_SEGMENT

ZERO_SAFE = (PolicyName.QUEUE_RULE,)
"""Policies that can start the first VM: they do not need a VM that reports a load."""

OF_THE_API = frozenset({"announcements", "decisions"})
"""What follows `/api/v1/autoscaling/` and is no fleet."""

ROLE_VERBS = {"token": "reads", "ask_token": "requests decisions"}


def conflicts(settings: Settings) -> Iterator[Conflict]:
    """Return every conflict between settings."""
    subjects = described_subjects()
    described = ("fleets", *(one.name for one in subjects))
    acts_on_something = settings.discovery.enabled or any(getattr(settings, name) for name in described)
    if settings.mode is Mode.ACT and not acts_on_something:
        remedy = (
            "describe a fleet first, by TRIMTAB_FLEETS__<fleet>__..., or discover tagged fleets by "
            "TRIMTAB_DISCOVERY__ENABLED=true, or set observe"
        )
        yield Conflict(("mode",), (*((name,) for name in described), ("discovery", "enabled")), remedy)
    if settings.grace_s >= settings.tick_interval_s:
        remedy = f"give less than TRIMTAB_TICK_INTERVAL_S={settings.tick_interval_s:g}"
        yield Conflict(("grace_s",), (("tick_interval_s",),), remedy)
    if settings.sample_interval_s > settings.tick_interval_s:
        remedy = f"give at most TRIMTAB_TICK_INTERVAL_S={settings.tick_interval_s:g}, so that every minute has a sample"
        yield Conflict(("sample_interval_s",), (("tick_interval_s",),), remedy)
    for name, others, remedy in _of_http(settings.http):
        yield Conflict(("http", name), tuple(("http", other) for other in others), remedy)
    yield from _of_prometheus(settings)
    if settings.listener.networks == LOOPBACK and not _is_loopback(settings.listener.host):
        remedy = (
            "give TRIMTAB_LISTENER__NETWORKS as well, the subnets of your VMs such as 10.0.0.0/16: without it only "
            "this host may send"
        )
        yield Conflict(("listener", "host"), (("listener", "networks"),), remedy)
    listens = settings.listener
    if listens.relay_host is not None and listens.tcp and listens.relay_port == listens.port:
        remedy = f"give another port than TRIMTAB_LISTENER__PORT={listens.port}, for the lines of other agents alone"
        yield Conflict(("listener", "relay_port"), (("listener", "port"),), remedy)
    if listens.relay_host is not None and _is_loopback(listens.host) and not _is_loopback(listens.relay_host):
        remedy = f"give TRIMTAB_LISTENER__HOST an address that the other agents reach, in place of {listens.host}"
        yield Conflict(("listener", "relay_host"), (("listener", "host"),), remedy)
    if 2 * settings.leader.renew_s > settings.leader.lease_s:
        remedy = (
            f"give at most half of TRIMTAB_LEADER__LEASE_S={settings.leader.lease_s:g}: a failed renewal is repeated"
        )
        yield Conflict(("leader", "renew_s"), (("leader", "lease_s"),), remedy)
    yield from _shared(settings)
    for name, fleet in settings.fleets.items():
        if name in OF_THE_API:
            yield Conflict(("fleets", name), (), f"choose another key: /api/v1/autoscaling/{name} is not a fleet's URL")
        yield from _of_fleet(("fleets", name), fleet)
    for one in subjects:
        for name, described_by in one.of(settings).items():
            yield from one.conflicts(name, described_by, settings)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _of_http(http: HttpSettings) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield the setting, those it depends on, and what to do."""
    if http.port is not None and http.token is None:
        remedy = "give TRIMTAB_HTTP__TOKEN as a credential, or leave the port out and use the unix socket"
        yield "port", ("token",), remedy
    for name, narrower in (("ask_token", ("token",)), ("operator_token", ("token", "ask_token"))):
        secret = getattr(http, name)
        same = next((other for other in narrower if getattr(http, other) == secret), None)
        if secret is None:
            continue
        if http.token is None:
            yield name, ("token",), "give TRIMTAB_HTTP__TOKEN as well"
        elif same is not None:
            yield name, (same,), f"give another one than TRIMTAB_HTTP__{same.upper()}, which only {ROLE_VERBS[same]}"
    for given, lacking in _half_of_a_pair(http):
        yield given, (lacking,), f"give TRIMTAB_HTTP__{lacking.upper()} as well"


def _half_of_a_pair(section: HttpSettings | PrometheusSettings) -> Iterator[tuple[str, str]]:
    """Yield which of certificate and private key is given without the other, and the other."""
    if (section.certificate is None) != (section.private_key is None):
        yield ("certificate", "private_key") if section.certificate else ("private_key", "certificate")


def _of_prometheus(settings: Settings) -> Iterator[Conflict]:
    if settings.prometheus.url is not None and settings.input_map is None:
        remedy = "give TRIMTAB_INPUT_MAP, a file with the queries as [[prometheus]] tables (docs/operate/inputs.md)"
        yield Conflict(("prometheus", "url"), (("input_map",),), remedy)
    for given, lacking in _half_of_a_pair(settings.prometheus):
        remedy = f"give TRIMTAB_PROMETHEUS__{lacking.upper()} as well"
        yield Conflict(("prometheus", given), (("prometheus", lacking),), remedy)


def _shared(settings: Settings) -> Iterator[Conflict]:
    names: dict[SettingPath, str] = {
        ("fleets", fleet, "groups", key, "name"): group.name or key
        for fleet, item in settings.fleets.items()
        for key, group in item.groups.items()
    }
    queues: dict[SettingPath, str] = {
        ("fleets", name, "queue_url"): item.queue_url for name, item in settings.fleets.items() if item.queue_url
    }
    for what, values in (("Auto Scaling group", names), ("queue", queues)):
        times = Counter(values.values())
        for path, value in values.items():
            if times[value] > 1:
                others = tuple(other for other in values if other != path and values[other] == value)
                where = " and ".join(".".join(other[1:-1]) for other in others)
                yield Conflict(path, others, f"give each {what} to one place only; {where} has it too")


def _of_fleet(path: SettingPath, fleet: FleetSettings) -> Iterator[Conflict]:
    for key, group in fleet.groups.items():
        yield from _of_group((*path, "groups", key), key, group)
    minima = tuple((*path, "groups", key, "min") for key in fleet.groups)
    if not fleet.groups:
        yield Conflict(
            (*path, "groups"), (), "describe at least one group, by ...__GROUPS__<key>__VM_TYPE, CORES, MAX and so on"
        )
    elif (
        isinstance(fleet.policy, PolicyName)
        and fleet.policy not in (*ZERO_SAFE, PolicyName.HOLD)
        and not any(g.min for g in fleet.groups.values())
    ):
        remedy = (
            f"give at least one group a MIN of 1 or more, or use the policy {ZERO_SAFE[0]}: "
            f"with no VM there is no CPU to measure, and {fleet.policy} would never start one again"
        )
        yield Conflict((*path, "policy"), minima, remedy)
    if fleet.submitted_from is MeasuredBy.CLOUDWATCH and fleet.queue_url is None:
        remedy = f"give QUEUE_URL, the queue whose messages CloudWatch counts, or {MeasuredBy.REPORTS}"
        yield Conflict((*path, "submitted_from"), ((*path, "queue_url"),), remedy)
    roles: dict[SettingPath, tuple[str | None, ...]] = {("policy",): (fleet.policy,), ("shadow",): fleet.shadows}
    roles |= {("schedule", key, "policy"): (window.policy,) for key, window in fleet.schedule.items()}
    for setting, names in roles.items():
        if PolicyName.SIGNAL_TRACKING in names and not fleet.signals:
            remedy = "describe a signal, by ...__SIGNALS__<name>__TARGET"
            yield Conflict((*path, *setting), ((*path, "signals"),), remedy)
    if fleet.policy in fleet.shadows:
        others = [name for name in fleet.shadows if name != fleet.policy]
        remedy = f"give {','.join(others)}" if others else f"name another policy than {fleet.policy}, or leave it out"
        yield Conflict((*path, "shadow"), ((*path, "policy"),), remedy)
    if fleet.threshold.low > fleet.threshold.high:
        remedy = f"give at most THRESHOLD__HIGH={fleet.threshold.high:g}"
        yield Conflict((*path, "threshold", "low"), ((*path, "threshold", "high"),), remedy)
    if fleet.drain_notice_s >= fleet.drain_deadline_s:
        remedy = f"give less than DRAIN_DEADLINE_S={fleet.drain_deadline_s:g}"
        yield Conflict((*path, "drain_notice_s"), ((*path, "drain_deadline_s"),), remedy)
    if fleet.limits().breaker_max_s < fleet.limits().breaker_open_s:
        remedy = f"give at least RAILS__BREAKER_OPEN_S={fleet.limits().breaker_open_s:g}"
        yield Conflict((*path, "rails", "breaker_max_s"), ((*path, "rails", "breaker_open_s"),), remedy)
    yield from _budget(path, fleet, minima)
    for key, window in fleet.schedule.items():
        yield from _of_window((*path, "schedule", key), window, path, fleet)


def _of_window(
    path: SettingPath, window: WindowSettings, of_fleet: SettingPath, fleet: FleetSettings
) -> Iterator[Conflict]:
    for name, other in (("cron", "for_minutes"), ("for_minutes", "cron"), ("begins", "ends"), ("ends", "begins")):
        if getattr(window, name) is not None and getattr(window, other) is None:
            yield Conflict((*path, name), ((*path, other),), f"give {other.upper()} as well")
    if window.cron is not None and window.begins is not None:
        yield Conflict((*path, "begins"), ((*path, "cron"),), "give CRON and FOR_MINUTES, or BEGINS and ENDS, not both")
    elif window.cron is None and window.begins is None and window.for_minutes is None and window.ends is None:
        yield Conflict((*path, "cron"), (), "give CRON and FOR_MINUTES, or BEGINS and ENDS")
    if window.begins is not None and window.ends is not None and window.ends <= window.begins:
        yield Conflict((*path, "ends"), ((*path, "begins"),), f"give a later time than BEGINS={window.begins}")
    if window.cron is not None and window.for_minutes is not None:
        most = shortest_gap_minutes(window.cron)
        if window.for_minutes > most:
            remedy = f"give at most {most:g}: then CRON={window.cron} begins it again"
            yield Conflict((*path, "for_minutes"), ((*path, "cron"),), remedy)
    if (window.min, window.max, window.policy, window.pause) == (None, None, None, None):
        yield Conflict((*path, "min"), (), "give at least one of MIN, MAX, POLICY and PAUSE: the window sets nothing")
    groups = fleet.groups.values()
    most, least = sum(group.max for group in groups), sum(group.min for group in groups)
    of_groups = "which the fleet's groups hold together"
    if window.min is not None and window.max is not None and window.min > window.max:
        yield Conflict((*path, "min"), ((*path, "max"),), f"give at most MAX={window.max}")
    elif window.min is not None and window.min > most:
        maxima = tuple((*of_fleet, "groups", key, "max") for key in fleet.groups)
        yield Conflict((*path, "min"), maxima, f"give at most {most}, {of_groups}")
    if window.max is not None and window.max < least:
        minima = tuple((*of_fleet, "groups", key, "min") for key in fleet.groups)
        yield Conflict((*path, "max"), minima, f"give at least {least}, {of_groups}")
    policy = window.policy
    needs_vms = isinstance(policy, PolicyName) and policy not in (*ZERO_SAFE, PolicyName.HOLD)
    if needs_vms and not window.min and not any(group.min for group in groups):
        remedy = f"give MIN of 1 or more: with no VM there is no CPU to measure, and {policy} would start none"
        yield Conflict((*path, "policy"), ((*path, "min"),), remedy)


def _of_group(path: SettingPath, key: str, group: GroupSettings) -> Iterator[Conflict]:
    low, high = (*path, "min"), (*path, "max")
    if key == QUEUE_SEGMENT:
        yield Conflict(path, (), f"choose another key: {QUEUE_SEGMENT} is the queue's segment in metric paths")
    if group.min > group.max:
        yield Conflict(low, (high,), f"give at most MAX={group.max}")
    elif group.safe_floor is not None and not group.min <= group.safe_floor <= group.max:
        yield Conflict(
            (*path, "safe_floor"), (low, high), f"give a whole number from MIN={group.min} to MAX={group.max}"
        )


def _budget(path: SettingPath, fleet: FleetSettings, minima: tuple[SettingPath, ...]) -> Iterator[Conflict]:
    prices = tuple((*path, "groups", key, "price_per_hour") for key in fleet.groups)
    least = sum(group.min * group.price_per_hour for group in fleet.groups.values())
    for name, budget, hours in (
        ("budget_per_hour", fleet.limits().budget_per_hour, 1),
        ("budget_per_day", fleet.limits().budget_per_day, 24),
    ):
        if budget is not None and budget < least * hours:
            remedy = f"give at least {least * hours:g}, the cost of the groups at their MIN, or lower a MIN"
            yield Conflict((*path, "rails", name), (*minima, *prices), remedy)
