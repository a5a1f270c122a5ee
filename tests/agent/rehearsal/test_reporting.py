"""Samples travel over a real TCP connection to the agent's listener; an ordered gap loses them."""

from agent.autoscaling.snapshot.series import SeriesStore
from agent.rehearsal.site import Reporter
from collectors.listener import GraphiteListener
from domain.clock import VirtualClock
from domain.samples import QueueMetric, QueueSeries, Sample
from tests.agent.rehearsal.bench import START
from tests.waiting import until

SERIES = QueueSeries("web", QueueMetric.WAITING)


def received(listener: GraphiteListener, count: int) -> int:
    until(lambda: listener.counters.accepted >= count)
    return int(listener.counters.accepted)


def test_a_gap_loses_samples_for_its_length_and_no_longer():
    clock = VirtualClock(START)
    listener = GraphiteListener(SeriesStore(), clock.now, "127.0.0.1", 0)
    listener.start()
    sent: list[int] = []
    reporter = Reporter(listener.host, listener.port, clock, sent.append)
    try:
        reporter([Sample(SERIES, 1.0, START)])
        reporter.go_silent(60.0)
        reporter([Sample(SERIES, 2.0, START)])
        clock.advance(59.0)
        reporter([Sample(SERIES, 3.0, START + 59.0)])
        clock.advance(1.0)
        reporter([Sample(SERIES, 4.0, START + 60.0), Sample(SERIES, 5.0, START + 61.0)])
        assert received(listener, 3) == sum(sent) == 3
    finally:
        reporter.close()
        listener.stop()


def test_what_cannot_be_sent_is_lost_and_not_waited_for():
    clock, sent = VirtualClock(START), list[int]()
    listener = GraphiteListener(SeriesStore(), clock.now, "127.0.0.1", 0)
    listener.start()
    listener.stop()
    reporter = Reporter(listener.host, listener.port, clock, sent.append)
    reporter([Sample(SERIES, 1.0, START)])
    reporter.close()
    assert sent == []
