"""An outside scheduler with TLS and a store on S3: the same results, plain words for what is wrong, and nothing lost or
computed twice when workers, scheduler and store go away.
"""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tier import s3
from tests.tier.cluster import Cluster, certificates, cluster
from tests.tier.test_engine import RUNNER, House, experiment, until
from tests.tier.test_experiment import assert_same, tiny, weights
from tier import engine, scheduler
from tier import experiment as stages
from tier.config import Defense, Tier
from tier.store import Store

ROOT = Path(__file__).resolve().parents[2]
EPOCHS = 7


# ---- settings


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Certificates as the guide makes them."""
    return certificates(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def other_tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Those of another authority."""
    return certificates(tmp_path_factory.mktemp("tls") / "theirs")


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch, tls: dict[str, str]) -> Callable[..., None]:
    """Sets the environment: the certificates, and what is given; None removes."""
    for name in (*scheduler.TLS.values(), scheduler.SCHEDULER, scheduler.RESOURCES):
        monkeypatch.delenv(name, raising=False)

    def apply(**more: str | None) -> None:
        for name, value in (tls | more).items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    return apply


def test_without_a_scheduler_there_is_none(setting: Callable[..., None]) -> None:
    assert scheduler.from_environment() is None
    setting(TIER_SCHEDULER="")
    assert scheduler.from_environment() is None


def test_settings_of_the_environment(setting: Callable[..., None], tls: dict[str, str]) -> None:
    setting(TIER_SCHEDULER="tls://[::1]:8786", TIER_WORKER_RESOURCES="GPU=1, memory=8e9")
    found = scheduler.from_environment()
    assert found is not None
    assert (found.host, found.port, found.encrypted) == ("::1", 8786, True)
    assert dict(found.tls) == {name: tls[variable] for name, variable in scheduler.TLS.items()}
    assert found.resources == {"GPU": 1.0, "memory": 8e9}
    setting(TIER_SCHEDULER="tcp://host:1", TIER_WORKER_RESOURCES=None)
    assert scheduler.from_environment() == scheduler.Scheduler("tcp://host:1", "host", 1)


def test_dasks_own_settings_count_where_ours_are_not_set(
    setting: Callable[..., None], tls: dict[str, str], other_tls: dict[str, str]
) -> None:
    import dask.config

    setting(TIER_SCHEDULER="tls://host:1", TIER_TLS_CA=None, TIER_TLS_KEY=None)
    theirs = {
        "distributed.comm.tls.ca-file": other_tls["TIER_TLS_CA"],
        "distributed.comm.tls.client.cert": other_tls["TIER_TLS_CERT"],
        "distributed.comm.tls.client.key": other_tls["TIER_TLS_KEY"],
    }
    with dask.config.set(theirs):
        found = scheduler.from_environment()
    assert found is not None
    assert found.tls["ca_file"] == other_tls["TIER_TLS_CA"]
    assert found.tls["client_cert"] == tls["TIER_TLS_CERT"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"TIER_SCHEDULER": "host:8786"}, "must be tls://host:port or tcp://host:port, not 'host:8786'"),
        ({"TIER_SCHEDULER": "tls://host"}, "must be tls://host:port"),
        ({"TIER_SCHEDULER": "tls://host:99999"}, "must be tls://host:port"),
        ({"TIER_SCHEDULER": "http://host:80"}, "must be tls://host:port"),
        ({"TIER_TLS_CA": "/nowhere/ca.pem"}, "TIER_TLS_CA: there is no file /nowhere/ca.pem"),
        ({"TIER_TLS_CERT": "/"}, "TIER_TLS_CERT: there is no file /"),
        ({"TIER_TLS_CA": None}, "needs TIER_TLS_CA, TIER_TLS_CERT, TIER_TLS_KEY; TIER_TLS_CA is not set"),
        ({"TIER_WORKER_RESOURCES": "GPU"}, "such as GPU=1, not 'GPU'"),
        ({"TIER_WORKER_RESOURCES": "GPU=0"}, "such as GPU=1, not 'GPU=0'"),
        ({"TIER_WORKER_RESOURCES": "A=1,=2"}, "not '=2'"),
        ({"TIER_WORKER_RESOURCES": "A=inf"}, "not 'A=inf'"),
    ],
)
def test_settings_that_cannot_be(setting: Callable[..., None], more: dict[str, str | None], message: str) -> None:
    setting(**{"TIER_SCHEDULER": "tls://127.0.0.1:1", **more})
    with pytest.raises(scheduler.SettingsError) as caught:
        scheduler.from_environment()
    assert message in str(caught.value)


# ---- who answers


class Door:
    """Something that listens on a port: with a certificate's files it speaks TLS and wants to see the caller's."""

    def __init__(self, tls: dict[str, str] | None = None, silent: bool = False) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._silent = silent
        self._context = None
        if tls is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(tls["TIER_TLS_CERT"], tls["TIER_TLS_KEY"])
            self._context.load_verify_locations(tls["TIER_TLS_CA"])
            self._context.verify_mode = ssl.CERT_REQUIRED
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> str:
        return f"tls://127.0.0.1:{self._socket.getsockname()[1]}"

    def _serve(self) -> None:
        kept = []
        while True:
            caller, _ = self._socket.accept()
            kept.append(caller)
            if self._silent:
                continue
            try:
                if self._context is not None:
                    kept.append(self._context.wrap_socket(caller, server_side=True))
                else:
                    caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            except OSError:
                caller.close()


def refused(setting: Callable[..., None], kind: type[Exception], timeout: float = 5.0, **more: str) -> str:
    """What connecting is refused with, and that it did not take long."""
    setting(**more)
    found = scheduler.from_environment()
    assert found is not None
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        found.connect(timeout)
    assert time.monotonic() - began < timeout + 5
    return str(caught.value)


def test_a_scheduler_of_another_authority(setting: Callable[..., None], other_tls: dict[str, str]) -> None:
    door = Door(other_tls)
    told = refused(setting, scheduler.SettingsError, TIER_SCHEDULER=door.address)
    assert f"the certificate of the scheduler {door.address} is not signed by" in told


def test_a_scheduler_that_does_not_accept_ours(
    setting: Callable[..., None], tls: dict[str, str], other_tls: dict[str, str], tmp_path: Path
) -> None:
    door = Door(tls)
    own = {name: other_tls[name] for name in ("TIER_TLS_CERT", "TIER_TLS_KEY")}
    told = refused(setting, scheduler.SettingsError, TIER_SCHEDULER=door.address, **own)
    assert f"{door.address} does not accept the certificate {own['TIER_TLS_CERT']}" in told


def test_files_that_are_no_certificates(setting: Callable[..., None], tls: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    told = refused(
        setting, scheduler.SettingsError, TIER_SCHEDULER="tls://127.0.0.1:1", TIER_TLS_CA=str(tmp_path / "text")
    )
    assert f"{tmp_path / 'text'} holds no certificates" in told
    told = refused(
        setting, scheduler.SettingsError, TIER_SCHEDULER="tls://127.0.0.1:1", TIER_TLS_KEY=str(tmp_path / "text")
    )
    assert "are no certificate and its key" in told


def test_a_port_without_tls(setting: Callable[..., None]) -> None:
    told = refused(setting, scheduler.SettingsError, TIER_SCHEDULER=Door().address)
    assert "does not speak TLS" in told


def test_nobody_there_and_nobody_who_answers(setting: Callable[..., None]) -> None:
    address = f"tls://127.0.0.1:{s3.free_port()}"
    told = refused(setting, scheduler.UnreachableError, TIER_SCHEDULER=address)
    assert told.startswith(f"the scheduler {address} does not answer: ") and "refused" in told
    silent = Door(silent=True)
    told = refused(setting, scheduler.UnreachableError, timeout=0.5, TIER_SCHEDULER=silent.address)
    assert f"the scheduler {silent.address} does not answer" in told


def test_an_engine_without_its_scheduler_ends_in_words(
    setting: Callable[..., None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting(TIER_SCHEDULER="tls://127.0.0.1:1", TIER_TLS_CA="/nowhere/ca.pem")
    assert engine.main(["--store", str(tmp_path)]) == engine.WRONG_SETTINGS
    assert caplog.records[-1].getMessage() == "TIER_TLS_CA: there is no file /nowhere/ca.pem that can be read"
    setting(TIER_SCHEDULER=f"tls://127.0.0.1:{s3.free_port()}")
    assert engine.main(["--store", str(tmp_path)]) == 1
    assert "does not answer" in caplog.records[-1].getMessage()
    assert Store(tmp_path).holder(engine.LEASE) is None


@pytest.mark.engine
def test_a_command_whose_settings_cannot_work_ends_at_once(tmp_path: Path, tls: dict[str, str]) -> None:
    lost = {"TIER_SCHEDULER": "tls://127.0.0.1:1", **tls, "TIER_TLS_CA": str(tmp_path / "ca.pem")}
    done = subprocess.run(
        [sys.executable, "-m", "tier", "run", "signs", "--set", "train.epochs=1", "--store", str(tmp_path / "store")],
        cwd=ROOT, env=os.environ | lost | {"COLUMNS": "300", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    told = " ".join(done.stderr.split())
    assert f"the engine does not start: TIER_TLS_CA: there is no file {tmp_path / 'ca.pem'} that can be read" in told
    assert "Traceback" not in told


# ---- a real cluster


@pytest.fixture(scope="module")
def server() -> Iterator[s3.Server]:
    with s3.Server() as server:
        yield server


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stages of engine_jobs write which epochs they have kept."""
    return tmp_path_factory.mktemp("journal") / "epochs"


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory, server: s3.Server, journal: Path) -> Iterator[Cluster]:
    """A scheduler with TLS and two workers, which know the S3 server."""
    environ = server.environ | {"TIER_TEST_JOURNAL": str(journal), "OMP_NUM_THREADS": "1"}
    with cluster(tmp_path_factory.mktemp("cluster"), environ) as made:
        yield made


@pytest.fixture
def shared(dask: Cluster, server: s3.Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    """A new store on S3, in a process that knows the cluster."""
    server.use(monkeypatch)
    for name, value in (dask.environ | {"XDG_CACHE_HOME": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    return Store(server.place())


@pytest.mark.engine
def test_everything_goes_away_once_and_nothing_is_lost_or_computed_twice(
    shared: Store, dask: Cluster, server: s3.Server, journal: Path
) -> None:
    """A worker killed, the store silent, the scheduler killed and started again, in the midst of a sweep."""
    house = House(shared.url, [], runner=RUNNER)  # type: ignore[arg-type]
    points = [experiment(seed=seed, epochs=EPOCHS, seconds=0.5) for seed in range(6)]
    keys = [house.client.submit("report", point, priority="sweep") for point in points]

    key, worker = until(lambda: at_work(shared, journal, keys), 120, "the third epoch of a point")
    os.kill(worker, signal.SIGKILL)
    until(lambda: goes_on(shared, key), 60, "another worker")

    server.pause()
    time.sleep(4)
    server.go_on()
    until(lambda: any(finished(house, keys)), 90, "a result")

    before = finished(house, keys)
    assert not all(before)
    dask.kill_scheduler()
    until(lambda: any("does not answer" in step for step in steps(house, keys)), 30, "plain words")
    time.sleep(2)
    dask.start_scheduler()
    jobs = [house.client.wait(key, timeout=120) for key in keys]

    assert [job.status for job in jobs] == ["done"] * len(points), [job.error for job in jobs]
    assert sorted(result.key for result in shared.ls("report")) == sorted(keys)
    assert shared.verify() == [] and shared.damaged() == []
    kept = Counter(noted(journal))
    wanted = {(point.train.seed, number) for point in points for number in range(1, EPOCHS + 1)}
    assert set(kept) <= wanted and max(kept.values()) == 1, "an epoch was computed anew although it had been kept"
    assert len(wanted - set(kept)) <= 3  # a kill between keeping an epoch and noting it
    assert shared.list_json("requests") == []
    house.close()


@pytest.mark.slow
@pytest.mark.engine
def test_a_cluster_that_grows_by_itself_grows_with_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: Path
) -> None:
    """As dask-jobqueue does: no worker at first, and as many as the scheduler's tasks ask for."""
    import distributed

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in (*scheduler.TLS.values(), scheduler.RESOURCES):
        monkeypatch.delenv(name, raising=False)
    with distributed.LocalCluster(
        n_workers=0, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, memory_limit=0,
        local_directory=str(tmp_path / "dask"), scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
    ) as cluster:  # fmt: skip
        cluster.adapt(minimum=0, maximum=2, interval="500 ms")
        monkeypatch.setenv("TIER_SCHEDULER", cluster.scheduler_address)
        house = House(tmp_path / "store", [], runner=RUNNER)
        points = [experiment(seed=seed, epochs=24, seconds=0.25) for seed in range(50, 54)]
        keys = [house.client.submit("report", point, priority="sweep") for point in points]
        later = house.client.submit("report", experiment(seed=60, epochs=1))  # which somebody waits for
        until(lambda: len(cluster.scheduler.workers) == 2, 90, "a second worker")
        jobs = [house.client.wait(key, timeout=120) for key in [*keys, later]]
        assert [job.status for job in jobs] == ["done"] * 5, [job.error for job in jobs]
        assert len(workers_of(house.store, keys)) == 2
        last = max(range(4), key=lambda number: jobs[number].started or 0.0)
        assert (jobs[4].started or 0.0) < (jobs[last].started or 0.0), "the sweep went first"
        house.close()
        until(lambda: not cluster.scheduler.tasks, 30, "the scheduler to forget what waited")


def workers_of(store: Store, keys: list[str]) -> set[int]:
    """The processes that computed some results."""
    found = [store.find("report", key) for key in keys]
    return {pid for result in found if result is not None for pid in result.frame("events.parquet")["pid"]}


def noted(journal: Path) -> list[tuple[int, int]]:
    """Seed and epoch of all that was kept, in the order in which it was."""
    return [tuple(json.loads(line)) for line in journal.read_text().splitlines()] if journal.exists() else []


def at_work(store: Store, journal: Path, keys: list[str]) -> tuple[str, int] | None:
    """The key of a point, named by its seed, that is beyond its second epoch, and the process that computes it."""
    for seed, key in enumerate(keys):
        held = store.holder(f"report-{key}") if (seed, 3) in noted(journal) else None
        if held is not None:
            return key, int(held["process"]["pid"])
    return None


def goes_on(store: Store, key: str) -> bool:
    """Whether somebody computes the report, or has done so."""
    return store.holder(f"report-{key}") is not None or store.find("report", key) is not None


def finished(house: House, keys: list[str]) -> list[bool]:
    return [job is not None and job.status == "done" for job in map(house.client.job, keys)]


def steps(house: House, keys: list[str]) -> list[str]:
    return [job.step for job in map(house.client.job, keys) if job is not None]


@pytest.mark.engine
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:no trajectory feature separates")
@pytest.mark.slow
def test_a_sweep_on_the_cluster_gives_what_this_process_computes(shared: Store, tmp_path: Path) -> None:
    alone = Store(tmp_path / "alone")
    plain = tiny(Defense(name="tier_reg", tier=Tier(warmup=1)), **{"train.epochs": 3})
    points = [stages.pin(alone, plain.set({"defense.tier.lambda": value}), load=True) for value in (2.0, 6.0)]
    with engine.Client(shared) as client:
        keys = [client.submit("report", point, priority="sweep") for point in points]
        jobs = [client.wait(key, timeout=500) for key in keys]
        assert [job.status for job in jobs] == ["done", "done"], [job.error for job in jobs]
    for point in points:
        here = stages.ensure(alone, "report", point)
        there = stages.find(shared, "report", point)
        assert there is not None
        assert figures(there.metrics) == figures(here.metrics)
        assert_same(weights(shared, point), weights(alone, point))
    assert shared.verify() == []
    assert [len(shared.ls(stage)) for stage in ("report", "train", "warmup", "split")] == [2, 2, 1, 1]


SWEEP = (
    "sweep", "signs", "--defense=relaxloss", "--over=strength=0.5,1.5", "--seeds=2", "--set=train.epochs=4",
    *(f"--set=split.{role}_{part}=250" for role in ("target", "shadow") for part in ("train", "test")),
)  # fmt: skip


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_sweep_outlives_a_worker_and_computes_what_it_does_alone(
    shared: Store, tmp_path: Path, server: s3.Server, dask: Cluster
) -> None:
    """The command as a person types it, on real trainings, one of whose workers is killed."""
    environ = os.environ | server.environ | dask.environ | {"COLUMNS": "200"}

    def tier(*arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "tier", *arguments], cwd=ROOT, env=environ,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    sweep = tier(*SWEEP, "--store", shared.url)
    os.kill(until(lambda: in_training(shared), 120, "a training"), signal.SIGKILL)
    told = sweep.communicate(timeout=400)[0]
    assert sweep.returncode == 0, told
    verified = tier("store", "verify", "--store", shared.url)
    said = verified.communicate(timeout=60)[0]
    assert verified.returncode == 0 and "0 problems" in said, said
    alone = tier(*SWEEP, "--here", "--store", str(tmp_path / "alone"))
    assert alone.communicate(timeout=400)[0] is not None and alone.returncode == 0
    here, there = (
        {result.key: figures(result.metrics) for result in store.ls("report")}
        for store in (Store(tmp_path / "alone"), Store(shared.url))
    )
    assert len(there) == 4 and there == here


def in_training(store: Store) -> int | None:
    """The process that has told of an epoch of some training that has not ended."""
    for path in store.list_json("progress"):
        told = store.get_json(path)
        held = store.holder(f"report-{Path(path).stem}")
        if isinstance(told, dict) and told.get("events") and held is not None:
            return int(held["process"]["pid"])
    return None


def figures(metrics: dict[str, Any]) -> dict[str, Any]:
    """All but how long it took."""
    return {name: value for name, value in metrics.items() if "seconds" not in name}
