"""Debian's Chromium, driven by playwright; without either, the tests skip and say what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

# Chromium's own errands (updates, field trials, safe browsing) find no way out of a closed network.
FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A running browser."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.skip("there is no chromium: `make browser` installs it as root where apt is")
    api = pytest.importorskip("playwright.sync_api", reason="`make browser` installs playwright")
    # Its sandbox refuses to start for root.
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=flags)
        yield browser
        browser.close()
