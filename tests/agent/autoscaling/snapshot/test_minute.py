"""A minute of readings becomes a snapshot: bins, coverage, and the difference between absent and zero."""

from dataclasses import replace

import pytest

from domain.errors import BadInput, RejectReason
from domain.observed import Instance, Lifecycle, Observed
from tests.agent.autoscaling.snapshot.scene import FLEET, T0, Scene, group, running

QUEUE = {"waiting": 4, "running": 6, "submitted_total": 20}


def test_a_full_minute_is_folded_to_means_over_the_vms_that_reported() -> None:
    scene = Scene()
    scene.place("s", running("i-1"), running("i-2"))
    scene.place("l", running("i-3"))
    snapshot = scene.minute({"i-1": 50.0, "i-2": 100.0, "i-3": 25.0}, QUEUE)
    assert snapshot.bin_end == T0 + 60
    assert snapshot.taken_at == T0 + 65
    assert snapshot.age_s == 5.0
    assert snapshot.coverage == 1.0
    assert (snapshot.absent, snapshot.stale_bins) == ((), 0)
    assert snapshot.cpu_mean == pytest.approx(1.75 / 3, abs=1e-7)
    assert snapshot.cpu_p90 == 0.9
    assert snapshot.ram_mean == 0.1
    small = group(snapshot, "s")
    assert (small.cpu_mean, small.ram_mean, small.busy_cores) == (0.75, 0.1, 2.0)
    assert (small.requested, small.in_service, small.warm, small.booting, small.silent) == (2, 2, 2, 0, 0)
    allocated = (2 * 2 + 8) / 100
    assert snapshot.obs7 == pytest.approx((allocated, 1.75 / 3, 0.9, 0.1, 0.1, 4 / 20, 0.0), abs=1e-7)


def test_a_minute_is_open_at_its_start_and_closed_at_its_end() -> None:
    scene = Scene()
    scene.place("s", running("i-1"))
    scene.report("s", "i-1", [T0], cpu_percent=100.0)
    scene.now = T0 + 60
    scene.report("s", "i-1", [T0 + 0.001, T0 + 30, T0 + 60], cpu_percent=30.0)
    scene.now = T0 + 65
    scene.report("s", "i-1", [T0 + 60.001], cpu_percent=90.0)
    assert group(scene.fold(), "s").cpu_mean == pytest.approx(0.3)


def test_the_minute_before_is_used_until_the_grace_is_over() -> None:
    scene = Scene()
    scene.now = T0 + 64.9
    assert scene.fold().bin_end == T0
    scene.now = T0 + 65.0
    assert scene.fold().bin_end == T0 + 60


def test_a_vm_with_two_of_six_samples_is_silent_and_left_out() -> None:
    scene = Scene()
    scene.place("s", running("i-1"), running("i-2"))
    scene.minute({"i-1": 50.0, "i-2": 50.0}, QUEUE)
    scene.report("s", "i-2", [T0 + 110, T0 + 120], cpu_percent=100.0)
    snapshot = scene.minute({"i-1": 20.0}, QUEUE)
    assert snapshot.cpu_mean == 0.2
    assert (group(snapshot, "s").warm, group(snapshot, "s").silent) == (2, 1)
    assert snapshot.coverage == 0.5
    assert snapshot.stale_bins == 0


def test_the_samples_needed_follow_the_sample_interval() -> None:
    settings = Scene().settings
    needed = [type(settings)(sample_interval_s=s).min_samples for s in (5.0, 10.0, 15.0, 20.0, 60.0)]
    assert needed == [6, 3, 2, 2, 1]


def test_a_reading_for_a_minute_already_used_is_late() -> None:
    scene = Scene()
    scene.place("s", running("i-1"))
    first = scene.minute({"i-1": 50.0}, QUEUE)
    scene.now = T0 + 66
    scene.report("s", "i-1", [T0 + 59.0, T0 + 60.0], cpu_percent=100.0)
    assert scene.counters.rejected[RejectReason.LATE] == 2
    assert scene.fold() == replace(first, taken_at=T0 + 66, age_s=6.0, vm_age_s=6.0, queue_age_s=6.0)


def test_a_repeated_reading_counts_once_and_the_highest_wins() -> None:
    scene = Scene()
    scene.place("s", running("i-1"))
    for percent in (10.0, 90.0):
        scene.now = T0 + 60
        scene.report("s", "i-1", [T0 + 20, T0 + 40, T0 + 60], cpu_percent=percent)
    scene.report("s", "i-1", [T0 + 60] * 10, cpu_percent=60.0)
    scene.now = T0 + 65
    assert group(scene.fold(), "s").cpu_mean == pytest.approx(0.9)


def test_an_empty_fleet_gives_zero() -> None:
    snapshot = Scene().minute(queue=QUEUE)
    assert (snapshot.cpu_mean, snapshot.ram_p90, snapshot.coverage) == (0.0, 0.0, 1.0)
    assert (snapshot.absent, snapshot.stale_bins) == ((), 0)
    assert [g.busy_cores for g in snapshot.groups] == [0.0, 0.0]
    assert snapshot.obs7 is not None
    assert snapshot.obs7[:5] == (0.0, 0.0, 0.0, 0.0, 0.0)


def test_vms_that_stopped_reporting_give_absent_not_zero() -> None:
    scene = Scene()
    scene.place("s", running("i-1"))
    scene.minute({"i-1": 50.0}, QUEUE)
    snapshot = scene.minute(queue=QUEUE)
    assert (snapshot.cpu_mean, snapshot.cpu_p90, snapshot.ram_mean) == (None, None, None)
    assert snapshot.absent == ("cpu", "ram")
    assert (snapshot.coverage, snapshot.stale_bins, snapshot.obs7) == (0.0, 1, None)
    assert (group(snapshot, "s").cpu_mean, group(snapshot, "s").busy_cores) == (None, None)
    assert group(snapshot, "l").cpu_mean == 0.0


def test_vms_that_should_have_reported_long_ago_and_never_did_give_absent() -> None:
    scene = Scene()
    scene.place("s", running("i-1"))
    snapshot = scene.minute(queue=QUEUE)
    assert (snapshot.absent, snapshot.coverage) == (("cpu", "ram"), 0.0)
    assert (group(snapshot, "s").warm, group(snapshot, "s").overdue) == (0, 1)


def test_coverage_comes_with_the_number_of_vms_due() -> None:
    scene = Scene()
    scene.place("s", running("i-1"), running("i-2"))
    scene.minute({"i-1": 50.0}, QUEUE)
    snapshot = scene.minute({"i-1": 50.0}, QUEUE)
    assert (group(snapshot, "s").warm, group(snapshot, "s").overdue) == (1, 1)
    assert (snapshot.reported, snapshot.due, snapshot.coverage) == (1, 2, 0.5)
    assert (Scene().minute(queue=QUEUE).due, Scene().minute(queue=QUEUE).coverage) == (0, 1.0)


def test_the_age_of_vm_reports_is_not_that_of_the_queue_s() -> None:
    scene = Scene()
    scene.place("s", running("i-1"))
    scene.minute({"i-1": 50.0}, QUEUE)
    snapshot = scene.minute(queue=QUEUE)
    assert (snapshot.coverage, snapshot.vm_age_s, snapshot.queue_age_s, snapshot.age_s) == (0.0, 65.0, 5.0, 5.0)
    assert Scene().minute(queue=QUEUE).vm_age_s is None


def test_missing_queue_data_is_absent_and_counts_stale_minutes_until_it_returns() -> None:
    scene = Scene()
    scene.place("s", running("i-1"))
    stale = [scene.minute({"i-1": 50.0}) for _ in range(3)]
    assert [s.stale_bins for s in stale] == [1, 2, 3]
    assert (stale[0].queue, stale[0].absent, stale[0].obs7) == (None, ("queue",), None)
    assert stale[0].cpu_mean == 0.5
    assert scene.minute({"i-1": 50.0}, QUEUE).stale_bins == 0


def test_two_snapshots_of_one_minute_count_one_stale_minute() -> None:
    scene = Scene()
    scene.minute()
    scene.now += 20.0
    assert scene.fold().stale_bins == 1


def test_low_coverage_is_a_stale_minute() -> None:
    scene = Scene()
    scene.place("s", *(running(f"i-{n}") for n in range(5)))
    scene.minute({f"i-{n}": 50.0 for n in range(5)}, QUEUE)
    snapshot = scene.minute({"i-0": 50.0, "i-1": 50.0}, QUEUE)
    assert (snapshot.coverage, snapshot.stale_bins, snapshot.absent) == (0.4, 1, ())


def test_cpu_without_ram_leaves_only_ram_and_the_vector_absent() -> None:
    scene = Scene()
    scene.place("s", running("i-1"))
    scene.now = T0 + 60
    scene.report("s", "i-1", [T0 + 10.0 * k for k in range(1, 7)], cpu_percent=40.0)
    scene.report_queue(T0 + 60, **QUEUE)
    scene.now = T0 + 65
    snapshot = scene.fold()
    assert (snapshot.cpu_mean, snapshot.ram_mean, snapshot.absent, snapshot.obs7) == (0.4, None, ("ram",), None)
    assert (snapshot.coverage, snapshot.stale_bins) == (1.0, 0)


def test_age_is_that_of_the_newest_sample_and_absent_when_there_never_was_one() -> None:
    scene = Scene()
    assert scene.minute().age_s is None
    scene.place("s", running("i-1"))
    scene.minute({"i-1": 50.0})
    assert scene.minute().age_s == 65.0


def test_a_group_that_could_not_be_read_is_an_error_that_names_it() -> None:
    scene = Scene()
    with pytest.raises(BadInput, match="web-s"):
        scene.aggregator.snapshot(FLEET, Observed(T0), scene.state, scene.settings, T0)


def test_a_clock_set_back_by_an_hour_starts_the_bins_over() -> None:
    scene = Scene()
    scene.place("s", running("i-1"))
    scene.now = T0 + 3600
    scene.minute({"i-1": 50.0}, QUEUE)
    scene.now = T0
    scene.fold()
    snapshot = scene.minute({"i-1": 20.0}, QUEUE)
    assert (snapshot.bin_end, snapshot.cpu_mean, snapshot.age_s) == (T0 + 60, 0.2, 5.0)


def test_the_warmed_up_mean_leaves_out_vms_that_reported_first_less_than_the_warm_up_ago() -> None:
    scene = Scene()
    scene.settings = replace(scene.settings, warm_up_s=120.0)
    scene.place("s", running("i-1"), running("i-2", launched_at=T0))
    means = [scene.minute({"i-1": 20.0, "i-2": 80.0}, QUEUE).cpu_mean_warmed_up for _ in range(3)]
    assert means == [0.2, 0.2, 0.5]


def test_without_a_warmed_up_vm_there_is_no_warmed_up_mean() -> None:
    scene = Scene()
    assert scene.minute(queue=QUEUE).cpu_mean_warmed_up is None
    scene.place("s", running("i-1", launched_at=scene.now))
    fresh = scene.minute({"i-1": 30.0}, QUEUE)
    assert (fresh.cpu_mean, fresh.cpu_mean_warmed_up) == (0.3, None)
    assert scene.minute(queue=QUEUE).cpu_mean_warmed_up is None


def test_pending_vms_are_not_part_of_the_means() -> None:
    scene = Scene()
    scene.place("s", running("i-1"), Instance("i-2", "a", Lifecycle.PENDING, launched_at=T0))
    snapshot = scene.minute({"i-1": 50.0, "i-2": 100.0}, QUEUE)
    assert snapshot.cpu_mean == 0.5
    assert (group(snapshot, "s").in_service, group(snapshot, "s").warm, group(snapshot, "s").booting) == (1, 1, 1)
