"""The built site in a real browser, on a phone and on a desk, light and dark: `make docs-test`."""

import functools
import html
import http.server
import os
import pathlib
import re
import threading
import urllib.parse

import pytest

pytestmark = pytest.mark.site

SITE = pathlib.Path(__file__).parents[2] / "build/site"
WIDTHS = {"phone": 390, "desk": 1280}
SCHEMES = ("light", "dark")

MISPLACED = (pathlib.Path(__file__).parent / "misplaced.js").read_text("utf-8")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def site():
    assert (SITE / "index.html").exists(), "the site is not built; `make docs` builds it"
    return SITE


@pytest.fixture(scope="module")
def address(site):
    handler = functools.partial(_Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window."""
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or None
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def pages_of(folder: pathlib.Path) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    return sorted(name for name in names if not name.startswith("_static/"))  # theme's templates


def unlike_pages(folder: pathlib.Path) -> list[str]:
    """All pages, but of those that show a file, which are made alike, only a few."""
    few = "towers/step.py.html", "towers/multi_worker/runtime.py.html", "docs/measurements.html"
    own = [page for page in pages_of(folder) if not page.startswith("code/")]
    return own + [f"code/{page}" for page in few]


def fail_with(faults: list[str]) -> None:
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def test_every_link_within_the_site_leads_to_a_file(site):
    broken = []
    for page in pages_of(site):
        for link in re.findall(r'(?:href|src)="([^"#?]+)', (site / page).read_text("utf-8")):
            parts = urllib.parse.urlsplit(html.unescape(link))
            target = (site / page).parent / urllib.parse.unquote(parts.path)
            if not parts.scheme and not parts.netloc and not target.exists():
                broken.append(f"{page}: {link}")
    fail_with(broken)


@pytest.fixture
def opened(browser, address):
    """Opens a page; says afterwards what the browser complained of and what it asked others for."""
    contexts = []

    def open_page(page, width=WIDTHS["desk"], scheme="light", **options):
        size = {"width": width, "height": 900}
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme, **options))
        tab = contexts[-1].new_page()
        tab.set_default_timeout(10_000)
        tab.complaints, tab.address = [], address
        tab.on("console", lambda m: m.type == "error" and tab.complaints.append(m.text))
        tab.on("pageerror", lambda error: tab.complaints.append(str(error)))
        tab.on("requestfailed", lambda r: "ABORTED" in r.failure or tab.complaints.append(r.url))
        tab.on(
            "request",
            lambda r: r.url.startswith((address, "data:")) or tab.complaints.append(r.url),
        )
        tab.goto(f"{address}/{page}")
        return tab

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
def test_every_page_opens_and_its_text_is_whole(site, opened, width, scheme):
    tab, faults = opened("index.html", width, scheme), []
    for page in unlike_pages(site):
        tab.complaints.clear()
        tab.goto(f"{tab.address}/{page}")
        faults += [f"{page}: {fault}" for fault in [*tab.complaints, *tab.evaluate(MISPLACED)]]
    fail_with(faults)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_reader_who_does_not_see_finds_no_serious_fault(site, opened, scheme):
    from axe_playwright_python import sync_playwright as axe

    tab, faults = opened("index.html", scheme=scheme), []
    rules = {} if scheme == "light" else {"runOnly": ["color-contrast"]}  # all else is the same
    for page in unlike_pages(site):
        tab.goto(f"{tab.address}/{page}")
        # The colours of code are the same on every page, and axe looks at each word.
        without_code = None if page.startswith("code/") else {"exclude": [".highlight span"]}
        run = axe.Axe().run(tab, without_code, rules | {"resultTypes": ["violations"]})
        for fault in run.response["violations"]:
            if fault["impact"] in ("serious", "critical"):
                places = [place["target"] for place in fault["nodes"][:3]]
                faults.append(f"{page}: {fault['id']}: {fault['help']}: {places}")
    fail_with(faults)


def test_a_word_of_the_glossary_explains_itself(opened):
    tab = opened("index.html", WIDTHS["phone"])
    word = tab.locator(".explained", has_text="tower").first
    tip = word.locator(".tip")
    assert not tip.is_visible()
    word.locator("a").focus()
    assert tip.is_visible() and "computation of the model on one device" in tip.inner_text()
    box = tip.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= WIDTHS["phone"]


def test_the_race_plays_pauses_and_follows_the_theme(opened):
    tab = opened("laboratory.html", scheme="dark")
    race = tab.frame_locator("iframe >> nth=0")
    state = race.locator("#state")
    race.locator("#rule").select_option("asynchronous")
    race.locator("#speeds").select_option("straggler")
    assert "stale" in state.inner_text()
    before = float(race.locator("#time").input_value())
    race.locator("#play").click()
    tab.wait_for_function(
        "before => frames[0].document.getElementById('time').value > before + 1", arg=before
    )
    race.locator("#play").click()
    assert race.locator("#play").inner_text() == "play"
    stopped = state.inner_text()
    tab.wait_for_timeout(300)
    assert state.inner_text() == stopped
    race.locator("#rule").select_option("synchronous")
    assert ", 0 of them dropped" in state.inner_text()
    dark = "frames[0].document.documentElement.classList.contains('dark')"
    assert tab.evaluate(dark)
    tab.locator("button.theme-switch-button:visible").first.click()
    tab.locator("button.theme-change-button[data-mode=light]:visible").first.click()
    tab.wait_for_function(f"!{dark}")
    assert tab.complaints == []
