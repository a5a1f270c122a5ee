"""Runs the mutants again: `python -m tests.mutants.run [--only WORDS] [--results FILE]`, or `make mutants`.

The tree is copied to a temporary place. There the named tests must pass as they are; then one mutant at a time is
applied and its tests must fail. What was killed is kept in the results file, by the text of the mutant and of its file,
so that a run that was interrupted goes on where it stopped. Exit status 1 when a mutant survived or could not be tried.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
RESULTS = ROOT / ".pytest_cache" / "mutants.json"
TIMEOUT_S = 300.0
TESTS_FAILED = 1


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one text of one file, and the tests of which one must fail with it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str | None:
        """Return the source with the mutant in it, None unless the old text stands there exactly once."""
        return source.replace(self.old, self.new) if source.count(self.old) == 1 and self.old != self.new else None

    def key(self, source: str) -> str:
        """Return what makes a result of it still count."""
        return hashlib.sha256("\0".join((self.file, self.old, self.new, *self.tests, source)).encode()).hexdigest()


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


def tried(tree: Path, tests: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """Run tests in the tree; return pytest's exit status, -1 when they took too long, and the end of its output."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree), "CI": "yes"}
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end within {timeout_s:g} s"
    return done.returncode, "\n".join(done.stdout.strip().splitlines()[-3:])


def verdict(tree: Path, mutant: Mutant) -> tuple[str, str]:
    """Return "killed", "survived", "does not apply" or "not tried", and the end of what the tests wrote."""
    source = (ROOT / mutant.file).read_text()
    changed = mutant.applied(source)
    if changed is None:
        return "does not apply", f"the old text stands {source.count(mutant.old)} times in {mutant.file}"
    try:
        (tree / mutant.file).write_text(changed)
        status, said = tried(tree, mutant.tests, TIMEOUT_S)
    finally:
        (tree / mutant.file).write_text(source)
    return {TESTS_FAILED: "killed", 0: "survived"}.get(status, "not tried"), said


def run(chosen: Sequence[Mutant], results: Path) -> list[tuple[Mutant, str, str]]:
    """Try each mutant that is not known to be killed as it stands; return those that were not killed, with why."""
    known: dict[str, str] = json.loads(results.read_text()) if results.exists() else {}
    waiting = [mutant for mutant in chosen if mutant.key((ROOT / mutant.file).read_text()) not in known]
    print(f"{len(chosen) - len(waiting)} of {len(chosen)} are known to be killed", flush=True)
    if not waiting:
        return []
    alive: list[tuple[Mutant, str, str]] = []
    with tempfile.TemporaryDirectory(prefix="trimtab-mutants-") as directory:
        tree = copied(Path(directory))
        status, said = tried(tree, sorted({test for mutant in waiting for test in mutant.tests}), 4 * TIMEOUT_S)
        if status != 0:
            raise SystemExit(f"without any mutant the tests fail already:\n{said}")
        for mutant in waiting:
            began = time.monotonic()
            found, said = verdict(tree, mutant)
            print(f"{found:15} {time.monotonic() - began:5.1f} s  {mutant.name}", flush=True)
            if found != "killed":
                alive.append((mutant, found, said))
                continue
            known[mutant.key((ROOT / mutant.file).read_text())] = mutant.name
            results.parent.mkdir(parents=True, exist_ok=True)
            results.write_text(json.dumps(known, indent=1))
    return alive


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description="Run the mutants that the tests must kill.")
    parser.add_argument("--only", default="", help="those whose name or file holds these words")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where killed ones are kept")
    options = parser.parse_args()
    chosen = [mutant for mutant in mutants() if options.only in f"{mutant.name} {mutant.file}"]
    alive = run(chosen, options.results)
    for mutant, found, said in alive:
        print(f"\n{found}: {mutant.name} ({mutant.file})\n{said}")
    print(f"\n{len(chosen) - len(alive)} of {len(chosen)} killed")
    raise SystemExit(1 if alive else 0)


if __name__ == "__main__":
    main()
