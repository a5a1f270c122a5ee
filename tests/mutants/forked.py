"""Runs tests of a copied tree in forked processes: which lines they reach, and whether one fails with a changed file.

A warm process has loaded every library and collected a package's tests. Each trial is a fork of it that runs some of
the tests in a given order and stops at the first that fails. A change inside functions is put into the functions that
are loaded already, by replacing their code objects; the file holds it too, for what imports it later. A change of what
runs when a file is imported takes a process that collects anew.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

GRACE_S = 20.0
PATIENCE = 4.0
"""A trial may take this many times the usual time of its tests, and so many seconds."""
REACH_TIMEOUT_S = 3600.0
TOO_LONG = 124
"""The exit status of this program when the time of its command was over."""
UNFIT = 77
"""The exit status of a trial whose change does not fit the functions that are loaded."""
BROKEN = 99
HEAVY = (
    *("numpy", "pytest", "hypothesis", "sqlalchemy.orm", "alembic.command", "boto3", "pydantic_settings", "structlog"),
    *("moto.server", "httpx", "fastapi", "uvicorn", "typer", "coverage", "psycopg", "numba"),
)
AT_IMPORT = ("", "elsewhere")
"""The contexts of what runs outside any test: while the files are imported."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Tests to run in this order, with a file of the tree changed or with none."""

    tests: tuple[str, ...]
    usual_s: float
    file: str = ""
    source: str = ""
    at_import: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The exit status of pytest, None when the trial took too long, and the first test that failed."""

    status: int | None
    failed: str = ""


def preload() -> None:
    """Load the libraries that the forks need, and make this process the parent of what they leave behind."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    for name in HEAVY:
        with suppress(ImportError):
            importlib.import_module(name)


def _settle(tree: Path) -> None:
    """Make this process one in which the tests of the tree run."""
    os.chdir(tree)
    temporary = tree.parent / f"{tree.name}-tmp"
    temporary.mkdir(exist_ok=True)
    temporary.chmod(0o711)  # A database server that may not run as root has its directory in it.
    tempfile.tempdir = str(temporary)
    os.environ |= {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(tree),
        "CI": "yes",
        "TMPDIR": str(temporary),
        "NUMBA_CACHE_DIR": str(temporary),
    }
    sys.path[:] = [str(tree), *(place for place in sys.path if place not in ("", str(Path(__file__).parents[2])))]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in str(finder)]
    ours = {path.name for path in tree.iterdir() if path.is_dir()}
    for name in [name for name in sys.modules if name.split(".")[0] in ours]:
        del sys.modules[name]


def _pytest(tree: Path, arguments: Sequence[str], plugins: Sequence[Any], log: Path) -> int:
    import pytest

    _settle(tree)
    base = tree.parent / f"{tree.name}-tests"
    with log.open("w") as out, redirect_stdout(out), redirect_stderr(out):
        # What was loaded before the fork cannot have its assertions rewritten, which is as well.
        loaded = ["-W", "ignore::pytest.PytestAssertRewriteWarning", "--basetemp", str(base)]
        shared = ["-q", "-p", "no:cacheprovider", "-m", "not exhaustive", *loaded]
        return int(pytest.main([*shared, *arguments], plugins=plugins))


def _forked(work: Callable[[], int]) -> int:
    """Do the work in a fork, which ends with the status that the work returns; return the fork's id."""
    child = os.fork()
    if child == 0:
        status = BROKEN
        try:
            os.setsid()
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def _ended(child: int, timeout_s: float, other: int | None = None) -> int | None:
    """Wait for a fork and return its exit status, None when it took too long; end all that it started.

    Processes whose parent has ended come to this one (see `_adopting`), which has no children but `other`.
    """
    ends, status = time.monotonic() + timeout_s, None
    while time.monotonic() < ends:
        done, raw = os.waitpid(child, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(raw)
            break
        time.sleep(0.01)
    else:
        _kill(child)
        os.waitpid(child, 0)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    while left := [one for one in _children() if one != other]:
        for orphan in left:
            _kill(orphan)
            os.waitpid(orphan, 0)
    return status


def _children() -> list[int]:
    return [int(one) for one in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _adopting() -> None:
    """Become the parent of every process whose own parent, started from here, has ended."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


class _Reach:
    """A pytest plugin that measures which test reaches which line, how long each takes, and which fail."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.took: dict[str, float] = {}
        self.failed: set[str] = set()
        self._began = 0.0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)
        self._began = time.perf_counter()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.took[nodeid] = time.perf_counter() - self._began
        self.coverage.switch_context("elsewhere")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def _shared_fixtures(coverage: Any) -> Any:
    """Return a plugin: what a shared fixture reaches counts for every test of the file that asked first."""
    import pytest

    class Shared:
        @pytest.hookimpl(wrapper=True)
        def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[Any]:
            if fixturedef.scope == "function":
                return (yield)
            node = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" ", 1)[0]
            coverage.switch_context(f"file:{node.split('::')[0]}")
            try:
                return (yield)
            finally:
                coverage.switch_context(node or "elsewhere")

    return Shared()


def reach(tree: Path, files: Sequence[str], tests: Sequence[str]) -> dict[str, Any]:
    """Run tests in the tree; return the tests by file and line (`lines`), seconds of each (`took`) and `failed`."""
    found, log = tree.parent / "reach.json", tree.parent / "reach.log"
    found.unlink(missing_ok=True)

    def work() -> int:
        import coverage

        include = [f"{tree / name}/*" if (tree / name).is_dir() else str(tree / name) for name in files]
        measured = coverage.Coverage(data_file=None, include=include, config_file=False)
        plugin = _Reach(measured)
        _settle(tree)
        measured.start()
        status = _pytest(tree, ["--timeout", "600", *tests], [plugin, _shared_fixtures(measured)], log)
        measured.stop()
        data = measured.get_data()
        lines = {
            str(Path(name).relative_to(tree)): {
                str(line): sorted(contexts) for line, contexts in data.contexts_by_lineno(name).items()
            }
            for name in data.measured_files()
        }
        took = {name: each for name, each in plugin.took.items() if name not in plugin.failed}
        found.write_text(json.dumps({"lines": lines, "took": took, "failed": sorted(plugin.failed)}))
        return status

    _adopting()
    status = _ended(_forked(work), REACH_TIMEOUT_S)
    if not found.exists():
        raise SystemExit(f"the tests {' '.join(tests)} could not run (status {status}):\n{log.read_text()[-3000:]}")
    result: dict[str, Any] = json.loads(found.read_text())
    return result


class _Chosen:
    """A pytest plugin that runs the named tests alone, in their order, and writes down the first that fails."""

    def __init__(self, failed: Path) -> None:
        self.rank: dict[str, int] = {}
        self._failed = failed

    def choose(self, tests: Sequence[str]) -> None:
        self.rank = {name: rank for rank, name in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.rank:
            chosen = [item for item in items if item.nodeid in self.rank]
            items[:] = sorted(chosen, key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self._failed.exists():
            self._failed.write_text(report.nodeid)


def _functions(files: set[str]) -> dict[str, list[FunctionType]]:
    """Return the functions that are loaded from files, by file."""
    found: dict[str, list[FunctionType]] = {name: [] for name in files}
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename in found:
            found[one.__code__.co_filename].append(one)
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def replaced(functions: Sequence[FunctionType], source: str, path: str) -> bool:
    """Give loaded functions of a file the code that its changed source gives them; False when one has none that fits.

    A function is found again by its qualified name and first line.
    """
    by_place: dict[tuple[str, int], list[CodeType]] = {}
    for code in _codes(compile(source, path, "exec", dont_inherit=True)):
        by_place.setdefault((code.co_qualname, code.co_firstlineno), []).append(code)
    fits = []
    for function in functions:
        old = function.__code__
        new = by_place.get((old.co_qualname, old.co_firstlineno), [])
        if old in new:
            continue
        if len(new) != 1 or new[0].co_freevars != old.co_freevars:
            return False
        fits.append((function, new[0]))
    for function, code in fits:
        function.__code__ = code
    return bool(fits) or not functions


class Warm:
    """A process that has collected tests, and forks for each trial of some of them."""

    def __init__(self, tree: Path, tests: Sequence[str]) -> None:
        self._tree = tree
        self._tests = list(tests)
        self._log = tree.parent / f"{tree.name}.log"
        self._failed = tree.parent / f"{tree.name}.failed"
        self._server: int | None = None
        self._pipe: Connection | None = None
        _adopting()

    def run(self, trial: Trial) -> Verdict:
        """Run a trial and leave the tree as it was."""
        if not trial.file:
            return self._answer(trial)
        path = self._tree / trial.file
        source = path.read_text()
        # A function-local import would otherwise find what an earlier run compiled.
        for cached in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            cached.unlink()
        try:
            if not trial.at_import:
                # The server starts before the file is changed: what it loads is as it stands.
                self._start()
            path.write_text(trial.source)
            verdict = Verdict(UNFIT) if trial.at_import else self._answer(trial)
            return self._anew(trial) if verdict.status == UNFIT else verdict
        finally:
            path.write_text(source)

    def close(self) -> None:
        """End the process."""
        if self._server is not None and self._pipe is not None:
            self._pipe.send(None)
            _ended(self._server, GRACE_S)
            self._pipe.close()
        self._server = self._pipe = None

    def _verdict(self, status: int | None) -> Verdict:
        failed = self._failed.read_text() if self._failed.exists() else ""
        if status not in (0, 1, None, UNFIT):
            # Neither passed nor failed: what is imported does not load, or a test ended the process.
            failed = failed or f"status {status}: {' '.join(self._log.read_text().split()[-40:])}"
        return Verdict(status, failed)

    def _anew(self, trial: Trial) -> Verdict:
        self._failed.unlink(missing_ok=True)
        chosen = _Chosen(self._failed)
        chosen.choose(trial.tests)
        files = sorted({name.split("::")[0] for name in trial.tests})
        child = _forked(lambda: _pytest(self._tree, ["-x", "--timeout", "60", *files], [chosen], self._log))
        return self._verdict(_ended(child, PATIENCE * trial.usual_s + GRACE_S, self._server))

    def _answer(self, trial: Trial) -> Verdict:
        self._start()
        assert self._pipe is not None
        self._failed.unlink(missing_ok=True)
        # As plain values: the server knows the tree's modules, not these.
        self._pipe.send(asdict(trial))
        return self._verdict(self._pipe.recv())

    def _start(self) -> None:
        if self._server is not None:
            return
        ours, theirs = Pipe()
        self._pipe = ours
        self._server = _forked(lambda: self._serve(ours, theirs))
        theirs.close()
        ready = self._pipe.recv()
        if ready != "ready":
            raise SystemExit(f"the tests could not be collected: {self._log.read_text()[-3000:]}")

    def _serve(self, theirs: Connection, pipe: Connection) -> int:
        import pytest

        # With this end open here, the other process's end would not be seen.
        theirs.close()

        chosen = _Chosen(self._failed)
        tree = self._tree

        class Server:
            serves = False

            @pytest.hookimpl(tryfirst=True)
            def pytest_runtestloop(self, session: Any) -> bool | None:
                if session.testsfailed:
                    return None
                items = {item.nodeid: item for item in session.items}
                files = {str(path) for path in tree.rglob("*.py")}
                functions = _functions(files)
                _adopting()
                # What stays until the end is not looked at again in each fork.
                gc.collect()
                gc.freeze()
                pipe.send("ready")
                self.serves = True
                while (asked := pipe.recv()) is not None:
                    trial = Trial(**asked)
                    child = os.fork()
                    if child:
                        pipe.send(_ended(child, PATIENCE * trial.usual_s + GRACE_S))
                        continue
                    # The fork goes on as pytest does after collecting, and ends where this process would.
                    os.setsid()
                    path = str(tree / trial.file)
                    if trial.file and not replaced(functions[path], trial.source, path):
                        os._exit(UNFIT)
                    session.items = [items[name] for name in trial.tests]
                    return None
                return True

        server = Server()
        status = _pytest(tree, ["-x", "--timeout", "60", *self._tests], [chosen, server], self._log)
        if not server.serves:
            pipe.send("no tests")
        return status


def main() -> int:
    """Run `python -m tests.mutants.forked SECONDS ARGUMENTS`: Python with the arguments, for so long at most.

    Every process that it started ends with it, also when this one gets SIGTERM or its parent dies.
    """
    timeout_s, *arguments = sys.argv[1:]
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)
    _adopting()
    signal.signal(signal.SIGTERM, lambda *_: [_kill(child) for child in _children()])
    status = _ended(_forked(lambda: os.execv(sys.executable, [sys.executable, *arguments])), float(timeout_s))
    return TOO_LONG if status is None else status % 256


if __name__ == "__main__":
    sys.exit(main())
