"""Survival curves: a case by hand, a brute force without a library, and censored containers."""

from __future__ import annotations

import numpy as np
import pytest

from domain.rules.placement.survival import AGES_S, PSEUDO, survival


def test_a_case_by_hand() -> None:
    # Two applications of one class: of `a` one ends after 30 s and one lives at 70 s, of `b` one ends after 70 s.
    found = survival(np.array([30.0, 70.0, 70.0]), np.array([True, False, True]), np.array([0, 0, 1]), np.array([0, 0]))
    # To 60 s: 1 of 3 ends. To 78 s: 1 of 1, since the living one is not followed to 78 s.
    first = (1.0 + 10.0 / 3.0) / 13.0
    assert found[0, 0] == pytest.approx(1.0 - (1.0 + 10.0 * first) / 12.0)
    assert found[1, 0] == pytest.approx(1.0 - (10.0 * first) / 11.0)
    # The hazard of the class is (1 + 10) / 11 = 1: shrunk to it, both end.
    assert found[0, 1] == found[1, 1] == 0.0


def test_without_containers_nothing_ends() -> None:
    none = np.zeros(0)
    found = survival(none, none.astype(bool), none.astype(np.int64), np.array([0]))
    assert (found == 1.0).all()


def test_an_end_at_an_age_of_the_grid_is_before_it_and_a_living_one_is_followed_to_it() -> None:
    ages = np.array([AGES_S[3], AGES_S[3]])
    found = survival(ages, np.array([True, False]), np.array([0, 0]), np.array([0]))
    assert (found[0, :3] == 1.0).all()
    assert found[0, 3] == pytest.approx(0.5)


def by_loops(age_s: list[float], ended: list[bool], group: list[int], parent: list[int]) -> list[list[float]]:
    """The same by counting, one hazard at a time."""

    def counted(members: list[int], k: int) -> tuple[int, int]:
        low = 0.0 if k == 0 else float(AGES_S[k - 1])
        high = float(AGES_S[k])
        dead = sum(ended[i] and low < age_s[i] <= high for i in members)
        alive = sum(age_s[i] > high or (age_s[i] == high and not ended[i]) for i in members)
        return dead, dead + alive

    everyone = list(range(len(age_s)))
    curves = []
    for g, of in enumerate(parent):
        share, curve = 1.0, []
        for k in range(AGES_S.size):
            dead, followed = counted(everyone, k)
            hazard = dead / followed if followed else 0.0
            for members in ([i for i in everyone if parent[group[i]] == of], [i for i in everyone if group[i] == g]):
                dead, followed = counted(members, k)
                hazard = (dead + PSEUDO * hazard) / (followed + PSEUDO)
            share *= 1.0 - hazard
            curve.append(share)
        curves.append(curve)
    return curves


@pytest.mark.parametrize("seed", range(3))
def test_is_that_of_a_brute_force(seed: int) -> None:
    draws = np.random.default_rng(seed)
    age_s = np.exp(draws.normal(8.0, 3.0, 200))
    # Some ages lie on the grid, and some beyond it.
    age_s[:20] = draws.choice(AGES_S, 20)
    age_s[20:23] = 2.0 * AGES_S[-1]
    ended, group, parent = draws.random(200) < 0.6, draws.integers(0, 4, 200), np.array([0, 1, 0, 2, 2])
    found = survival(age_s, ended, group, parent)
    assert found == pytest.approx(np.array(by_loops(age_s.tolist(), ended.tolist(), group.tolist(), parent.tolist())))
