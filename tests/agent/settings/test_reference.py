"""The reference page is written from the settings' definitions and is up to date."""

from pathlib import Path

from agent.settings.names import NOT_SETTINGS, leaf, name_of, page, paths

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "configuration.md"


def test_the_committed_page_is_what_the_definitions_say() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `trimtab config docs` and commit docs/operate/configuration.md"


def test_every_setting_has_a_line_and_a_meaning() -> None:
    text = page()
    for path in paths():
        node = leaf(path)
        assert node is not None
        assert node.field is not None
        assert node.field.description, f"{name_of(path)} lacks a description"
        assert text.count(f"| `{name_of(path)}` |") == 1
    for name in NOT_SETTINGS:
        assert f"| `{name}` |" in text
