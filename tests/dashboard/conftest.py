"""Stores for pages: a full one of made-up results, an empty one, a damaged one; and an engine that runs nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import loaders
from tests.dashboard import synthetic
from tests.dashboard.engines import FakeEngine
from tier import demo, presets
from tier.presets import Preset
from tier.store import Store

APP = Path(__file__).parents[2] / "dashboard" / "app.py"
PAGES = (
    "overview", "trajectories", "divergence", "explanations", "quality", "sample", "attack", "tradeoff", "paper",
    "train", "runs",
)  # fmt: skip

LISTINGS = (  # that look at the store or the data again
    loaders._listed, loaders._available, loaders._runs, loaders._contents, loaders._nearest,
)  # fmt: skip
Open = Callable[..., AppTest]


@pytest.fixture(scope="session")
def full_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("full")
    synthetic.fill(Store(root), presets.get("signs"))
    return root


@pytest.fixture(scope="session")
def preset(full_store: Path) -> Preset:
    return synthetic.pinned(Store(full_store), presets.get("signs"))


@pytest.fixture
def shipped_store() -> Path:
    """The results that come with the repository."""
    return demo.ASSETS


@pytest.fixture
def empty_store(tmp_path: Path) -> Path:
    return tmp_path / "empty"


@pytest.fixture
def damaged_store(full_store: Path, tmp_path: Path) -> Path:
    """A copy with tables cut short, a record that is not JSON and a file gone, in the runs that pages show first."""
    root = tmp_path / "damaged"
    shutil.copytree(full_store, root)
    for path in root.glob("trajectory/*/curves.parquet"):
        path.write_bytes(path.read_bytes()[:100])
    sorted(root.glob("report/*/record.json"))[0].write_text("{")
    for path in root.glob("divergence/*/profile.parquet"):
        path.unlink()
    for path in root.glob("train/*/events.parquet"):
        raw = bytearray(path.read_bytes())
        raw[50] ^= 0xFF  # the size stays, the checksum does not
        path.write_bytes(raw)
    return root


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(loaders, "engine", lambda: fake)
    return fake


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: FakeEngine) -> Open:
    """A function that opens a page on a store, as a link would: `open_page("train", store, seed="1")`."""

    def start(page: str, store: Path, **query: str | list[str]) -> AppTest:
        monkeypatch.setenv("TIER_STORE", str(store))
        monkeypatch.setenv("TIER_DEMO_STORE", str(tmp_path / "no_demo"))
        for listing in LISTINGS:  # what else is cached is so under the keys of the results that it is made from
            listing.clear()
        test = AppTest.from_file(str(APP), default_timeout=30)
        if page != "overview":
            test.switch_page(f"../pages/{page}.py")
        for name, value in query.items():
            test.query_params[name] = value
        return test.run()

    return start


def texts(test: AppTest) -> str:
    """Everything that a page says in words."""
    kinds = (test.title, test.subheader, test.markdown, test.caption, test.info, test.warning, test.error, test.success)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def charts(test: AppTest) -> list[object]:
    """The page's Plotly charts, as Streamlit's messages."""
    return [element.proto for element in test.get("plotly_chart")]
