"""The store of readings is bounded whatever is sent, keeps the newest, and forgets the silent."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.snapshot.series import ABSENT_ROW, DEPTH, NEVER, SeriesStore
from collectors.base import Refusal
from collectors.intake import IntakeLimits
from domain.errors import RejectReason
from domain.fleet import Fleet, Group, VmType
from domain.samples import QueueMetric, QueueSeries, Sample, VmMetric, VmSeries

T0 = 1_795_209_000.0
FLEET = Fleet("web", (Group("s", "web-s", VmType("m5a.large", 2, 8.0, 0.086), 1, 10),))


def path(vm: str = "i-1", metric: str = "cpu_percent", key: str = "s") -> bytes:
    return f"trimtab.web.{key}.{vm}.{metric}".encode()


def put(store: SeriesStore, where: bytes, value: float, at: float, now: float = T0) -> RejectReason | None:
    refused = store.append([where], [value], [at], now)
    return refused[0].reason if refused else None


def held(store: SeriesStore, vm: str = "i-1", key: str = "s") -> list[tuple[float, float]]:
    return store.readings(store.vm_rows("web", key)[vm][0], np.inf)


def test_readings_come_back_in_order_of_time() -> None:
    store = SeriesStore()
    for at in (T0, T0 + 20, T0 + 10):
        assert put(store, path(), at - T0, at) is None
    assert held(store) == [(T0, 0.0), (T0 + 10, 10.0), (T0 + 20, 20.0)]


def test_of_one_moment_the_highest_counts_also_out_of_order() -> None:
    store = SeriesStore()
    for value, at in ((1.0, T0), (5.0, T0 + 10), (3.0, T0), (4.0, T0 + 10)):
        put(store, path(), value, at)
    assert held(store) == [(T0, 3.0), (T0 + 10, 5.0)]


@given(st.lists(st.integers(0, 50), max_size=120))
def test_a_ring_holds_the_last_readings_written(steps: list[int]) -> None:
    store = SeriesStore()
    expected: dict[float, float] = {}
    for order, step in enumerate(steps):
        at = T0 + step
        put(store, path(), float(order % 90), at)
        if at not in expected and len(expected) == DEPTH:
            del expected[next(iter(expected))]
        expected[at] = max(float(order % 90), expected.get(at, 0.0))
    if steps:
        assert held(store) == sorted(expected.items())


def test_a_counter_goes_on_when_readings_of_an_earlier_clock_fill_its_ring() -> None:
    store = SeriesStore(watched=[FLEET])
    where = f"trimtab.web.queue.{QueueMetric.SUBMITTED_TOTAL}".encode()
    put(store, where, 500.0, T0)
    for n in range(DEPTH + 2):
        assert put(store, where, 100.0 + n, T0 - 300.0 + n, now=T0 - 300.0 + n) is None
    row = store.queue_row("web", QueueMetric.SUBMITTED_TOTAL)
    assert store.newest(np.array([row])) == T0 - 300.0 + DEPTH + 1


def test_plain_and_tagged_spellings_are_one_series() -> None:
    store = SeriesStore()
    put(store, path(), 1.0, T0)
    put(store, b"trimtab.cpu_percent;fleet=web;group=s;vm=i-1", 2.0, T0 + 1)
    put(store, b"trimtab.cpu_percent;vm=i-1;group=s;fleet=web", 3.0, T0 + 2)
    assert (len(store), [value for _, value in held(store)]) == (1, [1.0, 2.0, 3.0])


def test_endless_spellings_of_one_series_do_not_grow_the_store() -> None:
    store = SeriesStore(capacity=10)
    for n in range(200):
        tagged = f"trimtab.cpu_percent;fleet=web;group=s;vm=i-1;n={n}".encode()
        assert put(store, tagged, float(n % 100), T0 + n / 10) is None
    assert len(store) == 1
    assert len(store._rows_by_path) == 20
    assert held(store)[-1] == (T0 + 19.9, 99.0)


def test_series_beyond_the_capacity_are_refused_and_known_ones_go_on() -> None:
    store = SeriesStore(capacity=3)
    assert [put(store, path(f"i-{n}"), 1.0, T0) for n in range(5)] == [None] * 3 + [RejectReason.TOO_MANY_SERIES] * 2
    assert put(store, path("i-0"), 2.0, T0 + 1) is None
    assert len(store) == 3
    assert set(store.vm_rows("web", "s")) == {"i-0", "i-1", "i-2"}


def test_at_capacity_the_silent_make_room() -> None:
    store = SeriesStore(capacity=2, reclaim_after_s=900.0)
    put(store, path("i-old"), 1.0, T0)
    put(store, path("i-live"), 1.0, T0)
    put(store, path("i-live"), 1.0, T0 + 901, now=T0 + 901)
    assert put(store, path("i-new"), 5.0, T0 + 901, now=T0 + 901) is None
    assert set(store.vm_rows("web", "s")) == {"i-live", "i-new"}
    assert held(store, "i-new") == [(T0 + 901, 5.0)]


def test_series_silent_for_the_forgetting_time_are_dropped_when_a_minute_is_closed() -> None:
    store = SeriesStore(forget_after_s=7200.0)
    for n in range(5000):
        put(store, path(f"i-{n}"), 1.0, T0)
    put(store, b"trimtab.web.queue.waiting", 1.0, T0)
    later = T0 + 7300.0
    put(store, path("i-7"), 2.0, later, now=later)
    store.close_bin(later - 100, later - 40, later)
    assert (len(store), list(store.vm_rows("web", "s"))) == (1, ["i-7"])
    assert store.queue_row("web", QueueMetric.WAITING) == ABSENT_ROW
    assert len(store._rows_by_path) == 1
    buffers = len(store._times)
    for n in range(4000):
        put(store, path(f"j-{n}"), 1.0, later, now=later)
    assert (len(store), len(store._times)) == (4001, buffers)
    assert held(store, "j-3999") == [(later, 1.0)]


def test_a_day_of_churning_vms_does_not_grow_the_store() -> None:
    store = SeriesStore(forget_after_s=3600.0)
    sizes = []
    for hour in range(24):
        for quarter in range(4):
            now = T0 + 3600.0 * hour + 900.0 * quarter
            for n in range(100):
                put(store, path(f"i-{hour}-{quarter}-{n}"), 1.0, now, now=now)
            store.close_bin(now - 120, now - 60, now)
        sizes.append(len(store))
    assert max(sizes) <= 600
    assert len(store._series) <= 600


@pytest.mark.parametrize(
    ("value", "at", "reason"),
    [
        (float("nan"), T0, RejectReason.NOT_FINITE),
        (float("inf"), T0, RejectReason.NOT_FINITE),
        (1.0, float("nan"), RejectReason.NOT_FINITE),
        (1.0, float("inf"), RejectReason.NOT_FINITE),
        (-0.5, T0, RejectReason.OUT_OF_RANGE),
        (105.001, T0, RejectReason.OUT_OF_RANGE),
        (1e308, T0, RejectReason.OUT_OF_RANGE),
        (1.0, T0 + 60.001, RejectReason.FUTURE),
        (1.0, 1e18, RejectReason.FUTURE),
        (1.0, T0 - 600.0, RejectReason.TOO_OLD),
        (1.0, 0.0, RejectReason.TOO_OLD),
    ],
)
def test_an_unbelievable_reading_is_refused_with_its_reason(value: float, at: float, reason: RejectReason) -> None:
    store = SeriesStore()
    put(store, path(), 5.0, T0)
    assert put(store, path(), value, at) is reason
    assert held(store) == [(T0, 5.0)]


def test_readings_at_the_edges_of_belief_are_taken() -> None:
    store = SeriesStore(limits=IntakeLimits(max_ahead_s=60.0, max_age_s=600.0))
    for value, at in ((0.0, T0 - 599.9), (100.0, T0), (105.0, T0 + 60.0)):
        assert put(store, path(), value, at) is None
    assert [value for _, value in held(store)] == [0.0, 100.0, 100.0]


def test_a_percentage_a_little_above_100_is_100_and_counts_may_be_large() -> None:
    store = SeriesStore()
    assert put(store, path(metric="work_core_seconds"), 1e9, T0) is None
    assert put(store, b"trimtab.web.queue.waiting", 1e6, T0) is None
    assert put(store, path(), 101.5, T0) is None
    assert held(store) == [(T0, 100.0)]


def test_only_watched_fleets_and_groups_are_kept() -> None:
    store = SeriesStore(watched=[FLEET])
    assert put(store, path(), 1.0, T0) is None
    assert put(store, b"trimtab.web.queue.waiting", 1.0, T0) is None
    assert put(store, path(key="other"), 1.0, T0) is RejectReason.FOREIGN_PATH
    assert put(store, b"trimtab.db.queue.waiting", 1.0, T0) is RejectReason.FOREIGN_PATH
    assert len(store) == 2


def test_a_refused_reading_makes_no_series() -> None:
    store = SeriesStore(capacity=1)
    for n in range(50):
        assert put(store, path(f"i-{n}"), float("nan"), T0) is RejectReason.NOT_FINITE
        assert put(store, path(f"i-{n}"), 1.0, T0 + 3600) is RejectReason.FUTURE
    assert (len(store), dict(store.vm_rows("web", "s"))) == (0, {})
    assert put(store, path(), 1.0, T0) is None


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        (b"carbon.agents.host.cpuUsage", RejectReason.FOREIGN_PATH),
        (b"trimtab.web.s.i-1.disk_percent", RejectReason.FOREIGN_PATH),
        (b"trimtab.web.s..cpu_percent", RejectReason.FOREIGN_PATH),
        (b"trimtab.web.s.i-\xff.cpu_percent", RejectReason.NOT_TEXT),
        (b"trimtab.web.s.i-\x1b[2J.cpu_percent", RejectReason.NOT_TEXT),
    ],
)
def test_a_path_that_is_not_ours_is_refused(where: bytes, reason: RejectReason) -> None:
    store = SeriesStore()
    assert put(store, where, 1.0, T0) is reason
    assert len(store) == 0


def test_refusals_name_their_position_in_the_batch() -> None:
    store = SeriesStore()
    samples = [
        Sample(VmSeries("web", "s", "i-1", VmMetric.CPU_PERCENT), 50.0, T0),
        Sample(VmSeries("web", "s", "i-1", VmMetric.CPU_PERCENT), 500.0, T0 + 1),
        Sample(QueueSeries("web", QueueMetric.WAITING), 3.0, T0 - 9999),
    ]
    assert store.append_samples(samples, T0) == [
        Refusal(1, RejectReason.OUT_OF_RANGE),
        Refusal(2, RejectReason.TOO_OLD),
    ]


def test_a_closed_minute_takes_no_more_and_folds_the_same_again() -> None:
    store = SeriesStore()
    put(store, path(), 40.0, T0 + 10)
    fold = store.close_bin(T0, T0 + 60, T0 + 65)
    assert put(store, path(), 90.0, T0 + 60.0, now=T0 + 66) is RejectReason.LATE
    assert put(store, path(), 90.0, T0 + 60.1, now=T0 + 66) is None
    assert store.close_bin(T0, T0 + 60, T0 + 66) is fold


def test_a_clock_set_back_drops_what_then_lies_in_the_future() -> None:
    store = SeriesStore()
    for at in range(0, 100, 10):
        put(store, path(), 9.0, T0 + 3600 + at, now=T0 + 3600 + at)
    store.close_bin(T0 + 3600, T0 + 3660, T0 + 3665)
    store.close_bin(T0 - 60, T0, T0 + 5)
    assert put(store, path(), 1.0, T0 + 1, now=T0 + 5) is None
    assert held(store) == [(T0 + 1, 1.0)]
    assert store.newest(np.array([0])) == T0 + 1


def test_rows_that_do_not_exist_read_as_nothing() -> None:
    store = SeriesStore()
    put(store, path(), 1.0, T0 + 1)
    fold = store.close_bin(T0, T0 + 60, T0 + 65)
    counts, means = fold.at(np.array([ABSENT_ROW, 0, 77]))
    assert (counts.tolist(), means.tolist()) == ([0, 1, 0], [0.0, 1.0, 0.0])
    rows = np.array([ABSENT_ROW])
    assert store.readings(ABSENT_ROW, np.inf) == []
    assert store.newest(rows) == NEVER
    assert store.first(rows).tolist() == [np.inf]
    at, value = store.latest(rows, np.inf)
    assert at.tolist() == [NEVER]
    assert np.isnan(value).all()


def test_a_reader_and_two_writers_see_whole_readings_while_the_store_grows() -> None:
    store = SeriesStore(limits=IntakeLimits(max_ahead_s=1e6))
    done = threading.Event()
    errors: list[str] = []

    def write(name: str) -> None:
        for n in range(60):
            paths = [path(f"{name}-{vm}") for vm in range(n * 20)]
            at = T0 + n + 1
            store.append(paths, [float(n)] * len(paths), [at] * len(paths), T0)
        done.set()

    def read() -> None:
        while not done.is_set():
            rows = np.array([rows[0] for rows in list(store.vm_rows("web", "s").values())], dtype=np.int64)
            at, value = store.latest(rows, np.inf)
            seen = at > NEVER
            if (at[seen] - T0 - 1 != value[seen]).any():
                errors.append("a reading's value does not belong to its time")

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"] + [threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store) == 2 * 59 * 20
