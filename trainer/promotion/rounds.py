"""Writes how a round of learning ended, for the agent to read (`agent.models.rounds`)."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from agent.models.rounds import LONGEST_SENTENCE, Ending, RoundStatus, read_status, status_file
from domain.errors import BadInput
from domain.subject import Subject
from trainer.kit.files import replace_file


def write_round(
    directory: Path, subject: Subject, outcome: Ending, sentence: str, at: float, cpu_s: float = 0.0
) -> RoundStatus:
    """Replace a subject's status, whole or not at all, and return it; OSError when the directory takes no file.

    at: epoch seconds, of the end of the round. The last good end is carried on from the status before; one that cannot
    be read counts as none.
    """
    good_at: float | None = at
    if not outcome.good:
        try:
            good_at = read_status(status_file(directory, subject)).good_at
        except (OSError, BadInput):
            good_at = None
    made = RoundStatus(subject.decision, subject.name, at, outcome, sentence[:LONGEST_SENTENCE], good_at, cpu_s)
    text = json.dumps(asdict(made), sort_keys=True, indent=1, allow_nan=False) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(status_file(directory, subject), text)
    return made
