"""Futures: kinds mixed by the law of total variance, sums that do not drift, renewal when the rule asks for it."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.admission.book import REBUILD, Book, horizons_of
from agent.admission.deployments import Deployment, Stage
from agent.admission.futures import DeploymentStatistics, futures, label_weights
from agent.admission.records import Prior
from domain.rules.admission.cluster import Moments
from domain.rules.admission.population import POPULATIONS
from tests.agent.admission.clusters import HOUR_S, SEEN, START, rules

K = POPULATIONS["K"]
HORIZONS_H = horizons_of(rules())[::6]
FRESH = DeploymentStatistics(4.0, 0.0, 0.0, 0.0, 0.0, 3.0, 1.0)
AMOUNTS = st.integers(0, 20)
PRIORS = st.builds(
    Prior,
    deaths=AMOUNTS,
    core_hours=st.floats(1.0, 1e5),
    scale_outs=AMOUNTS,
    gap_hours=st.floats(0.0, 1e4),
    extra_cores=AMOUNTS,
    size_draws=AMOUNTS,
    weight=st.floats(0.1, 10.0),
)


def deployment(name: str, cores: int = 4, age_h: float = 10.0, **fields: Any) -> Deployment:
    since = START - age_h * HOUR_S
    return Deployment(name, Stage.LIVE, cores, since, since, extra_cores=cores - 1, **fields)


class TestAMixtureOfKinds:
    @pytest.mark.exhaustive
    @settings(max_examples=25, deadline=None)
    @given(kinds=st.lists(PRIORS, min_size=2, max_size=4))
    def test_has_the_moments_that_its_parts_and_weights_give(self, kinds: list[Prior]) -> None:
        priors = tuple(kinds)
        weights = np.array([label.weight for label in label_weights(K, FRESH, priors)])
        parts = futures(K, [FRESH] * len(priors), [(prior,) for prior in priors], HORIZONS_H, Moments.AB_FAST)
        mixed = futures(K, [FRESH], [priors], HORIZONS_H, Moments.AB_FAST)
        share = weights[:, None]
        mean = (share * parts.mean).sum(axis=0)
        between = (share * (parts.mean - mean) ** 2).sum(axis=0)
        within = (share * parts.variance).sum(axis=0)
        assert weights.sum() == pytest.approx(1.0)
        # Two terms that nearly cancel leave the last digits to the order of the additions.
        np.testing.assert_allclose(mixed.mean[0], mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(mixed.variance[0], within + between, rtol=1e-6, atol=1e-6)
        assert np.all(mixed.variance[0] >= within * (1.0 - 1e-6) - 1e-6)
        raw = parts.third + 3.0 * parts.variance * parts.mean + parts.mean**3
        third = (share * raw).sum(axis=0) - 3.0 * mean * mixed.variance[0] - mean**3
        np.testing.assert_allclose(mixed.third[0], third, rtol=1e-5, atol=1e-3)

    def test_of_one_kind_twice_is_that_kind(self) -> None:
        from dataclasses import replace

        twice = (replace(SEEN, label="a"), replace(SEEN, label="b"))
        mixed = futures(K, [FRESH], [twice], HORIZONS_H, Moments.AB)
        alone = futures(K, [FRESH], [(SEEN,)], HORIZONS_H, Moments.AB)
        np.testing.assert_allclose(mixed.mean, alone.mean, rtol=1e-12)
        np.testing.assert_allclose(mixed.variance, alone.variance, rtol=1e-9)

    def test_weights_what_the_deployment_showed_by_each_kind_s_chance_of_it(self) -> None:
        # Kinds that differ in their sizes only: then the chance of the first size is a closed form.
        small = Prior(core_hours=1.0, extra_cores=2, size_draws=20, label="small")
        large = Prior(core_hours=1.0, extra_cores=200, size_draws=20, label="large")

        def log_chance(prior: Prior, extra: float) -> float:
            shape, rate = K.sig_shape + prior.extra_cores, K.sig_rate + prior.size_draws
            grown = math.lgamma(shape + extra) - math.lgamma(shape)
            return grown + shape * math.log(rate) - (shape + extra) * math.log(rate + 1.0)

        odds = math.exp(log_chance(large, 3.0) - log_chance(small, 3.0))
        found = label_weights(K, FRESH, (small, large))
        assert [label.label for label in found] == ["small", "large"]
        assert found[1].weight / found[0].weight == pytest.approx(odds, rel=1e-9)

    def test_learns_which_kind_it_is_from_what_happens(self) -> None:
        quick = Prior(deaths=20, core_hours=20.0, label="quick")
        slow = Prior(deaths=20, core_hours=20_000.0, label="slow")
        after_long = DeploymentStatistics(4.0, 0.0, 2000.0, 0.0, 500.0, 3.0, 1.0)
        before, after = (label_weights(K, seen, (quick, slow))[1].weight for seen in (FRESH, after_long))
        assert before == pytest.approx(0.5)
        assert after > 0.999


class TestABook:
    @settings(max_examples=20, deadline=None)
    @given(
        changes=st.lists(
            st.tuples(st.integers(0, 9), st.sampled_from(["put", "grow", "end", "refresh"]), st.integers(1, 30)),
            max_size=40,
        )
    )
    def test_keeps_its_sums_equal_to_what_is_added_up_anew(self, changes: list[tuple[int, str, int]]) -> None:
        book, now = Book(rules(moments=Moments.NA)), START
        for number, what, cores in changes:
            name = f"d{number}"
            if what == "refresh":
                now += cores * HOUR_S
                book.refresh(now)
            elif what == "end":
                if name in book.known:
                    book.put(Deployment(name, Stage.GONE, 0, START, now))
            else:
                book.put(deployment(name, cores))
        held = [book.sums.mean.copy(), book.sums.variance.copy(), book.sums.third.copy()]
        assert book.total == sum(found.cores for found in book.known.values())
        assert len(book) == sum(found.counts for found in book.known.values())
        book.add_up()
        for before, after in zip(held, (book.sums.mean, book.sums.variance, book.sums.third), strict=True):
            np.testing.assert_allclose(before, after, rtol=1e-9, atol=1e-6)

    @pytest.mark.exhaustive
    def test_adds_its_sums_up_anew_after_a_number_of_changes(self) -> None:
        book = Book(rules(moments=Moments.NA), [deployment("a")])
        book.refresh(START)
        book.sums.mean[:] += 1.0
        for _ in range(REBUILD - 2):
            book.refresh(START, all_of_them=True)
        spoilt = book.sums.mean[0]
        book.refresh(START, all_of_them=True)
        assert book.sums.mean[0] == pytest.approx(spoilt - 1.0)

    def test_never_expects_less_with_one_more_inside(self) -> None:
        book = Book(rules(), [deployment("a", 9), deployment("b", 3)])
        book.refresh(START)
        mean, variance = book.sums.mean.copy(), book.sums.variance.copy()
        book.put(deployment("c", 1))
        book.refresh(START)
        assert np.all(book.sums.mean >= mean)
        assert np.all(book.sums.variance >= variance)

    def test_grows_beyond_its_first_slots_and_uses_free_ones_again(self) -> None:
        book = Book(rules(moments=Moments.NA), [deployment(f"d{n}") for n in range(200)])
        assert book.refresh(START) == 200
        for n in range(150):
            book.put(Deployment(f"d{n}", Stage.GONE, 0, START, START))
        for n in range(300, 420):
            book.put(deployment(f"d{n}"))
        assert len(book) == 170
        assert book.refresh(START) == 120
        one = futures(K, [DeploymentStatistics(4.0, 0.0, 40.0, 0.0, 10.0, 3.0, 1.0)], [()], book.horizons_h, Moments.NA)
        np.testing.assert_allclose(book.sums.mean, 170 * one.mean[0], rtol=1e-9)


def test_one_that_has_not_started_is_expected_to_do_what_it_was_admitted_for() -> None:
    since = START - 5 * HOUR_S
    waiting = Deployment("a", Stage.RESERVED, 20, since, since, extra_cores=19)
    book = Book(rules(), [waiting])
    assert book.refresh(START) == 1
    np.testing.assert_allclose(book.sums.mean, book.newcomer(20, ()).mean[0], rtol=1e-12)
    assert book.refresh(START + 100 * HOUR_S) == 0


class TestRenewal:
    def renewed(self, after_h: float = 0.0, cores: int = 20, **changes: Any) -> bool:
        book = Book(rules(moments=Moments.NA, **changes), [deployment("a", 20, age_h=10.0)])
        book.refresh(START)
        if cores != 20:
            book.put(deployment("a", cores, age_h=10.0))
        return book.refresh(START + after_h * HOUR_S) == 1

    def test_waits_while_less_than_a_tenth_of_its_age_has_passed(self) -> None:
        # Elapsed > 0.1 (age + 0.1 h), the age being that at the decision.
        assert not self.renewed(1.1)
        assert self.renewed(1.13)

    def test_waits_while_its_size_changed_by_less_than_a_tenth(self) -> None:
        assert not self.renewed(cores=22)
        assert self.renewed(cores=23)
        assert self.renewed(cores=17)

    def test_waits_while_its_size_changed_by_no_more_than_the_dead_band(self) -> None:
        assert not self.renewed(cores=24, dead_band_cores=4.0)
        assert self.renewed(cores=25, dead_band_cores=4.0)

    def test_never_waits_without_tolerance(self) -> None:
        assert self.renewed(tolerance=0.0)
