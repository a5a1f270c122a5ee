"""Host-hours of placement where containers end, against best fit, and the time of a decision by lifetimes.

36 extracts of three public traces (placement with lifetimes, §7): stretches of 18,000 rows from six begins of the two
GAIA traces at speeds 20 and 8, of 1,600 rows of openb at speeds 8 and 3. The first 30 % of each span do not count.
Intervals: bootstrap over the nine stretches; begins less than a stretch apart, and two speeds, count as one.
Declared lifetimes are the true ones, those times exp(sigma z), or the true ones permuted; none of the constants of the
rule was chosen here.

The weights of `lifetime` were searched on the begins of the first third of each trace and chosen on those of the
second; `judged` is the mean over the last. `moved`: `lifetime` with a move of a container after each 100 placements.
`..._less_lifetime`: the difference to `lifetime` with the same lifetimes declared.
`--extended`: the judged cases with other pools (VARIANTS), and all cases beside draws of the same
length and speed that were fitted to the trace, in place of the rest.
`--advice`: the rule of `trainer.placement.advice` on each case, in place of the rest. It is asked daily from the third
day on while a day is left, and its advice is followed at once: host-hours after the third day over those without
advice, by the policy that began (ADVICE_FROM), without hints and at sigma 0.5. A policy decides without the future, so
one replay of it gives the host-hours to every day. `cases`: long enough; `spoke`:
with advice; `wrong`: followed advice that cost more. For fillings two instances of the small generator are recorded,
and a third one is placed (ADVICE_FILLINGS), by the policy that began and by the advised one.
`decision`: of the agent by `lifetime` among 10,000 hosts with 150,000 containers; `refresh`: predict all ends again.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agent.models.directory import ModelsDirectory
from agent.placement.answers import decision_on, reservation_of
from agent.placement.book import Book
from agent.placement.choosing import SHIPPED, Chooser, read_policy, take_back
from agent.placement.records import PlaceRequest, PoolHead, Reservation, Stage
from agent.placement.settings import PlacementSettings
from agent.placement.state import PoolState
from benchmarks.report import Target, arguments, report
from domain.rules.placement.cluster import choose, cluster_of
from domain.rules.placement.instance import HostType, Instance
from domain.rules.placement.lifetimes import first_sums, learn
from domain.rules.placement.policies import LIFETIME, NAMED, Policy
from domain.units import DAY_S, HOUR_S
from simulator.placement.engine import arrays_of, play
from simulator.placement.instances import small
from simulator.placement.traces import HOST, SHUFFLED, trace_of
from trainer.placement.advice import (
    LEAST_DAYS,
    Replayed,
    better_by_days,
    better_by_fillings,
    bundled,
    replayed_fillings,
    thirds_of,
)
from trainer.placement.evaluation import events

WARM_UP = 0.3
CASES = (
    *(("alibaba-openb", first, 1600, speed) for first in (3600, 3800, 0, 200, 1800, 2000) for speed in (8, 3)),
    *((name, first, 18_000, speed) for name in ("gaia-azure", "gaia-pai")
      for first in (40_000, 42_000, 0, 2000, 20_000, 22_000) for speed in (20, 8)),
)  # fmt: skip
JUDGED = frozenset({40_000, 42_000, 3600, 3800})
"""Begins of the cases on which weights were neither searched nor chosen."""
ADVICE_FROM = {"": ("lifetime", "bf", "learned", "wf"), "0.5": ("lifetime", "oldest", "bf", "learned")}
"""Policies that decide before any advice, by sigma; `lifetime` without hints is `oldest`."""
ADVICE_FILLINGS = tuple((9000 + k, 9000 + (k + 1) % 12, 9000 + (k + 2) % 12) for k in range(12))
"""Two recorded fillings and the next one: seeds of the small generator, on which `small-pools` was judged."""
RULES: Mapping[str, tuple[Policy, str, int]] = {
    "bf": (NAMED["bf"], "", 0),
    "ff": (NAMED["ff"], "", 0),
    "oldest": (NAMED["oldest"], "", 0),
    "wf": (NAMED["wf"], "", 0),
    "true": (LIFETIME, "0", 0),
    "declared_05": (LIFETIME, "0.5", 0),
    "declared_10": (LIFETIME, "1", 0),
    "declared_15": (LIFETIME, "1.5", 0),
    "shuffled": (LIFETIME, SHUFFLED, 0),
    "moved_true": (LIFETIME, "0", 100),
    "moved_05": (LIFETIME, "0.5", 100),
    "moved_10": (LIFETIME, "1", 100),
    "moved_15": (LIFETIME, "1.5", 100),
    "moved_shuffled": (LIFETIME, SHUFFLED, 100),
}
"""Policy, declared lifetimes, and placements between two moves of a container, by name of the row."""
LIKE = {"true": "true", "05": "declared_05", "10": "declared_10", "15": "declared_15", "shuffled": "shuffled"}
"""Row of `lifetime` with the same declared lifetimes, by the end of the name of a row."""


def _declared_by(share: float) -> Callable[[Instance], Instance]:
    """Let this share of the requests keep what they declare."""

    def change(one: Instance) -> Instance:
        keeps = np.random.default_rng(3).random(len(one.requests)) < share
        pairs = zip(one.requests, keeps.tolist(), strict=True)
        return replace(one, requests=tuple(r if kept else replace(r, lifetime_s=None) for r, kept in pairs))

    return change


def _with_limits(one: Instance) -> Instance:
    """Let no host, which is a rack, run more than four of an application; every fifth excludes the next one."""
    names = [app.name for app in one.applications]
    pairs = [(names[k], names[k + 1]) for k in range(0, len(names) - 1, 5)]
    excludes = {name: frozenset(other for pair in pairs for other in pair if name in pair) - {name} for name in names}
    apps = tuple(replace(app, rack_limit=4, excludes=excludes[app.name]) for app in one.applications)
    return replace(one, applications=apps)


VARIANTS: Mapping[str, Callable[[Instance], Instance]] = {
    "third_declared": _declared_by(1.0 / 3.0),
    "two_thirds_declared": _declared_by(2.0 / 3.0),
    "sizes": lambda one: replace(
        one, hosts=(HOST, HostType("half", (64, 256, 1500)), HostType("wide", (96, 1024, 3000)))
    ),
    "limits": _with_limits,
    "daily": lambda one: with_rhythm(one, 3),
}
"""Requests without a declaration; hosts of three sizes; rack limits and exclusions; arrivals with a daily rhythm."""
TARGETS = (
    Target("oldest_over_bf", 0.975),
    Target("true_over_bf", 0.91),
    Target("declared_05_over_bf", 0.95),
    Target("declared_10_over_bf", 0.97),
    Target("shuffled_over_oldest", 1.005),
    Target("worst_shuffled_case", 1.05),
    Target("true_peak_over_bf", 1.03),
    Target("decision_p99_ms", 2.0),
    Target("refresh_ms", 50.0),
)


def main() -> int:
    """Measure and print; the exit status is 0 when the promises are kept."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--cases", type=int, default=len(CASES), help=f"cases that are played (default {len(CASES)})")
    parser.add_argument("--extended", action="store_true", help="play the other pools")
    parser.add_argument("--advice", action="store_true", help="follow the advice on each case")
    parser.add_argument("--hosts", type=int, default=10_000, help="hosts of the pool (default 10000)")
    given = parser.parse_args()
    if given.extended:
        apart = max(1, len(CASES) // given.cases)
        figures = {**extended([case for case in CASES if case[1] in JUDGED][::apart]), **likeness(CASES[::apart])}
        return report("placement_lifetimes", figures, as_json=given.json, packages=("numpy", "numba"))
    if given.advice:
        figures = {**followed_days(CASES[:: max(1, len(CASES) // given.cases)]), **followed_fillings()}
        return report("placement_lifetimes", figures, as_json=given.json, packages=("numpy", "numba"))
    figures = {
        **host_hours(CASES[:: max(1, len(CASES) // given.cases)]),
        **decisions(given.runs, given.hosts),
    }
    return report(
        "placement_lifetimes",
        figures,
        as_json=given.json,
        packages=("numpy", "numba"),
        targets=TARGETS,
        notes={"cases": given.cases, "warm_up": WARM_UP},
    )


def host_hours(cases: tuple[tuple[str, int, int, int], ...]) -> dict[str, float]:
    """Return host-hours over those of best fit, means over the cases with intervals, and peaks."""
    hours: dict[str, list[float]] = {name: [] for name in RULES}
    peaks: dict[str, list[float]] = {name: [] for name in RULES}
    stretches = []
    for trace, first, rows, speed in cases:
        stretches.append((trace, first // rows))
        for name, (policy, hints, between) in RULES.items():
            instance = trace_of(f"{trace}:{first}+{rows}@{speed}", hints)
            assert instance is not None
            last = instance.requests[-1].at_s
            arrays, begin_s = arrays_of(instance), WARM_UP * last
            made = play(instance, policy, arrays=arrays, measured_from_s=begin_s, until_s=last, between=between)
            hours[name].append(made.host_hours)
            peaks[name].append(float(made.peak))
        print(trace, first, speed, *(f"{name} {hours[name][-1]:.1f}" for name in RULES), file=sys.stderr)
    ratios = {name: np.array(found) / np.array(hours["bf"]) for name, found in hours.items()}
    judged = np.array([first in JUDGED for _, first, _, _ in cases])
    small = np.array([trace == "alibaba-openb" for trace, *_ in cases])
    figures: dict[str, float] = {}
    for name, found in ratios.items():
        if name != "bf":
            low, high = _interval(found, stretches)
            figures |= {f"{name}_over_bf": float(found.mean()), f"{name}_low": low, f"{name}_high": high}
            figures[f"{name}_judged_over_bf"] = float(found[judged].mean())
            figures[f"{name}_peak_over_bf"] = float(np.mean(np.array(peaks[name]) / np.array(peaks["bf"])))
        form, _, end = name.partition("_")
        if form == "moved":
            less = found - ratios[LIKE[end]]
            low, high = _interval(less, stretches)
            figures |= {f"{name}_less_lifetime": float(less.mean()), f"{name}_less_lifetime_low": low}
            figures[f"{name}_less_lifetime_high"] = high
            parts = (("judged", judged), ("openb", small))
            figures |= {f"{name}_less_lifetime_{part}": float(less[of].mean()) for part, of in parts if of.any()}
    better = np.minimum(ratios["ff"], 1.0)
    figures["shuffled_over_oldest"] = float(ratios["shuffled"].mean() / ratios["oldest"].mean())
    figures["worst_shuffled_case"] = float((ratios["shuffled"] / better).max())
    return figures


def with_rhythm(instance: Instance, seed: int) -> Instance:
    """Return an instance in which fewer requests come by night: each stays with 0.7 + 0.3 sin(2 pi t / day)."""
    at_s = np.array([one.at_s for one in instance.requests])
    chance = 0.7 + 0.3 * np.sin(2.0 * np.pi * at_s / DAY_S)
    chosen = np.random.default_rng((seed, 1)).random(at_s.size) < chance
    requests = tuple(one for one, there in zip(instance.requests, chosen.tolist(), strict=True) if there)
    names = {one.name for one in requests}
    releases = tuple(one for one in instance.releases if one.request in names)
    return replace(instance, requests=requests, releases=releases)


def extended(cases: Sequence[tuple[str, int, int, int]]) -> dict[str, float]:
    """Return host-hours over those of best fit, means over the cases, of each variant at sigma 0.5."""
    found: dict[str, list[float]] = {}
    for trace, first, rows, speed in cases:
        plain = trace_of(f"{trace}:{first}+{rows}@{speed}", "0.5")
        assert plain is not None
        for variant, change in VARIANTS.items():
            for name, ratio in _over_bf(change(plain)).items():
                found.setdefault(f"{variant}_{name}_over_bf", []).append(ratio)
    return {name: statistics.fmean(ratios) for name, ratios in found.items()}


def likeness(cases: Sequence[tuple[str, int, int, int]]) -> dict[str, float]:
    """Return host-hours over those of best fit at sigma 0.5 on a trace and on draws, with errors of the means."""
    found: dict[str, list[float]] = {}
    for trace, first, rows, speed in cases:
        for kind, name in (("trace", f"{trace}:{first}"), ("drawn", f"{trace}~{first}:0")):
            one = trace_of(f"{name}+{rows}@{speed}", "0.5")
            assert one is not None
            for policy, ratio in _over_bf(one).items():
                found.setdefault(f"{trace}_{kind}_{policy}_{speed}", []).append(ratio)
    figures: dict[str, float] = {}
    for key, ratios in found.items():
        figures[f"{key}_over_bf"] = statistics.fmean(ratios)
        if len(ratios) > 1:
            figures[f"{key}_error"] = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return figures


def _over_bf(one: Instance) -> dict[str, float]:
    """Return the host-hours of `oldest` and of `lifetime` over those of best fit."""
    last, arrays = one.requests[-1].at_s, arrays_of(one)
    bf, oldest, lifetime = (
        play(one, policy, arrays=arrays, measured_from_s=WARM_UP * last, until_s=last).host_hours
        for policy in (NAMED["bf"], NAMED["oldest"], LIFETIME)
    )
    return {"oldest": oldest / bf, "lifetime": lifetime / bf}


def followed_days(cases: Sequence[tuple[str, int, int, int]]) -> dict[str, float]:
    """Return host-hours after the third day with advice that is followed over those without, and how often it spoke."""
    policies = bundled(read_policy(SHIPPED))
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for trace, first, rows_, speed in cases:
        for hints, starts in ADVICE_FROM.items():
            one = trace_of(f"{trace}:{first}+{rows_}@{speed}", hints)
            assert one is not None
            last = one.requests[-1].at_s
            days = [DAY_S * day for day in range(int(LEAST_DAYS), int(last // DAY_S))]
            hours = _hours_to(one, policies, sorted({mark for at in days for mark in (*thirds_of(at), at)}))
            for start in starts:
                switches = [(0.0, start)]
                for at in days:
                    ends = (*thirds_of(at), at)
                    found = {
                        name: Replayed(tuple(np.diff([0.0, *(to[end] for end in ends)]).tolist()), 0)
                        for name, to in hours.items()
                    }
                    better = better_by_days(found, switches[-1][1], at)
                    switches += [(at, better)] if better else []
                ratio = 1.0
                if len(switches) > 1:
                    followed = _hours_under(one, [(at, policies[name]) for at, name in switches])
                    ratio = followed / (hours[start][last] - hours[start][LEAST_DAYS * DAY_S])
                print(trace, first, speed, hints or "none", switches, f"{ratio:.4f}", len(days), file=sys.stderr)
                rows.setdefault(f"{start}_{'hints' if hints else 'none'}", []).append(
                    (ratio, float(len(switches) > 1), float(len(days) > 0))
                )
    figures: dict[str, float] = {}
    for name, row in rows.items():
        ratios, spoke, could = (np.array(column) for column in zip(*row, strict=True))
        figures |= {
            f"advice_{name}_ratio": float(ratios[could > 0.0].mean()) if could.any() else math.nan,
            f"advice_{name}_cases": float(could.sum()),
            f"advice_{name}_spoke": float(spoke.sum()),
            f"advice_{name}_wrong": float(((ratios > 1.0) & (spoke > 0.0)).sum()),
            f"advice_{name}_worst": float(ratios.max()),
        }
    return figures


def _hours_to(one: Instance, policies: Mapping[str, Policy], moments: Sequence[float]) -> dict[str, dict[float, float]]:
    """Return the host-hours of each policy to these moments and to the last arrival; hosts have no bound."""
    if not moments:
        return {}
    arrays, last, found = arrays_of(one), one.requests[-1].at_s, {}
    for name, policy in policies.items():
        made = play(one, policy, arrays=arrays, until_s=last, marks=moments)
        assert made.rejected == 0
        found[name] = dict(zip((*moments, last), (*made.hours_to, made.host_hours), strict=True))
    return found


def _hours_under(one: Instance, plan: Sequence[tuple[float, Policy]]) -> float:
    """Return the host-hours from the third day to the last arrival under policies that decide from their time on."""
    cluster, by_name = cluster_of(one, 120), {request.name: request for request in one.requests}
    where: dict[str, tuple[int, int]] = {}
    host_s, last = 0.0, LEAST_DAYS * DAY_S
    for at_s, kind, name, _ in events(one):
        if at_s > last:
            host_s, last = host_s + (at_s - last) * cluster.open_hosts, at_s
        cluster.lives.predict(at_s)
        if kind == "release":
            cluster.release(*where.pop(name))
            cluster.lives.end(name, at_s)
            continue
        request = by_name[name]
        app = cluster.application(request.application)
        cluster.saw(request.count)
        cluster.declare(request.lifetime_s, at_s)
        policy = next(policy for begin, policy in reversed(plan) if begin <= at_s)
        choice = choose(cluster, policy, app, request.count)
        assert choice is not None, "hosts have no bound, and each request is one container"
        cluster.place(choice.host, app, name)
        where[name] = choice.host, app
    return host_s / HOUR_S


def followed_fillings() -> dict[str, float]:
    """Return the mean hosts of the third filling by the policy that began, and by the advised one."""
    policies = bundled(read_policy(SHIPPED))
    figures: dict[str, float] = {}
    for start in ("lifetime", "bf", "wf", "learned"):
        hosts: list[tuple[float, float]] = []
        spoke = 0
        for pair in ADVICE_FILLINGS:
            one, other, next_one = (small(seed) for seed in pair)
            better = better_by_fillings(replayed_fillings([one, other], policies), start)
            spoke += bool(better)
            placed = replayed_fillings([next_one], {name: policies[name] for name in {start, better or start}})
            hosts.append((placed[start].costs[0], placed[better or start].costs[0]))
        stayed, followed = np.array(hosts).T
        figures |= {
            f"fillings_{start}_hosts": float(stayed.mean()),
            f"fillings_{start}_followed_hosts": float(followed.mean()),
            f"fillings_{start}_spoke": float(spoke),
            f"fillings_{start}_wrong": float((followed > stayed).sum()),
        }
    return figures


def _interval(ratios: Any, stretches: Sequence[object]) -> tuple[float, float]:
    """Return the bootstrap 95 % interval of the mean over stretches."""
    by_stretch = [float(ratios[[one == stretch for one in stretches]].mean()) for stretch in dict.fromkeys(stretches)]
    draws = np.random.default_rng(7).choice(by_stretch, (2000, len(by_stretch)))
    low, high = np.percentile(draws.mean(axis=1), (2.5, 97.5)).tolist()
    return low, high


def decisions(runs: int, hosts: int, each: int = 15, number: int = 500) -> dict[str, float]:
    """Measure the agent's decisions and refreshes on a pool of open hosts with `each` containers, in CPU time.

    A decision: declare the lifetime, choose with the reasons and the check of the constraints, make the record of the
    answer, and hold the reservation. The write to the ledger is not in it.
    """
    draws, now = np.random.default_rng(1993), 1_790_000_000.0
    document = {
        "version": 1,
        "host_types": [{"name": "large", "cores": 96, "memory_gib": 512, "disk_gb": 3000, "count": hosts}],
        "applications": [{"id": "one", "cores": 4, "memory_gib": 8, "disk_gb": 60}],
    }
    sums = first_sums()
    for x in draws.normal(8.0, 1.5, 2000).tolist():
        learn(sums, x, x + 0.5 * draws.standard_normal())
    held = {}
    for host, hint in enumerate(np.exp(draws.normal(8.0, 1.5, hosts)).tolist(), 1):
        places = {str(k): f"large-{host}" for k in range(each)}
        one = Reservation(f"r{host}", "one", "", now, Stage.CONFIRMED, now, places, lifetime_s=hint, began=now - 60.0)
        held[one.request_id] = one
    book = Book(PoolState(PoolHead(sums=tuple(sums.tolist())), None, document, {}, held))
    # A busy machine could replace the policy by best fit, which is another decision.
    settings = PlacementSettings(policy="lifetime", decide_within_ms=10_000.0)
    chooser = Chooser("main", settings, ModelsDirectory(Path("none"), None))
    book.cluster.lives.predict(now)
    processor, refreshes = [], []
    for k in range(number):
        request = PlaceRequest("main", f"new{k}", "one", lifetime_s=float(np.exp(draws.normal(8.0, 1.5))))
        keys = [(request.request_id, 0)]
        began = time.thread_time()
        hint = request.hint(book.application("one"), now)
        book.cluster.declare(hint[0], now)
        chosen = chooser.place(book.cluster, "one", keys, partial=False, spare=book.spare)
        made = decision_on(
            *(request, chosen, book, now, k + 1, 1), hint=hint, confirm_within_s=300.0, pending=float, began=0.0
        )
        book.take(reservation_of(request, made))
        processor.append(1e3 * (time.thread_time() - began))
        assert made.policy == "lifetime", "best fit decided"
        assert made.containers, "nothing was placed"
        book.drop(request.request_id)
        take_back(book.cluster, chosen.choices, 0, keys)
    for k in range(max(runs, 3)):
        began = time.thread_time()
        book.cluster.lives.predict(now + 60.0 * (k + 1))
        refreshes.append(1e3 * (time.thread_time() - began))
    return {"decision_p99_ms": float(np.percentile(processor, 99)), "refresh_ms": statistics.median(refreshes)}


if __name__ == "__main__":
    sys.exit(main())
