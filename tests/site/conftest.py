"""The built site, served, and a browser that opens it: `make docs-test`."""

import functools
import http.server
import os
import pathlib
import threading

import pytest

SITE = pathlib.Path(__file__).parents[2] / "build/site"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="session")
def site():
    """The folder of the site."""
    assert (SITE / "index.html").exists(), "the site is not built; `make docs` builds it"
    return SITE


@pytest.fixture(scope="session")
def address(site):
    """Where the site is served."""
    handler = functools.partial(_Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window."""
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or None
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
