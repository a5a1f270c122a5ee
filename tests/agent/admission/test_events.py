"""What a cluster is told of its deployments, and what it makes of that: statistics, repairs, refusals."""

from typing import Any

import pytest
from pydantic import ValidationError

from agent.admission.api import EventOrder, EventsOrder
from agent.admission.cluster import AdmissionService
from agent.admission.deployments import Deployment, Stage
from agent.admission.records import EventResult
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.errors import BadInput
from tests.agent.admission.clusters import HOUR_S, SEEN, START, ask, event
from tests.agent.admission.conftest import Make
from tests.golden import figures


@pytest.fixture
def service(make: Make) -> AdmissionService:
    return make()


def started(service: AdmissionService, name: str = "shop", cores: int = 4) -> None:
    service.observe([event(name, "started", cores)])


def told(service: AdmissionService, clock: VirtualClock, name: str, kind: str, cores: int, hours: float) -> None:
    clock.step(START + hours * HOUR_S - clock.now())
    service.observe([event(name, kind, cores, at=START + hours * HOUR_S)])


def of(service: AdmissionService, name: str = "shop") -> Deployment:
    found = service.deployment(name)
    assert found is not None
    return found


class TestAHistory:
    def test_gives_the_statistics_that_the_belief_is_made_of(
        self, service: AdmissionService, clock: VirtualClock
    ) -> None:
        started(service)
        told(service, clock, "shop", "scaled", 6, 2.0)
        told(service, clock, "shop", "core_ended", 3, 5.0)
        told(service, clock, "shop", "refused", 8, 6.0)
        found = of(service)
        assert (found.cores, found.deaths, found.scale_outs, found.size_draws) == (7, 3, 2, 3)
        assert found.extra_cores == 3 + 5 + 7
        assert found.core_hours == pytest.approx(4 * 2 + 10 * 3 + 7 * 1)
        assert (found.since, found.last_at) == (START, START + 6 * HOUR_S)

    def test_a_refused_request_counts_as_a_failure_of_the_month_and_leaves_the_size(
        self, service: AdmissionService, clock: VirtualClock
    ) -> None:
        started(service)
        told(service, clock, "shop", "refused", 8, 1.0)
        told(service, clock, "shop", "scaled", 1, 2.0)
        gauges = service.gauges(clock.now())
        assert (gauges.total_cores, gauges.requests_month_to_date, gauges.failures_month_to_date) == (5, 2, 1)
        assert gauges.sla_budget_used == pytest.approx(1 / (2 * 1e-3))

    def test_a_new_month_begins_with_nothing_used(self, service: AdmissionService, clock: VirtualClock) -> None:
        started(service)
        told(service, clock, "shop", "refused", 8, 1.0)
        in_october = START + 15 * 24 * HOUR_S
        assert service.gauges(in_october).failures_month_to_date == 0
        assert service.gauges(in_october).sla_budget_used == 0.0
        told(service, clock, "shop", "scaled", 2, 15 * 24.0)
        assert service.gauges(clock.now()).requests_month_to_date == 1

    def test_ends_with_the_last_core(self, service: AdmissionService, clock: VirtualClock) -> None:
        started(service)
        told(service, clock, "shop", "core_ended", 4, 1.0)
        assert (of(service).stage, of(service).deaths) == (Stage.GONE, 4)
        assert service.gauges(clock.now()).total_cores == 0

    def test_ends_with_a_shutdown_in_which_no_core_died_alone(
        self, service: AdmissionService, clock: VirtualClock
    ) -> None:
        started(service)
        told(service, clock, "shop", "shutdown", 0, 1.0)
        assert (of(service).stage, of(service).cores, of(service).deaths) == (Stage.GONE, 0, 0)

    def test_may_begin_anew_under_the_same_id(self, service: AdmissionService, clock: VirtualClock) -> None:
        started(service)
        told(service, clock, "shop", "shutdown", 0, 1.0)
        told(service, clock, "shop", "started", 2, 3.0)
        assert (of(service).stage, of(service).cores, of(service).core_hours) == (Stage.LIVE, 2, 0.0)


class TestAnAdmittedDeployment:
    def test_takes_its_cores_at_once_and_is_seen_from_its_start_on(
        self, service: AdmissionService, clock: VirtualClock
    ) -> None:
        decision = service.answer([ask("shop", 10, SEEN)])[0]
        assert of(service).stage is Stage.RESERVED
        assert service.gauges(clock.now()).total_cores == 10
        told(service, clock, "shop", "started", 10, 0.5)
        found = of(service)
        assert (found.stage, found.since, found.core_hours) == (Stage.LIVE, START + 0.5 * HOUR_S, 0.0)
        assert (found.priors, found.decision_id) == ((SEEN,), decision.decision_id)

    def test_gives_its_cores_back_when_it_does_not_start_in_time(
        self, service: AdmissionService, clock: VirtualClock
    ) -> None:
        service.answer([ask("shop", 10)])
        clock.advance(3601.0)
        decision = service.answer([ask("other", 5)])[0]
        assert decision.total_cores == 0
        assert of(service).stage is Stage.GONE

    def test_may_be_withdrawn_by_a_shutdown(self, service: AdmissionService, clock: VirtualClock) -> None:
        service.answer([ask("shop", 10)])
        service.observe([event("shop", "shutdown")])
        assert service.gauges(clock.now()).total_cores == 0

    def test_may_start_by_a_clock_that_is_behind(self, service: AdmissionService) -> None:
        service.answer([ask("shop", 10)])
        service.observe([event("shop", "started", 10, START - 30.0)])
        service.observe([event("shop", "scaled", 2, START - 20.0)])
        assert (of(service).since, of(service).cores) == (START - 30.0, 12)

    def test_may_be_withdrawn_by_such_a_clock_too(self, service: AdmissionService) -> None:
        service.answer([ask("shop", 10)])
        service.observe([event("shop", "shutdown", 0, START - 30.0)])
        assert of(service).stage is Stage.GONE

    def test_cannot_scale_before_it_started(self, service: AdmissionService) -> None:
        service.answer([ask("shop", 10)])
        with pytest.raises(BadInput, match="has not started: report its start first") as caught:
            service.observe([event("shop", "scaled", 2)])
        assert caught.value.field == "kind"

    def test_that_starts_with_another_size_is_put_right(self, service: AdmissionService) -> None:
        service.answer([ask("shop", 10)])
        answer = service.observe([event("shop", "started", 12)])[0]
        assert answer == EventResult(answer.event_id, "shop", 12, repaired="admitted with 10 cores, started with 12")
        assert of(service).extra_cores == 11


def test_one_that_ended_long_ago_is_forgotten_and_those_inside_are_not(
    service: AdmissionService, clock: VirtualClock
) -> None:
    started(service, "gone")
    started(service, "here")
    told(service, clock, "gone", "shutdown", 0, 1.0)
    service.forget(START + HOUR_S)
    assert of(service, "gone").stage is Stage.GONE
    service.forget(START + 2 * HOUR_S)
    assert service.deployment("gone") is None
    assert of(service, "here").cores == 4


class TestSizesThatDoNotAddUp:
    def test_more_cores_ended_than_were_known(self, service: AdmissionService, clock: VirtualClock) -> None:
        started(service, cores=3)
        answer = service.observe([event("shop", "core_ended", 5)])[0]
        assert answer.repaired == "5 cores ended where 3 were known"
        assert (of(service).cores, of(service).deaths) == (0, 3)
        (alarm,) = service.alarms()
        assert (alarm.reason, alarm.about) == (Reason.SIZES_REPAIRED, "shop")
        assert service.alarms() == ()

    def test_a_reported_size_stands_before_the_one_that_was_reckoned(self, service: AdmissionService) -> None:
        started(service)
        answer = service.observe([event("shop", "scaled", 2, cores_after=9)])[0]
        assert answer.cores == 9
        assert figures(answer.repaired) == [6, 9]
        assert of(service).scale_outs == 1
        assert [alarm.reason for alarm in service.alarms()] == [Reason.SIZES_REPAIRED]

    def test_a_size_that_agrees_raises_no_alarm(self, service: AdmissionService) -> None:
        started(service)
        service.observe([event("shop", "scaled", 2, cores_after=6)])
        assert service.alarms() == ()

    def test_a_total_that_drifted_is_added_up_again(self, service: AdmissionService, clock: VirtualClock) -> None:
        started(service)
        book = service._book()
        book.total += 7
        service.observe([event("shop", "scaled", 1)])
        assert service.gauges(clock.now()).total_cores == 5
        (alarm,) = service.alarms()
        assert figures(alarm.detail) == [12, 5]


class TestAnEventThatIsRefused:
    def test_of_an_unknown_deployment(self, service: AdmissionService) -> None:
        with pytest.raises(BadInput, match="it is not in this cluster: admit it") as caught:
            service.observe([event("nobody", "scaled", 2)])
        assert (caught.value.field, caught.value.value) == ("deployment_id", "nobody")

    def test_of_one_that_ended(self, service: AdmissionService) -> None:
        started(service)
        service.observe([event("shop", "shutdown")])
        with pytest.raises(BadInput, match=r"it ended at 1790000000\.0"):
            service.observe([event("shop", "scaled", 2)])

    def test_before_the_last_one_names_both_times(self, service: AdmissionService, clock: VirtualClock) -> None:
        started(service)
        told(service, clock, "shop", "scaled", 2, 1.0)
        with pytest.raises(BadInput) as caught:
            service.observe([event("shop", "core_ended", 1, at=START + 10.0)])
        assert (caught.value.field, caught.value.value) == ("time", START + 10.0)
        assert str(START + HOUR_S) in caught.value.remedy
        assert of(service).cores == 6

    def test_not_one_at_the_same_time(self, service: AdmissionService) -> None:
        started(service)
        service.observe([event("shop", "scaled", 2)])
        service.observe([event("shop", "core_ended", 1)])
        assert of(service).cores == 5

    def test_not_one_of_another_deployment_that_lies_before(
        self, service: AdmissionService, clock: VirtualClock
    ) -> None:
        started(service)
        told(service, clock, "shop", "scaled", 2, 1.0)
        service.observe([event("late", "started", 3, at=START + 10.0)])
        assert service.gauges(clock.now()).total_cores == 9

    def test_ahead_of_the_clock(self, service: AdmissionService) -> None:
        with pytest.raises(BadInput, match="ahead of the agent's clock") as caught:
            service.observe([event("shop", "started", 2, at=START + 301.0)])
        assert caught.value.field == "time"

    def test_of_one_larger_than_the_cluster(self, service: AdmissionService) -> None:
        with pytest.raises(BadInput, match=r"1001 cores.* 1000") as caught:
            service.observe([event("shop", "started", 1001)])
        assert caught.value.field == "cores"
        started(service)
        with pytest.raises(BadInput, match="more than the whole cluster"):
            service.observe([event("shop", "scaled", 997)])
        assert of(service).cores == 4

    def test_a_second_start(self, service: AdmissionService) -> None:
        started(service)
        with pytest.raises(BadInput, match=r"runs since 1790000000\.0 already"):
            started(service)

    @pytest.mark.parametrize(
        ("field", "changes"),
        [
            ("cores", {"cores": -3}),
            ("cores", {"cores": 1.5}),
            ("cores", {"cores": "4"}),
            ("kind", {"kind": "grown"}),
            ("time", {"time": float("nan")}),
            ("time", {"time": float("inf")}),
            ("time", {"time": -1.0}),
            ("event_id", {"event_id": ""}),
            ("event_id", {"event_id": "x" * 256}),
            ("cores_after", {"cores_after": -1}),
            ("color", {"color": "red"}),
        ],
    )
    def test_with_a_value_that_cannot_be(self, field: str, changes: dict[str, Any]) -> None:
        body = {"event_id": "e1", "kind": "started", "cores": 4, "time": START, **changes}
        for door, given in (
            (EventOrder, body),
            (EventsOrder, {"events": [{"deployment_id": "shop", **body}]}),
        ):
            with pytest.raises(ValidationError) as caught:
                door.model_validate(given)
            assert [error["loc"][-1] for error in caught.value.errors()] == [field]

    def test_of_no_cores(self, service: AdmissionService) -> None:
        with pytest.raises(BadInput) as caught:
            service.observe([event("shop", "started", 0)])
        assert caught.value.field == "cores"
        assert service.deployment("shop") is None

    def test_leaves_nothing_of_its_batch(self, service: AdmissionService, clock: VirtualClock) -> None:
        with pytest.raises(BadInput):
            service.observe([event("shop", "started", 4), event("nobody", "scaled", 1)])
        assert service.deployment("shop") is None
        assert service.gauges(clock.now()).total_cores == 0


class TestAnEventToldTwice:
    def test_counts_once(self, service: AdmissionService) -> None:
        first = event("shop", "started", 4)
        assert service.observe([first])[0] == EventResult(first.event_id, "shop", 4)
        more = event("shop", "scaled", 2)
        service.observe([more])
        assert service.observe([first])[0] == EventResult(first.event_id, "shop", 6, already_seen=True)
        assert service.observe([more])[0] == EventResult(more.event_id, "shop", 6, already_seen=True)
        assert of(service).scale_outs == 1

    def test_within_one_batch_too(self, service: AdmissionService) -> None:
        first = event("shop", "started", 4)
        assert [answer.already_seen for answer in service.observe([first, first])] == [False, True]

    def test_is_known_after_a_restart(self, make: Make) -> None:
        first = event("shop", "started", 4)
        make().observe([first])
        assert make().observe([first])[0].already_seen

    def test_with_another_content_is_refused(self, service: AdmissionService) -> None:
        service.observe([event("shop", "started", 4, event_id="one")])
        with pytest.raises(BadInput, match=r"\(started of shop at 1790000000\.0\)") as caught:
            service.observe([event("shop", "scaled", 2, event_id="one")])
        assert caught.value.field == "event_id"


def test_a_batch_is_the_same_as_its_events_one_by_one(make: Make, clock: VirtualClock) -> None:
    clock.advance(10 * HOUR_S)
    told = [
        event("a", "started", 4, START),
        event("b", "started", 2, START + 60.0),
        event("a", "scaled", 3, START + 120.0),
        event("b", "core_ended", 2, START + 180.0),
        event("a", "refused", 9, START + 240.0),
    ]
    one_by_one, at_once = make(name="one"), make(name="two")
    for item in told:
        one_by_one.observe([item])
    at_once.observe(told)
    assert at_once.deployments() == one_by_one.deployments()
    assert at_once.gauges(clock.now()).total_cores == one_by_one.gauges(clock.now()).total_cores == 7


@pytest.mark.parametrize("name", ["team\tb", "", "a" * 256])
def test_an_event_that_could_not_be_read_again_is_refused_by_every_door(service: AdmissionService, name: str) -> None:
    with pytest.raises(BadInput, match="deployment_id"):
        service.observe([event(name, "started", 4)])
    with pytest.raises(BadInput, match="cores"):
        service.observe([event("shop", "started", 10**8)])
    assert service.deployment(name) is None
