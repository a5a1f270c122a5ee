"""The sections of a dry run in a process of their own: the same results, errors by their text, and no process left."""

import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from agent.rehearsal.run import fresh_directory
from agent.rehearsal.section_process import SectionFailed, Sections, section_process
from agent.rehearsal.sections import sections
from domain.decisions import Event

NOTHING: Mapping[str, str] = {}


def asked(directory: Path, *names: str, overrides: Mapping[str, str] = NOTHING) -> Sections:
    fresh_directory(directory)
    return Sections(names, directory, 1993, "act", overrides, directory / "sections.log")


@pytest.mark.exhaustive
def test_a_section_has_the_same_result_and_events_in_either_process(tmp_path: Path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    events: list[Event] = []
    own = sections()["admission"].play(here, 1993, "act", NOTHING, events.append)
    with section_process(asked(there, "admission", "placement")) as played:
        other, placement = played
    figures = [{**result.as_json(), "ledger": "", "next": []} for result in (other.result, own)]
    assert figures[0] == figures[1]
    assert other.events == tuple(events)
    assert (placement.result.kind, placement.result.program) == ("placement", own.program)


def test_an_error_of_a_section_arrives_with_its_text_and_ends_the_process(tmp_path: Path):
    before = set(psutil.Process().children())
    wrong = {"TRIMTAB_PLACEMENTS__hosts__POLICY": "worst-fit-of-all"}
    with (
        section_process(asked(tmp_path, "placement", overrides=wrong)) as played,
        pytest.raises(SectionFailed, match="worst-fit-of-all"),
    ):
        next(played)
    assert set(psutil.Process().children()) <= before


def test_a_process_that_ends_without_a_result_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with section_process(asked(tmp_path, "nothing")) as played, pytest.raises(SectionFailed, match="nothing"):
        next(played)
    assert "KeyError" in capfd.readouterr().err


def test_the_process_ends_with_its_input(tmp_path: Path):
    command = [sys.executable, "-m", "agent.rehearsal.section_process"]
    request = pickle.dumps(asked(tmp_path, "placement"))
    ended = subprocess.run(command, check=False, input=request, capture_output=True, timeout=60.0)
    assert (ended.returncode, ended.stdout) == (1, b"")
