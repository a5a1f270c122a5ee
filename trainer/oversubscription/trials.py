"""One policy on one week, as a row of an evaluation; kept, so that a long evaluation goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.rates import SHIELD, RateGuard
from simulator.oversubscription.scenario import Scenario, Week
from trainer.kit.files import GrowingFile, code_version
from trainer.oversubscription.calibration import Calibrated
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.policies import Task, as_rates, policy_of, scenario_sha256

SOURCES = (
    "domain/rules/oversubscription",
    "simulator/oversubscription",
    *(
        f"trainer/oversubscription/{name}.py"
        for name in ("calibration", "episodes", "policies", "search", "trials", "unseen")
    ),
)
"""Program text that decides results: after a change of it they are made anew."""


class Kept:
    """Results in a file, or in memory alone where there is none; a last line that was cut is dropped."""

    def __init__(self, path: Path | None, *, resume: bool = False) -> None:
        """Open the file; one that holds results is refused without `resume`. Raises BadInput."""
        self._file = None if path is None else GrowingFile(path)
        self._results: dict[str, Any] = {}
        if path is None or self._file is None:
            return
        for number, line in enumerate(self._file.read().splitlines(), start=1):
            try:
                data = json.loads(line)
                self._results[data["key"]] = data["result"]
            except (ValueError, KeyError, TypeError):
                raise BadInput(f"{path}, line {number}", line[:40], "give a file that this verb wrote") from None
        if self._results and not resume:
            raise BadInput("--out", str(path), "it holds results already: give --resume, or another folder")

    def of(self, facts: dict[str, Any], make: Callable[[], Any]) -> Any:
        """Return the result, as JSON data, that belongs to these facts: kept, or made now and then kept."""
        text = json.dumps([facts, code_version(SOURCES)], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:24]
        if key not in self._results:
            line = json.dumps({"key": key, "facts": facts, "result": make()}, allow_nan=False)
            self._results[key] = json.loads(line)["result"]
            if self._file is not None:
                self._file.append(line + "\n")
        return self._results[key]


Floats = NDArray[np.float64]
Row = dict[str, Any]
OnProgress = Callable[[str], None]

SEED = 4_000_000_007
"""First episode of every evaluation; training, selection and calibration use others."""
OWN, UNSEEN, SHIFTED, PERSISTENT, LEFT_OUT, CORRELATED = (
    *("own", "unseen", "shifted", "persistent", "left out", "correlated"),
)
_FIGURES = (
    *("week", "usage", "episodes", "s_cores", "s_core_hours", "pm_hot_r", "c_hot_r", "c_hot_r_upper_95"),
    *("c_hot_r_analytic", "mean_hot_hours", "expected_hot_hours_analytic", "mean_hot_machine_hours", "hot_severity"),
    *("peak_machines", "rejects", "raised", "unsafe"),
)


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy under a name; several texts are seeds of one method."""

    label: str
    texts: tuple[str, ...]
    alpha: float = 0.95
    single_week: bool = False
    """Whether it is shown on its own week alone, as its promise is looser."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is played."""

    episodes: int = 300
    long_episodes: int = 2_000
    """On the own week, for what promises anything."""
    unseen: int = 4
    shifted: int = 1
    persistent: int = 60
    points: int = 16
    """Rates whose predicted and realised risk are compared, on long_episodes each."""
    evaluations: int = 1_500
    """Weeks assessed by each search."""
    left_out: bool = True
    """Whether rates fitted on all weeks but one meet that one, each in turn."""


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """Where policies are tried: a scenario and start, how much, and what is kept of it."""

    scenario: Scenario
    start: str
    extent: Extent = field(default_factory=Extent)
    kept: Kept = field(default_factory=lambda: Kept(None))
    on_progress: OnProgress = lambda _: None

    def row(
        self,
        contender: Contender,
        week: Week,
        kind: str,
        episodes: int,
        *,
        at: int = 0,
        usage: str = "gauss",
        short: int | None = None,
    ) -> Row:
        """Return a contender's figures on a week; short: c_hot_r_short is over so many episodes. Raises BadInput."""
        text = contender.texts[at]
        facts = {
            "policy": content_of(text),
            "alpha": contender.alpha,
            "usage": content_of(usage),
            "episodes": episodes,
            "short": short,
        }

        def play() -> Row:
            self.on_progress(f"{contender.label} on {week.name}")
            task = Task(self.scenario, week, self.start, contender.alpha)
            judged = judge(policy_of(text), task, usage=usage, episodes=episodes, seed=SEED)
            data = judged.as_data()
            hot = judged.sampled.hot_hours[: short or episodes]
            return {name: data[name] for name in _FIGURES} | {
                "c_hot_r_short": float((hot >= judged.sampled.limit).mean())
            }

        named = {"label": contender.label, "seed_index": at, "kind": kind, "alpha": contender.alpha}
        return named | self.keep(week, facts, play)

    def found(self, what: str, weeks: tuple[Week, ...], search: Callable[[], Calibrated], **settings: Any) -> str:
        """Return the text of the policy that a search finds; what, weeks and settings tell it from others."""
        facts = {"search": what, "weeks": [self._place(week) for week in weeks], **settings}

        def policy() -> dict[str, Any]:
            self.on_progress(f"searching {what}")
            found = search()
            guard = None if found.budget is None else RateGuard(SHIELD, found.budget)
            return {"policy": policy_text(found.rates, guard)}

        return str(self.kept.of(facts, policy)["policy"])

    def keep(self, week: Week, facts: dict[str, Any], make: Callable[[], Row]) -> Row:
        """Return what is kept of these facts about a week, or else make and keep it."""
        found: Row = self.kept.of(self._place(week) | facts, make)
        return found

    def _place(self, week: Week) -> dict[str, str]:
        return {"scenario": scenario_sha256(self.scenario), "start": self.start, "week": _digest_of(week)}


def policy_text(rates: Floats, guard: RateGuard | None) -> str:
    """Return the text of the policy with these rates behind a guard, None for none."""
    bare = as_rates(rates)
    return bare if guard is None else f"{guard.kind}:base=({bare}),b={guard.budget:g}"


def _digest_of(week: Week) -> str:
    digest = hashlib.sha256(f"{week.name} {week.warm}".encode())
    columns = (week.subscriber, week.cores, week.memory_gb, week.network_gbps, week.arrival, week.departure)
    for column in columns:
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()[:16]


def content_of(text: str) -> str:
    """Return the text, with the digests of the files that it names, one inside a guard's base too."""
    named = {Path(part) for part in (text, text.partition(":")[2], *re.split(r"[():,=]", text))}
    files = sorted(path for path in named if path.is_file())
    return " ".join([text, *(hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files)])
