"""The comparisons, fixed before any of their seeds is played: rules, thresholds and pairs (§13.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from domain.errors import BadInput
from simulator.admission.arrivals import HOURS_PER_RUN
from trainer.admission.table import Cell


@dataclass(frozen=True, slots=True)
class Ladder:
    """One rule at rising permissiveness: its thresholds make the rule's front of utilisation and failures."""

    name: str
    cells: tuple[Cell, ...]

    @property
    def preset(self) -> str:
        """The cluster, the same in every cell."""
        return self.cells[0].preset


@dataclass(frozen=True, slots=True)
class Experiment:
    """Ladders that share their seeds, and the pairs (challenger, base) that are compared."""

    name: str
    title: str
    ladders: tuple[Ladder, ...]
    pairs: tuple[tuple[str, str], ...]
    judged: str = ""
    """The challenger's policy at which failures are compared at equal utilisation; else the one nearest the SLA."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, each once."""
        return tuple(dict.fromkeys(cell for ladder in self.ladders for cell in ladder.cells))


ZEROTH = (9_000, 10_000, 11_000, 12_000, 13_000, 14_000, 15_000, 16_000, 17_500, 20_001)
"""The last admits whatever fits."""
FIRST = (13_500, 15_000, 16_000, 16_750, 17_500, 18_500, 19_500)
KAPPAS = {
    ("T", 0): (4.0, 3.0, 2.2, 1.8, 1.4, 1.0),
    ("K", 0): (3.6, 2.8, 2.2, 1.8, 1.4, 1.0),
    ("K", 1): (5.4, 4.5, 3.7, 3.1, 2.6),
    ("K", 5): (5.8, 4.9, 4.1, 3.4, 2.8),
    ("K", 50): (6.2, 5.2, 4.4, 3.7, 3.0),
    ("H", 0): (3.6, 2.8, 2.2, 1.6, 1.0),
    ("H", 1): (5.4, 4.5, 3.8, 3.2, 2.7),
    ("H", 5): (5.8, 5.0, 4.2, 3.5, 2.9),
    ("H", 50): (6.2, 5.2, 4.4, 3.7, 3.0),
}
"""Strict to permissive, by preset and prior observations; files take those of K."""
BANDED = {0.7: (5.2, 4.2, 3.4, 2.8, 2.4, 2.0, 1.6), 0.5: (6.0, 5.0, 4.2, 3.6, 3.0)}
"""kappas by the factor of the later bands, at 0 observations."""
CHANCES = (1e-3, 1e-2, 0.03, 0.08, 0.2)
"""Chances of the shifted gamma tail, at 0 observations."""
BUDGETS = (3e-4, 3e-3, 0.01, 0.03, 0.1)
"""Shares of requests forecast to fail. Like the chances these were screened on three tuning seeds of K."""
LEVELS = (0, 1, 5, 50)


def kappas(preset: str, observations: int) -> tuple[float, ...]:
    """Return the kappas tried for a preset and a number of prior observations."""
    return KAPPAS.get((preset, observations), KAPPAS["K", observations])


def second(preset: str, observations: int, more: str = "", *, name: str = "", labels: str = "") -> Ladder:
    """Return the second-moment rule's ladder; `more` is added to every policy."""
    texts = [f"second:{kappa:g}{more}" for kappa in kappas(preset, observations)]
    return _ladder(name or f"second, {observations} obs", preset, texts, observations, labels)


def _ladder(name: str, preset: str, texts: Sequence[str], observations: int = 0, labels: str = "") -> Ladder:
    return Ladder(name, tuple(Cell(preset, text, observations, labels) for text in texts))


def ordering(preset: str) -> Experiment:
    """Zeroth, first and second moment rules without prior observations (§13.4 a, c, d)."""
    ladders = (
        _ladder("zeroth", preset, [f"zeroth:{cores}" for cores in ZEROTH]),
        _ladder("first", preset, [f"first:{cores}" for cores in FIRST]),
        second(preset, 0, name="second"),
    )
    pairs = (("first", "zeroth"), ("second", "zeroth"), ("second", "first"))
    return Experiment("ordering", "The ladder of rules, 0 observations", ladders, pairs, judged="second:2.2")


def observations(preset: str) -> Experiment:
    """The second-moment rule with 0, 1, 5 and 50 prior observations (§13.4 b)."""
    more = ",marginal=1"
    ladders = [second(preset, 0), *(second(preset, level, more) for level in LEVELS[1:])]
    ladders.append(_ladder("accept if it fits", preset, ["zeroth:20001"]))
    names = [ladder.name for ladder in ladders]
    pairs = ((names[1], names[0]), (names[2], names[1]), (names[3], names[2]), (names[3], names[1]))
    return Experiment("observations", "Prior observations", tuple(ladders), pairs)


def marginal(preset: str) -> Experiment:
    """With and without the marginal heuristic at 1, 5 and 50 prior observations."""
    ladders, pairs = [], []
    for level in LEVELS[1:]:
        ladders += [second(preset, level, ",marginal=1", name=f"{level} obs, marginal 1 core")]
        ladders += [second(preset, level, name=f"{level} obs, without")]
        pairs.append((ladders[-2].name, ladders[-1].name))
    return Experiment("marginal", "The marginal heuristic", tuple(ladders), tuple(pairs))


def labels(preset: str) -> Experiment:
    """A deployment whose type is named against one that is either of its owner's two (§8)."""
    ladders, pairs = [], []
    for level in (1, 5):
        kinds = ("labelled", "unlabelled")
        ladders += [second(preset, level, ",marginal=1", name=f"{kind}, {level} obs", labels=kind) for kind in kinds]
        pairs.append((ladders[-2].name, ladders[-1].name))
    return Experiment("labels", "Labelled against unlabelled", tuple(ladders), tuple(pairs))


def variants(preset: str) -> Experiment:
    """Moments, tails, criteria and banded kappa against the second-moment rule without observations (§13.4 e)."""
    ladders = (
        second(preset, 0, name="second"),
        second(preset, 0, ",moments=ab", name="ab moments"),
        second(preset, 0, ",fresh=ab", name="ab for arrivals"),
        second(preset, 0, ",moments=paper", name="paper moments"),
        *(
            _ladder(f"bands a = {a:g}", preset, [f"second:{kappa:g},bands=1/1/1/{a:g}/{a * a:g}" for kappa in tried])
            for a, tried in BANDED.items()
        ),
        _ladder("sgamma", preset, [f"sgamma:{chance:g}" for chance in CHANCES]),
        _ladder("budget", preset, [f"budget:{share:g}" for share in BUDGETS]),
    )
    pairs = [(ladder.name, "second") for ladder in ladders[1:]]
    pairs.append(("ab moments", "paper moments"))
    return Experiment("variants", "Moments, tails and criteria, 0 observations", ladders, tuple(pairs))


EXPERIMENTS = {make.__name__: make for make in (ordering, observations, marginal, labels, variants)}


def experiments_of(
    names: Sequence[str], preset: str, hours: float = HOURS_PER_RUN, only: Sequence[str] = ()
) -> Iterator[Experiment]:
    """Return experiments by name on a preset, with runs of so many hours.

    only: names of the ladders that take part, all when empty; pairs without both are left out. Raises BadInput for a
    name that is none.
    """
    for name in names:
        if name not in EXPERIMENTS:
            raise BadInput("experiment", name, f"give some of {', '.join(EXPERIMENTS)}")
        made = EXPERIMENTS[name](preset)
        known = [ladder.name for ladder in made.ladders]
        if unknown := [ladder for ladder in only if ladder not in known]:
            raise BadInput("ladder", unknown[0], f"{name} has {'; '.join(known)}")
        ladders = tuple(
            Ladder(ladder.name, tuple(replace(cell, hours=hours) for cell in ladder.cells))
            for ladder in made.ladders
            if not only or ladder.name in only
        )
        pairs = tuple(pair for pair in made.pairs if not only or set(pair) <= set(only))
        yield replace(made, ladders=ladders, pairs=pairs)
