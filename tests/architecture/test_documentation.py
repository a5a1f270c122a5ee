"""The pages agree with the repository: links lead somewhere, records of decisions are short and all listed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from agent.commands.main import app
from tests.architecture.product import PACKAGES, ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])
RECORDS = sorted((ROOT / "docs" / "adr").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    inner = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:|#", link)]
    assert [link for link in inner if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_of_a_decision_is_short_and_complete(record: Path) -> None:
    text = record.read_text("utf-8")
    assert len(text.splitlines()) < 40
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert text.startswith(f"# {int(record.stem[:4])}. ")


def test_the_index_lists_every_record() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    assert [record.name for record in RECORDS if f"adr/{record.name}" not in index] == []


def test_the_readme_is_one_screen_with_both_commands_and_figures_of_benchmarks_that_exist() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) <= 90
    assert [command for command in ("make dry-run", "make test") if command not in readme] == []
    figures = re.findall(r"\(\[(\w+)\]\(([^)#]+)", readme)
    assert len(figures) == 5
    missing = [
        name
        for name, page in figures
        if f"benchmarks.{name}" not in (ROOT / page).read_text("utf-8")
        or not (ROOT / "benchmarks" / f"{name}.py").exists()
    ]
    assert missing == [], "a figure links to a page that does not name its benchmark"


def test_every_benchmark_that_a_page_names_exists_and_every_benchmark_is_named_by_a_page() -> None:
    programs = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def main(" in path.read_text("utf-8")}
    names = r"benchmarks\.(\w+)|make bench ARGS=\"(\w+)"
    named = {page: {a or b for a, b in re.findall(names, page.read_text("utf-8"))} - {"NAME"} for page in PAGES}
    missing = {page.relative_to(ROOT).as_posix(): found - programs for page, found in named.items() if found - programs}
    assert missing == {}
    pages = (found for page, found in named.items() if page.name != "CHANGELOG.md" and "evidence" not in page.parts)
    assert programs - set().union(*pages) == set(), "benchmarks whose figure no page names"


def test_the_changelog_is_one_short_section_until_the_first_release() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert len(changelog.splitlines()) <= 40
    assert re.findall("^##+ (.+)$", changelog, re.MULTILINE) == ["0.1.0 (unreleased)", "Added", "Removed"]


def test_the_architecture_page_names_every_package() -> None:
    architecture = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert [package for package in PACKAGES if not re.search(rf"\b{package}/", architecture)] == []


def test_every_file_of_the_product_that_a_page_names_exists() -> None:
    of_product = re.compile(rf"`((?:{'|'.join(PACKAGES)}|tests|deploy)/[\w./-]+\w)`")
    named = {path for page in PAGES for path in of_product.findall(page.read_text("utf-8"))}
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"`make ([a-z-]+)", page.read_text("utf-8"))}
    assert named - targets == set()


def test_every_command_that_a_page_names_exists() -> None:
    of_program = re.compile(r"(?:^|`|bin/)trimtab ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", re.MULTILINE)
    named = {words for page in PAGES if page.name != "CHANGELOG.md" for words in of_program.findall(page.read_text())}
    program, unknown = get_command(app), set()
    for words in named:
        known: object = program
        for word in filter(None, words):
            if isinstance(known, TyperGroup):
                known = known.get_command(known.make_context("trimtab", [], resilient_parsing=True), word)
        if known is None:
            unknown.add(words)
    assert unknown == set()


def built(site: Path, source: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Build the documentation of a checkout as `make docs` does, into another folder."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)


def after_commands(text: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run the commands of a page in their order in a newcomer's shell; return also how many blocks of them it has.

    The shell has this environment's programs, and no variable of the agent or of these tests.
    """
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shell = {name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")}
    shell["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "\n".join(["set -euo pipefail", *blocks])
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=shell, capture_output=True, text=True, check=False)
    return done, len(blocks)


@pytest.mark.exhaustive
def test_the_site_is_built_and_no_link_or_anchor_leads_nowhere(tmp_path: Path) -> None:
    done = built(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "operate" / "install.html").is_file()
    assert (tmp_path / "repository" / "deploy" / "iam" / "act.json").is_file(), "what pages link to comes along"


@pytest.mark.exhaustive
def test_a_link_a_heading_or_an_entry_of_the_index_that_is_missing_stops_the_site(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("mkdocs.yml", "docs/site.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "docs" / "README.md").write_text("# Index\n\n## Operate\n\n[a](a.md)\n", "utf-8")
    (tmp_path / "docs" / "a.md").write_text("# A\n\n[b](b.md) [top](README.md#nowhere)\n", "utf-8")
    (tmp_path / "docs" / "unlisted.md").write_text("# Unlisted\n", "utf-8")
    done = built(tmp_path / "site", tmp_path)
    assert done.returncode != 0
    assert [word for word in ("b.md", "#nowhere", "unlisted.md") if word not in done.stderr] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("decision", ["autoscaling", "admission", "oversubscription", "placement", "deferral"])
def test_the_commands_from_a_trace_to_a_table_and_a_figure_leave_the_files_that_their_page_lists(
    decision: str, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "train" / "trace.md").read_text("utf-8")
    section = page.partition(f"\n## {decision.capitalize()}\n")[2].partition("\n## ")[0]
    done, blocks = after_commands(section, tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    files = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert (blocks, len(files) > 2) == (2, True)
    assert [name for name in files if not (tmp_path / name).exists()] == []
    assert all(text.rstrip().endswith(r"\end{tabular}") for text in map(Path.read_text, tmp_path.glob("*.tex")))


@pytest.mark.exhaustive
def test_the_commands_of_the_tutorial_run_in_their_order(tmp_path: Path) -> None:
    done, commands = after_commands((ROOT / "docs" / "tutorial.md").read_text("utf-8"), tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    said = ("all the same byte for byte", "VM-hours", "queue-rule", "no mistakes", "refused, as it should be")
    assert [words for words in said if words not in done.stdout] == []
    assert commands == 6
