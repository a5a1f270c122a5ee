"""What serves every decision learns of one from the decision: no file that all share has to name it."""

from __future__ import annotations

import re

import pytest

from agent.settings.plug_ins import DECISIONS, installed
from tests.architecture.product import MODULES, ROOT

SHARED = (
    *("agent/settings/", "agent/kernel/", "agent/service/", "agent/api/", "agent/web/", "agent/view/"),
    *("agent/telemetry/", "agent/alarms/", "agent/preflight/", "agent/rehearsal/run.py", "agent/rehearsal/sections.py"),
    *("agent/commands/dry_run.py", "trainer/commands/program.py", "trainer/commands/promote.py"),
    *("simulator/compilation.py", "Makefile"),
)
BEFORE_THE_SEAM = {"autoscaling", "admission"}
"""Their names stand for more than themselves: verbs of the release before, streams of random numbers, examples."""
FILES = [*sorted(str(module) for module in MODULES if str(module).startswith(SHARED)), "Makefile"]


@pytest.mark.parametrize("decision", sorted({*installed(DECISIONS), "deferral"} - BEFORE_THE_SEAM))
def test_a_decision_is_named_in_no_file_that_all_share(decision: str) -> None:
    named = [file for file in FILES if re.search(rf"\b{decision}s?\b", (ROOT / file).read_text("utf-8"))]
    assert named == []


def test_there_are_files_that_all_share() -> None:
    assert all(any(file.startswith(place) for file in FILES) for place in SHARED)
