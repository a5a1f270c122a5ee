"""The lives of containers in the engine, for `lifetime`: the remaining life of each host, and the calibration of hints.

Containers of a host are a list, linked in both directions. The remaining life of a host is predicted again when one of
its containers comes or ends, and for every host once a minute.
"""

from __future__ import annotations

import math

from domain.rules.placement import lifetimes
from domain.units import MINUTE_S
from simulator.compilation import borrowing, inlined
from simulator.placement.choosing import Arrays, State, life_left

NOW, REFRESHED, HINT, AGE = range(4)
"""Places in `State.clock`: seconds now and of the last prediction for every host; of the container to be placed ln L,
nan for none, and the seconds since its begin."""

fit = inlined(lifetimes.fit)
learn = inlined(lifetimes.learn)


@borrowing
def predict(arrays: Arrays, state: State, h: int) -> None:
    """Predict when the last container with a hint of a host ends: `State.ends`, the longest of the lives left."""
    a, b, residual, _ = fit(state.sums)
    now, longest, number = state.clock[NOW], 0.0, state.first[h]
    while number >= 0:
        hint = arrays.hint[number]
        if not math.isnan(hint):
            longest = max(longest, float(life_left(a + b * hint, residual, now - state.began[number])))
        number = state.after[number]
    state.ends[h] = now + longest


@borrowing
def last_of(arrays: Arrays, state: State, h: int) -> tuple[int, float, float]:
    """Return the container that ends last on a host, the seconds left of it, and of the one before, 0 for none.

    The container is -1 on a host on which one has no hint.
    """
    a, b, residual, _ = fit(state.sums)
    last, longest, second, number = -1, 0.0, 0.0, state.first[h]
    while number >= 0:
        hint = arrays.hint[number]
        if math.isnan(hint):
            return -1, 0.0, 0.0
        left = float(life_left(a + b * hint, residual, state.clock[NOW] - state.began[number]))
        if left > longest:
            last, longest, second = number, left, longest
        else:
            second = max(second, left)
        number = state.after[number]
    return last, longest, second


@borrowing
def predict_all(arrays: Arrays, state: State) -> None:
    """Predict every host again, once a minute."""
    if state.clock[NOW] - state.clock[REFRESHED] < MINUTE_S:
        return
    state.clock[REFRESHED] = state.clock[NOW]
    for h in range(len(state.first)):
        if state.first[h] >= 0:
            predict(arrays, state, h)


@borrowing
def begin(arrays: Arrays, state: State, number: int, h: int) -> None:
    """Put a container at the head of the list of its host; one that was moved keeps its begin."""
    if math.isnan(state.began[number]):
        state.began[number] = state.clock[NOW]
    head = state.first[h]
    state.before[number], state.after[number] = -1, head
    if head >= 0:
        state.before[head] = number
    state.first[h] = number
    predict(arrays, state, h)


@borrowing
def leave(arrays: Arrays, state: State, number: int, h: int) -> None:
    """Take a container from the list of its host."""
    before, after = state.before[number], state.after[number]
    if before >= 0:
        state.after[before] = after
    else:
        state.first[h] = after
    if after >= 0:
        state.before[after] = before
    predict(arrays, state, h)


@borrowing
def end(arrays: Arrays, state: State, number: int, h: int) -> None:
    """Let a container end, and learn from its hint."""
    hint = arrays.hint[number]
    if not math.isnan(hint):
        life = state.clock[NOW] - state.began[number]
        learn(state.sums, hint, math.log(max(life, lifetimes.LEAST_LEFT_S)))
    leave(arrays, state, number, h)
