"""The fleet page as a person meets it, in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from cp_ray.core.types import ReplicaId, ReplicaInfo
from tests.browser.chromium import BINARY, Browser, chromium
from tests.shells.http_support import PAGE, LocalPlanner, TapeEngine, wait_for
from tests.shells.test_fleet_page import Page, opened

pytestmark = pytest.mark.skipif(not BINARY, reason="no chromium here (apt install chromium)")
REPLICAS = [ReplicaId(f"r{number:02}") for number in range(32)]
ROWS = "document.querySelectorAll('#replicas tr').length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as tab:
        tab.size(1400, 1300)
        yield tab


@pytest.fixture
def page() -> Iterator[Page]:
    yield from opened(
        planner=LocalPlanner(REPLICAS), engines={name: TapeEngine() for name in REPLICAS}
    )


def live(browser: Browser, page: Page) -> None:
    browser.errors.clear()
    browser.open(f"{page.url}/fleet")
    browser.until("document.querySelector('#status')?.textContent.startsWith('live')")


def test_it_loads_and_shows_32_replicas_without_an_error(browser: Browser, page: Page) -> None:
    page.ask()
    live(browser, page)
    assert browser.js(ROWS) == 32
    assert "r00" in browser.text("#replicas")
    assert "32 / 32" in browser.text("#tiles")
    assert "cold" in browser.text("#losses")
    assert browser.errors == []


def test_it_follows_live_and_keeps_the_focus(browser: Browser, page: Page) -> None:
    page.ask()
    live(browser, page)
    browser.js("document.querySelector('#recent button').focus()")
    before = browser.js("document.activeElement.getAttribute('aria-label')")
    for _ in range(5):
        page.ask()
    browser.until("document.querySelectorAll('#recent tr').length === 6")
    assert browser.js("document.activeElement.getAttribute('aria-label')") == before


def test_a_dead_replica_is_shown_as_gone(browser: Browser, page: Page) -> None:
    live(browser, page)
    infos = [ReplicaInfo(name, PAGE, 1 << 20) for name in REPLICAS if name != "r05"]
    page.shown.index.set_replicas(infos)
    browser.until("document.querySelector('#replicas tr.gone')?.innerText.includes('gone')")
    assert browser.js(ROWS) == 32
    assert "31 / 31" in browser.text("#tiles")


def test_a_request_is_explained_by_keyboard_alone(browser: Browser, page: Page) -> None:
    page.ask()
    live(browser, page)
    browser.js("document.querySelector('#recent button').focus()")
    browser.press("Enter")
    browser.until("!document.querySelector('#explain').hidden")
    assert "first token" in browser.text("#steps")
    assert "never sent before" in browser.text("#request-losses")
    assert browser.js("document.activeElement.id") == "explain-title"
    browser.press("Escape")
    assert browser.js("document.querySelector('#explain').hidden")
    assert browser.js("document.activeElement.closest('#recent') !== null")
    browser.press("p")
    assert browser.js("document.querySelector('#pause').getAttribute('aria-pressed')") == "true"


def test_an_index_that_is_down_is_said_and_recovers(browser: Browser, page: Page) -> None:
    live(browser, page)
    page.shown.down = True
    browser.until("document.querySelector('#status').textContent.includes('index is down')")
    page.shown.down = False
    browser.until("document.querySelector('#status').textContent.startsWith('live')")


def test_an_expired_key_clears_the_page_and_asks_for_another(browser: Browser) -> None:
    for page in opened(operator_key="key-operator"):
        browser.open(f"{page.url}/fleet")
        browser.until("!document.querySelector('#login').hidden")
        assert browser.js("document.activeElement.id") == "key"
        browser.type("key-operator")
        browser.press("Enter")
        browser.until("document.querySelector('#status').textContent.startsWith('live')")
        assert browser.js(ROWS) == 1
        browser.js("sessionStorage.setItem('cp_ray_operator_key', 'key-that-expired')")
        browser.until("!document.querySelector('#login').hidden")
        assert browser.js(ROWS) == 0, "what the old key showed is gone"
        assert "missing or unknown" in browser.text("#login-why")


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_text_stands_out_in_dark_and_in_light(browser: Browser, page: Page, scheme: str) -> None:
    browser.scheme(scheme)
    page.ask()
    live(browser, page)
    luminance = """(color => { const [r, g, b] = color.match(/[\\d.]+/g).map(v => {
        v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
        return .2126 * r + .7152 * g + .0722 * b; })"""
    contrast = f"""(selector => {{ const node = document.querySelector(selector);
        const card = getComputedStyle(node.closest('section, header')).backgroundColor;
        const [one, two] = [getComputedStyle(node).color, card].map({luminance});
        return (Math.max(one, two) + .05) / (Math.min(one, two) + .05); }})"""
    for selector in ("#replicas td", "#tiles span", "#status", ".trusted", "#recent button"):
        assert browser.js(f"{contrast}('{selector}')") >= 4.5, selector


def test_it_stops_asking_an_application_that_is_gone_for_nothing(browser: Browser) -> None:
    for page in opened():
        live(browser, page)
    browser.until("document.querySelector('#status').textContent.includes('no answer')", 20)
    assert browser.js("document.body.classList.contains('stale')")


def test_a_tick_of_32_replicas_is_quick(browser: Browser, page: Page) -> None:
    for number in range(40):
        page.ask(documents=[f"topic {number} " * 20])
    live(browser, page)
    spent = browser.js(
        "(async () => { const a = await get('fleet/data?since=0'); const t = performance.now();"
        " for (let i = 0; i < 20; i++) show(a.body); return (performance.now() - t) / 20; })()"
    )
    assert spent < 100, "milliseconds of a page that is drawn once a second"
    began = time.monotonic()
    wait_for(lambda: page.get("/fleet/data").status_code == 200)
    assert time.monotonic() - began < 1
