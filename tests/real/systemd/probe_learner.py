"""Tries, as a service, what the learner's sandbox forbids and what it must allow; prints a line of JSON."""

import json
import os
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryFile

import numba
import numpy as np
import torch

STATE = Path("/var/lib/trimtab")


def outcome(attempt: Callable[[], object]) -> str:
    """Return "allowed", or the name of the refusal."""
    try:
        attempt()
    except OSError as error:
        return os.strerror(error.errno or 0)
    return "allowed"


@numba.njit(cache=True)
def total(values):
    """Add the values in compiled code, which is cached."""
    found = 0.0
    for value in values:
        found += value
    return found


def gradient() -> float:
    """Differentiate a square by torch."""
    weights = torch.ones(3, requires_grad=True)
    (weights * weights).sum().backward()
    return float(weights.grad.sum())


def has_decisions() -> bool:
    """Look into the ledger, which the agent writes meanwhile."""
    with closing(sqlite3.connect(f"file:{STATE}/ledger.db?mode=ro", uri=True)) as ledger:
        return bool(ledger.execute("select count(*) from decisions").fetchone()[0])


print(
    json.dumps(
        {
            "numba": total(np.ones(4)),
            "torch": gradient(),
            "decisions": has_decisions(),
            "ledger": outcome(lambda: (STATE / "ledger.db").open("r+b").close()),
            "state": outcome(lambda: (STATE / "here").write_text("")),
            "models": outcome(lambda: TemporaryFile(dir=STATE / "models").close()),
            "socket": outcome(lambda: socket.socket(socket.AF_UNIX).connect(str(STATE / "trimtab.sock"))),
            "own": outcome(lambda: Path("here").write_text("")),
            "root": os.geteuid() == 0,
            "secrets": sorted(path.name for path in Path(os.environ["CREDENTIALS_DIRECTORY"]).iterdir()),
            "keys of AWS": [name for name in os.environ if name.startswith("AWS_")],
        }
    )
)
