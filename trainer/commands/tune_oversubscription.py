"""`trimtab tune oversubscription`: constant rates that save cores while machines stay cool, calibrated or static."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from agent.kernel.text import columns
from domain.errors import BadInput
from trainer.commands.options import AlphaOption, Bounds, Check, ScenarioOption, StartOption, epilog, words_of
from trainer.commands.verb import Answer, Verb

if TYPE_CHECKING:
    from simulator.oversubscription.scenario import Scenario

CALIBRATED, STATIC = "calibrated", "static"
EVALUATIONS = 4_000


@dataclass(frozen=True, kw_only=True)
class TuneOversubscription(Verb):
    """Find rates for the subscribers of a cluster from its weeks of requests and its usage profiles.

    The same settings and seed give the same file. Exits with status 1 when no safe rates were found.
    """

    EPILOG = epilog(
        """
Methods:
  calibrated  one rate per subscriber, safe in every known week with room to
              spare, held to redrawn weeks: the one to use (--shield adds a guard)
  static      one rate per subscriber, the best of one week, no reserve
Written to --out: rates.json, a policy of `trimtab simulate oversubscription`.
""",
        calls=(
            "trimtab tune oversubscription --scenario azure_like",
            "trimtab tune oversubscription --scenario FOLDER --start warm --shield auto",
        ),
    )

    scenario: ScenarioOption = "internal_like"
    method: Annotated[
        str,
        "NAME",
        "How the rates are found, see below.",
        Check(
            (CALIBRATED, STATIC).__contains__,
            f"choose {CALIBRATED} or {STATIC}; learn by `trimtab train oversubscription`",
        ),
    ] = CALIBRATED
    start: StartOption = "cold"
    alpha: AlphaOption = 0.95
    weeks: Annotated[str | None, "s0,s21,...", "Weeks to fit to; else all, with static the first."] = None
    cap: Annotated[float | None, "SHARE", "calibrated: largest risk of a known week."] = None
    shield: Annotated[
        str | None, "HOURS|auto", "calibrated: hot hours a machine and day above which rates are raised."
    ] = None
    evaluations: Annotated[int, "Weeks assessed by a search.", Bounds(min=1)] = EVALUATIONS
    seed: Annotated[int, "Seed of the search.", Bounds(min=0)] = 0
    out: Annotated[Path | None, "FOLDER", "Where to write; else .trimtab/oversubscription/SCENARIO."] = None

    def run(self) -> Answer:
        """Search, and write the rates."""
        from trainer.kit.progress import phases
        from trainer.oversubscription.calibration import write_tuned

        cluster, chosen = checked_scenario(self.scenario, self.start, self.weeks)
        place = self.out or folder_of(self.scenario)
        options: dict[str, Any] = {
            "start": self.start,
            "alpha": self.alpha,
            "evaluations": self.evaluations,
            "seed": self.seed,
        }
        place.mkdir(parents=True, exist_ok=True)
        path, reserve = place / "rates.json", {"cap": self.cap, "shield": _shield(self.shield)}
        if self.method == STATIC and (len(chosen) > 1 or any(value is not None for value in reserve.values())):
            raise BadInput("--method", self.method, f"give it one week, and --cap and --shield to {CALIBRATED}")
        with phases(self.as_json) as on_phase:
            options["on_progress"] = on_phase
            data = write_tuned(cluster, self.method, chosen, path, options, None if self.method == STATIC else reserve)
        return Answer(data | {"file": str(path)}, _lines(data, path), 0 if data["feasible"] else 1)


def folder_of(scenario: str) -> Path:
    """Return where the rates of a scenario are written without --out; BadInput for one that there is not."""
    from simulator.oversubscription.scenario import scenario_of

    return Path(".trimtab/oversubscription") / scenario_of(scenario).name


def checked_scenario(scenario: str, start: str, weeks: str | None) -> tuple[Scenario, tuple[str, ...]]:
    """Return the scenario and the weeks that are named; BadInput names a wrong option."""
    from simulator.oversubscription.scenario import scenario_of
    from simulator.oversubscription.weekly import check_start

    check_start(start)
    cluster = scenario_of(scenario)
    chosen = tuple(words_of(weeks or ""))
    for name in chosen:
        cluster.week(name)
    return cluster, chosen


def _shield(text: str | None) -> float | str | None:
    from trainer.oversubscription.calibration import AUTO

    try:
        return text if text in (None, AUTO) else float(text)
    except ValueError:
        raise BadInput(
            "--shield", text, "give expected hot hours of a machine and day, such as 0.01, or auto"
        ) from None


def _lines(data: dict[str, Any], path: Path) -> list[str]:
    made = data["calibration"]
    rows: list[tuple[object, ...]] = [("week", "cores saved", "hot weeks, assessed")]
    rows += [(week, f"{made['s_cores'][week]:.1%}", f"{risk:.1%}") for week, risk in made["c_hot_r_assessed"].items()]
    lines = [" ".join(f"{rate:g}" for rate in data["rates"]), "", *columns(rows)]
    if "held_out" in made:
        held = made["held_out"]
        lines.append(
            f"{held['weeks']} redrawn weeks: {max(held['c_hot_r']):.1%} hot in the worst, "
            f"at most {held['c_hot_r_upper_95']:.1%} together (95 %), {made['raised']} rates raised for it"
        )
    return [*lines, str(path) if data["feasible"] else f"not safe: no rates keep the promise here ({path})"]
