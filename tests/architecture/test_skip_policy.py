"""What happens to a test whose system program is missing: skipped and listed here, a failure where it must be real."""

from pathlib import Path

import pytest

from tests.system_programs import SystemProgram, programs_in_use

MISSING = SystemProgram("needs_abacus", "an abacus", ("abacus", "beads"), lambda: False)
PRESENT = SystemProgram("needs_fingers", "fingers", ("fingers",), lambda: True)


def mark(name: str) -> str:
    """The line that marks a test; kept apart so that this file does not seem to carry the mark itself."""
    return f"@pytest.mark.{name}"


@pytest.fixture
def shop(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A small test suite under the policy, in which one program is missing and one is there."""
    monkeypatch.setattr("tests.skip_policy.SYSTEM_PROGRAMS", (MISSING, PRESENT))
    monkeypatch.delenv("TRIMTAB_REQUIRE_REAL", raising=False)
    pytester.makepyfile(
        test_shop=f"""
        import pytest

        {mark("needs_abacus")}
        def test_counts_with_the_abacus(): pass

        {mark("needs_abacus")}
        def test_adds_with_the_abacus(): pass

        {mark("needs_fingers")}
        def test_counts_with_fingers(): pass

        @pytest.mark.xfail(reason="beyond ten", strict=True)
        def test_counts_to_twenty(): assert False
        """
    )
    return pytester


def run(shop: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return shop.runpytest_inprocess(
        "-p", "tests.skip_policy", "-p", "no:xdist", "-p", "no:schemathesis", "--strict-markers", *arguments
    )


def test_tests_of_a_missing_program_are_skipped_and_listed_with_the_install_line(shop: pytest.Pytester) -> None:
    result = run(shop)
    result.assert_outcomes(skipped=2, passed=1, xfailed=1)
    result.stdout.fnmatch_lines(
        ["*real parts that did not run*", "2 tests need an abacus: apt-get install abacus beads"]
    )
    assert "need fingers" not in result.stdout.str()
    assert result.ret == pytest.ExitCode.OK


def test_nothing_is_listed_when_every_program_is_there(shop: pytest.Pytester) -> None:
    result = run(shop, "-k", "fingers")
    assert "did not run" not in result.stdout.str()


def test_where_the_real_thing_is_required_a_missing_program_fails_the_test(
    shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_REQUIRE_REAL", "1")
    result = run(shop)
    counts = result.parseoutcomes()
    assert counts.get("skipped", 0) == 0
    assert counts.get("failed", 0) + counts.get("errors", 0) == 2
    assert (counts["passed"], counts["xfailed"]) == (1, 1)
    result.stdout.fnmatch_lines(["*a skip is a failure under TRIMTAB_REQUIRE_REAL=1*apt-get install abacus beads"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    "source",
    [
        "import pytest\ndef test_it(): pytest.skip('not today')",
        "import pytest\n@pytest.mark.skip(reason='not today')\ndef test_it(): pass",
        "import pytest\npytest.skip('not today', allow_module_level=True)",
        "import pytest\npytest.importorskip('no_such_module_at_all', reason='not today')",
    ],
    ids=["in the test", "by mark", "whole module", "missing import"],
)
def test_where_the_real_thing_is_required_any_other_skip_fails_too(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    pytester.makepyfile(test_lazy=source)
    monkeypatch.delenv("TRIMTAB_REQUIRE_REAL", raising=False)
    assert run(pytester).ret in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    monkeypatch.setenv("TRIMTAB_REQUIRE_REAL", "1")
    result = run(pytester)
    assert result.ret not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    result.stdout.fnmatch_lines(["*a skip is a failure under TRIMTAB_REQUIRE_REAL=1*not today*"])


def test_only_programs_whose_mark_is_in_use_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "test_page.py").write_text(f"{mark('needs_chromium')}\ndef test_page(): pass\n")
    (tmp_path / "test_plain.py").write_text("def test_plain(): pass\n")
    assert [program.name for program in programs_in_use(tmp_path)] == ["Chromium"]
