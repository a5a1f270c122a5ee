"""What every decision measures: its readings are in the exposition, each declared in the catalogue, and bounded."""

from __future__ import annotations

from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.kernel.parts import kinds
from tests.agent.telemetry.metrics import all_metrics
from tests.contract.cases import CASES, Case
from tests.contract.running import RunningAgent

every = pytest.mark.parametrize("case", CASES, ids=str)


@every
def test_its_readings_are_declared_and_exposed(case: Case, agent: RunningAgent) -> None:
    part = agent.part(case.decision)
    declared = {metric.name.removeprefix("trimtab_"): metric for metric in all_metrics()}
    own = {metric.name for section in part.sections for metric in section.metrics}
    read = list(part.readings())
    assert {name for name, _, _ in read} <= set(declared)
    for name, labels, _ in read:
        assert len(labels) == len(declared[name].labels), name
    assert max(Counter((name, labels) for name, labels, _ in read).values()) == 1
    assert {labels[0] for _, labels, _ in read if labels} <= set(part.subjects())
    with agent.client("") as client:
        families = {one.name for one in text_string_to_metric_families(client.get("/metrics").text)}
    assert {name.removesuffix("_total") for name in own} <= families


@every
def test_its_number_of_series_does_not_grow_with_orders(case: Case, agent: RunningAgent) -> None:
    part = agent.part(case.decision)

    def series() -> set[tuple[str, tuple[str, ...]]]:
        return {(name, tuple(labels)) for name, labels, _ in part.readings()}

    with agent.client() as client:
        client.post(case.path, json=case.order("bounded-0")).raise_for_status()
        case.decide(agent)
        before = series()
        for n in range(1, 4):
            client.post(case.path, json=case.order(f"bounded-{n}")).raise_for_status()
        case.decide(agent)
    assert series() == before


def test_no_two_decisions_have_a_metric_of_one_name(agent: RunningAgent) -> None:
    names = Counter(metric.name for kind in kinds() for section in kind.sections for metric in section.metrics)
    assert max(names.values()) == 1
