"""Seeded mutants: `python -m tests.mutants.seeded [--package NAME] [--sample N] [--seed S]`, or `make mutants-seeded`.

The operators are those of cosmic-ray and three that drop a statement. A mutant is one operator at one position. The
seed orders all mutants of a package by a digest of what they change, and the sample is the first of them, so that a
change elsewhere leaves the sample as it was. What cannot change behaviour is left out and counted: see `LEFT_OUT`.

A copy of the tree is mutated. Once per package its tests run there with the coverage of each test; a mutant then runs
the tests that reach its statement, quick files first, in a process forked from one that has collected them. It is
killed when a test fails that passes without it, run again in the same way. The results stand in a session file by the
text of the mutant and of its file: an interrupted run goes on where it stopped. Why a survivor is left alive stands in
survivors.toml. Exit status 1 when fewer than `--at-least` per cent were killed.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import multiprocessing
import queue
import re
import shutil
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import parso.python.tree
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import OPERATOR_PROVIDERS

from tests.mutants.forked import AT_IMPORT, Trial, Warm, preload, reach
from tests.mutants.run import ROOT, copied

SESSION = ROOT / ".pytest_cache" / "seeded-mutants.json"
TRUSTED_AFTER, QUICK_S = 2, 0.5
SURVIVORS = Path(__file__).with_name("survivors.toml")


@dataclass(frozen=True, slots=True)
class Package:
    """Files that are mutated and the tests that must notice."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


PACKAGES = {
    "rails": Package(("agent/rails",), ("tests/agent/rails",)),
    "ledger": Package(("agent/ledger",), ("tests/agent/ledger",)),
    "leader": Package(
        ("agent/service/leader.py",), ("tests/agent/service/test_leader.py", "tests/agent/service/test_binding.py")
    ),
    "actuators": Package(("actuators",), ("tests/actuators",)),
    "decisions": Package(("agent/kernel",), ("tests/agent/kernel",)),
    "rules": Package(("domain/rules",), ("tests/domain/rules",)),
}


class _Statement(Operator):
    """Replaces a statement in a block by a plain one of the same place."""

    instead = "pass"

    def chosen(self, node: Any) -> bool:
        raise NotImplementedError

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "simple_stmt" and self.chosen(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        first = node.children[0]
        node.children[0] = parso.python.tree.Name(self.instead, first.start_pos, first.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class DropRaise(_Statement):
    """Goes on where an error was raised."""

    def chosen(self, node: Any) -> bool:
        return node.type == "raise_stmt"


class DropCall(_Statement):
    """Leaves out a call whose result is not used."""

    def chosen(self, node: Any) -> bool:
        code = node.get_code(include_prefix=False)
        return node.type == "atom_expr" and code.endswith(")") and "log." not in code and "logger." not in code


class ReturnNone(_Statement):
    """Returns nothing where something was returned."""

    instead = "return None"

    def chosen(self, node: Any) -> bool:
        return node.type == "return_stmt" and node.children[-1].get_code().strip() != "None"


COMPARISONS = "Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is"
ARITHMETIC = "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Div Mod_Mul Pow_Mul BitOr_BitAnd BitAnd_BitOr"
NAMES = (
    *(f"ReplaceComparisonOperator_{pair}" for pair in COMPARISONS.split()),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ARITHMETIC.split()),
    *("ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub"),
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer"),
    *("RemoveDecorator", "ZeroIterationForLoop"),
)
"""Those of cosmic-ray's operators whose result is a program that runs: `+` for `-`, and not `+` for `<<`."""
OPERATORS: dict[str, Operator] = {
    **{name: OPERATOR_PROVIDERS["core"][name]() for name in NAMES},
    **{kind.__name__: kind() for kind in (DropRaise, DropCall, ReturnNone)},
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One operator at one position of a file."""

    package: str
    file: str
    operator: str
    occurrence: int
    line: int
    column: int
    first: int
    last: int
    in_function: bool
    changed: str

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line} {self.operator}"

    def source(self, source: str) -> str:
        """Return the source with the mutant in it."""
        mutated = mutate_code(source, OPERATORS[self.operator], self.occurrence)
        assert mutated is not None, self
        return mutated


LEFT_OUT = "annotations, log calls, __all__ and __slots__, asserts, TYPE_CHECKING, strict= of zip, TypeVar and cast, "
LEFT_OUT += "decorators of data classes and of abstract methods"


STARRED = frozenset(("parameters", "param", "argument", "star_expr", "arglist", "lambdef", "atom_expr"))
"""Where an asterisk or a slash is no arithmetic: with another sign there the file would be no program."""


def _left_out(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the ranges of a file in which no mutant can change what the program does."""
    nodes: list[ast.AST] = []
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=annotation) | ast.AnnAssign(annotation=annotation) if annotation is not None:
                nodes.append(annotation)
            case ast.Call(keywords=keywords):
                nodes.extend(keyword.value for keyword in keywords if keyword.arg == "strict")
                name = ast.unparse(node.func)
                if "log" in name.lower().split(".")[0] or name.endswith(("TypeVar", "ParamSpec", "cast")):
                    nodes.append(node)
            case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
                nodes.append(node)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assert():
                nodes.append(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            nodes.append(node.returns)
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            nodes.extend(one for one in node.decorator_list if "dataclass" in ast.unparse(one))
            nodes.extend(one for one in node.decorator_list if "abstract" in ast.unparse(one))
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0))  # type: ignore[attr-defined]
        for node in nodes
    ]


def _bodies(tree: ast.Module) -> list[tuple[int, int]]:
    """Return the first and last line of the body of each function."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(max(one.body[0].lineno, one.lineno + 1), one.end_lineno or one.lineno) for one in functions]


def _statements(tree: ast.Module) -> list[tuple[int, int]]:
    """Return the first and last line of each statement, of a compound one those of its head."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            found.append((first, last))
        elif isinstance(node, ast.ExceptHandler):
            found.append((node.lineno, max(node.lineno, node.body[0].lineno - 1)))
    return found


def mutants_of(package: str, file: str, source: str, seed: int) -> list[tuple[str, Mutant]]:
    """Return the mutants of a file, one for each position, with the digests that order them."""
    tree = ast.parse(source)
    left_out, statements, bodies = _left_out(tree), _statements(tree), _bodies(tree)
    lines = source.splitlines()
    best: dict[tuple[int, int], tuple[str, Mutant]] = {}
    nodes = list(ast_nodes(get_ast(source)))
    seen: dict[str, int] = {}
    for name, operator in sorted(OPERATORS.items()):
        positions = [(node, *place) for node in nodes for place in operator.mutation_positions(node)]
        for occurrence, (node, start, end) in enumerate(positions):
            starred = node.type == "operator" and node.parent.type in STARRED
            # Its operator finds no name to replace in `except sqlite3.Error`.
            dotted = name == "ExceptionReplacer" and "." in node.get_code(include_prefix=False)
            if starred or dotted:
                continue
            # parso counts the `@` of a decorator, ast does not.
            at = (start[0], start[1] + 1) if name == "RemoveDecorator" else start
            if any(low <= at < high for low, high in left_out):
                continue
            text = lines[start[0] - 1].strip()
            changed = f"{file}\0{name}\0{text}\0{start[1]}"
            seen[changed] = seen.get(changed, 0) + 1
            digest = hashlib.sha256(f"{seed}\0{changed}\0{seen[changed]}".encode()).hexdigest()
            within = [place for place in statements if place[0] <= start[0] <= place[1]]
            first, last = min(within, key=lambda place: place[1] - place[0], default=(start[0], end[0]))
            in_function = any(low <= start[0] <= high for low, high in bodies)
            mutant = Mutant(package, file, name, occurrence, start[0], start[1], first, last, in_function, text)
            if start not in best or digest < best[start][0]:
                best[start] = digest, mutant
    return list(best.values())


def sample(packages: Sequence[str], size: int, seed: int) -> list[Mutant]:
    """Return a sample of mutants, of each package as many as of any other where it has so many."""
    ordered: dict[str, list[Mutant]] = {}
    for package in packages:
        found = [
            each
            for path in files_of(package)
            for each in mutants_of(package, str(path.relative_to(ROOT)), path.read_text(), seed)
        ]
        ordered[package] = [mutant for _, mutant in sorted(found, key=lambda each: each[0])]
    share, left = dict.fromkeys(packages, 0), size
    while left > 0 and any(share[name] < len(ordered[name]) for name in packages):
        for name in packages:
            if left > 0 and share[name] < len(ordered[name]):
                share[name] += 1
                left -= 1
    return [mutant for name in packages for mutant in ordered[name][: share[name]]]


def files_of(package: str) -> list[Path]:
    """Return the files of a package that are mutated."""
    found: set[Path] = set()
    for name in PACKAGES[package].files:
        path = ROOT / name
        found.update([path] if path.is_file() else path.rglob("*.py"))
    return sorted(path for path in found if "migrations" not in path.parts and path.name != "__init__.py")


def reached_by(package: str, tree: Path, known: Path) -> dict[str, Any]:
    """Return which tests of a package reach which lines: measured once, then kept in a file.

    What is kept counts as long as the package's files and tests stand as they do.
    """
    chosen = PACKAGES[package]
    digest = hashlib.sha256()
    for name in (*chosen.files, *chosen.tests):
        path = tree / name
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(f"{file.relative_to(tree)}\0".encode() + file.read_bytes())
    if known.exists():
        kept: dict[str, Any] = json.loads(known.read_text())
        if kept["digest"] == digest.hexdigest():
            return kept
    kept = reach(tree, chosen.files, chosen.tests) | {"digest": digest.hexdigest()}
    known.parent.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps(kept))
    return kept


def tests_of(mutant: Mutant, source: str, reached: dict[str, Any], most_s: float) -> tuple[str, ...]:
    """Return the tests that reach a mutant's statement, in the order in which they run: quick files first.

    What runs when its file is imported may matter to every test; those go earlier that reach a line with a name that
    the statement gives, or any line of the file. A test is left out that would take those before it beyond `most_s`
    seconds.
    """
    by_line: dict[str, list[str]] = reached["lines"].get(mutant.file, {})
    took: dict[str, float] = reached["took"]
    contexts = {name for line in range(mutant.first, mutant.last + 1) for name in by_line.get(str(line), ())}
    found = _named(contexts, took)
    near: set[str] = set()
    users: set[str] = set()
    if not found and contexts:
        found, users = set(took), _named({name for names in by_line.values() for name in names}, took)
        lines = source.splitlines()
        given = re.match(r"\s*(?:def |class )?(\w+)", "\n".join(lines[mutant.first - 1 : mutant.last]))
        if given:
            holds = [number for number, text in enumerate(lines, 1) if re.search(rf"\b{given[1]}\b", text)]
            near = _named({name for number in holds for name in by_line.get(str(number), ())}, took)
    files: dict[str, float] = {}
    for name in found:
        file = name.split("::")[0]
        files[file] = files.get(file, 0.0) + took[name]

    def place(name: str) -> tuple[Any, ...]:
        file = name.split("::")[0]
        if not users:
            return files[file], file, took[name], name
        return took[name] * (0.1 if name in near else 0.3 if name in users else 1.0), file, name

    ordered = sorted(found, key=place)
    chosen: list[str] = []
    total = 0.0
    for name in ordered:
        if chosen and total + took[name] > most_s:
            continue
        chosen.append(name)
        total += took[name]
    return tuple(chosen)


def _named(contexts: set[str], took: dict[str, float]) -> set[str]:
    files = {name.removeprefix("file:") for name in contexts if name.startswith("file:")}
    return {name for name in took if name in contexts or name.split("::")[0] in files}


def passes_alone(warm: Warm, test: str, usual_s: float, trusted: dict[str, int]) -> bool:
    """Return whether a test passes without a mutant; a quick one that did so twice is not asked again."""
    if trusted.get(test, 0) >= TRUSTED_AFTER and usual_s < QUICK_S:
        return True
    passed = warm.run(Trial((test,), usual_s)).status == 0
    trusted[test] = trusted.get(test, 0) + passed
    return passed


def outcome(
    warm: Warm, mutant: Mutant, source: str, reached: dict[str, Any], most_s: float, trusted: dict[str, int]
) -> tuple[str, int, str]:
    """Return "killed", "killed (no end)", "survived" or "not reached", how many tests were run, and which failed.

    A test that fails with the mutant counts when it passes without it, run again in the same way.
    """
    tests = tests_of(mutant, source, reached, most_s)
    by_line: dict[str, list[str]] = reached["lines"].get(mutant.file, {})
    lines = range(mutant.first, mutant.last + 1)
    at_import = not mutant.in_function or any(set(by_line.get(str(line), ())) & set(AT_IMPORT) for line in lines)
    mutated = mutant.source(source)
    while tests:
        usual_s = sum(reached["took"][name] for name in tests)
        verdict = warm.run(Trial(tests, usual_s, mutant.file, mutated, at_import))
        if verdict.status == 0:
            return "survived", len(tests), ""
        if verdict.status is None:
            unchanged = Trial(tests, usual_s, mutant.file, source, True) if at_import else Trial(tests, usual_s)
            ends = warm.run(unchanged).status == 0
            return "killed (no end)" if ends else "unsure: too slow without it too", len(tests), ""
        if verdict.failed not in tests:
            return "killed", len(tests), verdict.failed
        if passes_alone(warm, verdict.failed, reached["took"][verdict.failed], trusted):
            return "killed", len(tests), verdict.failed
        print(f"  left out, for it failed without any mutant too: {verdict.failed}", flush=True)
        tests = tuple(name for name in tests if name != verdict.failed)
    return "not reached", 0, ""


def _worker(tree: Path, waiting: Any, done: Any, reached: dict[str, Any], most_s: float) -> None:
    warm: Warm | None = None
    trusted: dict[str, int] = {}
    while True:
        try:
            mutant = Mutant(**waiting.get(timeout=5))
        except queue.Empty:
            break
        began = time.monotonic()
        warm = warm or Warm(tree, PACKAGES[mutant.package].tests)
        source = (tree / mutant.file).read_text()
        result, tests, failed = outcome(warm, mutant, source, reached, most_s, trusted)
        done.put((asdict(mutant), result, round(time.monotonic() - began, 1), tests, failed))
    if warm is not None:
        warm.close()


class Session:
    """What became of each mutant, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    @staticmethod
    def key(mutant: Mutant) -> str:
        source = (ROOT / mutant.file).read_text()
        parts = (mutant.file, mutant.operator, str(mutant.occurrence), source)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]

    def of(self, mutant: Mutant) -> str | None:
        """Return what became of a mutant, None when that is not known."""
        return self._known.get(self.key(mutant), {}).get("outcome")

    def forget(self, which: Callable[[str], bool]) -> None:
        """Try those mutants again that had such an outcome."""
        self._known = {key: one for key, one in self._known.items() if not which(one["outcome"])}

    def note(self, key: str, mutant: Mutant, result: str, took_s: float, tests: int, failed: str) -> None:
        """Keep what became of a mutant, whose key was read when the tree was copied."""
        tried = {"outcome": result, "seconds": took_s, "tests": tests, "failed": failed}
        self._known[key] = asdict(mutant) | tried
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self._known, indent=1))
        part.replace(self._path)


def run(chosen: Sequence[Mutant], session: Session, workers: int, most_s: float) -> None:
    """Try each mutant whose outcome the session does not hold."""
    waiting = [mutant for mutant in chosen if session.of(mutant) is None]
    print(f"{len(chosen) - len(waiting)} of {len(chosen)} mutants are known", flush=True)
    if not waiting:
        return
    preload()
    with tempfile.TemporaryDirectory(prefix="trimtab-mutants-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)
        keys = {mutant: session.key(mutant) for mutant in waiting}
        tree = copied(Path(directory))
        trees = [tree, *(Path(directory) / f"tree-{number}" for number in range(1, workers))]
        for other in trees[1:]:
            shutil.copytree(tree, other, symlinks=True)
        context = multiprocessing.get_context("fork")
        for package in dict.fromkeys(mutant.package for mutant in waiting):
            began = time.monotonic()
            reached = reached_by(package, tree, SESSION.with_name(f"reach-{package}.json"))
            print(f"{package}: {len(reached['took'])} tests in {time.monotonic() - began:.0f} s", flush=True)
            for name in reached["failed"]:
                print(f"  left out, for it fails without any mutant: {name}", flush=True)
            of_it = [mutant for mutant in waiting if mutant.package == package]
            todo, done = context.Queue(), context.Queue()
            processes = [context.Process(target=_worker, args=(one, todo, done, reached, most_s)) for one in trees]
            for process in processes:
                process.start()
            for mutant in of_it:
                todo.put(asdict(mutant))
            for number in range(len(of_it)):
                fields, result, took_s, tests, failed = done.get()
                mutant = Mutant(**fields)
                session.note(keys[mutant], mutant, result, took_s, tests, failed)
                print(f"{number + 1:4} {result:15} {took_s:6.1f} s {tests:4} tests  {mutant.where}", flush=True)
            for process in processes:
                process.join()


def reasons() -> list[dict[str, str]]:
    """Return the survivors that are known: `file`, `operator`, `line` (its text) and `why`."""
    listed: list[dict[str, str]] = tomllib.loads(SURVIVORS.read_text()).get("survivor", [])
    return listed


def why(mutant: Mutant, listed: Sequence[dict[str, str]]) -> str | None:
    """Return why a mutant may live, None when the list does not say."""
    place = (mutant.file, mutant.operator, mutant.changed)
    return next((one["why"] for one in listed if (one["file"], one["operator"], one["line"]) == place), None)


def report(chosen: Sequence[Mutant], session: Session) -> float:
    """Print what became of the mutants and return the percentage that was killed."""
    listed = reasons()
    unexplained = 0
    for mutant in chosen:
        result = session.of(mutant) or "unknown"
        if not result.startswith("killed"):
            source = (ROOT / mutant.file).read_text()
            changes = difflib.unified_diff(source.splitlines(), mutant.source(source).splitlines(), lineterm="", n=0)
            print(f"\n{result}: {mutant.where}")
            print("\n".join(line for line in changes if line[:3] not in ("---", "+++")))
            reason = why(mutant, listed)
            unexplained += reason is None
            print(f"  why: {reason or 'not listed in ' + SURVIVORS.name}")
    print()
    killed = 0
    for package in sorted({mutant.package for mutant in chosen}):
        of_it = [session.of(mutant) or "unknown" for mutant in chosen if mutant.package == package]
        died = sum(result.startswith("killed") for result in of_it)
        killed += died
        print(f"{package:10} {died:4} of {len(of_it):4} killed ({100 * died / len(of_it):.0f} %)")
    print(f"{'all':10} {killed:4} of {len(chosen):4} killed ({100 * killed / max(1, len(chosen)):.1f} %)")
    for one in listed:
        path = ROOT / one["file"]
        if not path.exists() or one["line"] not in (line.strip() for line in path.read_text().splitlines()):
            print(f"{SURVIVORS.name} names a line that is not there: {one['file']}: {one['line']}")
    print(f"{unexplained} survivors without a reason in {SURVIVORS.name}; no mutants are made of {LEFT_OUT}")
    return 100 * killed / max(1, len(chosen))


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description="Run a seeded sample of mutants against the tests of their package.")
    parser.add_argument("--package", action="append", choices=sorted(PACKAGES), help="one of them; may be repeated")
    parser.add_argument("--sample", type=int, default=610, help="how many mutants")
    parser.add_argument("--seed", type=int, default=12, help="what orders them")
    parser.add_argument("--workers", type=int, default=2, help="how many run at once")
    parser.add_argument("--most-s", type=float, default=40.0, help="usual seconds of the tests of one mutant, at most")
    parser.add_argument("--results", type=Path, default=SESSION, help="the session file")
    parser.add_argument("--report", action="store_true", help="print what is known and run nothing")
    parser.add_argument("--again", action="store_true", help="try those again that were not killed")
    parser.add_argument("--at-least", type=float, default=90.0, help="per cent that must be killed")
    options = parser.parse_args()
    session = Session(options.results)
    chosen = sample(options.package or list(PACKAGES), options.sample, options.seed)
    if options.again:
        session.forget(lambda result: not result.startswith("killed"))
    if not options.report:
        run(chosen, session, options.workers, options.most_s)
    raise SystemExit(0 if report(chosen, session) >= options.at_least else 1)


if __name__ == "__main__":
    main()
