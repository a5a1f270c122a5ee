"""Debian's Chromium, driven by Playwright, with everything switched off that talks to the outside."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

PHONE = {"width": 375, "height": 812}
DESKTOP = {"width": 1280, "height": 900}


@contextmanager
def launched() -> Iterator[Browser]:
    """Run Chromium while the block runs."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    arguments = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def sideways(page: Page) -> int:
    """Return by how many pixels the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def complaints(page: Page) -> list[str]:
    """Return what axe finds, faint text among it: the rule and the first element of each."""
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:120]}" for one in found]
