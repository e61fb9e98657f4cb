"""The page of `pdpgd report` in a real browser, opened from disk."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pdpgd.cli import main
from support.browser import browser, complaints, requests, resize
from support.evil import EVIL, evaluated_under_an_evil_name
from support.patience import PATIENCE

RUN = ["mnist-1000", "--norm", "linf", "--norm", "l0", "--budget", "20", "--limit", "15", "--threads", "1"]


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, chrome: Any) -> Path:
    """Two nets side by side. The fixture needs the browser first, so that nothing is computed without one."""
    folder = tmp_path_factory.mktemp("report")
    for net in ("mnist-plain", "mnist-linf-at"):
        assert main(["evaluate", net, *RUN, "--out", str(folder / net), "--json"]) == 0
    assert (
        main(
            [
                "report",
                *(str(folder / net) for net in ("mnist-plain", "mnist-linf-at")),
                "--out",
                str(folder / "a.html"),
            ]
        )
        == 0
    )
    return folder / "a.html"


@pytest.fixture
def opened(chrome: Any, page: Path) -> Iterator[Any]:
    chrome.get_log("browser")
    chrome.get_log("performance")
    resize(chrome, 1280)
    chrome.get(page.as_uri())
    yield chrome
    assert complaints(chrome) == []
    assert requests(chrome) == []


def until(holds: Callable[[], Any]) -> Any:
    """Wait for a true value, and return it."""
    end = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < end, "expected it to hold in time"
        time.sleep(0.05)
    return found


def find(chrome: Any, selector: str) -> Any:
    return chrome.find_element("css selector", selector)


def come_into_view(chrome: Any, selector: str) -> Any:
    element = find(chrome, selector)
    chrome.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    return element


def test_charts_are_drawn_when_they_come_into_view(opened: Any) -> None:
    script = "return document.querySelectorAll('.chart .main-svg').length"
    before = opened.execute_script(script)
    come_into_view(opened, "#course-0-l0")
    until(lambda: opened.execute_script("return !!document.querySelector('#course-0-l0 .main-svg')"))
    assert opened.execute_script(script) > before


def test_a_table_is_sorted_by_its_headings_by_mouse_and_by_keyboard(opened: Any) -> None:
    def column() -> list[float]:
        cells = opened.find_elements("css selector", "#marked-0 tbody td:nth-child(4)")
        return [float(cell.get_attribute("data-value")) for cell in cells]

    heading = find(opened, "#marked-0 th:nth-child(4)")
    button = heading.find_element("css selector", "button")
    assert column() != sorted(column())
    opened.execute_script("arguments[0].click()", button)
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column() == sorted(column())
    button.send_keys("\ue007")  # Enter
    assert heading.get_attribute("aria-sort") == "descending"
    assert column() == sorted(column(), reverse=True)
    assert find(opened, "#said").get_attribute("textContent") == "Sorted by robust accuracy, descending"


def test_the_gallery_is_filtered_and_says_how_many_are_left(opened: Any) -> None:
    def shown() -> list[Any]:
        return opened.find_elements("css selector", ".card:not([hidden])")

    def choose(selector: str, value: str) -> None:
        opened.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))",
            find(opened, selector),
            value,
        )

    cards = len(opened.find_elements("css selector", ".card"))
    found = find(opened, "#found")
    assert found.get_attribute("aria-live") == "polite"
    assert len(shown()) == 24
    choose("[data-filter=norm]", "l0")
    assert {card.get_attribute("data-norm") for card in shown()} == {"l0"}
    choose("[data-filter=source]", "mnist-plain")
    count = len(shown())
    assert 0 < count < cards
    assert found.text == f"{count} of {cards} match"
    distances = [float(card.get_attribute("data-distance")) for card in shown()]
    assert distances == sorted(distances, reverse=True)
    choose("[data-order]", "easiest")
    assert [float(card.get_attribute("data-distance")) for card in shown()] == sorted(distances)
    choose("[data-filter=text]", shown()[0].get_attribute("data-sample"))
    assert len(shown()) == 1
    choose("[data-filter=text]", "no such text")
    assert shown() == []
    assert found.text == f"0 of {cards} match"


def test_a_curve_says_its_numbers_where_the_pointer_is(opened: Any) -> None:
    from selenium.webdriver import ActionChains

    come_into_view(opened, "#curve-0-linf .chart")
    until(lambda: opened.execute_script("return !!document.querySelector('#curve-0-linf .main-svg')"))
    plot = find(opened, "#curve-0-linf .nsewdrag")
    # Every curve begins at radius 0, wherever its other points are; a pointer that stays causes no event.
    offsets = itertools.cycle(-plot.size["width"] // 2 + inward for inward in (4, 8))

    def labels() -> Any:
        move = ActionChains(opened)
        move.move_to_element_with_offset(plot, next(offsets), -plot.size["height"] // 2 + 12).perform()
        time.sleep(0.2)
        return opened.find_elements("css selector", "#curve-0-linf .hovertext")

    text = until(labels)[0].get_attribute("textContent")
    assert "% robust at" in text
    assert "mnist" in text


def test_dark_colors_reach_the_page_and_the_charts(opened: Any) -> None:
    come_into_view(opened, "#curve-0-linf")
    until(lambda: opened.execute_script("return !!document.querySelector('#curve-0-linf .main-svg')"))

    def colors() -> list[str]:
        return opened.execute_script(
            "const style = (e) => getComputedStyle(document.querySelector(e));"
            "return [style('body').backgroundColor, style('#curve-0-linf .xtick text').fill,"
            " style('#curve-0-linf .scatterlayer .trace:nth-child(3) path.js-line').stroke]"
        )

    light = colors()
    find(opened, "#theme").click()
    until(lambda: all(one != other for one, other in zip(light, colors(), strict=True)))
    assert find(opened, "#theme").get_attribute("aria-pressed") == "true"
    find(opened, "#theme").click()
    until(lambda: colors() == light)


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_does_not_scroll_sideways(width: int, opened: Any) -> None:
    resize(opened, width)
    for selector in ("#curves", "#distances", "#courses", "#classes", "#making"):
        come_into_view(opened, selector)
        time.sleep(0.2)
    opened.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    # Not innerWidth: a phone's grows with what does not fit.
    assert opened.execute_script("return document.scrollingElement.scrollWidth") <= width


def test_the_first_column_of_a_wide_table_stays_in_view(opened: Any) -> None:
    resize(opened, 360)
    places = opened.execute_script(
        "const box = document.querySelector('#difference-0 .scroll');"
        "const cells = [...box.querySelectorAll('td')].slice(0, 2);"
        "const left = () => cells.map((cell) => cell.getBoundingClientRect().left);"
        "const before = left(); box.scrollLeft = 100; return [before, left()]"
    )
    (first, second), (first_after, second_after) = places
    assert first_after == first
    assert second_after == second - 100


def test_everything_is_open_light_and_drawn_in_print(opened: Any) -> None:
    find(opened, "#theme").click()
    state = opened.execute_script(
        "dispatchEvent(new Event('beforeprint'));"
        "const state = [document.querySelectorAll('details:not([open])').length,"
        " document.documentElement.dataset.theme,"
        " [...document.querySelectorAll('.chart')].filter((each) => !each.querySelector('.main-svg')).length];"
        "dispatchEvent(new Event('afterprint')); return state"
    )
    assert state == [0, "light", 0]
    assert opened.execute_script("return document.documentElement.dataset.theme") == "dark"
    find(opened, "#theme").click()


def test_a_table_is_saved_as_csv_with_all_digits(opened: Any) -> None:
    opened.execute_script(
        "window.saved = []; URL.createObjectURL = (blob) => { blob.text().then((t) => saved.push(t)); return '#'; }"
    )
    opened.execute_script("document.querySelector('#marked-0 .save').click()")
    text = until(lambda: opened.execute_script("return saved[0]"))
    lines = text.splitlines()
    assert lines[0] == "norm,radius,model,robust accuracy,95% from,to"
    assert len(lines) == 1 + len(opened.find_elements("css selector", "#marked-0 tbody tr"))
    assert lines[1].split(",")[2] == "mnist-plain"


def test_a_model_with_a_script_for_a_name_is_shown_by_that_name(chrome: Any, tmp_path: Path) -> None:
    from selenium.common.exceptions import NoAlertPresentException

    from pdpgd import write_report

    place = write_report(evaluated_under_an_evil_name(), tmp_path / "evil.html")
    chrome.get(place.as_uri())
    until(lambda: chrome.execute_script("return !!document.querySelector('.main-svg')"))
    with pytest.raises(NoAlertPresentException):
        _ = chrome.switch_to.alert
    assert EVIL in find(chrome, "h1").text
    assert complaints(chrome) == []


def test_the_command_is_shown_as_it_is_copied(chrome: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["pdpgd", "evaluate", "my net.pt", "--json", "a  b"]
    monkeypatch.setattr("sys.argv", command)
    assert main(["evaluate", "mnist-plain", *RUN[:3], "--budget", "2", "--limit", "2", "--out", str(tmp_path)]) == 0
    assert main(["report", str(tmp_path)]) == 0
    chrome.get((tmp_path / "report.html").as_uri())
    code = find(chrome, ".command code")
    assert code.get_attribute("textContent") == code.get_attribute("data-command") == shlex.join(command)
