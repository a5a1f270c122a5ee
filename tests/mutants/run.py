"""Runs the mutants again: `python -m tests.mutants.run [--only WORDS] [--results FILE]`, or `make mutants`.

The tree is copied to a temporary directory. There the tests of a mutant must pass without it and fail with it. A killed
mutant is recorded in the results file, by the text of the mutant and of its file, so that an interrupted run continues
where it stopped. Exit status 1 when a mutant survived or could not be tried.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.forked import TOO_LONG

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
FORKED = Path(__file__).with_name("forked.py")
RESULTS = ROOT / ".pytest_cache" / "mutants.json"
LIMIT_S = 280.0
"""The time that one mutant may take, its tests without it included."""
GRACE_S = 15.0
TESTS_FAILED, NO_TESTS = 1, 5
LEFT_OUT = ("PYTEST_", "TRIMTAB_", "TESTS_")
"""Variables of the run around this one, which would change what its tests do."""
STAGES = ("not exhaustive", "exhaustive")
"""Of a whole file, the short tests run first; the long ones only where those kill nothing."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one text of one file, and the tests of which one must fail with it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str | None:
        """Return the source with the mutant in it, None unless it holds the old text exactly once."""
        return source.replace(self.old, self.new) if source.count(self.old) == 1 and self.old != self.new else None

    def key(self, source: str) -> str:
        """Return the key under which its result is recorded."""
        return hashlib.sha256("\0".join((self.file, self.old, self.new, *self.tests, source)).encode()).hexdigest()

    @property
    def stages(self) -> tuple[str, ...]:
        """The expressions of `-m` that select its tests, in order; tests that it names run whatever their marks."""
        return ("",) if any("::" in test for test in self.tests) else STAGES

    @property
    def needs(self) -> frozenset[str]:
        """The needs_ marks without which its tests are skipped: those of a whole file, or of a test that it names."""
        marks: set[str] = set()
        for test in self.tests:
            file, _, name = test.partition("::")
            text = (ROOT / file).read_text()
            places = re.findall(r"^pytestmark = .*$", text, re.MULTILINE)
            if name:
                places += re.findall(rf"((?:^@.*\n)+)def {name.partition('[')[0]}\(", text, re.MULTILINE)
            marks |= set(re.findall(r"\bneeds_\w+", " ".join(places)))
        return frozenset(marks)


def mutants() -> list[Mutant]:
    """Return the list."""
    listed = tomllib.loads(LIST.read_text())["mutant"]
    return [Mutant(**{**one, "tests": tuple(one["tests"])}) for one in listed]


def copied(directory: Path) -> Path:
    """Copy what git knows or would take of the tree to a directory and return where it is."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    tree = directory / "tree"
    for name in filter(None, names.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


@dataclass(slots=True)
class Trials:
    """A copy of the tree in which the tests of one mutant after the other run, and a directory for what they write."""

    tree: Path
    temporary: Path
    _unchanged: dict[tuple[str, tuple[str, ...]], tuple[int, str]] = field(default_factory=dict)

    def verdict(self, mutant: Mutant, limit_s: float = LIMIT_S) -> tuple[str, str]:
        """Return "killed", "survived", "does not apply" or "not tried", and the last lines that the tests wrote."""
        source = (self.tree / mutant.file).read_text()
        changed = mutant.applied(source)
        if changed is None:
            return "does not apply", f"{mutant.file} holds the old text {source.count(mutant.old)} times"
        ends = time.monotonic() + limit_s
        output = "no test is selected"
        result = "not tried"
        for stage in mutant.stages:
            status, output = self._without_mutant(stage, mutant.tests, ends)
            if status == NO_TESTS:
                continue
            if status != 0:
                return "not tried", f"without the mutant: {output}"
            try:
                (self.tree / mutant.file).write_text(changed)
                status, output = self._run(stage, mutant.tests, ends)
            finally:
                (self.tree / mutant.file).write_text(source)
            result = {TESTS_FAILED: "killed", 0: "survived"}.get(status, "not tried")
            if result != "survived":
                break
        return result, output

    def _without_mutant(self, stage: str, tests: tuple[str, ...], ends: float) -> tuple[int, str]:
        """Run the tests in the unchanged tree, once for all mutants that they belong to, unless they fail."""
        if (stage, tests) not in self._unchanged:
            result = self._run(stage, tests, ends)
            if result[0] not in (0, NO_TESTS):
                return result
            self._unchanged[stage, tests] = result
        return self._unchanged[stage, tests]

    def _run(self, stage: str, tests: Sequence[str], ends: float) -> tuple[int, str]:
        """Run tests in the tree; return pytest's exit status, -1 after the time is over, and its last lines."""
        timeout_s = max(1.0, ends - time.monotonic())
        arguments = ["-x", "-q", "-p", "no:cacheprovider", "--basetemp", str(self.temporary), "-m", stage]
        # The process between ends with everything that it or its tests started (see forked.py).
        command = [sys.executable, str(FORKED), str(timeout_s), "-m", "pytest", *arguments, *tests]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
        environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(self.tree), "CI": "yes"}
        process = subprocess.Popen(
            command, cwd=self.tree, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        try:
            output, _ = process.communicate(timeout=timeout_s + GRACE_S)
        except BaseException:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
        if process.returncode == TOO_LONG:
            return -1, f"no end within {timeout_s:.0f} s"
        return process.returncode, "\n".join(output.strip().splitlines()[-3:])


@contextmanager
def trials() -> Iterator[Trials]:
    """Copy the tree to a temporary directory, for trials until the block ends."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)  # A database server that may not run as root has its directory in it.
        yield Trials(copied(Path(directory)), Path(directory) / "tests")


def run(chosen: Sequence[Mutant], results: Path) -> list[tuple[Mutant, str, str]]:
    """Try each mutant that is not known to be killed as it is; return those that were not killed, with why."""
    known: dict[str, str] = json.loads(results.read_text()) if results.exists() else {}
    waiting = [mutant for mutant in chosen if mutant.key((ROOT / mutant.file).read_text()) not in known]
    print(f"{len(chosen) - len(waiting)} of {len(chosen)} are known to be killed", flush=True)
    if not waiting:
        return []
    alive: list[tuple[Mutant, str, str]] = []
    with trials() as tried:
        for mutant in waiting:
            began = time.monotonic()
            result, output = tried.verdict(mutant)
            print(f"{result:15} {time.monotonic() - began:5.1f} s  {mutant.name}", flush=True)
            if result != "killed":
                alive.append((mutant, result, output))
                continue
            known[mutant.key((ROOT / mutant.file).read_text())] = mutant.name
            results.parent.mkdir(parents=True, exist_ok=True)
            results.write_text(json.dumps(known, indent=1))
    return alive


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description="Run the mutants that the tests must kill.")
    parser.add_argument("--only", default="", help="those whose name or file holds these words")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where killed ones are recorded")
    options = parser.parse_args()
    chosen = [mutant for mutant in mutants() if options.only in f"{mutant.name} {mutant.file}"]
    alive = run(chosen, options.results)
    for mutant, result, output in alive:
        print(f"\n{result}: {mutant.name} ({mutant.file})\n{output}")
    print(f"\n{len(chosen) - len(alive)} of {len(chosen)} killed")
    raise SystemExit(1 if alive else 0)


if __name__ == "__main__":
    main()
