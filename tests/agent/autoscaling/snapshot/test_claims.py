"""What a source may claim: a reading beyond it is refused, counted with its sender, and absent for the minute."""

from __future__ import annotations

from typing import Any

import pytest

from agent.autoscaling.snapshot.aggregate import AggregationSettings
from agent.autoscaling.snapshot.series import SeriesStore
from agent.rails.state import LoopState
from agent.settings import load_settings
from collectors.cloudwatch import CloudWatchOptions, CloudWatchSubmitted, QueueDepthCollector
from collectors.intake import Claims, RefusedClaim
from collectors.polling import Poller
from domain.clock import VirtualClock
from domain.errors import RejectReason
from domain.fleet import Fleet
from domain.samples import QueueMetric
from tests.agent.autoscaling.snapshot.scene import FLEET, SMALL, T0, Scene, group, running

QUEUE_URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs"


def scene(**claims: float) -> Scene:
    return Scene(store=SeriesStore(watched=[FLEET], claims={"web": Claims(**claims)}))


def refused(world: Scene) -> dict[tuple[str, str], tuple[int, float, float]]:
    return {
        (where, metric): (claim.count, claim.value, claim.limit)
        for (_, where, metric), claim in world.store.refused_claims().items()
    }


@pytest.mark.parametrize(
    ("metric", "believed", "beyond"),
    [
        ("waiting", 1e6, 1_000_001.0),
        ("waiting", 0.0, 1e15),
        ("running", 1e6, 1e15),
        ("oldest_wait_seconds", 1_209_600.0, 1_209_601.0),
        ("job_core_seconds", 1e6, 1e12),
    ],
)
def test_a_queue_beyond_what_is_believed_counts_as_not_reported(metric: str, believed: float, beyond: float) -> None:
    world = scene()
    fair = {"waiting": 3.0, "running": 1.0, "oldest_wait_seconds": 5.0, "job_core_seconds": 60.0}
    edge = world.minute(queue={**fair, metric: believed})
    assert edge.queue is not None
    assert world.counters.rejected_total == 0
    after = world.minute(queue={**fair, metric: beyond})
    assert world.counters.rejected[RejectReason.IMPLAUSIBLE] == 1
    assert refused(world) == {("queue", metric): (1, beyond, max(believed, 1e6 if metric == "waiting" else 0.0))}
    if metric in ("waiting", "running"):
        assert (after.queue, after.absent, after.stale_bins) == (None, ("queue",), 1)
    elif metric == "oldest_wait_seconds":
        assert after.queue is not None
        assert after.queue.oldest_wait_s is None
    else:
        assert after.queue is not None
        assert after.queue.job_core_s == believed


def test_an_honest_reading_of_the_same_minute_still_counts() -> None:
    world = scene()
    world.report_queue(T0 + 30, waiting=1e15)
    snapshot = world.minute(queue={"waiting": 7, "running": 2})
    assert snapshot.queue is not None
    assert (snapshot.queue.waiting, snapshot.absent) == (7, ())
    world.report_queue(T0 + 119, waiting=9, running=2)
    world.report_queue(T0 + 120, waiting=1e15)
    assert world.store.readings(world.store.queue_row("web", QueueMetric.WAITING), T0 + 120)[-1] == (T0 + 119, 9.0)


@pytest.mark.parametrize(("value", "reason"), [(-1.0, "out_of_range"), (float("nan"), "not_finite")])
def test_what_no_queue_can_be_is_counted_as_a_claim_too(value: float, reason: str) -> None:
    world = scene()
    assert world.minute(queue={"waiting": value, "running": 0}).queue is None
    assert world.counters.rejected[RejectReason(reason)] == 1
    assert list(refused(world)) == [("queue", "waiting")]


def test_more_busy_cores_than_a_vm_has_are_unknown_not_all_of_them() -> None:
    world = scene()
    world.place("s", running("i-1"))
    world.place("l", running("i-9"))
    world.minute(cpu={"i-1": 50.0, "i-9": 50.0}, queue={"waiting": 0, "running": 0}, busy_cores=2.0)
    after = world.minute(cpu={"i-1": 50.0, "i-9": 50.0}, queue={"waiting": 0, "running": 0}, busy_cores=7.5)
    assert (group(after, "s").busy_cores, group(after, "l").busy_cores) == (None, 7.5)
    assert refused(world) == {("s", "busy_cores"): (6, 7.5, 2.0)}


def test_where_jobs_share_cores_more_may_be_claimed() -> None:
    world = scene(max_busy_share=4.0)
    world.place("s", running("i-1"))
    snapshot = world.minute(cpu={"i-1": 50.0}, queue={"waiting": 0, "running": 0}, busy_cores=7.5)
    assert group(snapshot, "s").busy_cores == 7.5
    assert refused(world) == {}


def test_work_under_way_is_bounded_by_the_cores_and_by_how_long_it_can_have_run() -> None:
    world = scene(max_work_s=3600.0)
    world.report("s", "i-1", [T0], work_core_seconds=7200.0)
    world.report("l", "i-2", [T0], work_core_seconds=7200.5)
    world.report("s", "i-3", [T0], work_core_seconds=7200.5)
    assert refused(world) == {("s", "work_core_seconds"): (1, 7200.5, 7200.0)}


def test_a_counter_that_leaps_is_not_believed_and_goes_on_where_it_was() -> None:
    world = scene(max_submitted_per_minute=1000.0)
    fair = {"waiting": 5, "running": 1}
    world.minute(queue={**fair, "submitted_total": 100})
    leap = world.minute(queue={**fair, "submitted_total": 1e12})
    assert refused(world) == {("queue", "submitted_total"): (1, 1e12, 1100.0)}
    assert leap.queue is not None
    assert (leap.queue.submitted, leap.queue.submitted_recent, leap.queue.submitted_is_late) == (100, 0, True)
    after = world.minute(queue={**fair, "submitted_total": 2050})
    assert after.queue is not None
    assert (after.queue.submitted, after.queue.submitted_recent) == (2050, 1950), "two minutes may bring twice as many"


def test_a_counter_may_restart_and_a_late_reading_is_no_leap() -> None:
    world = scene(max_submitted_per_minute=1000.0)
    fair = {"waiting": 5, "running": 1}
    world.minute(queue={**fair, "submitted_total": 900})
    world.report_queue(T0 + 80, submitted_total=950)
    world.report_queue(T0 + 70, submitted_total=940)
    after = world.minute(queue={**fair, "submitted_total": 30})
    assert refused(world) == {}
    assert after.queue is not None
    assert after.queue.submitted == 980


@pytest.mark.parametrize(("seen", "counted"), [(None, 0), (500.0, 700)])
def test_a_count_too_large_for_a_first_reading_is_where_counting_begins(seen: float | None, counted: int) -> None:
    world = scene(max_submitted_per_minute=1000.0)
    world.state = LoopState(submitted_seen=seen, submitted_in_episode=700.0 if seen else 0.0, last_bin_end=T0)
    fair = {"waiting": 5, "running": 1}
    first = world.minute(queue={**fair, "submitted_total": 4e9})
    then = world.minute(queue={**fair, "submitted_total": 4e9 + 12})
    assert first.queue is not None
    assert then.queue is not None
    assert (first.queue.submitted, then.queue.submitted, then.queue.submitted_recent) == (counted, counted + 12, 12)


def test_what_was_submitted_while_the_agent_was_down_counts() -> None:
    world = scene(max_submitted_per_minute=1000.0)
    world.state = LoopState(submitted_seen=500.0, submitted_in_episode=500.0, last_bin_end=T0 - 300.0)
    world.settings = AggregationSettings(episode_gap_s=1e6)
    snapshot = world.minute(queue={"waiting": 5, "running": 1, "submitted_total": 5400})
    assert snapshot.queue is not None
    assert snapshot.queue.submitted == 5400


class Lying:
    """A client of SQS, and a session for CloudWatch, with responses beyond the claim limits."""

    def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
        return {
            "Attributes": {
                "ApproximateNumberOfMessages": "1000000000000000",
                "ApproximateNumberOfMessagesNotVisible": "-3",
            }
        }

    def pages(self, *_: Any, **question: Any) -> list[dict[str, Any]]:
        start = question["StartTime"]
        return [{"MetricDataResults": [{"Id": "q0", "Timestamps": [start], "Values": [self.sent]}]}]

    sent = 5.0


def test_a_collector_is_believed_no_more_than_a_sender() -> None:
    clock, lying = VirtualClock(T0), Lying()
    fleet = Fleet("web", (SMALL,), QUEUE_URL)
    store = SeriesStore(watched=[fleet])
    depth = QueueDepthCollector(fleet, lying)
    sent: Any = CloudWatchSubmitted(fleet, lying, CloudWatchOptions())  # type: ignore[arg-type]
    poller = Poller([depth, sent], store, clock)
    poller.poll_and_wait(5.0)
    lying.sent = 1e14
    clock.advance(60.0)
    poller.poll_and_wait(5.0)
    assert {metric: claim for (_, _, metric), claim in store.refused_claims().items()} == {
        "waiting": RefusedClaim(2, 1e15, "", 1e6, "MAX_WAITING"),
        "running": RefusedClaim(2, -3.0, "", 1e6, "MAX_RUNNING"),
        "submitted_total": RefusedClaim(1, 1e14, "", 1_000_005.0, "MAX_SUBMITTED_PER_MINUTE"),
    }
    assert (poller.health["queue:web"].refused, poller.health["cloudwatch-submitted:web"].refused) == (4, 1)


def test_settings_say_what_is_believed_by_fleet() -> None:
    group_of = "TRIMTAB_FLEETS__{}__GROUPS__s__"
    given = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.1", "MAX": "10"}
    environ = {group_of.format(fleet) + name: value for fleet in ("web", "api") for name, value in given.items()}
    environ |= {group_of.format(fleet) + "NAME": fleet for fleet in ("web", "api")}
    settings = load_settings({**environ, "TRIMTAB_FLEETS__web__CLAIMS__MAX_WAITING": "50"})
    assert settings.fleets["web"].claim_limits() == Claims(max_waiting=50)
    assert settings.fleets["api"].claim_limits() == Claims()


@pytest.mark.parametrize(
    ("metric", "bound"),
    [
        ("waiting", "max_waiting"),
        ("running", "max_running"),
        ("oldest_wait_seconds", "max_oldest_wait_s"),
        ("job_core_seconds", "max_job_core_s"),
    ],
)
def test_each_metric_has_its_own_bound_and_a_change_of_it_holds_for_the_series_that_are_known(
    metric: str, bound: str
) -> None:
    store = SeriesStore(watched=[FLEET])
    series = f"trimtab.web.queue.{metric}".encode()
    assert store.append([series], [500.0], [T0], T0) == []
    store.watch([FLEET], {"web": Claims(**{bound: 100.0})})
    assert [r.reason for r in store.append([series], [500.0], [T0 + 1], T0)] == [RejectReason.IMPLAUSIBLE]
    assert list(store.refused_claims().values()) == [RefusedClaim(1, 500.0, "", 100.0, bound.upper())]
    assert store.append([series], [100.0], [T0 + 2], T0) == []


def test_a_counter_that_falls_within_the_limit_of_a_minute_is_a_restart_and_one_that_falls_less_is_a_conflict() -> None:
    world = scene(max_submitted_per_minute=100.0)
    fair = {"waiting": 5, "running": 1}
    world.minute(queue={**fair, "submitted_total": 100_000})
    fallen = world.minute(queue={**fair, "submitted_total": 80_000})
    assert fallen.queue is not None
    assert (fallen.queue.submitted_recent, refused(world)) == (0, {})
    (found,) = world.store.conflicts().items()
    assert (found[0], found[1].count) == (("web", "queue", "submitted_total"), 1)
    assert "from 100000 to 80000" in found[1].detail
    restarted = world.minute(queue={**fair, "submitted_total": 40})
    assert restarted.queue is not None
    assert (restarted.queue.submitted_recent, len(world.store.conflicts())) == (40, 1)


def test_of_two_senders_of_one_vm_the_busy_one_counts_and_both_are_named() -> None:
    world = scene()
    world.place("s", running("i-1"))
    path = b"trimtab.web.s.i-1.busy_cores"
    for value, peer in ((2.0, "10.0.0.1"), (0.0, "10.0.0.2")):
        times = [T0 + 10.0 * n for n in range(1, 7)]
        assert world.store.append([path] * 6, [value] * 6, times, T0 + 60.0, peer) == []
    world.report_queue(T0 + 60.0, waiting=4, running=2)
    world.now = T0 + 65.0
    snapshot = world.fold()
    assert (group(snapshot, "s").busy_cores, group(snapshot, "s").idle) == (2.0, 0)
    (found,) = world.store.conflicts().items()
    assert (found[0], found[1].count) == (("web", "s", "busy_cores"), 6)
    assert [text for text in ("i-1", "2 from 10.0.0.1", "0 from 10.0.0.2") if text not in found[1].detail] == []


BUSY = b"trimtab.web.s.i-1.busy_cores"
ONE, OTHER = "10.0.0.1:40001", "10.0.0.1:40002"

Report = tuple[float, float, str]
"""A reading of busy cores: seconds into the minute, value, sender."""


def by_turns(offset_s: float, busy: str = ONE, idle: str = OTHER) -> list[Report]:
    """Two minutes of two senders every ten seconds; the idle one reports so long after the other."""
    return sorted(
        [(10.0 * n, 2.0, busy) for n in range(-5, 7)] + [(10.0 * n + offset_s, 0.0, idle) for n in range(-6, 6)]
    )


def heard(reports: list[Report], now_s: float = 65.0) -> Scene:
    """A fleet with one VM that these reports are about, after a minute."""
    world = scene()
    world.place("s", running("i-1"))
    for seconds, value, peer in reports:
        assert world.store.append([BUSY], [value], [T0 + seconds], T0 + now_s, peer) == []
    world.now = T0 + now_s
    world.report("s", "i-1", (T0 + 10.0 * n for n in range(-5, 7)), cpu_percent=50.0, ram_percent=10.0)
    world.report_queue(T0 + 60.0, waiting=4, running=2)
    return world


@pytest.mark.parametrize("offset_s", [0.5, 5.0, 9.5])
@pytest.mark.parametrize("senders", [(ONE, OTHER), (OTHER, ONE), ("10.0.0.1:40001", "10.0.0.2:40001")])
def test_a_vm_is_busy_where_one_of_two_senders_says_so_by_turns(offset_s: float, senders: tuple[str, str]) -> None:
    world = heard(by_turns(offset_s, *senders))
    assert group(world.fold(), "s").busy_cores == 2.0
    assert world.aggregator.busy_cores(FLEET, T0 + 65.0)["i-1"] == 2.0
    (found,) = world.store.conflicts().items()
    assert found[0] == ("web", "s", "busy_cores")
    assert [text for text in (f"2 from {senders[0]}", f"0 from {senders[1]}") if text not in found[1].detail] == []


def test_two_senders_by_turns_are_known_when_each_batch_is_a_connection() -> None:
    of_one = [(10.0 * n, 2.0, f"10.0.0.1:{40_000 + n}") for n in range(-5, 7)]
    of_other = [(10.0 * n + 5.0, 0.0, f"10.0.0.2:{50_000 + n}") for n in range(-6, 6)]
    world = heard(sorted(of_one + of_other))
    world.fold()
    assert world.aggregator.busy_cores(FLEET, T0 + 65.0)["i-1"] == 2.0
    assert len(world.store.conflicts()) == 1


def test_the_later_of_two_senders_may_be_behind_in_time() -> None:
    pair = ((0.0, 2.0, ONE), (0.5, 0.0, OTHER))
    world = heard([(10.0 * n - late, value, who) for n in range(-5, 7) for late, value, who in pair])
    world.fold()
    assert world.aggregator.busy_cores(FLEET, T0 + 65.0)["i-1"] == 2.0
    assert len(world.store.conflicts()) == 1


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_sender_that_reconnects_is_one_sender(every: int) -> None:
    values = [2.0, 0.0] * 6
    reports = [(5.0 * n, value, f"10.0.0.1:{40_000 + n // every}") for n, value in enumerate(values, 1)]
    # What the first connection still held arrives after the first reading of the next one.
    reports[every - 1], reports[every] = reports[every], reports[every - 1]
    world = heard(reports)
    assert world.store.readings(world.store.vm_rows("web", "s")["i-1"][2], T0 + 65.0) == [
        (T0 + 5.0 * n, value) for n, value in enumerate(values, 1)
    ]
    assert world.store.conflicts() == {}


def test_two_senders_that_agree_at_other_moments_are_no_conflict() -> None:
    def cores(seconds: float) -> float:
        return 2.0 if seconds % 30.0 < 20.0 else 0.0

    turns = [(2.5 * n, cores(2.5 * n), (ONE, OTHER)[n % 2]) for n in range(-200, 24)]
    assert heard(turns).store.conflicts() == {}


def test_the_word_of_a_sender_that_left_is_over_when_its_next_is_overdue() -> None:
    world = heard([*by_turns(5.0), (65.0, 0.0, OTHER), (75.0, 0.0, OTHER), (85.0, 0.0, OTHER)], now_s=86.0)
    assert world.store.readings(world.store.vm_rows("web", "s")["i-1"][2], T0 + 86.0)[-3:] == [
        (T0 + 65.0, 2.0),
        (T0 + 75.0, 2.0),
        (T0 + 85.0, 0.0),
    ]


def test_one_sender_that_repeats_itself_or_two_that_agree_are_no_conflict() -> None:
    world = scene()
    for value, peer in ((2.0, "10.0.0.1"), (0.0, "10.0.0.1"), (2.0, "10.0.0.2")):
        world.store.append([b"trimtab.web.s.i-1.busy_cores"], [value], [T0], T0, peer)
    assert world.store.conflicts() == {}
