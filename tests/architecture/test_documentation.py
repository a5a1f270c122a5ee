"""The pages agree with the repository: links lead somewhere, records of decisions are short and all listed."""

import re
from pathlib import Path

import pytest

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


def test_the_readme_names_both_commands_and_every_package() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    wanted = ["make dry-run", "make test", *(f"`{package}/`" for package in PACKAGES)]
    assert [phrase for phrase in wanted if phrase not in readme] == []


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"`make ([a-z-]+)", page.read_text("utf-8"))}
    assert named - targets == set()
