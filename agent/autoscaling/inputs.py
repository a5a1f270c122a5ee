"""The collectors of every fleet, of all installed kinds; ours are queue depth, Graphite, Prometheus, CloudWatch."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from agent.autoscaling.plug_ins import CollectorHost, CollectorKind, Inputs
from agent.settings import Settings
from agent.settings.fleet import MeasuredBy
from agent.settings.model import SeriesForm
from agent.settings.plug_ins import COLLECTORS, installed, load, own_settings, refused
from collectors.aws import AwsSession
from collectors.base import Collector
from collectors.cloudwatch import CloudWatchCpu, CloudWatchOptions, CloudWatchSubmitted, QueueDepthCollector
from domain.clock import Clock, WallClock
from domain.errors import ConfigurationError, Mistake, TrimtabError
from domain.fleet import Fleet

if TYPE_CHECKING:
    from agent.autoscaling.snapshot.series import SeriesStore
    from collectors.base import SampleSink
    from collectors.render import RenderOptions

BYTES_PER_MB = 2**20


def collectors_of(
    settings: Settings,
    fleets: Sequence[Fleet],
    session: AwsSession,
    clock: Clock | None = None,
    environ: Mapping[str, str] | None = None,
    inputs: Inputs | None = None,
) -> list[Collector]:
    """Return the collectors that these fleets need beside the listener; none of them has been asked yet.

    environ: where the kinds' own settings are, by default this process's environment. inputs: by default what
    `inputs_of` reads. Raises ConfigurationError for wrong own settings, a package that cannot be used, and a name that
    two collectors have, and what `inputs_of` raises.
    """
    inputs = inputs_of(settings) if inputs is None else inputs
    kinds = sorted(((name, _kind(name)) for name in installed(COLLECTORS)), key=lambda one: (one[1].order, one[0]))
    own = {
        name: own_settings(name, kind.settings_model, os.environ if environ is None else environ)
        for name, kind in kinds
        if kind.settings_model is not None
    }
    clock = WallClock() if clock is None else clock
    made: list[Collector] = []
    for fleet in fleets:
        for name, kind in kinds:
            try:
                made += kind.make(CollectorHost(fleet, settings, own.get(name), session, clock, inputs))
            except TrimtabError:
                raise
            except Exception as error:
                remedy = f"it cannot be made for {fleet.name} ({type(error).__name__}: {error}): mend or uninstall it"
                raise refused(COLLECTORS, installed(COLLECTORS)[name], remedy) from error
    twice = [name for name, times in Counter(one.name for one in made).items() if times > 1]
    if twice:
        raise ConfigurationError([Mistake(COLLECTORS, name, "two collectors have this name") for name in twice])
    return made


def series_of(settings: Settings, fleets: Sequence[Fleet]) -> SeriesStore:
    """Return the judge of readings: the series of these fleets, with what their sources may claim."""
    from agent.autoscaling.snapshot.series import SeriesStore

    described = settings.fleets.items()
    return SeriesStore(
        watched=fleets,
        claims={name: fleet.claim_limits() for name, fleet in described},
        signals={name: tuple(fleet.signals) for name, fleet in described},
        unknown_per_peer=settings.listener.unknown_vms_per_peer,
    )


def behind_map(below: SampleSink, inputs: Inputs | None) -> SampleSink:
    """Return the sink of a listener: `below`, behind the map of other senders' names where there is one."""
    from collectors.mapping import MappedSink

    return below if inputs is None else MappedSink(below, *inputs)


def inputs_of(settings: Settings) -> Inputs | None:
    """Return the map of the settings with its names; None without one, BadInput or ConfigurationError for a bad one."""
    if settings.input_map is None:
        return None
    from collectors.mapping import Hosts, read_map

    rules = read_map(settings.input_map)
    return Inputs(rules, Hosts(rules.hosts))


def inputs_without_a_loop(settings: Settings, fleets: Sequence[Fleet], session: AwsSession) -> Inputs | None:
    """Return `inputs_of` with the names of the VMs that there are now, for a command that asks once."""
    inputs = inputs_of(settings)
    if inputs is not None and inputs.map.finds_by_host:
        from agent.autoscaling.fleets import vm_names
        from collectors.inventory import Inventory

        groups = [group.name for fleet in fleets for group in fleet.groups]
        inputs.hosts.update(vm_names(fleets, Inventory(session).observe(groups, time.time())))
    return inputs


def _kind(name: str) -> CollectorKind:
    kind: CollectorKind = load(COLLECTORS, name, lambda kind: isinstance(kind, CollectorKind), "a CollectorKind")
    return kind


def _queue_depth(host: CollectorHost) -> Iterator[Collector]:
    if host.fleet.queue_url is not None:
        yield QueueDepthCollector(host.fleet, host.session.client("sqs"))


def _render(host: CollectorHost) -> Iterator[Collector]:
    options = render_options(host.settings)
    if options is not None:
        from collectors.render import RenderCollector

        yield RenderCollector(host.fleet, options, *(host.inputs or ()))


def _prometheus(host: CollectorHost) -> Iterator[Collector]:
    prometheus = host.settings.prometheus
    if prometheus.url is None or host.inputs is None:
        return
    from collectors.json_source import Tls
    from collectors.prometheus import PrometheusCollector, PrometheusOptions

    tls = Tls(prometheus.ca_certificate, prometheus.certificate, prometheus.private_key)
    try:
        tls.context()
    except OSError as error:
        shown = str(prometheus.certificate or prometheus.ca_certificate)
        remedy = f"give files in PEM that the agent can read, and the certificate's own key ({error})"
        raise ConfigurationError([Mistake("TRIMTAB_PROMETHEUS__CERTIFICATE", shown, remedy)]) from None
    options = PrometheusOptions(
        url=prometheus.url,
        interval_s=prometheus.interval_s,
        timeout_s=prometheus.timeout_s,
        max_age_s=prometheus.max_age_s,
        max_response_bytes=round(prometheus.max_response_mb * BYTES_PER_MB),
        authorization=None if prometheus.authorization is None else prometheus.authorization.get_secret_value(),
        tls=tls,
    )
    yield PrometheusCollector(host.fleet, host.inputs.map.queries, host.inputs.hosts, options)


def _cloudwatch_cpu(host: CollectorHost) -> Iterator[Collector]:
    asked = host.settings.fleets.get(host.fleet.name)
    if asked is not None and asked.cpu_from is MeasuredBy.CLOUDWATCH:
        yield CloudWatchCpu(host.fleet, host.session, _cloudwatch_options(host.settings))


def _cloudwatch_submitted(host: CollectorHost) -> Iterator[Collector]:
    asked = host.settings.fleets.get(host.fleet.name)
    by_cloudwatch = asked is not None and asked.submitted_from is MeasuredBy.CLOUDWATCH
    if by_cloudwatch and host.fleet.queue_url is not None:
        yield CloudWatchSubmitted(host.fleet, host.session, _cloudwatch_options(host.settings))


QUEUE_DEPTH = CollectorKind(_queue_depth, order=10)
RENDER = CollectorKind(_render, order=20)
PROMETHEUS = CollectorKind(_prometheus, order=25)
CLOUDWATCH_CPU = CollectorKind(_cloudwatch_cpu, order=30)
CLOUDWATCH_SUBMITTED = CollectorKind(_cloudwatch_submitted, order=40)


def _cloudwatch_options(settings: Settings) -> CloudWatchOptions:
    return CloudWatchOptions(
        ask_every_s=settings.cloudwatch.interval_s,
        emit_every_s=settings.sample_interval_s,
        period_s=settings.cloudwatch.period_s,
        timeout_s=settings.cloudwatch.timeout_s,
    )


def render_options(settings: Settings) -> RenderOptions | None:
    """Return how graphite-web is asked; None when none is set."""
    render = settings.render
    if render.url is None:
        return None
    # An HTTP client weighs 5 MB: only who reads graphite-web pays for it.
    from collectors.render import RenderOptions

    return RenderOptions(
        url=render.url,
        tagged=render.form is SeriesForm.TAGGED,
        interval_s=render.interval_s,
        timeout_s=render.timeout_s,
        lag_s=render.lag_s,
        window_s=render.window_s,
        max_response_bytes=round(render.max_response_mb * BYTES_PER_MB),
        authorization=None if render.authorization is None else render.authorization.get_secret_value(),
    )
