"""A real server, started as a user would from another folder, and a real browser."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tier import presets

ROOT = Path(__file__).parents[2]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def up(url: str, server: "subprocess.Popen[bytes]", within: float = 60.0) -> None:
    """Wait until the server answers; one that has ended cannot be what answers on its port."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        assert server.poll() is None, f"the server ended with {server.returncode} before it answered"
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise TimeoutError(f"{url} does not answer")


class Serve:
    """Starts servers from folders that are not the repository, each on a store without the demo store below it."""

    def __init__(self, new_folder: Callable[[str], Path]) -> None:
        self._new_folder = new_folder
        self._servers: list[subprocess.Popen[bytes]] = []
        self._stores: dict[str, Path] = {}

    def __call__(self, store: Path) -> str:
        """The address of a new server on a store."""
        port, folder = free_port(), self._new_folder("elsewhere")
        command = [sys.executable, "-m", "streamlit", "run", str(ROOT / "dashboard" / "app.py")]
        command += ["--server.port", str(port), "--server.headless", "true"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMLIT_")}
        with (folder / "server.log").open("wb") as log:
            server = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, start_new_session=True,
                env=environment | {"TIER_STORE": str(store), "TIER_DEMO_STORE": str(folder / "no_demo")},
            )  # fmt: skip
        self._servers.append(server)
        url = f"http://localhost:{port}"
        self._stores[url] = store
        up(url, server)
        return url

    def anew(self, address: str) -> str:
        """The same page at another server on the same store, whose caches are empty."""
        server = "{0.scheme}://{0.netloc}".format(urlsplit(address))
        return self(self._stores[server]) + address.removeprefix(server)

    def close(self) -> None:
        """End all servers."""
        for server in self._servers:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=30)


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    servers = Serve(tmp_path_factory.mktemp)
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium on the PATH")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def view(browser: Browser) -> Iterator[Callable[..., Page]]:
    """A function that opens an address in a fresh session: `view(url, theme="dark", width=1440)`."""
    contexts = []

    def start(url: str, theme: str = "light", width: int = 1440) -> Page:
        context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 1000})  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.goto(url)
        settle(page)
        return page

    yield start
    for context in contexts:
        context.close()


def next_lambda() -> tuple[str, str, str]:
    """Lambda as the Train page of `signs` opens, the slider's next stop, and beta, as the page writes them."""
    preset = presets.get("signs")
    usual = preset.defense("tier_full").tier
    stops = sorted({*preset.lambdas, usual.lambda_})
    return f"{usual.lambda_:g}", f"{stops[stops.index(usual.lambda_) + 1]:g}", f"{usual.beta:g}"


def settle(page: Page, limit: float = 60.0) -> None:
    """Wait until the script has ended and the page's text has stood still for half a second."""
    page.wait_for_selector('[data-testid="stMain"] h1', timeout=1000 * limit)
    end, last, since = time.monotonic() + limit, None, time.monotonic()
    while time.monotonic() < end:
        busy = page.locator('[data-testid="stStatusWidget"], [data-testid="stSkeleton"]').count()
        text = page.inner_text("body")
        if busy or text != last:
            last, since = text, time.monotonic()
        elif time.monotonic() - since > 0.5:
            return
        page.wait_for_timeout(100)
    raise TimeoutError(f"the page did not come to rest within {limit:g} s")
