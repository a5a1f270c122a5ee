"""Champion against challenger, from the file to the pointer: the champion stays unless the challenger passes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agent.models.directory import EVERY_FLEET, ModelRefused, Seal, Then, read_model_file, seal_of
from agent.models.file import load_model
from domain.errors import BadInput
from tests.agent.models.making import card_of, reported, saved, with_card_text
from tests.trainer.promotion.arena import AT, cases, cases_without_a_price_of_waiting, idler, saver, spender
from trainer.autoscaling.evaluation.suite import Case
from trainer.promotion.autoscaling import OnProgress, fleet_gate
from trainer.promotion.directory import ModelsWriter
from trainer.promotion.gate import Contest, Limits, Term, hold

KEY = b"0123456789abcdef"


@pytest.fixture
def directory(tmp_path: Path) -> ModelsWriter:
    return ModelsWriter(tmp_path / "models", KEY)


def contest(
    challenger: Path,
    directory: ModelsWriter,
    on: Sequence[Case] | None = None,
    *,
    try_only: bool = False,
    on_progress: OnProgress = lambda _: None,
    term: Term | None = None,
) -> Contest:
    gate = fleet_gate(on or cases(), Limits(), facts={"groups": "T1"}, on_progress=on_progress)
    return hold(challenger, directory, EVERY_FLEET, load_model, gate, at=AT, try_only=try_only, term=term)


def crown(directory: ModelsWriter, model: Path) -> None:
    directory.path.mkdir(exist_ok=True)
    report = reported(directory.path, model.name, KEY)
    directory.promote(read_model_file(model), EVERY_FLEET, report, AT, load_model)


def test_a_cheaper_challenger_becomes_the_champion(tmp_path: Path, directory: ModelsWriter) -> None:
    crown(directory, spender(tmp_path))
    result = contest(idler(tmp_path), directory)
    champion = directory.champion(EVERY_FLEET)
    assert result.promoted
    assert champion is not None
    assert (champion.model, champion.previous) == (idler(tmp_path).name, spender(tmp_path).name)
    assert champion.report == result.report_name


def test_a_cheaper_challenger_with_a_term_runs_beside_the_champion(tmp_path: Path, directory: ModelsWriter) -> None:
    crown(directory, spender(tmp_path))
    term = Term(1_772_366_400.0, 48.0, Then.APPROVE)
    found = contest(idler(tmp_path), directory, cases(2), term=term)
    assert (found.promoted, found.on_probation) == (False, True)
    champion, (one,) = directory.champion(EVERY_FLEET), directory.probationers().values()
    assert champion is not None
    assert champion.model == one.against == spender(tmp_path).name
    assert (one.model, one.report, one.hours, one.then) == (idler(tmp_path).name, found.report_name, 48.0, "approve")
    kept = contest(spender(tmp_path), directory, cases(2), try_only=True, term=term)
    assert (kept.promoted, kept.on_probation) == (False, False)


def test_each_case_is_played_once_from_each_entry(tmp_path: Path, directory: ModelsWriter) -> None:
    crown(directory, spender(tmp_path))
    done: list[int] = []
    found = contest(idler(tmp_path), directory, cases(3), on_progress=done.append)
    played = [(trial["case"], trial["entry_step"]) for trial in found.report["results"]["trials"]]
    assert len(played) == len(set(played))
    assert sum(done) == 3


def test_a_dearer_challenger_leaves_the_champion_and_a_report(tmp_path: Path, directory: ModelsWriter) -> None:
    crown(directory, idler(tmp_path))
    result = contest(spender(tmp_path), directory)
    champion = directory.champion(EVERY_FLEET)
    assert not result.promoted
    assert any("on T1" in reason for reason in result.judgement.reasons)
    assert champion is not None
    assert champion.model == idler(tmp_path).name
    assert directory.report(result.report_name)["passed"] is False


def test_the_champion_does_not_pass_against_itself(tmp_path: Path, directory: ModelsWriter) -> None:
    crown(directory, idler(tmp_path))
    assert contest(idler(tmp_path), directory).judgement.reasons[0].endswith("champion already")


def test_the_first_champion_has_to_beat_the_queue_rule(tmp_path: Path, directory: ModelsWriter) -> None:
    worse = contest(spender(tmp_path), directory)
    assert worse.report["champion"]["label"].startswith("queue rule")
    assert worse.report["champion"]["sha256"] is None
    assert not worse.promoted
    assert directory.champion(EVERY_FLEET) is None


def test_who_beats_the_queue_rule_becomes_the_first_champion(tmp_path: Path, directory: ModelsWriter) -> None:
    cheap = cases_without_a_price_of_waiting()
    assert contest(idler(tmp_path), directory, cheap).judgement.reasons == ()
    champion = directory.champion(EVERY_FLEET)
    assert champion is not None
    assert (champion.model, champion.previous) == (idler(tmp_path).name, None)


def test_a_trial_changes_nothing(tmp_path: Path, directory: ModelsWriter) -> None:
    crown(directory, spender(tmp_path))
    result = contest(saver(tmp_path), directory, try_only=True)
    champion = directory.champion(EVERY_FLEET)
    assert result.judgement.passed
    assert not result.promoted
    assert champion is not None
    assert champion.model == spender(tmp_path).name


def test_the_report_is_signed_and_holds_the_digests_of_models_traces_and_results(
    tmp_path: Path, directory: ModelsWriter
) -> None:
    crown(directory, spender(tmp_path))
    result = contest(idler(tmp_path), directory)
    report = directory.report(result.report_name)
    assert seal_of(report, KEY) is Seal.SIGNED
    assert (report["challenger"]["sha256"], report["champion"]["sha256"]) == (
        idler(tmp_path).stem,
        spender(tmp_path).stem,
    )
    assert [case["trace_sha256"] for case in report["cases"]] == [case.trace.digest for case in cases()]
    assert {trial["entry_step"] > 0 for trial in report["results"]["trials"]} == {True, False}
    assert len(report["results"]["sha256"]) == len(report["suite"]["sha256"]) == 64


def test_a_rollback_during_the_runs_is_not_held_up_and_is_not_overwritten(
    tmp_path: Path, directory: ModelsWriter
) -> None:
    crown(directory, spender(tmp_path))
    crown(directory, saver(tmp_path))

    def go_back(_: int) -> None:
        champion = directory.champion(EVERY_FLEET)
        if champion is not None and champion.model == saver(tmp_path).name:
            directory.rollback(AT, EVERY_FLEET, load_model)

    with pytest.raises(BadInput, match="changed during the runs"):
        contest(idler(tmp_path), directory, on_progress=go_back)
    champion = directory.champion(EVERY_FLEET)
    assert champion is not None
    assert champion.model == spender(tmp_path).name


def test_the_same_contest_gives_the_same_report(tmp_path: Path, directory: ModelsWriter) -> None:
    crown(directory, idler(tmp_path))
    first, again = (contest(spender(tmp_path), directory) for _ in range(2))
    assert first.report == again.report


def truncated(path: Path) -> bytes:
    return path.read_bytes()[:-500]


def foreign(path: Path) -> bytes:
    return with_card_text(path, None)


def of_another_schema(path: Path) -> bytes:
    return with_card_text(path, json.dumps({**card_of(path), "schema_hash": "0" * 64}))


def wrong_answers(path: Path) -> bytes:
    card = card_of(path)
    card["golden"]["outputs"]["logits"][0][0] += 1.0
    return with_card_text(path, json.dumps(card))


@pytest.mark.parametrize("spoil", [truncated, foreign, of_another_schema, wrong_answers])
def test_a_spoilt_challenger_is_refused_and_the_champion_stays(
    tmp_path: Path, directory: ModelsWriter, spoil: Callable[[Path], bytes]
) -> None:
    crown(directory, spender(tmp_path))
    files = {path.name: path.read_bytes() for path in directory.path.iterdir()}
    with pytest.raises(ModelRefused):
        contest(saved(tmp_path, spoil(idler(tmp_path))), directory)
    assert {path.name: path.read_bytes() for path in directory.path.iterdir()} == files


def test_a_missing_challenger_is_refused(tmp_path: Path, directory: ModelsWriter) -> None:
    with pytest.raises(ModelRefused):
        contest(tmp_path / "none.onnx", directory)


def test_a_damaged_champion_is_refused_instead_of_being_beaten_by_default(
    tmp_path: Path, directory: ModelsWriter
) -> None:
    crown(directory, spender(tmp_path))
    (directory.path / spender(tmp_path).name).write_bytes(b"damaged")
    with pytest.raises(ModelRefused) as refused:
        contest(idler(tmp_path), directory)
    assert refused.value.value == str(directory.path / spender(tmp_path).name)
