"""The status of a round: replaced whole at every end, and read without trust in what stands there."""

import json
from pathlib import Path

import pytest

from agent.models.rounds import GOOD_ENDINGS, Ending, RoundStatus, read_rounds, status_file
from domain.errors import BadInput
from domain.subject import Subject
from trainer.promotion.directory import write_round

WEB = Subject("autoscaling", "web")


def rounds(directory: Path) -> dict[str, RoundStatus]:
    found, problems = read_rounds(directory, "autoscaling")
    assert problems == ()
    return dict(found)


def test_what_is_written_is_read_back_by_its_subject(tmp_path: Path) -> None:
    made = write_round(tmp_path / "models", WEB, Ending.PROMOTED, "it costs 4 % less", at=1000.0, cpu_s=412.5)
    assert made == RoundStatus("autoscaling", "web", 1000.0, Ending.PROMOTED, "it costs 4 % less", 1000.0, 412.5)
    assert rounds(tmp_path / "models") == {"web": made}
    assert json.loads((tmp_path / "models" / "learn-autoscaling-web.json").read_text())["format"] == 1


@pytest.mark.parametrize("ending", Ending)
def test_the_last_good_end_is_carried_on_until_the_next_one(ending: Ending, tmp_path: Path) -> None:
    write_round(tmp_path, WEB, Ending.KEPT, "", at=1000.0)
    assert write_round(tmp_path, WEB, ending, "", at=2000.0).good_at == (2000.0 if ending in GOOD_ENDINGS else 1000.0)


def test_before_the_first_good_end_there_is_none(tmp_path: Path) -> None:
    assert write_round(tmp_path, WEB, Ending.FAILED, "no ledger", at=1000.0).good_at is None


def test_a_damaged_status_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    other = write_round(tmp_path, Subject("autoscaling", "other"), Ending.KEPT, "", at=1000.0)
    for text in ("", "{", "[]", '{"format": 2}', json.dumps({"decision": "autoscaling", "at": "NaN"})):
        status_file(tmp_path, WEB).write_text(text)
        found, (problem,) = read_rounds(tmp_path, "autoscaling")
        assert found == {"other": other}
        assert "learn-autoscaling-web" in problem
    assert write_round(tmp_path, WEB, Ending.BUDGET, "", at=2000.0).good_at is None
    assert set(rounds(tmp_path)) == {"web", "other"}


def test_a_status_under_another_name_speaks_for_nobody(tmp_path: Path) -> None:
    write_round(tmp_path, WEB, Ending.KEPT, "", at=1000.0)
    (tmp_path / "learn-autoscaling-other.json").write_bytes(status_file(tmp_path, WEB).read_bytes())
    found, (problem,) = read_rounds(tmp_path, "autoscaling")
    assert (set(found), "about autoscaling web" in problem) == ({"web"}, True)


def test_a_status_behind_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    write_round(tmp_path, WEB, Ending.KEPT, "", at=1000.0)
    status_file(tmp_path / "models", WEB).symlink_to(status_file(tmp_path, WEB))
    found, problems = read_rounds(tmp_path / "models", "autoscaling")
    assert (found, len(problems)) == ({}, 1)


def test_each_decision_has_its_own(tmp_path: Path) -> None:
    write_round(tmp_path, Subject("admission", "web"), Ending.KEPT, "", at=1000.0)
    assert (rounds(tmp_path), rounds(tmp_path / "not there")) == ({}, {})


def test_a_time_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises((BadInput, ValueError)):
        write_round(tmp_path, WEB, Ending.KEPT, "", at=float("nan"))
    assert rounds(tmp_path) == {}
