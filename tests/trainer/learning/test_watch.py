"""The watch over a promotion: it stays while the fleet lives as predicted, and goes where that was a lie."""

import errno
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from agent.commands.main import app
from agent.models.directory import moment_text, read_model_file
from agent.models.file import load_model
from agent.rehearsal.virtual_time import START
from domain.errors import BadInput
from domain.rules.queue_rule import RuleSetting
from domain.units import DAY_S, HOUR_S, MINUTE_S
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import World, write_world
from tests.agent.models.making import reported, scorer
from tests.golden import check_wording
from tests.trainer.learning.recording import FLEET, RULE, WORLD
from tests.trainer.learning.tried import HOURS, SUBJECT, Site
from trainer.learning import fleet_trial
from trainer.learning.fidelity import replay_windows
from trainer.learning.fleet_trial import FleetEvidence, WatchWindow, weighed
from trainer.learning.lived_hours import lived_hours
from trainer.learning.minutes import Record, Span, read_record_since
from trainer.learning.replay import Loop
from trainer.learning.trial import WatchEvidence, WatchResult, take_back, watch, watched_promotion
from trainer.learning.windows import marked_stretches, part_of
from trainer.promotion.directory import sealed

NOW = HOURS + 1.0


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def found(site: Site, world: Path | None = None, hour: float = NOW) -> WatchResult:
    case = site.look(hour, world)
    champion = watched_promotion(case.directory, case.subject, case.now_s, 168.0)
    assert champion is not None
    return watch(case, champion)


def lived(site: Site, world: Path | None = None, hour: float = NOW) -> WatchEvidence:
    """The minutes since the promotion, of which enough are known."""
    seen = found(site, world, hour).lived
    assert seen is not None
    return seen


SLOW = WORLD.boots_scaled(3.0)


def lie(folder: Path) -> Path:
    """A world whose boots take a third of the time that they take in SLOW."""
    write_world(World(WORLD, "lie"), folder / "lie.toml")
    return folder / "lie.toml"


def judged(lived: float, predicted: float, before: float, *, count: int = 12, spread: float = 0.02) -> WatchEvidence:
    """A promotion whose windows cost so much on average, each a little more or less."""
    some = [1.0 + spread * (-1) ** k for k in range(count)]
    windows = tuple(WatchWindow(f"{k}", 1.0, lived * one, predicted, before) for k, one in enumerate(some))
    return weighed(None, 60 * count, RULE, 1.0, windows)


def test_a_promotion_that_costs_what_was_predicted_and_less_than_before_stays() -> None:
    assert judged(1.0, 1.0, 1.1).fault == ""
    assert judged(1.04, 1.0, 1.1).fault == ""
    # 1.796 (t, 11 degrees of freedom) times 2.09 % over the root of 12.
    assert "+0.0% (-1.1% to +1.1%)" in judged(1.0, 1.0, 1.1).sentence


def test_one_that_is_surely_dearer_than_predicted_or_than_before_is_at_fault() -> None:
    predicted = judged(1.08, 1.0, 1.2).fault
    assert "the prediction, surely" in predicted
    before = judged(1.04, 1.0, 1.0).fault
    assert RULE in before
    assert len(judged(1.3, 1.0, 1.0).data["faults"]) == 2
    kept = WatchResult("a" * 64 + ".onnx", START, judged(1.0, 1.0, 1.1)).sentence
    check_wording("learning-watch", {"kept": kept, "dearer than predicted": predicted, "dearer than before": before})


def test_one_that_is_dearer_by_chance_is_not() -> None:
    assert judged(1.08, 1.0, 1.08, spread=0.3).fault == ""


@pytest.mark.exhaustive
def test_a_promotion_that_keeps_its_word_in_the_ledger_stays(site: Site) -> None:
    site.promoted(site.lavish, 0.0)
    site.live([(site.lavish, 8.0), (site.thrifty, HOURS)])
    site.promoted(site.thrifty, 8.0)
    seen = lived(site, hour=8.0 + HOURS)
    data = seen.data
    assert (data["faults"], data["before"]) == ([], f"learned:{site.lavish.stem}")
    assert data["minutes"] == round(HOURS * 60.0) - 1
    assert 0.95 <= data["bias"] <= 1.05
    assert data["bias"] != 1.0
    assert abs(data["against_predicted"]["relative"]["mean"]) < 0.05
    assert data["against_before"]["relative"]["high"] < 0.0
    # The first of the two has cost twice as much as the rule, and the second one costs more than it, too.
    assert data["day_0"]["verdict"] == "loss"
    assert seen.is_of_all
    take_back(site.look(8.0 + HOURS), found(site, hour=8.0 + HOURS))
    assert site.directory.champion(SUBJECT) is None
    assert [event for event, _ in site.events()] == ["promoted", "promoted", "rolled back"]


@pytest.mark.exhaustive
def test_a_simulator_with_boots_of_a_third_predicted_too_little_and_the_promotion_is_taken_back(site: Site) -> None:
    site.promoted(site.wary, 0.0)
    site.live([(site.wary, 1.0), (site.thrifty, HOURS)], world=SLOW)
    site.promoted(site.thrifty, 1.0)
    seen = found(site, lie(site.folder))
    assert "prediction, surely" in seen.fault
    take_back(site.look(NOW), seen)
    champion = site.directory.champion(SUBJECT)
    assert champion is not None
    assert champion.model == site.wary.name
    event, reason = site.events()[-1]
    assert event == "rolled back"
    assert "by the watch: it cost +" in reason


LARGE_DEARER = replace(
    WORLD, types=(*WORLD.types[:2], replace(WORLD.types[2], price_per_hour=1.25 * WORLD.types[2].price_per_hour))
)


@pytest.mark.exhaustive
def test_a_lie_about_a_type_that_was_never_ordered_is_found_once_a_promotion_orders_it(site: Site) -> None:
    lie = site.folder / "lie.toml"
    write_world(World(replace(LARGE_DEARER, speed=(1.0, 1.0, 4.0)), "lie"), lie)
    sparing = scorer(site.folder, {"is_rule": 3.0, "is_hold": -1.0, "added_price": -100.0})
    site.directory.store(sparing.read_bytes(), sparing.name)
    site.promoted(sparing, 0.0)
    site.live([(sparing, HOURS), (site.thrifty, HOURS)], world=LARGE_DEARER)
    site.promoted(site.thrifty, HOURS)
    record = read_record_since(str(site.ledger), FLEET, START)
    before = part_of(record, START, START + HOURS * HOUR_S)
    assert max(minute.requested[2] for minute in before.minutes) == 0
    true, told = (site.evidence(world).learner(before) for world in (None, lie))
    assert told.config.speed == (1.0, 1.0, 4.0)
    stretches = marked_stretches(before, record.job_core_s or 0.0)
    # No replay of what was recorded tells one world from the other, so no check of the simulator does.
    costs = [replay_windows(one.loop, one.config, stretches, 0, seeds=1) for one in (true, told)]
    assert costs[0] == costs[1]
    assert "prediction, surely" in found(site, lie, 2.0 * HOURS).fault
    assert found(site, hour=2.0 * HOURS).fault == ""


def test_too_few_minutes_are_said_and_nothing_is_done(site: Site) -> None:
    site.live([(RULE, 0.5), (site.lavish, 1.5)])
    site.promoted(site.lavish, 0.5)
    seen = found(site)
    assert (seen.fault, lived(site).data["day_0"]["verdict"]) == ("", "continue")
    assert re.search(r"89 minutes .* 1 windows; 8 are", seen.sentence)


def test_gaps_and_minutes_of_other_policies_are_left_out(site: Site) -> None:
    site.live(
        [(RULE, 0.2), (site.thrifty, 0.6), (RULE, 0.2), (site.thrifty, 0.4)], kept=lambda minute: not 30 <= minute < 45
    )
    site.promoted(site.thrifty, 0.2)
    # The promotion falls into a minute; 12..29, 45..47 and 60..83 are left, and each begins with one that is no step.
    assert f": {(30 - 12 - 1) + (48 - 45 - 1) + (84 - 60 - 1)} minutes" in found(site).sentence


def test_a_ledger_that_was_replaced_has_nothing_to_say(site: Site, tmp_path: Path) -> None:
    other = Site(tmp_path / "other")
    other.live([(RULE, 0.5)])
    site.promoted(site.thrifty, 1.0)
    site.ledger = other.ledger
    seen = found(site)
    assert (seen.lived, seen.fault) == (None, "")
    assert ": 0 minutes" in seen.sentence


def test_what_was_not_promoted_lately_by_the_gate_is_not_watched(site: Site) -> None:
    now_s = START + NOW * HOUR_S
    directory = site.directory
    assert watched_promotion(directory, SUBJECT, now_s, 168.0) is None
    site.promoted(site.thrifty, 1.0)
    assert watched_promotion(directory, SUBJECT, now_s, 168.0) is not None
    assert watched_promotion(directory, SUBJECT, now_s, 2.0) is None
    assert watched_promotion(directory, SUBJECT, START, 168.0) is None
    site.promoted(site.wary, 2.0)
    newest = watched_promotion(directory, SUBJECT, now_s, 168.0)
    assert newest is not None
    assert newest.model == site.wary.name
    directory.force(read_model_file(site.lavish), SUBJECT, "a trial", "2026-11-20T23:00:00Z", load_model)
    assert watched_promotion(directory, SUBJECT, now_s, 168.0) is None
    site.promoted(site.thrifty, 3.0)
    assert watched_promotion(directory, SUBJECT, now_s, 168.0) is not None
    # Back to the one that a person forced.
    directory.rollback("2026-11-21T01:00:00Z", SUBJECT, load_model)
    assert watched_promotion(directory, SUBJECT, now_s, 168.0) is None


def test_one_that_a_rollback_restored_is_watched_since_then_and_taken_back_where_it_costs_more(site: Site) -> None:
    site.promoted(site.lavish, 0.0)
    site.promoted(site.wary, 1.0)
    site.live([(RULE, 6.0), (site.lavish, 3.0)])
    site.directory.rollback(moment_text(START + 6.0 * HOUR_S), SUBJECT, load_model)
    seen = found(site, hour=9.0)
    assert seen.model == site.lavish.name
    assert "rule of day 0" in seen.fault
    take_back(site.look(9.0), seen)
    assert site.directory.champion(SUBJECT) is None


def test_hours_that_were_compared_are_kept_and_only_the_others_are_replayed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.live([(RULE, 3.0), (site.thrifty, 9.1)])
    champion = site.promoted(site.thrifty, 3.0)
    asked: list[float] = []

    def read(source: str, fleet: str, since_s: float, until_s: float | None = None) -> Record:
        asked.append(since_s)
        return read_record_since(source, fleet, since_s, until_s)

    monkeypatch.setattr(fleet_trial, "read_record_since", read)
    evidence = replace(site.evidence(), hourly=True)

    def rows(given: FleetEvidence = evidence) -> list[list[float]]:
        found = given.compared(champion)
        assert found is not None
        return found.rows

    first, second = rows(), rows()
    assert first == second
    assert [row[3] for row in first] == list(range(-3, 9))
    at_s = START + 3.0 * HOUR_S
    # Nine hours after the promotion the first three of them are kept.
    assert asked == [at_s - 28 * DAY_S, at_s + 3 * HOUR_S - DAY_S]
    path = site.directory.path / f"watch-autoscaling-{FLEET}.json"
    data = json.loads(path.read_text())
    assert [row[3] for row in data["hours"]] == list(range(-3, 3))
    # Kept sums count as they are, and one that was changed by hand does not count.
    path.write_text(json.dumps(sealed({**data_of(data), "hours": [[7.0, *row[1:]] for row in data["hours"]]}, None)))
    assert [row[0] for row in rows()[:6]] == [7.0] * 6
    path.write_text(path.read_text().replace("7.0", "8.0"))
    assert rows() == first
    for other in (replace(evidence, idle_s=60.0), replace(evidence, rule=RuleSetting(600.0, 120.0))):
        assert rows(other) != first
    assert asked[-2:] == [at_s - 28 * DAY_S] * 2


def data_of(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in ("sha256", "signature")}


def test_kept_hours_that_a_clock_set_back_left_ahead_of_the_record_do_not_count(site: Site) -> None:
    site.live([(RULE, 3.0), (site.thrifty, 8.1)])
    champion = site.promoted(site.thrifty, 3.0)
    evidence = replace(site.evidence(), hourly=True)
    first = evidence.compared(champion)
    assert first is not None
    path = site.directory.path / f"watch-autoscaling-{FLEET}.json"
    good = path.read_text()
    data = data_of(json.loads(good))
    assert data["until"] == 2
    for ahead in (7, 100):
        path.write_text(json.dumps(sealed({**data, "until": ahead}, None)))
        again = evidence.compared(champion)
        assert again is not None
        assert again.rows == first.rows
        assert path.read_text() == good


def test_the_hours_before_a_promotion_are_replayed_again_while_they_are_new(site: Site) -> None:
    site.live([(RULE, 9.0), (site.thrifty, 1.1)])
    site.promoted(site.thrifty, 9.0)
    found(site, hour=10.1)
    data = json.loads((site.directory.path / f"watch-autoscaling-{FLEET}.json").read_text())
    assert (data["until"], [row[3] for row in data["hours"]]) == (-5, [-9, -8, -7, -6])


def test_a_disk_that_takes_no_kept_hours_ends_no_watch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space is left")

    monkeypatch.setattr(fleet_trial, "write_kept", full)
    site.live([(RULE, 6.0), (site.lavish, 3.0)])
    site.promoted(site.lavish, 6.0)
    assert "rule of day 0" in found(site, hour=9.0).fault


def test_a_world_that_does_not_go_with_the_fleet_is_no_lack_of_minutes(site: Site) -> None:
    site.live([(RULE, 1.0), (site.thrifty, 1.0)])
    champion = site.promoted(site.thrifty, 1.0)
    with pytest.raises(BadInput):
        replace(site.evidence(), world="none.toml", hourly=True).lived(champion)


def test_with_try_nothing_is_kept(site: Site) -> None:
    site.live([(RULE, 1.0), (site.thrifty, 1.0)])
    champion = site.promoted(site.thrifty, 1.0)
    replace(site.evidence(), keeps=False).compared(champion)
    assert not (site.directory.path / f"watch-autoscaling-{FLEET}.json").exists()


def test_the_hourly_call_compares_with_the_rule_of_day_0_alone(site: Site) -> None:
    site.live([(RULE, 1.0), (site.thrifty, 2.0)])
    champion = site.promoted(site.thrifty, 1.0)
    seen = replace(site.evidence(), hourly=True).lived(champion)
    assert isinstance(seen, WatchEvidence)
    assert set(seen.data) == {"day_0"}
    assert seen.data["day_0"]["hours"] == 2


def test_a_champion_that_came_meanwhile_is_not_taken_back(site: Site) -> None:
    site.promoted(site.wary, 0.0)
    champion = site.promoted(site.lavish, 1.0)
    seen = WatchResult(champion.model, START, None)
    site.promoted(site.thrifty, 2.0)
    before = (site.directory.path / "champion.json").read_bytes()
    with pytest.raises(BadInput, match="has taken the place of"):
        take_back(site.look(NOW), seen)
    assert (site.directory.path / "champion.json").read_bytes() == before


def test_the_one_before_whose_report_was_tampered_with_is_not_gone_back_to(site: Site) -> None:
    site.promoted(site.wary, 0.0)
    champion = site.promoted(site.lavish, 1.0)
    reported(site.directory.path, site.wary.name, None, SUBJECT)
    report = site.directory.path / f"report-{FLEET}{site.wary.name[:16]}.json"
    report.write_text(report.read_text().replace('"passed": true', '"passed": true, "more": 1'))
    with pytest.raises(BadInput, match="its seal does not hold"):
        take_back(site.look(NOW), WatchResult(champion.model, START, None))
    now = site.directory.champion(SUBJECT)
    assert now is not None
    assert now.model == site.lavish.name


@pytest.mark.exhaustive
def test_the_command_rolls_back_with_its_own_status_and_leaves_word_for_the_agent(site: Site) -> None:
    site.live([(RULE, 0.5), (site.lavish, HOURS)])
    site.promoted(site.lavish, 0.5)
    words = ["learn", "autoscaling", FLEET, "--ledger", str(site.ledger), "--at", str(START + NOW * HOUR_S)]
    words += ["--models-dir", str(site.directory.path), "--out", str(site.folder / "round")]
    tried = CliRunner().invoke(app, [*words, "--try"])
    assert (tried.exit_code, "changed (--try)" in tried.output) == (6, True)
    assert site.directory.champion(SUBJECT) is not None
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 6
    assert site.directory.champion(SUBJECT) is None
    status = json.loads((site.directory.path / f"learn-autoscaling-{FLEET}.json").read_text())
    assert (status["outcome"], status["good_at"]) == ("rolled_back", None)
    assert "no longer the champion" in status["sentence"]
    data = json.loads((site.folder / "round" / "watch" / "summary.json").read_text())
    assert data["faults"]
    assert "Cost since the promotion" in (site.folder / "round" / "watch" / "report.html").read_text()


def test_a_policy_twice_as_dear_as_the_rule_is_taken_back_within_three_hours(site: Site) -> None:
    site.live([(RULE, 6.0), (site.lavish, 3.0)])
    site.promoted(site.lavish, 6.0)
    seen = lived(site, hour=9.0)
    assert "rule of day 0" in seen.fault
    assert seen.data["day_0"]["hours"] == 3
    assert seen.data["day_0"]["excess"] > 0.5
    assert seen.data["day_0"]["bias"] != 1.0


def test_a_replay_that_costs_half_under_the_champion_too_is_no_loss(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_later(loop: Loop, config: SimulationConfig, span: Span, seed: int) -> NDArray[np.float64]:
        later = span.start_s + np.arange(span.steps) * MINUTE_S >= START + 6.0 * HOUR_S
        return (span.rent + span.penalty) * np.where(later, 0.5, 1.0)

    monkeypatch.setattr(fleet_trial, "lived_hours", partial(lived_hours, play=half_later))
    site.live([(RULE, 6.0), (site.thrifty, 3.0)])
    champion = site.promoted(site.thrifty, 6.0)
    evidence = replace(site.evidence(), hourly=True)
    seen = evidence.lived(champion)
    assert isinstance(seen, WatchEvidence)
    assert (seen.fault, seen.is_of_all, seen.data["day_0"]["hours"]) == ("", False, 3)
    assert seen.data["day_0"]["excess"] == pytest.approx(1.0)
    # Without a replay of it the hours count as they are.
    (site.directory.path / champion.model).unlink()
    gone = replace(evidence, shelf=site.shelf()).lived(champion)
    assert isinstance(gone, WatchEvidence)
    assert (bool(gone.fault), gone.is_of_all) == (True, True)


def test_a_champion_that_costs_what_the_rule_does_is_not_taken_back_for_those_before_it(site: Site) -> None:
    site.live([(site.lavish, 4.0), (RULE, 3.0)])
    site.promoted(site.lavish, 0.0)
    champion = site.promoted(site.thrifty, 4.0)
    evidence = site.evidence()
    record = read_record_since(str(site.ledger), FLEET, START)
    assert evidence.loss(evidence.hours(record, champion), champion).verdict == "continue"
    # The same hours under the name of the second champion.
    stretches = (tuple(replace(one, policy=named(one.policy, site)) for one in each) for each in record.stretches)
    hours = evidence.hours(replace(record, stretches=tuple(stretches)), champion)
    found = evidence.loss(hours, champion)
    assert (found.verdict, found.hours) == ("continue", 7)
    assert found.lost > found.budget


def named(policy: str, site: Site) -> str:
    return f"learned:{site.thrifty.stem}" if policy == RULE else policy
