"""Measure the cost of a report: seconds to write it, its size, and seconds until a browser shows it.

Evaluates a shipped net on 1000 images in four norms, with a budget so small that it takes about a minute, writes the
page, and opens it from disk in headless Chromium. The browser's clock measures the time until the page is loaded and
until the first chart is drawn.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from pdpgd import evaluate, write_report

NORMS = ("linf", "l2", "l1", "l0")
TIMES = """
const page = performance.getEntriesByType("navigation")[0];
const chart = performance.getEntriesByName("first-chart")[0];
return chart && page.loadEventEnd ? [page.loadEventEnd / 1000, chart.startTime / 1000] : null;
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="directory of an existing run (default: compute one)")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--budget", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or Path(folder) / "run"
        if options.run is None:
            evaluate("mnist-plain", "mnist-1000", norms=NORMS, limit=options.limit, budget=options.budget, out=run)
        begun = time.perf_counter()
        page = write_report(run, Path(folder) / "report.html")
        print(f"written in {time.perf_counter() - begun:.2f} s, {page.stat().st_size / 1e6:.2f} MB")
        found = [opened(page) for _ in range(options.repeats)]
        loaded, drawn = (median(times) for times in zip(*found, strict=True))
        print(f"opened {options.repeats} times, medians: loaded after {loaded:.2f} s, first chart after {drawn:.2f} s")


def opened(page: Path) -> tuple[float, float]:
    """Seconds until the page is loaded, and until its first chart is drawn, in a browser that has just started."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        sys.exit("needs Chromium and its driver: apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1280,900",
    ):
        options.add_argument(argument)
    chrome = Chrome(options=options, service=ChromeService(executable_path=driver))
    try:
        chrome.get(page.as_uri())
        for _ in range(200):
            times = chrome.execute_script(TIMES)
            if times:
                return times[0], times[1]
            time.sleep(0.05)
        sys.exit("expected a chart within ten seconds, got none")
    finally:
        chrome.quit()


if __name__ == "__main__":
    main()
