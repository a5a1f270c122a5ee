"""The report as one HTML file that needs nothing else: tables, plots, and how to read them (§11).

One case per group is run again for its history, and the settings of the front are run on further cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agent.kernel.text import counted
from domain.errors import BadInput
from domain.units import MINUTE_S
from simulator.autoscaling.view import StepInfo
from trainer.autoscaling.evaluation.contenders import Contender
from trainer.autoscaling.evaluation.importance import Importance
from trainer.autoscaling.evaluation.results import run_episode
from trainer.autoscaling.evaluation.suite import GROUPS, OWN, TITLES, Case
from trainer.autoscaling.evaluation.summary import (
    PUBLISHED,
    PUBLISHED_RENT_CHANGE,
    PUBLISHED_TIME_CHANGE,
    SHUTDOWN_LIMIT_MIN,
    WORSE_LIMIT,
    FamilyResult,
    Summary,
    Trade,
    Verdict,
    few_cases,
)
from trainer.autoscaling.policies import sizes_of_cores
from trainer.autoscaling.policy_names import policy_of
from trainer.kit.drawing import FLEET, INK, PAPER, POLICIES, QUEUE, SOFT, colours, panel, plotted, svg, themed
from trainer.kit.intervals import FEWEST_CASES, Comparison
from trainer.kit.progress import CURVE_FILE, column, read_curve
from trainer.kit.report import Plot, Section, chip, document, escape, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Extras:
    """Optional parts of a report: plots by group (T1..T6), by section, and further tables as HTML."""

    by_group: Mapping[str, Sequence[Plot]] = field(default_factory=dict)
    comparison: Plot | None = None
    pareto: Plot | None = None
    curves: Plot | None = None
    importance: Sequence[tuple[str, str, Plot]] = ()
    """Model, words about it, plot."""


def page(summary: Summary | None, extras: Extras, facts: Mapping[str, str]) -> str:
    """Return the page, without a summary that of the importances alone.

    facts: about the run, name to text, shown at its top.
    """
    sections = [] if summary is None else _compared(summary, extras)
    for place, (model, words, plot) in enumerate(extras.importance):
        key = f"importance{place}"
        content = f"<p>{escape(words)}</p>{plot.html(key)}"
        sections.append(Section(key, f"Importance of the inputs of {model}", content))
    sections.append(Section("method", "How to read this", _METHOD))
    return document("Autoscaling policies compared", sections, facts)


def _compared(summary: Summary, extras: Extras) -> list[Section]:
    """Return the sections of a comparison."""
    colour = colours(summary.policies)
    groups = [group for group in (*GROUPS, OWN) if any(f.split()[0] == group for f in summary.families)]
    sections = [
        Section("verdicts", "In short", _verdicts(summary, colour)),
        Section("overview", "Cost", _overview(summary, colour, extras)),
    ]
    sections += [
        Section(group, f"{group} — {TITLES[group]}", _group(summary, group, colour, extras)) for group in groups
    ]
    if summary.trades:
        sections.append(Section("published", "Compared with the published experiment", _published(summary)))
    if extras.pareto is not None:
        sections.append(Section("pareto", "Cost against delay", extras.pareto.html("pareto")))
    if extras.curves is not None:
        sections.append(Section("curves", "Learning curves", extras.curves.html("curves")))
    if summary.absences:
        sections.append(Section("absent", "Not run", _absences(summary)))
    return sections


def _verdicts(summary: Summary, colour: Mapping[str, str]) -> str:
    head = [
        "policy",
        f"cost against {summary.reference}",
        "sure it is cheaper",
        f"at most {WORSE_LIMIT:+.0%} on every family",
        f"minimum fleet within {SHUTDOWN_LIMIT_MIN:.0f} min",
    ]
    rows = []
    for verdict in summary.verdicts:
        reference = verdict.policy == summary.reference
        rows.append(
            [
                _policy(verdict.policy, colour),
                "reference" if reference else _relative(verdict.overall) + _partly(verdict, summary),
                "" if verdict.overall is None else _surely(verdict.overall),
                _worst(verdict, summary),
                _shutdown(verdict),
            ]
        )
    words = (
        "Cost is rent plus the penalty for waiting. The first figure is over all cases, families counting alike, "
        f"with its 95 % interval; each family is below. {few_cases(summary)}"
    ).rstrip()
    return f'<p class="soft">{escape(words)}</p>{table(head, rows, marked=_reference(summary))}'


def _reference(summary: Summary) -> tuple[int, ...]:
    return (summary.policies.index(summary.reference),)


def _partly(verdict: Verdict, summary: Summary) -> str:
    """Note a policy that did not take part everywhere: its figure has another base."""
    if verdict.families == len(summary.families):
        return ""
    return f" <small>on {verdict.families} of {len(summary.families)} families</small>"


def _surely(comparison: Comparison) -> str:
    """Return how sure it is that the cost is lower, on enough cases."""
    return _share(comparison.probability_lower) if _enough(comparison) else chip(None, "no verdict")


def _enough(comparison: Comparison) -> bool:
    return comparison.relative.cases >= FEWEST_CASES


def _worst(verdict: Verdict, summary: Summary) -> str:
    if verdict.cut_off:
        return chip(False, "cut off")
    if verdict.never_worse is None or verdict.worst_relative is None:
        return chip(None, "—")
    compared = [s.against for s in summary.results if s.policy == verdict.policy and s.against is not None]
    kept = None if (verdict.partial and verdict.never_worse) or not all(map(_enough, compared)) else verdict.never_worse
    return chip(kept, f"{_percent(verdict.worst_relative)} on {verdict.worst_family}")


def _shutdown(verdict: Verdict) -> str:
    if verdict.shutdown_min is None:
        return chip(None, "not measured")
    text = (
        f"{verdict.shutdown_min:.0f} min" if verdict.shutdown_released else f"not within {verdict.shutdown_min:.0f} min"
    )
    return chip(verdict.shuts_down, text)


def _overview(summary: Summary, colour: Mapping[str, str], extras: Extras) -> str:
    rows = []
    for policy in summary.policies:
        cells = [_policy(policy, colour)]
        for family in summary.families:
            result = summary.result(policy, family)
            cells.append("" if result is None else _cost_cell(result))
        rows.append(cells)
    titles = dict.fromkeys(f"{group}: {TITLES[group]}" for group in (f.split()[0] for f in summary.families))
    words = (
        "Mean dollars of an episode; below it the change against the reference, green or red where its interval "
        f"excludes 0 on {FEWEST_CASES} cases or more. {'. '.join(titles)}."
    )
    drawn = "" if extras.comparison is None else extras.comparison.html("comparison")
    costs = table(["policy", *summary.families], rows, marked=_reference(summary))
    return f'<p class="soft">{escape(words)}</p>{costs}{drawn}'


def _cost_cell(result: FamilyResult) -> str:
    if result.stuck:
        return f'{result.cost.mean:.2f}<br><small class="bad">{escape(result.stuck)}</small>'
    if result.against is None:
        return f"{result.cost.mean:.2f}"
    return f"{result.cost.mean:.2f}<br><small>{_relative(result.against, interval=False)}</small>"


_COLUMNS: Mapping[str, str] = {
    "rent $": "{rent:.2f}",
    "penalty $": "{penalty:.2f}",
    "run time min": "{run_time_min:.1f}",
    "wait s<br>mean / p95": "{mean_wait_s:.0f} / {p95_wait_s:.0f}",
    "allocated": "{allocated_ratio:.1%}",
    "busy": "{utilisation:.2f}",
    "idle core-h": "{idle_core_h:.1f}",
    "changes<br>/ refused": "{changes:.0f} / {refused:.0f}",
    "interrupted<br>/ core-s lost": "{interruptions:.1f} / {lost_core_s:,.0f}",
    "peak cores": "{peak_cores:.0f}",
}
"""Titles, and how the means of a family are shown."""
_HEAD = ("policy", "cost $", *_COLUMNS, "first core s", "idle shut-down min")


def _group(summary: Summary, group: str, colour: Mapping[str, str], extras: Extras) -> str:
    parts = []
    for family in (f for f in summary.families if f.split()[0] == group):
        results = [s for s in summary.results if s.family == family]
        marked = [place for place, s in enumerate(results) if s.policy == summary.reference]
        cases = max(s.cases for s in results)
        few = f"; no verdict from fewer than {FEWEST_CASES}" if cases < FEWEST_CASES else ""
        caption = f"{family}: means over {cases} case{'s' if cases > 1 else ''}{few}"
        parts.append(table(_HEAD, [_result_cells(s, colour) for s in results], caption, marked=marked))
    drawn = [plot.html(f"{group}-{k}") for k, plot in enumerate(extras.by_group.get(group, ()))]
    return "".join(parts + drawn)


def _result_cells(s: FamilyResult, colour: Mapping[str, str]) -> list[str]:
    stuck = f' <small class="bad">{escape(s.stuck)}</small>' if s.stuck else ""
    span = f"<br><small>{s.cost.low:.2f} – {s.cost.high:.2f}</small>" if s.cases > 1 else ""
    return [
        _policy(s.policy, colour),
        f"<b>{s.cost.mean:.2f}</b>{stuck}{span}",
        *(form.format(**s.means) for form in _COLUMNS.values()),
        "—" if s.first_core_s is None else f"{s.first_core_s:.0f}",
        escape(s.idle_text),
    ]


def _published(summary: Summary) -> str:
    head = ["policy", "run time min", "rent $", "CPU per allocated core", "allocated"]
    forms = ("{run_time_min:.0f}", "{rent:.2f}", "{utilisation:.2f}", "{allocated_ratio:.1%}")
    rows = [
        [f"{escape(name)} <small>published, one run</small>", *(form.format(**figures) for form in forms)]
        for name, figures in PUBLISHED.items()
    ]
    forms = ("{run_time_min:.1f}", *forms[1:])
    results = (s for s in summary.results if s.family == "T4")
    rows += [[escape(s.policy), *(form.format(**s.means) for form in forms)] for s in results]
    trades = [
        [
            escape(trade.policy),
            escape(trade.reference),
            _relative(trade.rent),
            _relative(trade.run_time),
            _trade_verdict(trade),
        ]
        for trade in summary.trades
    ]
    words = (
        f"Published: rent {PUBLISHED_RENT_CHANGE:+.1%} at {PUBLISHED_TIME_CHANGE:+.1%} run time against the 75 % "
        "threshold, one run of each on a live cloud. Here: the closed loop simulated, m5a prices, 300 s cool-down "
        "per type, boot times drawn, the same cases for every policy."
    )
    return (
        f"<p>{escape(words)}</p>{table(head, rows, marked=range(len(PUBLISHED)))}"
        f"{table(['policy', 'against', 'rent', 'run time', 'at least the published trade'], trades)}"
    )


def _trade_verdict(trade: Trade) -> str:
    if not _enough(trade.rent):
        return chip(None, f"no verdict from {counted(trade.rent.relative.cases, 'case')}")
    return chip(_as_published(trade), "yes" if _as_published(trade) else "no")


def _as_published(trade: Trade) -> bool:
    rent, run_time = trade.rent.relative.mean, trade.run_time.relative.mean
    return rent <= PUBLISHED_RENT_CHANGE and run_time <= PUBLISHED_TIME_CHANGE


def _absences(summary: Summary) -> str:
    grouped: dict[tuple[str, str], list[str]] = {}
    for absence in summary.absences:
        grouped.setdefault((absence.label, absence.reason), []).append(absence.family)
    rows = [
        [escape(label), escape(", ".join(dict.fromkeys(families))), str(len(families)), escape(reason)]
        for (label, reason), families in grouped.items()
    ]
    return table(["policy", "families", "cases", "why"], rows)


def _policy(policy: str, colour: Mapping[str, str]) -> str:
    name = escape(policy)
    return f'<span class="dot" style="background:{themed(colour[policy])}"></span><span title="{name}">{name}</span>'


def _relative(comparison: Comparison | None, *, interval: bool = True) -> str:
    if comparison is None:
        return "—"
    r = comparison.relative
    kind = "" if not _enough(comparison) else "good" if r.high < 0 else "bad" if r.low > 0 else ""
    span = f" <small>{_percent(r.low)} to {_percent(r.high)}</small>" if interval and r.cases > 1 else ""
    return f'<span class="{kind}">{_percent(r.mean)}</span>{span}'


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _share(probability: float) -> str:
    return "> 99.9 %" if probability > 0.999 else "< 0.1 %" if probability < 0.001 else f"{probability:.1%}"


_METHOD = """<dl>
<dt>cost</dt><dd>rent plus penalty of an episode in dollars, undiscounted; a waiting job costs 0.036 $ an hour</dd>
<dt>intervals</dt><dd>95 %; of a mean by BCa bootstrap over cases, of a comparison by Student's t. Comparisons
are paired: both policies meet the same jobs and the same boot times</dd>
<dt>sure it is cheaper</dt><dd>confidence that the policy costs less than the reference, by a paired t-test</dd>
<dt>cut off, changed nothing</dt><dd>a policy that left jobs unfinished at the world's last step, or a rule that
changed no VM: its cost is shown and compared with none</dd>
<dt>run time</dt><dd>minutes until the last job has ended</dd>
<dt>allocated</dt><dd>cores of ready VMs over the cores at the limits, mean over minutes</dd>
<dt>busy</dt><dd>busy over ready core-seconds</dd>
<dt>changes / refused</dt><dd>VMs added and removed, and VMs ordered in vain, per episode</dd>
<dt>first core</dt><dd>seconds from a burst that finds no free core to the first new core, mean</dd>
<dt>idle shutdown</dt><dd>minutes from an empty queue with nothing running to the minimum fleet, the longest of all
stretches of half an hour and more; "&gt;" where a new job came before it was reached; to one step</dd>
<dt>worlds</dt><dd>T1 and T2: the training world; T4: as published; T3, T5 and T6: as named at the top</dd>
</dl>"""


# Plots.


Column = NDArray[np.float64]
History = list[StepInfo]
OnProgress = Callable[[int], None]

PRICES_PER_HOUR: tuple[float, ...] = (0.004, 0.012, 0.036, 0.108, 0.36)
"""C_Q, dollars per waiting job and hour."""
PARETO_GROUPS = ("T1", "T3", "T2")
"""The front is drawn on the first of these that is part of the evaluation."""
PARETO_CASES = 2
MOST_FLEETS = 8
HELD_OUT = ("held_out/greedy", "held_out/sampled")


def shown_cases(cases: Sequence[Case]) -> dict[str, Case]:
    """Return the case that is drawn per group: the first one; of T6 the burst, where speed shows."""
    shown: dict[str, Case] = {}
    for case in cases:
        if case.group not in shown or (case.family == "T6 burst x10" and shown[case.group].family != case.family):
            shown[case.group] = case
    return shown


def by_group(
    contenders: Sequence[Contender], summary: Summary, cases: Sequence[Case], on_progress: OnProgress = lambda _: None
) -> dict[str, list[Plot]]:
    """Return fleets with queue, and cores, per group; `on_progress` is called with 1 after every episode."""
    colour = colours(summary.policies)
    plots: dict[str, list[Plot]] = {}
    for group, case in shown_cases(cases).items():
        histories: dict[str, History] = {}
        for label, text in _taking_part(contenders, summary, case).items():
            histories[label] = []
            run_episode(policy_of(text), case, histories[label])
            on_progress(1)
        if histories:
            some = dict(list(histories.items())[:MOST_FLEETS])
            plots[group] = [
                Plot(f"{case.name}: VMs by type, and the jobs that wait.", _fleets(some, case)),
                Plot(f"{case.name}: the same policies in cores.", _cores_over_time(histories, colour)),
            ]
    return plots


def _taking_part(contenders: Sequence[Contender], summary: Summary, case: Case) -> dict[str, str]:
    """Return label and text of the contenders that have a result on the case's family."""
    texts = {c.label: c.text(case.group) for c in contenders if summary.result(c.label, case.family) is not None}
    return {label: text for label, text in texts.items() if text is not None}


def _series(history: History, name: str) -> Column:
    return np.array([getattr(info, name) for info in history], dtype=np.float64)


def _fleets(histories: Mapping[str, History], case: Case) -> str:
    """Draw, per policy, VMs by type stacked, the queue over them."""
    order = sorted(range(len(case.config.cores)), key=lambda k: case.config.cores[k])

    def draw(figure: Figure) -> None:
        rows = -(-len(histories) // 2)
        panels = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False).ravel()
        most_vms = max(float(_series(h, "ready").sum(axis=1).max()) for h in histories.values())
        most_jobs = max(float(_series(h, "waiting").max()) for h in histories.values())
        for place, (axes, (label, history)) in enumerate(zip(panels, histories.items(), strict=False)):
            minutes, ready = _series(history, "now_s") / MINUTE_S, _series(history, "ready")
            below = np.zeros(len(history))
            for size, kind in enumerate(order):
                above, name = below + ready[:, kind], case.config.types[kind].name
                shade = FLEET[min(size, len(FLEET) - 1)]
                axes.fill_between(minutes, below, above, step="pre", color=shade, lw=0, label=name)
                below = above
            queue = axes.twinx()
            queue.plot(minutes, _series(history, "waiting"), color=QUEUE, lw=1.0, label="jobs waiting")
            queue.set_ylim(0, most_jobs * 1.05 or 1.0)
            queue.grid(visible=False)
            panel(queue, y="queue, jobs")
            last = place >= len(histories) - 2
            panel(axes, _shortened(label, 58), x="time, minutes" if last else "", y="" if place % 2 else "fleet, VMs")
            axes.tick_params(labelbottom=last)
            axes.set_ylim(0, most_vms * 1.08 or 1.0)
        for unused in panels[len(histories) :]:
            unused.set_axis_off()
        handles, labels = panels[0].get_legend_handles_labels()
        lines, names = panels[0].figure.axes[len(panels)].get_legend_handles_labels()
        figure.legend(handles + lines, labels + names, loc="outside upper right", ncols=len(order) + 1)

    return svg((11.0, 0.6 + 1.75 * (-(-len(histories) // 2))), draw)


def _cores_over_time(histories: Mapping[str, History], colour: Mapping[str, str]) -> str:
    """Draw allocated cores, and CPU per allocated core, of every policy over one episode."""

    def draw(figure: Figure) -> None:
        allocated, busy = figure.subplots(2, 1, sharex=True)
        for label, history in histories.items():
            line: Any = {"color": colour[label], "lw": 1.2}
            minutes, cores = _series(history, "now_s") / MINUTE_S, _series(history, "cores_ready")
            allocated.step(minutes, cores, where="pre", label=_shortened(label, 40), **line)
            share = _series(history, "cores_busy") / np.maximum(cores, 1)
            busy.plot(minutes, _smoothed(share, 5), **line)
        panel(allocated, "Allocated cores", y="allocated, cores")
        panel(busy, "CPU per allocated core (mean of five minutes)", x="time, minutes", y="busy, share of the cores")
        busy.set_ylim(0, 1.02)
        allocated.set_ylim(bottom=0)
        figure.legend(loc="outside right upper")

    return svg((11.0, 4.6), draw)


def comparison(summary: Summary) -> Plot | None:
    """Return each policy's relative cost per family with its interval, None when there is nothing to compare with."""
    found = _comparison(summary)
    caption = "Each policy against the reference, family by family; the dashed line is the limit of +5 %."
    return None if found is None else Plot(caption, _one_plot(*found))


def comparison_figure(summary: Summary, kind: str) -> bytes:
    """Return the same as a file: `pdf`, `svg` or `png`; BadInput when there is nothing to compare with."""
    found = _comparison(summary)
    if found is None:
        raise BadInput("--figure", "of one policy", "give two policies at least")
    height, draw = found
    return plotted((11.0, height), _with_legend(draw), kind)


def _comparison(summary: Summary) -> tuple[float, Callable[[Axes], None]] | None:
    families, colour = summary.families, colours(summary.policies)
    others = [policy for policy in summary.policies if policy != summary.reference]
    if not others:
        return None

    def draw(axes: Axes) -> None:
        axes.axvline(0.0, color=INK, lw=1.0)
        axes.axvline(100 * WORSE_LIMIT, color="#c23b4e", lw=1.0, ls=(0, (4, 3)))
        height = 0.8 / len(others)
        for (row, family), (place, policy) in itertools.product(enumerate(families), enumerate(others)):
            result = summary.result(policy, family)
            if result is not None and result.against is not None:
                relative = result.against.relative
                at = row + (place - (len(others) - 1) / 2) * height
                axes.plot([100 * relative.low, 100 * relative.high], [at, at], color=colour[policy], lw=2.2, alpha=0.5)
                axes.plot([100 * relative.mean], [at], "o", ms=4.0, color=colour[policy])
        for policy in others:
            axes.plot([], [], "o-", color=colour[policy], label=_shortened(policy, 40))
        axes.set_yticks(range(len(families)), families)
        axes.set_ylim(len(families) - 0.5, -0.5)
        axes.set_xscale("symlog", linthresh=20.0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:+.0f} %" if value else "0")
        panel(axes, x=f"mean cost against {summary.reference}, % (95 % interval; left is cheaper)", y="family, by name")
        axes.grid(visible=False, axis="y")

    return 0.8 + max(1.6, len(families) * (0.15 + 0.09 * len(others))), draw


@dataclass(frozen=True, slots=True)
class SettingMeans:
    """One setting of a kind of policy: dollars of rent, seconds waited per job, job-hours waited, all means."""

    rent: float
    mean_wait_s: float
    waiting_job_h: float

    def cost(self, price_per_hour: float) -> float:
        """Return J at a price of waiting."""
        return self.rent + price_per_hour * self.waiting_job_h


@dataclass(frozen=True, slots=True)
class Front:
    """The settings of one kind that are best for some price: `chosen[i]` for PRICES_PER_HOUR[i]; `tried` are all."""

    kind: str
    tried: tuple[SettingMeans, ...]
    chosen: tuple[SettingMeans, ...]


def settings(case: Case) -> dict[str, list[str]]:
    """Return the texts tried per kind of policy."""
    minimum = sum(n * cores for n, cores in zip(case.config.minimum, case.config.cores, strict=True))
    step = max(2, (case.config.max_cores - minimum) // 16 // 2 * 2)
    fleets = [sizes_of_cores(case.config, cores) for cores in range(minimum, case.config.max_cores + 1, step)]
    horizons = (60, 120, 210, 300, 420, 700, 1000, 1500, 2400)
    thresholds = itertools.product((0.6, 0.75, 0.9), (None, 0.4), (1, 3), (0, 120, 300))
    return {
        "constant fleet": [f"constant:{','.join(map(str, sizes))}" for sizes in fleets],
        "queue rule, multi": [
            f"queue-rule:horizon_s={h},idle_s={i},single=false" for h, i in itertools.product(horizons, (0, 120, 300))
        ],
        "threshold": [
            f"threshold:high={high},low={high if low is None else low},periods={periods},exclude_warming=false,"
            f"cooldown_s={cooldown_s}"
            for high, low, periods, cooldown_s in thresholds
        ],
    }


def fronts(cases: Sequence[Case], on_progress: OnProgress = lambda _: None) -> tuple[Front, ...]:
    """Return the front of each kind over the same cases; `on_progress` is called with 1 after every setting."""
    found = []
    for kind, texts in settings(cases[0]).items():
        tried = []
        for text in texts:
            tried.append(_try(text, cases))
            on_progress(1)
        chosen = [min(tried, key=lambda t: t.cost(price)) for price in PRICES_PER_HOUR]
        found.append(Front(kind, tuple(tried), tuple(chosen)))
    return tuple(found)


def _try(text: str, cases: Sequence[Case]) -> SettingMeans:
    policy = policy_of(text)
    runs = [(run_episode(policy, case).measures, case.config.waiting_price_per_hour) for case in cases]
    return SettingMeans(
        float(np.mean([run.rent for run, _ in runs])),
        float(np.mean([run.mean_wait_s for run, _ in runs])),
        float(np.mean([run.penalty / price if price else 0.0 for run, price in runs])),
    )


def pareto_cases(cases: Sequence[Case]) -> list[Case]:
    """Return the cases of the front, none when no suitable group takes part."""
    group = next((g for g in PARETO_GROUPS if any(case.group == g for case in cases)), None)
    return [case for case in cases if case.group == group][:PARETO_CASES]


def pareto_runs(cases: Sequence[Case]) -> int:
    """Return how many settings the front tries."""
    return sum(map(len, settings(cases[0]).values())) if cases else 0


def pareto(contenders: Sequence[Contender], cases: Sequence[Case], summary: Summary, on_progress: OnProgress) -> Plot:
    """Return rent over mean wait: all settings tried, the front of each kind over C_Q, and the policies as stars."""
    found, colour = fronts(cases, on_progress), colours(summary.policies)
    points = {}
    for label, text in _taking_part(contenders, summary, cases[0]).items():
        runs = [run_episode(policy_of(text), case).measures for case in cases]
        points[label] = (sum(run.mean_wait_s for run in runs) / len(runs), sum(run.rent for run in runs) / len(runs))

    def draw(axes: Axes) -> None:
        for front, shade in zip(found, (SOFT, "#2f8f6b", "#8a4fa3"), strict=False):
            waits, rents = [t.mean_wait_s for t in front.tried], [t.rent for t in front.tried]
            axes.plot(waits, rents, ".", ms=3, color=shade, alpha=0.35)
            best = sorted({(t.mean_wait_s, t.rent) for t in front.chosen})
            axes.plot(*zip(*best, strict=True), "-", lw=1.4, color=shade, label=f"{front.kind}, tuned for each C_Q")
            named: dict[tuple[float, float], list[str]] = {}
            for price, tried in zip(PRICES_PER_HOUR, front.chosen, strict=True):
                named.setdefault((tried.mean_wait_s, tried.rent), []).append(f"{price:g}")
            for at, prices in named.items():
                axes.plot(at[:1], at[1:], "o", ms=5, mfc=PAPER, color=shade)
                axes.annotate(", ".join(prices), at, (5, 4), textcoords="offset points")
        for label, (wait, rent) in points.items():
            star: Any = {"ms": 11, "mec": PAPER, "mew": 0.6, "color": colour[label]}
            axes.plot([wait], [rent], "*", label=_shortened(label, 40), **star)
        shown = [(t.mean_wait_s, t.rent) for front in found for t in front.chosen] + list(points.values())
        axes.set_xscale("symlog", linthresh=30.0)
        # Hopeless settings would push the others into a corner.
        axes.set_xlim(0.0, 1.6 * max(wait for wait, _ in shown))
        axes.set_ylim(0.85 * min(rent for _, rent in shown), 1.12 * max(rent for _, rent in shown))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel(axes, x="mean wait per job, seconds", y="rent per episode, dollars")

    caption = (
        f"Rent against waiting on {', '.join(case.name for case in cases)}. Small dots: every setting tried. Rings: "
        "the setting that is best at that price of waiting, in dollars per job and hour. Stars: the policies compared."
    )
    return Plot(caption, _one_plot(4.8, draw))


def learning_curves(paths: Sequence[Path], goals: Mapping[str, float]) -> Plot | None:
    """Return held-out cost over environment steps of `curve.csv` files of runs (or their folders), None without any.

    goals: costs of others, drawn as level lines. Raises BadInput for a file that holds no such figure.
    """
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for path in paths:
        file = path / CURVE_FILE if path.is_dir() else path
        try:
            rows = read_curve(file)
        except (OSError, UnicodeDecodeError) as fault:
            raise BadInput("--curves", str(path), f"{fault}: give the folder of a training run") from None
        kept = {name.partition("/")[2]: points for name in HELD_OUT if (points := column(rows, name))}
        if not kept:
            raise BadInput("--curves", str(file), f"it has no figure {' or '.join(HELD_OUT)} yet")
        curves[file.parent.name] = kept
    if not curves:
        return None

    def draw(axes: Axes) -> None:
        for place, (run, figures) in enumerate(curves.items()):
            for style, (name, points) in zip(("-", "--"), figures.items(), strict=False):
                line: Any = {"color": POLICIES[place % len(POLICIES)], "ls": style, "lw": 1.3}
                axes.plot([x / 1e6 for x, _ in points], [y for _, y in points], label=f"{run}: {name}", **line)
        for name, cost in goals.items():
            axes.axhline(cost, color=SOFT, lw=0.9, ls=(0, (2, 2)))
            axes.annotate(name, (1.0, cost), xycoords=("axes fraction", "data"), ha="right", va="bottom")
        panel(axes, x="environment steps, millions", y="mean held-out cost per episode, dollars")

    caption = "Mean cost on held-out seeds while learning; level lines: costs of the baselines on the same task."
    return Plot(caption, _one_plot(4.2, draw))


def importance(found: Importance) -> Plot:
    """Return the added cost of an episode without each input of a model, the most important first."""
    ordered = sorted(found.effects, key=lambda effect: effect.added.mean)

    def draw(axes: Axes) -> None:
        for place, added in enumerate(effect.added for effect in ordered):
            shade = SOFT if added.low <= 0.0 else FLEET[2]
            axes.barh(place, added.mean, color=shade, alpha=0.55, height=0.62, lw=0)
            axes.plot([added.low, added.high], [place, place], color=INK, lw=1.4)
        axes.axvline(0.0, color=INK, lw=1.0)
        axes.set_yticks(range(len(ordered)), [effect.name for effect in ordered])
        how = "shuffling the input over time" if found.gain is None else "holding the input at its mean"
        panel(axes, x=f"cost that {how} adds to an episode, dollars (95 % interval)", y="input, by name")
        axes.grid(visible=False, axis="y")

    shuffles = f", {found.repeats} shuffles each" if found.gain is None else ""
    caption = (
        f"{found.cases} cases{shuffles}; an undisturbed episode costs {found.cost:.2f} $. Grey: the interval holds 0."
    )
    return Plot(caption, _one_plot(0.9 + 0.27 * len(ordered), draw, legend=False))


def _one_plot(height: float, draw: Callable[[Axes], None], *, legend: bool = True) -> str:
    """Return a plot as wide as the page, `height` inches high, with the legend on its right."""
    return svg((11.0, height), _with_legend(draw, legend=legend))


def _with_legend(draw: Callable[[Axes], None], *, legend: bool = True) -> Callable[[Figure], None]:
    def whole(figure: Figure) -> None:
        axes = figure.subplots()
        draw(axes)
        if legend:
            figure.legend(loc="outside right upper")

    return whole


def _smoothed(values: Column, steps: int) -> Column:
    """Return the mean of the last `steps` entries at each, of fewer at the start."""
    total = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, values.size + 1)
    starts = np.maximum(ends - steps, 0)
    return np.asarray((total[ends] - total[starts]) / (ends - starts), dtype=np.float64)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
