"""The slice of the exhaustive stage that continuous integration runs."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.sample import OF_A_FILE_AT_A_TIME, sliced

NAMES = [f"{file}::test_{number}" for file in ("long.py", "mid.py", "short.py") for number in range(20)]


def test_a_seed_always_gives_the_same_order_and_another_seed_another() -> None:
    assert sliced("a", NAMES) == sliced("a", NAMES)
    assert sliced("a", NAMES) != sliced("b", NAMES)
    assert sorted(sliced("a", NAMES)) == sorted(NAMES)


def test_every_file_has_its_turn_before_one_has_a_second() -> None:
    files = [name.partition("::")[0] for name in sliced("a", NAMES)[: 3 * OF_A_FILE_AT_A_TIME]]
    assert set(Counter(files).values()) == {OF_A_FILE_AT_A_TIME}
    assert len([1 for one, other in itertools.pairwise(files) if one != other]) == 2, "one file after another"


def test_no_test_begins_when_the_time_is_up(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        from tests.sample import Slice

        @pytest.mark.parametrize("number", range(9))
        def test_it(number, request):
            (of_run,) = [one for one in request.config.pluginmanager.get_plugins() if isinstance(one, Slice)]
            of_run.until = 0.0
        """
    )
    monkeypatch.setenv("TESTS_SLICE", "c0ffee")
    monkeypatch.setenv("TESTS_SLICE_S", "600")
    result = pytester.runpytest_inprocess("-p", "tests.sample", "-p", "no:xdist", "-p", "no:schemathesis")
    result.stdout.fnmatch_lines(["slice c0ffee: 1 of 9 tests; again: make test-slice SEED=c0ffee"])
    assert "SEED=..." not in result.stdout.str(), "git names a commit"


def test_a_slice_in_which_no_test_ran_fails_and_a_seed_without_a_commit_is_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("def test_it(): pass")
    monkeypatch.setenv("TESTS_SLICE", "none")
    monkeypatch.setenv("TESTS_SLICE_S", "-1")
    result = pytester.runpytest_inprocess("-p", "tests.sample", "-p", "no:xdist", "-p", "no:schemathesis")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["slice none: 0 of 1 tests; *", "*SEED=...*"])


def test_an_exhaustive_test_that_no_slice_could_draw_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = exhaustive")
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.exhaustive
        @pytest.mark.timeout(301)
        def test_long(): pass
        """
    )
    result = pytester.runpytest_inprocess("-p", "tests.sample", "-p", "no:xdist", "-p", "no:schemathesis")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it.py::test_long"])
