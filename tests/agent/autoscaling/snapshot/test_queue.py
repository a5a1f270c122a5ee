"""The queue over a minute: what waits, what was submitted, counters that restart, and where an episode begins."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.snapshot.aggregate import growth
from agent.rails.state import Memory
from collectors.intake import Claims
from domain.observations.autoscaling import obs_v2_names
from domain.snapshot import Snapshot
from tests.agent.autoscaling.snapshot.scene import FLEET, T0, Scene, running


def test_the_last_reading_of_the_minute_counts() -> None:
    scene = Scene()
    start = scene.now
    scene.now += 60
    scene.report_queue(start + 10, waiting=9, running=1)
    scene.report_queue(start + 60, waiting=3, running=7, oldest_wait_seconds=42.5, job_core_seconds=360)
    scene.now += 5
    scene.report_queue(start + 61, waiting=99, running=99)
    queue = scene.fold().queue
    assert queue is not None
    assert (queue.waiting, queue.running, queue.oldest_wait_s, queue.job_core_s) == (3, 7, 42.5, 360.0)


@pytest.mark.parametrize("given", [{"waiting": 3}, {"running": 3}, {"submitted_total": 9}])
def test_a_minute_without_waiting_or_without_running_has_no_queue(given: dict[str, float]) -> None:
    snapshot = Scene().minute(queue=given)
    assert (snapshot.queue, snapshot.absent) == (None, ("queue",))


def timed(*values: float) -> list[tuple[float, float]]:
    """Values ten seconds apart."""
    return [(T0 + 10.0 * (n + 1), value) for n, value in enumerate(values)]


def test_growth_counts_increments_and_a_restarted_counter_from_zero() -> None:
    assert growth(timed(100, 130, 5, 9), before=(T0, 90)) == 10 + 30 + 5 + 4
    assert growth(timed(100, 130), before=None) == 30
    assert growth([], before=(T0, 3)) == 0


def test_a_counter_that_falls_to_more_than_it_can_have_counted_did_not_restart() -> None:
    assert growth(timed(80_000, 80_010), before=(T0, 100_000)) == 10
    assert growth(timed(90, 95), before=(T0, 100)) == 90 + 5
    claims = Claims(max_submitted_per_minute=100.0)
    assert growth(timed(40_000, 40_010), before=(T0, 100_000), claims=claims) == 10
    assert growth(timed(100, 110), before=(T0, 100_000), claims=claims) == 100 + 10
    assert growth([(T0 + 600.0, 1000.0)], before=(T0, 100_000), claims=claims) == 1000


def test_submitted_is_cumulative_and_recent_is_this_minutes_growth() -> None:
    scene = Scene()
    seen = []
    for total in (50, 50, 150):
        queue = scene.minute(queue={"waiting": 20, "running": 5, "submitted_total": total}).queue
        assert queue is not None
        seen.append((queue.submitted, queue.submitted_recent, queue.submitted_is_late))
    assert seen == [(50, 0, False), (50, 0, False), (150, 100, False)]


def test_a_counter_that_began_at_zero_with_us_gives_the_first_minutes_growth() -> None:
    scene = Scene()
    scene.report_queue(scene.now, submitted_total=0)
    snapshot = scene.minute(queue={"waiting": 30, "running": 10, "submitted_total": 50})
    assert snapshot.queue is not None
    assert (snapshot.queue.submitted, snapshot.queue.submitted_recent) == (50, 50)
    assert snapshot.obs7 is not None
    assert snapshot.obs7[5:] == pytest.approx((0.6, 0.6), abs=1e-7)


def test_a_restarted_counter_goes_on_from_what_was_submitted_before() -> None:
    scene = Scene()
    for total in (50, 80, 10, 15):
        queue = scene.minute(queue={"waiting": 1, "running": 1, "submitted_total": total}).queue
    assert queue is not None
    assert (queue.submitted, queue.submitted_recent) == (95, 5)
    assert scene.state.submitted_seen == 15


def test_a_minute_without_the_queue_is_made_up_for_by_the_next() -> None:
    scene = Scene()
    scene.minute(queue={"waiting": 1, "running": 1, "submitted_total": 10})
    scene.minute()
    queue = scene.minute(queue={"waiting": 1, "running": 1, "submitted_total": 30}).queue
    assert queue is not None
    assert queue.submitted == 30


def test_a_restarted_agent_goes_on_counting_from_its_state() -> None:
    first = Scene()
    first.minute(queue={"waiting": 1, "running": 1, "submitted_total": 10})
    second = Scene(now=first.now, state=first.state)
    queue = second.minute(queue={"waiting": 1, "running": 1, "submitted_total": 25}).queue
    assert queue is not None
    assert (queue.submitted, queue.submitted_recent) == (25, 15)


def test_jobs_that_another_agent_counted_are_not_those_of_the_last_minute() -> None:
    scene = Scene()
    scene.minute(queue={"waiting": 1, "running": 1, "submitted_total": 10})
    # While the first is cut off from the ledger, the other leads and receives the lines.
    other = Scene(now=scene.now, state=scene.state)
    for total in (500, 1000):
        other.minute(queue={"waiting": 1, "running": 1, "submitted_total": total})
    scene.now, scene.state = other.now, other.state
    for total in (1005, 1006):
        queue = scene.minute(queue={"waiting": 1, "running": 1, "submitted_total": total}).queue
        assert queue is not None
        assert (queue.submitted, queue.submitted_recent) == (total, 5 if total == 1005 else 1)


def test_folding_one_minute_twice_counts_its_jobs_once() -> None:
    scene = Scene()
    scene.report_queue(scene.now, submitted_total=0)
    first = scene.minute(queue={"waiting": 1, "running": 1, "submitted_total": 10}).queue
    scene.now += 6
    assert scene.fold().queue == first


@given(st.lists(st.tuples(st.integers(0, 100), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=9))
def test_submitted_survives_restarts_of_the_counter_and_of_the_agent_and_lost_minutes(
    minutes: list[tuple[int, bool, bool, bool]],
) -> None:
    scene = Scene()
    total = counter = 0
    lost_before = False
    scene.report_queue(scene.now, submitted_total=0)
    for jobs, counter_restarts, agent_restarts, lost in minutes:
        if agent_restarts:
            scene = Scene(now=scene.now, state=scene.state)
        # The growth after the last reading and before the restart is unknown.
        if counter_restarts and not lost and not lost_before:
            counter = 0
            scene.report_queue(scene.now + 1.0, submitted_total=0)
        total, counter = total + jobs, counter + jobs
        snapshot = scene.minute(queue=None if lost else {"waiting": 1, "running": 1, "submitted_total": counter})
        if not lost:
            assert snapshot.queue is not None
            assert snapshot.queue.submitted == total
        lost_before = lost


def test_with_the_depth_alone_growth_is_a_lower_bound_marked_late() -> None:
    scene = Scene()
    seen = []
    for waiting, working in ((10, 2), (30, 4), (5, 4)):
        queue = scene.minute(queue={"waiting": waiting, "running": working}).queue
        assert queue is not None
        seen.append((queue.submitted, queue.submitted_recent, queue.submitted_is_late))
    assert seen == [(12, 0, True), (34, 22, True), (34, 0, True)]


def test_a_new_episode_begins_after_ten_idle_minutes_at_the_minimum_fleet() -> None:
    scene = Scene()
    scene.place("s", running("i-1"))
    scene.minute({"i-1": 5.0}, {"waiting": 0, "running": 3, "submitted_total": 100})
    scorer: Memory = {"abc.scorer": (3.0,), "abc.h": (2.0,)}
    memory, shadows = {"policy": (1.0,), **scorer}, {"other": {"h": (2.0,)}, "learned": scorer}
    scene.state = replace(scene.state, memory=memory, shadow_memories=shadows)
    for _ in range(9):
        queue = scene.minute({"i-1": 5.0}, {"waiting": 0, "running": 0, "submitted_total": 100}).queue
    assert queue is not None
    assert (queue.submitted, scene.state.memory) == (100, memory)
    queue = scene.minute({"i-1": 5.0}, {"waiting": 0, "running": 0, "submitted_total": 100}).queue
    assert queue is not None
    assert (queue.submitted, scene.state.memory, scene.state.shadow_memories) == (0, scorer, {"learned": scorer})
    queue = scene.minute({"i-1": 5.0}, {"waiting": 30, "running": 2, "submitted_total": 140}).queue
    assert queue is not None
    assert (queue.submitted, queue.submitted_recent) == (40, 40)


def test_an_idle_fleet_above_its_minimum_stays_in_its_episode() -> None:
    scene = Scene()
    scene.place("s", running("i-1"), running("i-2"))
    for busy in (3, *([0] * 12)):
        queue = scene.minute({"i-1": 5.0, "i-2": 5.0}, {"waiting": 0, "running": busy, "submitted_total": 100}).queue
    assert queue is not None
    assert queue.submitted == 100


def test_a_gap_of_more_than_ten_minutes_begins_a_new_episode() -> None:
    scene = Scene()
    scene.minute(queue={"waiting": 0, "running": 3, "submitted_total": 100})
    scene.state = replace(scene.state, memory={"policy": (1.0,), "abc.scorer": (3.0,)})
    scene.now += 600
    queue = scene.minute(queue={"waiting": 2, "running": 3, "submitted_total": 130}).queue
    assert queue is not None
    assert (queue.submitted, scene.state.memory) == (30, {})


def test_last_busy_is_the_last_minute_in_which_something_waited_or_ran() -> None:
    scene = Scene()
    scene.minute(queue={"waiting": 0, "running": 1})
    busy = scene.now
    scene.minute(queue={"waiting": 0, "running": 0})
    assert scene.state.last_busy_at == busy
    scene.minute(queue={"waiting": 1, "running": 0})
    assert scene.state.last_busy_at == busy + 120


def test_until_the_job_source_tells_the_size_of_a_job_the_extended_observation_takes_the_expected_one() -> None:
    scene = Scene()
    scene.settings = replace(scene.settings, job_core_s=240.0)
    scene.place("s", running("i-1"))
    waiting = {"waiting": 40, "running": 2, "submitted_total": 42, "oldest_wait_seconds": 30}
    queued = obs_v2_names(2).index("queued_fleet_hours")

    def minute(**reported: float) -> Snapshot:
        return scene.minute({"i-1": 50.0}, waiting | reported)

    first = minute()
    assert first.queue is not None
    assert first.queue.job_core_s is None
    assert first.obs_v2 is not None
    assert first.obs_v2[queued] == pytest.approx(40 * 240.0 / (3600.0 * FLEET.max_cores))
    for later in (minute(job_core_seconds=90.0), minute()):
        assert later.obs_v2 is not None
        assert later.obs_v2[queued] == pytest.approx(40 * 90.0 / (3600.0 * FLEET.max_cores))


def test_without_the_age_of_the_oldest_job_there_is_no_extended_observation_while_jobs_wait() -> None:
    scene = Scene()
    scene.place("s", running("i-1"))
    assert scene.minute({"i-1": 50.0}, {"waiting": 1, "running": 2, "submitted_total": 3}).obs_v2 is None
    assert scene.minute({"i-1": 50.0}, {"waiting": 0, "running": 2, "submitted_total": 3}).obs_v2 is not None
