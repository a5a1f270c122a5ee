"""A VM measures in step with the clock, also when the clock is set, and sends what its workers tell."""

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from collectors.run_directory import RunDirectory
from collectors.vm_reporter import SPREAD_SHARE, CoreTimes, HostSampler, Memory, VmIdentity, VmReporter
from collectors.worker_hook import write_report
from domain.samples import Sample, VmMetric, VmSeries
from tests.collectors.surroundings import T0
from tests.waiting import until

WHO = VmIdentity("web", "s", "i-1")
INTERVAL_S = 0.1


class Kept:
    """Keeps the samples it is given."""

    def __init__(self) -> None:
        self.batches: list[list[Sample]] = []
        self.failing = False

    def send_samples(self, samples: list[Sample]) -> None:
        if self.failing:
            self.failing = False
            raise MemoryError("no room")
        self.batches.append(samples)

    @property
    def times(self) -> list[float]:
        return [batch[0].at for batch in self.batches]


class Watch:
    """The machine's clock, which a test can set forward or back."""

    def __init__(self) -> None:
        self.set_by = T0 - time.time()

    def __call__(self) -> float:
        return time.time() + self.set_by


def sampler() -> HostSampler:
    count = iter(range(10**6))

    def cores() -> tuple[CoreTimes, ...]:
        n = next(count)
        return (CoreTimes(6.0 * n, 10.0 * n),)

    return HostSampler(cores, lambda: Memory(8_000, 2_000))


def reporter(now: Callable[[], float], workers: RunDirectory | None = None, vm: str = "i-1") -> tuple[VmReporter, Kept]:
    kept = Kept()
    return VmReporter(VmIdentity("web", "s", vm), sampler(), kept, now, INTERVAL_S, workers), kept


@pytest.fixture
def running() -> object:
    stopping, threads = Event(), []

    def start(made: VmReporter) -> None:
        threads.append(threading.Thread(target=made.run, args=(stopping,)))
        threads[-1].start()

    yield start
    stopping.set()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()


def test_cpu_and_memory_have_the_vm_s_path_and_absent_workers_are_not_reported() -> None:
    made, _ = reporter(lambda: T0)
    assert made.measure(T0) == [
        Sample(VmSeries("web", "s", "i-1", VmMetric.CPU_PERCENT), 40.0, T0),
        Sample(VmSeries("web", "s", "i-1", VmMetric.RAM_PERCENT), 75.0, T0),
    ]


def test_what_workers_tell_is_sent_and_a_silent_one_keeps_the_vm_unknown(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.make()
    made, _ = reporter(time.time, directory)
    write_report(tmp_path / "workers" / "w", 2.0, 31.5)
    readings = {sample.series.metric: sample.value for sample in made.measure(T0)}
    assert readings == {"cpu_percent": 40.0, "ram_percent": 75.0, "busy_cores": 2.0, "work_core_seconds": 31.5}
    (tmp_path / "workers" / "broken").write_text("?")
    assert {sample.series.metric for sample in made.measure(T0)} == {"cpu_percent", "ram_percent"}


def test_every_beat_is_measured_once_and_stamped_with_a_multiple_of_the_interval(running: Callable[..., None]) -> None:
    made, kept = reporter(Watch())
    running(made)
    until(lambda: len(kept.batches) >= 5)
    beats = [at / INTERVAL_S for at in kept.times]
    assert all(math.isclose(beat, round(beat), abs_tol=1e-3) for beat in beats)
    assert len({round(beat) for beat in beats}) == len(beats)


def test_vms_measure_a_little_after_the_beat_each_at_its_own_time() -> None:
    offsets = set()
    for n in range(50):
        made, _ = reporter(lambda: T0, vm=f"i-{n}")
        assert 0.0 <= made._offset_s <= SPREAD_SHARE * INTERVAL_S
        offsets.add(made._offset_s)
    assert len(offsets) == 50


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0, -0.25, 0.25])
def test_a_clock_that_is_set_costs_a_beat_or_two_not_an_hour(running: Callable[..., None], step_s: float) -> None:
    watch = Watch()
    made, kept = reporter(watch)
    running(made)
    until(lambda: len(kept.batches) >= 2)
    watch.set_by += step_s
    before = len(kept.batches)
    until(lambda: len(kept.batches) >= before + 3)
    assert abs(kept.times[-1] - watch()) < 600.0


def test_a_measurement_that_fails_is_left_out_and_the_next_one_taken(running: Callable[..., None]) -> None:
    made, kept = reporter(Watch())
    kept.failing = True
    running(made)
    until(lambda: len(kept.batches) >= 2)
    assert not kept.failing
