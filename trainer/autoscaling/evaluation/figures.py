"""The plots of the report, as SVG text: fleets and queues, cores, cost against delay, comparisons, curves (§11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainer.autoscaling.evaluation.episode import History
from trainer.autoscaling.evaluation.pareto import PRICES_PER_HOUR, Front
from trainer.autoscaling.evaluation.summary import WORSE_LIMIT, Summary
from trainer.kit.drawing import FLEET, INK, POLICIES, QUEUE, SOFT, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Column = NDArray[np.float64]


def fleets(histories: Mapping[str, History], type_names: Sequence[str], cores: Sequence[int]) -> str:
    """Draw, per policy, VMs by type stacked, the queue over them."""
    order = sorted(range(len(cores)), key=lambda k: cores[k])

    def draw(figure: Figure) -> None:
        rows = -(-len(histories) // 2)
        panels = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False).ravel()
        most_vms = max(float(h.ready.sum(axis=1).max()) for h in histories.values())
        most_jobs = max(float(h.waiting.max()) for h in histories.values())
        for panel, (label, history) in zip(panels, histories.items(), strict=False):
            below = np.zeros(len(history.infos))
            for place, kind in enumerate(order):
                above = below + history.ready[:, kind]
                shade = FLEET[min(place, len(FLEET) - 1)]
                panel.fill_between(history.minutes, below, above, step="pre", color=shade, lw=0, label=type_names[kind])
                below = above
            queue = panel.twinx()
            queue.plot(history.minutes, history.waiting, color=QUEUE, lw=1.0, label="jobs waiting")
            queue.set_ylim(0, most_jobs * 1.05 or 1.0)
            queue.grid(visible=False)
            queue.tick_params(length=0, colors=QUEUE)
            panel.set_title(_shortened(label, 58), loc="left", fontsize=9.5)
            panel.tick_params(length=0)
            panel.set_ylim(0, most_vms * 1.08 or 1.0)
        for panel in panels[len(histories) :]:
            panel.set_axis_off()
        for panel in panels[max(0, len(histories) - 2) : len(histories)]:
            panel.set_xlabel("minutes")
            panel.tick_params(labelbottom=True)
        handles, labels = panels[0].get_legend_handles_labels()
        lines, names = panels[0].figure.axes[len(panels)].get_legend_handles_labels()
        figure.legend(handles + lines, labels + names, loc="outside upper right", ncols=len(order) + 1)

    return svg((11.0, 0.6 + 1.75 * (-(-len(histories) // 2))), draw)


def cores_over_time(histories: Mapping[str, History], colour: Mapping[str, str]) -> str:
    """Draw allocated cores, and CPU per allocated core, of every policy over one episode."""

    def draw(figure: Figure) -> None:
        allocated, busy = figure.subplots(2, 1, sharex=True)
        for label, history in histories.items():
            line: Any = {"color": colour[label], "lw": 1.2}
            allocated.step(history.minutes, history.cores, where="pre", label=_shortened(label, 40), **line)
            share = history.busy / np.maximum(history.cores, 1)
            busy.plot(history.minutes, _smoothed(share, 5), **line)
        _name(allocated, "Allocated cores")
        _name(busy, "CPU per allocated core (mean of five minutes)")
        busy.set_ylim(0, 1.02)
        allocated.set_ylim(bottom=0)
        busy.set_xlabel("minutes")
        figure.legend(loc="outside right upper")

    return svg((11.0, 4.6), draw)


def against_reference(summary: Summary, colour: Mapping[str, str]) -> str:
    """Draw each policy's relative cost per family with its interval; the limit of +5 % is marked."""
    families = summary.families
    others = [policy for policy in summary.policies if policy != summary.reference]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axvline(0.0, color=INK, lw=1.0)
        axes.axvline(100 * WORSE_LIMIT, color="#c23b4e", lw=1.0, ls=(0, (4, 3)))
        height = 0.8 / max(1, len(others))
        for row, family in enumerate(families):
            for place, policy in enumerate(others):
                standing = summary.standing(policy, family)
                if standing is None or standing.against is None:
                    continue
                relative = standing.against.relative
                at = row + (place - (len(others) - 1) / 2) * height
                axes.plot([100 * relative.low, 100 * relative.high], [at, at], color=colour[policy], lw=2.2, alpha=0.5)
                axes.plot([100 * relative.mean], [at], "o", ms=4.0, color=colour[policy])
        for policy in others:
            axes.plot([], [], "o-", color=colour[policy], label=_shortened(policy, 40))
        axes.set_yticks(range(len(families)), families)
        axes.set_ylim(len(families) - 0.5, -0.5)
        axes.set_xscale("symlog", linthresh=20.0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:+.0f} %" if value else "0")
        axes.set_xlabel(f"mean cost against {summary.reference} (95 % interval; left is cheaper)")
        axes.grid(visible=False, axis="y")
        axes.tick_params(length=0)
        figure.legend(loc="outside right upper")

    return svg((11.0, 0.8 + max(1.6, len(families) * (0.15 + 0.09 * len(others)))), draw)


def cost_and_delay(
    fronts: Sequence[Front], points: Mapping[str, tuple[float, float]], colour: Mapping[str, str]
) -> str:
    """Draw rent over mean wait: all settings tried, the front of each kind over C_Q, and the policies as stars.

    points: label -> (mean wait in seconds, rent in dollars).
    """
    shades = (SOFT, "#2f8f6b", "#8a4fa3")

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for front, shade in zip(fronts, shades, strict=False):
            axes.plot(
                [t.mean_wait_s for t in front.tried], [t.rent for t in front.tried], ".", ms=3, color=shade, alpha=0.35
            )
            best = sorted({(t.mean_wait_s, t.rent) for t in front.chosen})
            axes.plot(*zip(*best, strict=True), "-", lw=1.4, color=shade, label=f"{front.kind}, tuned for each C_Q")
            named: dict[tuple[float, float], list[str]] = {}
            for price, tried in zip(PRICES_PER_HOUR, front.chosen, strict=True):
                named.setdefault((tried.mean_wait_s, tried.rent), []).append(f"{price:g}")
            for (wait, rent), prices in named.items():
                axes.plot([wait], [rent], "o", ms=5, mfc="white", color=shade)
                axes.annotate(
                    ", ".join(prices), (wait, rent), (5, 4), textcoords="offset points", fontsize=7, color=shade
                )
        for label, (wait, rent) in points.items():
            axes.plot(
                [wait], [rent], "*", ms=11, mec="white", mew=0.6, color=colour[label], label=_shortened(label, 40)
            )
        shown = [(t.mean_wait_s, t.rent) for front in fronts for t in front.chosen] + list(points.values())
        axes.set_xscale("symlog", linthresh=30.0)
        # Hopeless settings would push what matters into a corner.
        axes.set_xlim(0.0, 1.6 * max(wait for wait, _ in shown))
        axes.set_ylim(0.85 * min(rent for _, rent in shown), 1.12 * max(rent for _, rent in shown))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("mean wait per job, seconds")
        axes.set_ylabel("rent per episode, dollars")
        axes.tick_params(length=0)
        figure.legend(loc="outside right upper")

    return svg((11.0, 4.8), draw)


def learning_curves(curves: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], goals: Mapping[str, float]) -> str:
    """Draw held-out cost over environment steps: figure name -> (steps, value) per run; goals are level lines."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for place, (run, figures) in enumerate(curves.items()):
            for style, (name, points) in zip(("-", "--"), figures.items(), strict=False):
                line: Any = {"color": POLICIES[place % len(POLICIES)], "ls": style, "lw": 1.3}
                axes.plot([x / 1e6 for x, _ in points], [y for _, y in points], label=f"{run}: {name}", **line)
        for name, cost in goals.items():
            axes.axhline(cost, color=SOFT, lw=0.9, ls=(0, (2, 2)))
            axes.annotate(name, (1.0, cost), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7.5)
        axes.set_xlabel("environment steps, millions")
        axes.set_ylabel("mean held-out cost per episode, dollars")
        axes.tick_params(length=0)
        figure.legend(loc="outside right upper")

    return svg((11.0, 4.2), draw)


def importances(names: Sequence[str], means: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> str:
    """Draw what shuffling each input adds to the episode's cost, the most important first."""
    order = np.argsort(means)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for place, k in enumerate(order):
            shade = SOFT if lows[k] <= 0.0 else FLEET[2]
            axes.barh(place, means[k], color=shade, alpha=0.55, height=0.62, lw=0)
            axes.plot([lows[k], highs[k]], [place, place], color=INK, lw=1.4)
        axes.axvline(0.0, color=INK, lw=1.0)
        axes.set_yticks(range(len(order)), [names[k] for k in order])
        axes.set_xlabel("dollars that shuffling the input over time adds to an episode (95 % interval)")
        axes.grid(visible=False, axis="y")
        axes.tick_params(length=0)

    return svg((11.0, 0.9 + 0.27 * len(names)), draw)


def _name(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=9.5)
    axes.tick_params(length=0)


def _smoothed(values: Column, steps: int) -> Column:
    """Return the mean of the last `steps` entries at each, of fewer at the start."""
    total = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, values.size + 1)
    starts = np.maximum(ends - steps, 0)
    return np.asarray((total[ends] - total[starts]) / (ends - starts), dtype=np.float64)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
