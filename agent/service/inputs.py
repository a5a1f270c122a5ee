"""Which collectors the settings ask for: queue depth, Graphite and CloudWatch, each for each fleet it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agent.settings import Settings
from agent.settings.inputs import MeasuredBy, SeriesForm
from collectors.aws import AwsSession
from collectors.base import Collector
from collectors.cloudwatch import CloudWatchCpu, CloudWatchOptions, CloudWatchSubmitted
from collectors.queue import QueueDepthCollector
from domain.fleet import Fleet

if TYPE_CHECKING:
    from collectors.render import RenderOptions

BYTES_PER_MB = 2**20


def collectors_of(settings: Settings, fleets: Sequence[Fleet], session: AwsSession) -> list[Collector]:
    """Return the collectors that these fleets need beside the listener; none of them has been asked yet."""
    render = render_options(settings)
    cloudwatch = CloudWatchOptions(
        ask_every_s=settings.cloudwatch.interval_s,
        emit_every_s=settings.sample_interval_s,
        period_s=settings.cloudwatch.period_s,
        timeout_s=settings.cloudwatch.timeout_s,
    )
    return [collector for fleet in fleets for collector in _of_fleet(settings, fleet, session, render, cloudwatch)]


def _of_fleet(
    settings: Settings, fleet: Fleet, session: AwsSession, render: RenderOptions | None, cloudwatch: CloudWatchOptions
) -> Iterator[Collector]:
    if fleet.queue_url is not None:
        yield QueueDepthCollector(fleet, session.client("sqs"))
    if render is not None:
        from collectors.render import RenderCollector

        yield RenderCollector(fleet, render)
    asked = settings.fleets.get(fleet.name)
    if asked is None:
        return
    if asked.cpu_from is MeasuredBy.CLOUDWATCH:
        yield CloudWatchCpu(fleet, session, cloudwatch)
    if asked.submitted_from is MeasuredBy.CLOUDWATCH and fleet.queue_url is not None:
        yield CloudWatchSubmitted(fleet, session, cloudwatch)


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
