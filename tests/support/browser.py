"""A real browser for pages that are opened from disk: headless Chromium, driven through chromedriver."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

DRIVER = ("chromedriver", "chromium.chromedriver")
BROWSER = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def browser(*, width: int = 1280, height: int = 900) -> Iterator[Any]:
    """Start Chromium with logs of its console and its network requests; skip the test if it is not installed."""
    driver, chromium = (next(filter(None, map(shutil.which, names)), None) for names in (DRIVER, BROWSER))
    if driver is None or chromium is None:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = chromium
    # Chromium refuses its sandbox as root, and containers have little shared memory.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = Chrome(options=options, service=ChromeService(executable_path=driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def complaints(chrome: Any) -> list[str]:
    """Errors and warnings in the console."""
    return [entry["message"] for entry in chrome.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def requests(chrome: Any) -> list[str]:
    """Addresses that were requested over a network."""
    events = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    addresses = [
        event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"
    ]
    return [address for address in addresses if urlsplit(address).scheme not in ("file", "data", "blob")]


def resize(chrome: Any, width: int, height: int = 900) -> None:
    """Resize the page itself: windows have a minimum width, phones do not."""
    chrome.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
    )
