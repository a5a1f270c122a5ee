"""Forecast of left-over capacity by hours: its distribution some steps ahead (deferrable-job specification §10.3).

The parts are fitted to recorded hours, and each can be read in the file of a forecast.

- Calendar: a level for each hour of the week. Means of hour and kind of day are corrected by the mean of the hour of
  the week as far as there are weeks for it.
- Drops: hours in which capacity falls to a fraction of its level, at fixed hours or at any. A drop begins with a
  chance by the hour of the day, goes on with a chance by its age, and leaves a fraction that depends on the hour.
- Noise: what is left over is an AR(1) process, x' = phi x + e. k steps ahead it has mean phi^k x and the spread
  sigma sqrt((1 - phi^2k) / (1 - phi^2)), times a factor by the hour of the day.
- Quantiles: conformal. The residuals, divided by that spread, are kept by the number of steps ahead; they come from
  weeks that the calendar of the fold did not see, and only from the newest 28 days where a limit is given.

The distribution k steps ahead mixes the two: with the chance p_k of a drop the fraction of what it would be without
one. A low quantile thus has the full depth of a drop that recurs, and the noise alone at other hours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.units import HOURS_PER_DAY, HOURS_PER_WEEK

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

WEEKEND_H = 120
"""Hours of the week count from Monday 0:00; the weekend begins at this one."""
AHEAD = 24
"""Steps ahead for which residuals are kept; beyond them those of the last one serve."""
CALIBRATION_H = 28 * HOURS_PER_DAY
"""The newest hours whose residuals make the quantiles of an agent's forecast."""
LEAST_H = 2 * HOURS_PER_DAY
"""A forecast needs this many hours."""
LONGEST_DROP = 12
"""Ages of a drop that are told apart."""
ASSUMED = 0.1
"""A drop with at least this chance is assumed to happen where one path is asked for: revenue 1 over the charge 10."""
LEVELS: Floats = np.arange(1, 40) / 40.0
"""The quantiles of residuals that are kept."""
_FOLDS = 4
_CELL_WEEKS = 4.0
"""Weeks after which the mean of an hour of the week counts as much as that of its hour and kind of day."""
_SCALE_HOURS = 20.0
_RATE_HOURS = 10.0
_OFTEN = 0.25
"""Hours of the day in which drops begin more often than this say nothing about the others."""
_OUTLIER = 3.5
_DEEP = 0.85
"""A drop leaves at most this fraction."""
VERSION = 1


class History(NamedTuple):
    """Recorded hours: the hour of the week of the first one, and capacities (T,), NaN where none is known."""

    begin: int
    capacity: NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """A fitted forecast.

    level (168): capacity without a drop by hour of the week. phi, sigma: of the noise. scale (24): factor of the spread
    by hour of the day. enter (24): chance that a drop begins; stay (12): that it goes on, by its age less 1; depth
    (24): fraction that it leaves. residuals (24, 39): of the noise in spreads, by steps ahead and LEVELS. hours: fitted
    to so many.
    """

    level: Floats
    phi: float
    sigma: float
    scale: Floats
    enter: Floats
    stay: Floats
    depth: Floats
    residuals: Floats
    hours: int

    def spread(self, hour: int, steps: int) -> Floats:
        """Return the standard deviation of the noise (steps,) after the hour of the week `hour`."""
        k = np.arange(1, steps + 1)
        return self._spread(k) * self.scale[(hour + k) % HOURS_PER_DAY]

    def _spread(self, k: Ints) -> Floats:
        grown = (1.0 - self.phi ** (2.0 * k)) / (1.0 - self.phi**2)
        return np.asarray(self.sigma * np.sqrt(grown), dtype=np.float64)

    def chances(self, capacity: NDArray[Any], hour: int, steps: int) -> Floats:
        """Return the chance of a drop (steps,) after capacities up to now; hour: of the week, of the last of them."""
        return self._chances(self._age(np.asarray(capacity, dtype=np.float64), hour), hour, steps)

    def quantiles(self, capacity: NDArray[Any], hour: int, steps: int, levels: Sequence[float] | Floats) -> Floats:
        """Return quantiles of capacity (levels, steps) for the steps after now, at least 0.

        capacity: known up to now, (n,), the last day is enough; hour: of the week, of the last of them.
        """
        values, weights = self._atoms(capacity, hour, steps)
        order = np.argsort(values, axis=1, kind="stable")
        sorted_values = np.take_along_axis(values, order, axis=1)
        below = np.cumsum(np.take_along_axis(weights, order, axis=1), axis=1)
        wanted = np.asarray(levels, dtype=np.float64)
        place = (below[None] < wanted[:, None, None] - 1e-12).sum(axis=2).clip(0, values.shape[1] - 1)
        return np.take_along_axis(sorted_values.T, place, axis=0).clip(0.0)

    def path(
        self,
        capacity: NDArray[Any],
        hour: int,
        steps: int,
        *,
        quantile: float | None = None,
        margin: float = 0.0,
    ) -> Floats:
        """Return one course of capacity (steps,): a quantile of each step, or the level less `margin` spreads.

        The latter has the mean noise, and a drop wherever its chance is at least ASSUMED.
        """
        if quantile is not None:
            return np.asarray(self.quantiles(capacity, hour, steps, [quantile])[0], dtype=np.float64)
        mean, fraction, chance = self._parts(capacity, hour, steps)
        path = mean - margin * self.spread(hour, steps)
        return np.asarray(np.where(chance >= ASSUMED, path * fraction, path).clip(0.0), dtype=np.float64)

    def mean(self, capacity: NDArray[Any], hour: int, steps: int) -> Floats:
        """Return the mean (steps,), in which a drop counts with its chance."""
        mean, fraction, chance = self._parts(capacity, hour, steps)
        return np.asarray((mean * (1.0 - chance * (1.0 - fraction))).clip(0.0), dtype=np.float64)

    def as_document(self) -> dict[str, Any]:
        """Return it as JSON data."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": "deferral-forecast", "version": VERSION} | {
            name: np.round(value, 6).tolist() if isinstance(value, np.ndarray) else value for name, value in own.items()
        }

    @classmethod
    def parse(cls, document: object, name: str = "forecast") -> Self:
        """Return the forecast of JSON data. Raises BadInput, which names the field."""
        if not isinstance(document, Mapping):
            raise BadInput(name, document, "give the JSON object of a forecast")
        if document.get("kind") != "deferral-forecast" or document.get("version") != VERSION:
            wrong = (document.get("kind"), document.get("version"))
            raise BadInput(f"{name}.version", wrong, f"give a deferral-forecast of version {VERSION}")
        values = {field.name: _checked(field.name, document.get(field.name), name) for field in fields(cls)}
        return cls(**values)

    def _parts(self, capacity: NDArray[Any], hour: int, steps: int) -> tuple[Floats, Floats, Floats]:
        """Return mean without a drop, the fraction that one leaves, and its chance, each (steps,)."""
        known = np.asarray(capacity, dtype=np.float64)
        age = self._age(known, hour)
        k = np.arange(1, steps + 1)
        mean = self.level[(hour + k) % HOURS_PER_WEEK] + self.phi**k * self._noise(known, hour, age)
        return mean, self.depth[(hour + k) % HOURS_PER_DAY], self._chances(age, hour, steps)

    def _atoms(self, capacity: NDArray[Any], hour: int, steps: int) -> tuple[Floats, Floats]:
        """Return the values of the distributions and their weights, both (steps, 78)."""
        mean, fraction, chance = self._parts(capacity, hour, steps)
        ahead = np.arange(steps).clip(0, AHEAD - 1)
        usual = mean[:, None] + self.spread(hour, steps)[:, None] * self.residuals[ahead]
        values = np.concatenate([usual, usual * fraction[:, None]], axis=1)
        share = np.repeat(np.stack([1.0 - chance, chance], axis=1), len(LEVELS), axis=1) / len(LEVELS)
        return values, share

    def _drops(self, known: Floats, hour: int) -> Bools:
        hours = (hour - np.arange(len(known))[::-1]) % HOURS_PER_WEEK
        wide = np.where(self.enter >= _OFTEN, 0.0, self._wide())
        return _below(known, hours, self.level, self.depth, wide)

    def _wide(self) -> float:
        return self.sigma / math.sqrt(1.0 - self.phi**2)

    def _age(self, known: Floats, hour: int) -> int:
        """Return for how many steps a drop has lasted, 0 for none."""
        if not (self.enter > 0.0).any():
            return 0
        flags = self._drops(known[-LONGEST_DROP:], hour)
        return len(flags) if flags.all() else int(np.argmin(flags[::-1]))

    def _noise(self, known: Floats, hour: int, age: int) -> float:
        """Return the noise now, x; 0 where the capacity now is not known."""
        if len(known) == 0 or not math.isfinite(known[-1]):
            return 0.0
        whole = known[-1] / self.depth[hour % HOURS_PER_DAY] if age else known[-1]
        wide = 4.0 * self._wide()
        return float(np.clip(whole - self.level[hour % HOURS_PER_WEEK], -wide, wide))

    def _chances(self, age: int, hour: int, steps: int) -> Floats:
        state = np.zeros(LONGEST_DROP + 1)
        state[min(age, LONGEST_DROP)] = 1.0
        found = np.empty(steps)
        for k in range(1, steps + 1):
            enter = self.enter[(hour + k) % HOURS_PER_DAY]
            going = state[1:] * self.stay
            state = np.concatenate(([state[0] * (1.0 - enter) + (state[1:] - going).sum(), state[0] * enter], going))
            state[-2] += state[-1]
            state = state[:-1]
            found[k - 1] = state[1:].sum()
        return found


def fit(histories: Sequence[History], *, calibration_h: int | None = None) -> Forecast:
    """Return the forecast of recorded hours.

    calibration_h: take residuals from so many newest hours alone (CALIBRATION_H in an agent). Raises BadInput for
    fewer known hours than LEAST_H, for an hour of the week outside 0 to 167, or a capacity below 0.
    """
    pieces = [_checked_history(one) for one in histories]
    known = sum(int(np.isfinite(values).sum()) for _, values in pieces)
    if known < LEAST_H:
        raise BadInput("history", known, f"a forecast needs at least {LEAST_H} known hours")
    weeks = [(hours[k : k + HOURS_PER_WEEK], values[k : k + HOURS_PER_WEEK]) for hours, values in pieces
             for k in range(0, len(values), HOURS_PER_WEEK)]  # fmt: skip
    shape = _shape(pieces)
    folds = min(_FOLDS, len(weeks))
    spared = []
    for fold in range(folds):
        others = [week for k, week in enumerate(weeks) if k % folds != fold]
        enough = sum(int(np.isfinite(values).sum()) for _, values in others) >= LEAST_H
        spared.append(_shape(others).level if enough else shape.level)
    levels = [spared[k % folds] for k in range(len(weeks))]
    return _with_noise(shape, weeks, levels, known, calibration_h)


class _Shape(NamedTuple):
    level: Floats
    depth: Floats
    enter: Floats
    stay: Floats
    wide: Floats


def _checked_history(one: History) -> tuple[Ints, Floats]:
    values = np.asarray(one.capacity, dtype=np.float64)
    if not 0 <= one.begin < HOURS_PER_WEEK:
        raise BadInput("history.begin", one.begin, "give the hour of the week, 0 to 167")
    if values.ndim != 1 or (values < 0).any() or np.isinf(values).any():
        raise BadInput("history.capacity", values.shape, "give one finite capacity of at least 0 an hour, or NaN")
    return (one.begin + np.arange(len(values))) % HOURS_PER_WEEK, values


def _group(hours: Ints) -> Ints:
    """Return hour of the day and kind of day as one number, 0 to 47."""
    return np.asarray(hours % HOURS_PER_DAY + HOURS_PER_DAY * (hours >= WEEKEND_H), dtype=np.int64)


def _below(values: Floats, hours: Ints, level: Floats, depth: Floats, wide: Floats) -> Bools:
    """Return which values lie nearer to what a drop leaves than to the level, and by `wide` (24) below that."""
    own = level[hours]
    middle = own * (1.0 + depth[hours % HOURS_PER_DAY]) / 2.0
    limit = np.where(depth[hours % HOURS_PER_DAY] < 1.0, middle, -np.inf)
    return np.asarray(
        np.nan_to_num(values, nan=np.inf) < np.minimum(limit, own - wide[hours % HOURS_PER_DAY]), dtype=np.bool_
    )


def _shape(pieces: Sequence[tuple[Ints, Floats]]) -> _Shape:
    hours = np.concatenate([own for own, _ in pieces])
    values = np.concatenate([own for _, own in pieces])
    there = np.isfinite(values)
    base, low, spread = _groups(hours[there], values[there])
    found = np.isfinite(low)
    fraction = float(np.nanmedian(low / base)) if found.any() else 1.0
    depth = np.full(HOURS_PER_DAY, fraction)
    level = base[_group(np.arange(HOURS_PER_WEEK))]
    # Where drops recur, what is nearer to a drop is one; at other hours it must be no usual noise either.
    recurs = found[:HOURS_PER_DAY] | found[HOURS_PER_DAY:]
    wide = np.where(recurs, 0.0, _OUTLIER * spread)
    flags = [_below(own, at, level, depth, wide) for at, own in pieces]
    dropped = np.concatenate(flags)
    # An hour of its own depth: a planned drop and a rare burst may differ.
    for hour in range(HOURS_PER_DAY):
        mine = dropped & (hours % HOURS_PER_DAY == hour)
        if mine.any():
            number = float(mine.sum())
            own = float((values[mine] / level[hours[mine]]).mean())
            depth[hour] = (number * own + _RATE_HOURS * fraction) / (number + _RATE_HOURS)
    usual = there & ~dropped
    residual = values[usual] - level[hours[usual]]
    count = np.bincount(hours[usual], minlength=HOURS_PER_WEEK)
    total = np.bincount(hours[usual], weights=residual, minlength=HOURS_PER_WEEK)
    level = level + total / (count + _CELL_WEEKS)
    enter, stay = _chain(pieces, flags)
    return _Shape(np.maximum(level, 0.0), np.clip(depth, 0.02, 1.0), enter, stay, wide / _OUTLIER)


def _groups(hours: Ints, values: Floats) -> tuple[Floats, Floats, float]:
    """Return level and mean of a drop (NaN without one), both (48,), by hour and kind of day, and the usual spread."""
    group = _group(hours)
    base, low, variances = np.full(2 * HOURS_PER_DAY, np.nan), np.full(2 * HOURS_PER_DAY, np.nan), []
    sorted_values = [np.sort(values[group == number]) for number in range(2 * HOURS_PER_DAY)]
    clear = np.array([_cut(own) > 0 for own in sorted_values])
    for number, own in enumerate(sorted_values):
        if own.size:
            # An hour with clear drops on working days has them at weekends too, of which fewer are known.
            cut = _cut(own, apart=0.7 if clear[(number + HOURS_PER_DAY) % (2 * HOURS_PER_DAY)] else 1.0)
            base[number] = own[cut:].mean()
            if cut:
                low[number] = own[:cut].mean()
            if own.size - cut > 1:
                variances.append(own[cut:].var(ddof=1))
    for number in np.flatnonzero(np.isnan(base)).tolist():
        # An hour that was never seen: the same hour of the other kind of day, else the mean of all.
        other = base[(number + HOURS_PER_DAY) % (2 * HOURS_PER_DAY)]
        base[number] = other if math.isfinite(other) else values.mean()
    return base, low, math.sqrt(float(np.median(variances))) if variances else 0.0


def _cut(values: Floats, apart: float = 1.0) -> int:
    """Return how many of the sorted values belong to a drop: 0 unless two groups lie clearly apart.

    The cut leaves the least variance within both parts (Otsu). They lie apart where their means differ by three
    pooled standard deviations, and more where there are few values: parts of one normal distribution have 2.7. apart:
    a factor of that.
    """
    n = values.size
    if n < 4:
        return 0
    left = np.arange(1, n)
    sums, squares = np.cumsum(values)[:-1], np.cumsum(values**2)[:-1]
    rest, rest_squares = values.sum() - sums, (values**2).sum() - squares
    within = squares - sums**2 / left + rest_squares - rest**2 / (n - left)
    cut = int(np.argmin(within)) + 1
    low, high = float(values[:cut].mean()), float(values[cut:].mean())
    deviation = math.sqrt(max(float(within[cut - 1]), 0.0) / max(1, n - 2))
    return cut if low <= _DEEP * high and high - low > apart * (3.0 + 4.0 / math.sqrt(n)) * deviation else 0


def _chain(pieces: Sequence[tuple[Ints, Floats]], flags: Sequence[Bools]) -> tuple[Floats, Floats]:
    """Return the chance that a drop begins by hour of the day, and that it goes on by its age."""
    begun, could = np.zeros(HOURS_PER_DAY), np.zeros(HOURS_PER_DAY)
    went_on, aged = np.zeros(LONGEST_DROP), np.zeros(LONGEST_DROP)
    for (hours, values), own in zip(pieces, flags, strict=True):
        age = -1
        for k in range(len(own)):
            hour, now = int(hours[k]) % HOURS_PER_DAY, bool(own[k])
            if not math.isfinite(values[k]):
                age = -1
                continue
            if age == 0:
                could[hour] += 1
                begun[hour] += now
            elif age > 0:
                aged[min(age, LONGEST_DROP) - 1] += 1
                went_on[min(age, LONGEST_DROP) - 1] += now
            # How old a drop is that was there from the first hour on is not known.
            age = 0 if not now else age + 1 if age >= 0 else -1
    if not begun.any():
        return np.zeros(HOURS_PER_DAY), np.zeros(LONGEST_DROP)
    rate = begun / np.maximum(could, 1)
    seldom = rate < _OFTEN
    usual = float(begun[seldom].sum() / max(1.0, could[seldom].sum()))
    enter = (begun + _RATE_HOURS * usual) / (could + _RATE_HOURS)
    enter = np.where(rate >= _OFTEN, rate, enter)
    stay = np.zeros(LONGEST_DROP)
    for age in range(LONGEST_DROP):
        stay[age] = went_on[age] / aged[age] if aged[age] else (stay[age - 1] if age else 0.0)
    return enter, stay


def _with_noise(
    shape: _Shape,
    weeks: Sequence[tuple[Ints, Floats]],
    levels: Sequence[Floats],
    known: int,
    calibration_h: int | None,
) -> Forecast:
    """Return the forecast with the noise of weeks, each held to a level that was fitted without it."""
    noise, dropped = [], []
    for (hours, values), level in zip(weeks, levels, strict=True):
        flags = _below(values, hours, level, np.where(shape.enter.any(), shape.depth, 1.0), shape.wide)
        noise.append(np.where(flags, values / shape.depth[hours % HOURS_PER_DAY], values) - level[hours])
        dropped.append(flags)
    before = np.concatenate([x[:-1] for x in noise])
    after = np.concatenate([x[1:] for x in noise])
    usual = np.concatenate([~(d[:-1] | d[1:]) for d in dropped]) & np.isfinite(before) & np.isfinite(after)
    square = float((before[usual] ** 2).sum())
    phi = float(np.clip((before[usual] * after[usual]).sum() / square, 0.0, 0.98)) if square > 0.0 else 0.0
    error = after[usual] - phi * before[usual]
    sigma = float(error.std()) if error.size > 1 else 0.0
    sigma = max(sigma, 1e-6)
    clock = np.concatenate([hours[1:] for hours, _ in weeks])[usual] % HOURS_PER_DAY
    number = np.bincount(clock, minlength=HOURS_PER_DAY)
    square_by_hour = np.bincount(clock, weights=(error / sigma) ** 2, minlength=HOURS_PER_DAY)
    scale = np.sqrt((square_by_hour + _SCALE_HOURS) / (number + _SCALE_HOURS))
    blank = np.zeros((AHEAD, len(LEVELS)))
    bare = Forecast(shape.level, phi, sigma, scale, shape.enter, shape.stay, shape.depth, blank, known)
    newest = weeks if calibration_h is None else weeks[-max(1, math.ceil(calibration_h / HOURS_PER_WEEK)) :]
    first = len(weeks) - len(newest)
    residuals = np.empty_like(blank)
    for k in range(1, AHEAD + 1):
        wide = float(bare._spread(np.array(k)))
        own = [
            (x[k:] - phi**k * x[:-k]) / (wide * scale[hours[k:] % HOURS_PER_DAY])
            for x, (hours, _) in zip(noise[first:], newest, strict=True)
            if len(x) > k
        ]
        drawn = np.concatenate(own) if own else np.empty(0)
        drawn = np.sort(drawn[np.isfinite(drawn)])
        residuals[k - 1] = _conformal(drawn) if drawn.size >= len(LEVELS) else residuals[k - 2] if k > 1 else 0.0
    return Forecast(shape.level, phi, sigma, scale, shape.enter, shape.stay, shape.depth, residuals, known)


def _conformal(ordered: Floats) -> Floats:
    """Return the values of rank level (n + 1) of n sorted ones: a new one lies below with that chance."""
    rank = LEVELS * (ordered.size + 1) - 1.0
    return np.interp(rank, np.arange(ordered.size), ordered)


_SHAPES: dict[str, tuple[int, ...]] = {
    "level": (HOURS_PER_WEEK,),
    "scale": (HOURS_PER_DAY,),
    "enter": (HOURS_PER_DAY,),
    "stay": (LONGEST_DROP,),
    "depth": (HOURS_PER_DAY,),
    "residuals": (AHEAD, len(LEVELS)),
}
_RANGES: dict[str, tuple[float, float]] = {
    "phi": (0.0, 0.98),
    "sigma": (0.0, math.inf),
    "enter": (0.0, 1.0),
    "stay": (0.0, 1.0),
    "depth": (0.0, 1.0),
    "level": (0.0, math.inf),
    "scale": (0.0, math.inf),
    "hours": (0.0, math.inf),
}


def _checked(field: str, value: Any, name: str) -> Any:
    shape = _SHAPES.get(field, ())
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.full(1, np.nan)
    low, high = _RANGES.get(field, (-math.inf, math.inf))
    if array.shape != shape or not np.isfinite(array).all() or (array < low).any() or (array > high).any():
        size = " x ".join(map(str, shape)) or "one"
        raise BadInput(f"{name}.{field}", value, f"give {size} finite number(s) from {low:g} to {high:g}")
    return array if shape else int(array) if field == "hours" else float(array)
