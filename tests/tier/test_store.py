"""The store: what was written is read back or reported, whoever is killed, and whoever else writes."""

import errno
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pytest

from tests.tier import s3
from tier import environment
from tier import store as store_module
from tier.store import Content, DamagedError, Lease, Result, Store, StoreError, Unreachable, _Remote

KEY = "ab" * 32
OTHER = "cd" * 32
ROOT = Path(__file__).resolve().parents[2]


def frame() -> pd.DataFrame:
    return pd.DataFrame({"epoch": [1, 2, 3], "loss": [2.0, float("nan"), 0.5], "name": ["a", "b", "ü"]})


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"weight": rng.normal(size=(3, 4)).astype(np.float16), "steps": np.array(7), "mask": np.eye(2, dtype=bool)}


def save(store: Store, key: str = KEY, **metrics: float) -> Result:
    files: dict[str, Content] = {"events.parquet": frame(), "weights.safetensors": arrays()}
    return store.write("train", key, files, {"config": {"seed": 1}, "metrics": metrics, "seconds": 1.5})


def spawn(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that can import tier and prints what happens."""
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], **pipes, text=True, env=environ)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds:g} seconds"
        time.sleep(0.05)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()


@pytest.fixture(scope="module")
def s3_server() -> Iterator[s3.Server]:
    with s3.Server() as server:
        yield server


@pytest.fixture
def remote(s3_server: s3.Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store on S3."""
    s3_server.use(monkeypatch)
    return Store(s3_server.place())


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(store_module, "_LATE", 0.2)
    if request.param == "local":
        yield Store(tmp_path / "store")
        return
    if request.param == "s3":
        yield request.getfixturevalue("remote")
        return
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield Store("memory://store")
    filesystem.store.clear()


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def folder(store: Store, key: str = KEY) -> Path:
    return Path(store.url) / "train" / key


# Results


def test_round_trip(store: Store) -> None:
    save(store, accuracy=0.5, broken=float("inf"))
    result = store.find("train", KEY, need=["events.parquet", "weights.safetensors"])
    assert result is not None
    pd.testing.assert_frame_equal(result.frame("events.parquet"), frame())
    pd.testing.assert_frame_equal(result.frame("events.parquet", ["name", "epoch"]), frame()[["name", "epoch"]])
    loaded = result.arrays("weights.safetensors")
    for name, array in arrays().items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        np.testing.assert_array_equal(loaded[name], array)
    assert result.metrics == {"accuracy": 0.5, "broken": None}
    assert result.record["config"] == {"seed": 1}
    assert result.record["environment"]["packages"]["numpy"] == np.__version__
    assert result.has("events.parquet")
    assert not result.has("samples.parquet")
    assert result.size == sum(file["bytes"] for file in result.record["files"].values()) > 0


def test_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (save(Store(tmp_path / name)).record["files"] for name in ("a", "b"))
    assert first == second


def test_not_contiguous_arrays_are_stored_as_they_look(local: Store) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    result = local.write("maps", KEY, {"maps.safetensors": {"x": array}}, {})
    np.testing.assert_array_equal(result.arrays("maps.safetensors")["x"], array)


def test_missing_results_files_and_columns(store: Store) -> None:
    assert store.find("train", KEY) is None
    assert store.ls() == []
    result = save(store)
    assert store.find("train", OTHER) is None
    assert store.find("audit", KEY) is None
    assert store.find("train", KEY, need=["samples.parquet"]) is None
    with pytest.raises(KeyError, match=r"does not hold samples\.parquet"):
        result.frame("samples.parquet")
    with pytest.raises(KeyError, match="has no column kl; it has epoch, loss, name"):
        result.frame("events.parquet", ["epoch", "kl"])


def test_listing(store: Store) -> None:
    save(store)
    store.write("audit", OTHER, {}, {"metrics": {"auc": 0.7}})
    assert {(r.stage, r.key) for r in store.ls()} == {("train", KEY), ("audit", OTHER)}
    assert [r.metrics for r in store.ls("audit")] == [{"auc": 0.7}]


@pytest.mark.parametrize(
    ("stage", "key"),
    [
        ("../train", KEY),
        ("train", "../../etc"),
        ("bus", KEY),
        ("Train", KEY),
        ("", KEY),
        ("train", KEY + "/.."),
        ("train", ""),
    ],
)
def test_names_cannot_leave_the_root(local: Store, stage: str, key: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be a stage's name|is not a key"):
        local.find(stage, key)
    with pytest.raises(ValueError, match=r"cannot be a stage's name|is not a key"):
        local.write(stage, key, {}, {})


@pytest.mark.parametrize("name", ["../x.parquet", "x.pkl", ".parquet", "a/b.parquet", "record.json"])
def test_file_names_are_checked(local: Store, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        local.write("train", KEY, {name: frame()}, {})
    assert local.find("train", KEY) is None


def test_objects_are_refused(local: Store) -> None:
    with pytest.raises(TypeError, match="numbers or truth values"):
        local.write("train", KEY, {"x.safetensors": {"x": np.array([{}], dtype=object)}}, {})
    with pytest.raises(ValueError, match="a DataFrame goes into"):
        local.write("train", KEY, {"x.safetensors": frame()}, {})


# Two writers, and writers that are killed


def test_first_result_stays(store: Store) -> None:
    save(store, accuracy=0.1)
    assert save(store, accuracy=0.2).metrics == {"accuracy": 0.1}


def test_rival_writers_do_not_mix_files(local: Store) -> None:
    """Both begin before either commits, with different bytes under the same names; one wins as a whole."""
    results: list[Result] = []
    ready = threading.Barrier(8)

    def write(number: int) -> None:
        table = pd.DataFrame({"writer": [number] * 1000})
        ready.wait()
        files = {"a.parquet": table, "b.parquet": table}
        results.append(Store(local.url).write("train", KEY, files, {"metrics": {"writer": number}}))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = local.find("train", KEY, need=["a.parquet", "b.parquet"])
    assert winner is not None
    for result in [winner, *results]:
        number = winner.metrics["writer"]
        assert result.metrics["writer"] == number
        assert result.frame("a.parquet")["writer"].unique().tolist() == [number]
        assert result.frame("b.parquet")["writer"].unique().tolist() == [number]
    assert local.verify() == []


WRITER = """
import sys, time
import pandas as pd
from tier.store import Store
store = Store(sys.argv[1])
create = store._files.create
def slow(path, data):
    if path.endswith("record.json"):
        print("before the record", flush=True)
        time.sleep(60)
    return create(path, data)
store._files.create = slow
store.write("train", sys.argv[2], {"events.parquet": pd.DataFrame({"epoch": [9]}), "b.parquet": pd.DataFrame()}, {})
"""


def test_killed_before_the_record(local: Store) -> None:
    process = spawn(WRITER, local.url, KEY)
    assert line(process) == "before the record"
    kill(process)
    assert (folder(local) / "events.parquet").exists()
    assert local.find("train", KEY) is None
    assert local.ls() == []
    assert local.verify() == []
    result = save(local)
    pd.testing.assert_frame_equal(result.frame("events.parquet"), frame())  # not the killed one's
    assert result.has("weights.safetensors")
    assert not result.has("b.parquet")
    assert local.find("train", KEY, need=result.files) is not None


def test_gc_removes_what_a_killed_writer_left(local: Store) -> None:
    process = spawn(WRITER, local.url, KEY)
    line(process)
    kill(process)
    assert local.gc() == []  # it might still be at work
    save(local, key=OTHER)
    for path in folder(local).iterdir():
        os.utime(path, (1, 1))
    lease = local.lease(f"train-{KEY}")
    assert lease is not None
    assert local.gc() == []  # someone computes it now
    lease.release()
    assert len(local.gc(dry_run=True)) == 2
    assert folder(local).exists()
    assert {item.path for item in local.gc()} == {f"train/{KEY}/events.parquet", f"train/{KEY}/b.parquet"}
    assert not folder(local).exists()
    assert local.find("train", OTHER) is not None


def test_gc_keeps_the_files_of_a_result(local: Store) -> None:
    save(local)
    spare = folder(local) / "events.deadbeef.parquet"
    spare.write_bytes(b"left over")
    for path in folder(local).iterdir():
        os.utime(path, (1, 1))
    assert [item.path for item in local.gc()] == [f"train/{KEY}/{spare.name}"]
    assert local.verify() == []
    assert local.find("train", KEY, need=["events.parquet", "weights.safetensors"]) is not None


def test_gc_removes_results_whose_time_is_over(local: Store) -> None:
    now = datetime.now(UTC)
    times = {"inspect": -2.0, "verdict": -0.5, "train": 24.0}  # hours from now; within one it may still be read
    for stage, hours in times.items():
        expires = (now + timedelta(hours=hours)).isoformat(timespec="seconds")
        local.write(stage, KEY, {"events.parquet": frame()}, {"expires": expires})
    for number, expires in enumerate(("soon", None, 3)):  # what nobody understands is kept
        local.write("inspect", f"{number:08x}", {"events.parquet": frame()}, {"expires": expires})
    assert len(local.ls()) == 6
    with local.lease(f"inspect-{KEY}") or pytest.fail("the lease is not free"):
        assert local.gc() == []  # someone computes it anew
    gone = [f"inspect/{KEY}/record.json", f"inspect/{KEY}/events.parquet"]
    assert [item.path for item in local.gc(dry_run=True)] == gone  # the record first
    assert local.find("inspect", KEY) is not None
    assert [item.path for item in local.gc()] == gone
    assert local.find("inspect", KEY) is None and not (Path(local.url) / "inspect" / KEY).exists()
    assert len(local.ls()) == 5 and local.gc() == [] and local.damaged() == []


def test_discard(store: Store) -> None:
    save(store)
    save(store, key=OTHER)
    store.discard("train", KEY)
    store.discard("train", KEY)
    assert [result.key for result in store.ls()] == [OTHER]
    assert store.gc(dry_run=True) == []


def test_file_systems_without_hard_links(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    save(local, accuracy=0.1)
    assert save(local, accuracy=0.2).metrics == {"accuracy": 0.1}
    with local.lease("job") or pytest.fail("the lease is not free"):
        assert local.lease("job") is None
    assert local.verify() == []
    assert list((Path(local.url) / ".tmp").iterdir()) == []


def test_writers_without_hard_links_do_not_harm_each_other(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    test_rival_writers_do_not_mix_files(local)
    assert local.damaged() == []


# Damage


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def aside(store: Store) -> list[dict[str, str]]:
    return [json.loads(path.read_text()) for path in (Path(store.url) / "damaged").glob("*/damaged.json")]


def test_truncated_file_is_set_aside(local: Store) -> None:
    save(local)
    truncate(folder(local) / "weights.safetensors")
    assert [problem.key for problem in local.verify()] == [KEY]
    assert local.find("train", KEY) is None
    assert not folder(local).exists()
    (about,) = aside(local)
    assert "weights.safetensors has" in about["reason"]
    assert about["key"] == KEY
    save(local)
    assert local.find("train", KEY) is not None
    assert local.gc() == []
    assert {item.reason for item in local.gc(damaged_days=0)} == {"damaged, older than 0 days"}
    assert aside(local) == []


def test_missing_file_is_set_aside(local: Store) -> None:
    save(local)
    (folder(local) / "events.parquet").unlink()
    assert local.find("train", KEY) is None
    assert aside(local)[0]["reason"] == "events.parquet is missing"


def test_flipped_bit_is_found_by_find_and_by_reading(local: Store) -> None:
    result = save(local)
    assert local.find("train", KEY, need=["events.parquet"]) is not None
    flip(folder(local) / "events.parquet")
    assert "another sha256" in local.verify()[0].reason
    assert local.find("train", KEY) is not None  # sizes only
    with pytest.raises(DamagedError, match="another sha256"):
        result.frame("events.parquet")
    assert local.find("train", KEY) is None
    assert len(aside(local)) == 1
    save(local)
    flip(folder(local) / "events.parquet")
    assert local.find("train", KEY, need=["events.parquet"]) is None
    assert len(aside(local)) == 2


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\x00", b'{"stage": "train"}'])
def test_record_garbage_is_set_aside(local: Store, content: bytes) -> None:
    save(local)
    (folder(local) / "record.json").write_bytes(content)
    assert len(local.verify()) == 1
    assert local.find("train", KEY) is None
    assert "record.json" in aside(local)[0]["reason"]
    assert save(local).frame("events.parquet").shape == (3, 3)


def test_empty_record_counts_as_absent(local: Store) -> None:
    """Where there are no hard links, a writer takes the record's name an instant before it gives it content."""
    save(local)
    record = folder(local) / "record.json"
    for change in (lambda: save(local), lambda: None):
        record.write_bytes(b"")
        assert local.find("train", KEY) is None
        assert local.verify() == []
        assert local.ls() == []
        change()
    assert aside(local) == []
    assert local.gc() == []  # someone may be writing it
    for path in folder(local).iterdir():
        os.utime(path, (1, 1))
    assert len(local.gc()) == 3
    assert not folder(local).exists()


def test_reader_of_what_was_damaged_meanwhile_does_not_trip_over_the_record(local: Store) -> None:
    for content in (b"", b"{"):
        result = save(local)
        flip(folder(local) / "events.parquet")
        (folder(local) / "record.json").write_bytes(content)
        with pytest.raises(DamagedError, match="another sha256"):
            result.frame("events.parquet")
        shutil.rmtree(folder(local))


def test_damaged_results_are_listed(local: Store) -> None:
    assert local.damaged() == []
    save(local)
    truncate(folder(local) / "events.parquet")
    local.find("train", KEY)
    save(local, OTHER)
    (folder(local, OTHER) / "record.json").write_text("{")
    local.find("train", OTHER)
    foreign = Path(local.url) / "damaged"
    (foreign / "train-notes").mkdir()
    (foreign / "train-notes" / "damaged.json").write_text("{}")
    (foreign / "README").write_text("not ours")
    (foreign / f"audit-{KEY[:16]}-20260102T030405-abcdef").write_text("a file")
    for stamp, note in {
        "20260102T030405-abcdef": None,
        "99999999T999999-abcdef": "[]",
        "20260102T030406-abcdef": "{",
    }.items():
        mine = foreign / f"audit-{OTHER[:16]}-{stamp}"
        mine.mkdir()
        if note is not None:
            (mine / "damaged.json").write_text(note)
    found = local.damaged()
    assert [(problem.stage, problem.key) for problem in found[:3]] == [("audit", OTHER[:16])] * 3
    assert [problem.when for problem in found[:3]] == [None, "2026-01-02T03:04:05+00:00", "2026-01-02T03:04:06+00:00"]
    assert {problem.key for problem in found[3:]} == {KEY, OTHER}
    reasons = {problem.key: problem.reason for problem in found}
    assert "events.parquet has" in reasons[KEY]
    assert "record.json is not JSON" in reasons[OTHER]
    for problem in found[3:]:
        assert problem.when is not None
        assert abs(datetime.fromisoformat(problem.when).timestamp() - time.time()) < 3600
    assert local.verify() == []


def test_damaged_results_are_listed_on_an_object_store() -> None:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    store = Store("memory://store")
    save(store)
    filesystem.pipe_file(f"/store/train/{KEY}/events.parquet", b"short")
    assert store.find("train", KEY) is None
    (problem,) = store.damaged()
    assert (problem.stage, problem.key) == ("train", KEY)
    assert "events.parquet has 5 bytes" in problem.reason
    filesystem.store.clear()


def test_record_cannot_point_outside(local: Store) -> None:
    result = save(local)
    record = dict(result.record)
    record["files"]["events.parquet"]["path"] = "../../../etc/passwd"
    (folder(local) / "record.json").write_text(json.dumps(record))
    assert local.find("train", KEY) is None


def test_recomputed_result_is_not_set_aside(local: Store) -> None:
    """A reader that still holds the old result must not take the new one away."""
    old = save(local)
    truncate(folder(local) / "events.parquet")
    assert local.find("train", KEY) is None
    new = local.write("train", KEY, {"events.parquet": frame().head(1)}, {})
    with pytest.raises(DamagedError):
        old.frame("events.parquet")
    assert local.find("train", KEY) is not None
    assert len(new.frame("events.parquet")) == 1


def test_damage_on_an_object_store() -> None:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    store = Store("memory://store")
    save(store)
    filesystem.pipe_file(f"/store/train/{KEY}/events.parquet", b"short")
    assert store.find("train", KEY) is None
    assert [path for path in filesystem.find("/store/damaged") if path.endswith("damaged.json")]
    assert save(store).frame("events.parquet").shape == (3, 3)
    filesystem.store.clear()


# A read-only store below


def test_below_is_looked_up_first_and_never_changed(tmp_path: Path) -> None:
    save(Store(tmp_path / "assets"), accuracy=0.1)
    assets = Store(tmp_path / "assets", read_only=True)
    store = Store(tmp_path / "store", below=assets)
    found = store.find("train", KEY)
    assert found is not None
    assert found.store is assets
    assert [r.metrics for r in store.ls()] == [{"accuracy": 0.1}]
    truncate(tmp_path / "assets" / "train" / KEY / "events.parquet")
    before = sorted(path for path in (tmp_path / "assets").rglob("*"))
    assert store.find("train", KEY) is None
    assert [problem.store for problem in store.verify()] == [assets.url]
    assert save(store, accuracy=0.2).store is store
    found = store.find("train", KEY)
    assert found is not None
    assert found.metrics == {"accuracy": 0.2}
    assert sorted(path for path in (tmp_path / "assets").rglob("*")) == before
    for refused in (
        lambda: assets.lease("x"),
        assets.gc,
        lambda: assets.put_json("x.json", 1),
        lambda: save(assets, OTHER),
    ):
        with pytest.raises(StoreError, match="read-only"):
            refused()


def test_export_leaves_out_and_says_why(tmp_path: Path) -> None:
    source, assets = Store(tmp_path / "store"), Store(tmp_path / "assets")
    full = save(source, accuracy=0.3)
    light = source.export("train", KEY, assets, omit=["weights.safetensors", "absent.parquet"])
    assert light.files == ("events.parquet",)
    assert set(light.omitted) == {"weights.safetensors"}
    assert light.metrics == full.metrics
    assert light.record["created"] == full.record["created"]
    with pytest.raises(KeyError, match="left out to keep the store small"):
        light.arrays("weights.safetensors")
    before = (tmp_path / "assets" / "train" / KEY / "record.json").read_bytes()
    source.export("train", KEY, assets, omit=["weights.safetensors"])
    assert (tmp_path / "assets" / "train" / KEY / "record.json").read_bytes() == before
    # what the light copy lacks is found in the full store above it
    both = Store(source.url, below=Store(assets.url, read_only=True))
    found = both.find("train", KEY, need=["weights.safetensors"])
    assert found is not None
    assert found.store is both
    with pytest.raises(KeyError, match="has no result"):
        source.export("train", OTHER, assets)


def test_light_copy_is_completed(tmp_path: Path) -> None:
    source, assets = Store(tmp_path / "store"), Store(tmp_path / "assets")
    save(source)
    source.export("train", KEY, assets, omit=["weights.safetensors"])
    assert source.export("train", KEY, assets).has("weights.safetensors")
    found = assets.find("train", KEY, need=["weights.safetensors", "events.parquet"])
    assert found is not None
    assert assets.verify() == []


# Leases


def test_lease_excludes_until_released(store: Store) -> None:
    lease = store.lease("job", seconds=5)
    assert lease is not None
    assert lease.held
    assert store.lease("job") is None
    assert store.lease("other") is not None
    holder = store.holder("job")
    assert holder is not None
    assert holder["process"]["pid"] == os.getpid()
    lease.release()
    assert not lease.held
    assert store.holder("job") is None
    with store.lease("job") or pytest.fail("the lease is not free"):
        assert store.lease("job") is None
    assert store.holder("job") is None


def test_lease_is_renewed(store: Store) -> None:
    with store.lease("job", seconds=6) or pytest.fail("the lease is not free") as lease:
        first = store.holder("job")
        assert first is not None
        until(lambda: (store.holder("job") or first)["expires"] > first["expires"], "a renewal")
        assert lease.held
        assert store.lease("job") is None


def forge(store: Store, name: str, expires: float, generation: int = 1, host: str = "elsewhere") -> None:
    content = {"token": "t", "expires": expires, "process": {"host": host, "pid": 1, "born": 1.0}}
    store._files.replace(f"leases/{name}@{generation}.json", json.dumps(content).encode())


def test_expired_lease_of_another_machine_is_taken_over(store: Store) -> None:
    forge(store, "job", time.time() + 30)
    assert store.lease("job") is None
    forge(store, "job", time.time() - 1)
    assert [item.path for item in store.gc(dry_run=True)] == ["leases/job@1.json"]
    lease = store.lease("job")
    assert lease is not None
    assert lease.generation == 2
    lease.release()
    assert store.gc() == []


def test_a_taker_steps_back_when_it_is_not_alone(store: Store) -> None:
    forge(store, "job", time.time() + 30, generation=7)
    assert store._claim("job", 3, 5.0) is None  # a higher one exists
    assert store._claim("job", 9, 5.0) is None  # a lower one is alive
    assert list(store._leases("job")) == [7]


def test_holder_notices_that_it_was_overtaken(store: Store) -> None:
    lease = store.lease("job", seconds=30)
    assert lease is not None
    forge(store, "job", time.time() + 30, generation=2)
    assert not lease.renew()
    assert not lease.held
    assert not lease.renew()
    assert list(store._leases("job")) == [2]


@pytest.mark.parametrize("content", [b"garbage", b"", b"[]", b'{"expires": "late"}', b'{"expires": {}, "process": 3}'])
def test_garbage_lease_does_not_block(store: Store, content: bytes) -> None:
    store._files.replace("leases/job@3.json", content)
    assert store.holder("job") is None
    lease = store.lease("job")
    assert lease is not None
    assert lease.generation == 4
    lease.release()


def test_many_threads_one_holder(store: Store) -> None:
    holding, worst = [0], [0]
    guard = threading.Lock()

    def work() -> None:
        for _ in range(5):
            lease = store.lease("job", seconds=5)
            if lease is None:
                time.sleep(0.002)
                continue
            with guard:
                holding[0] += 1
                worst[0] = max(worst[0], holding[0])
            time.sleep(0.002)
            with guard:
                holding[0] -= 1
            lease.release()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worst[0] == 1


HOLDER = """
import sys, time
from tier.store import Store
lease = Store(sys.argv[1]).lease("job", seconds=float(sys.argv[2]))
print("held", flush=True)
while not lease._ended.is_set():
    time.sleep(0.05)
print("lost", flush=True)
time.sleep(60)
"""


def test_lease_of_a_killed_process_is_free_at_once(local: Store) -> None:
    process = spawn(HOLDER, local.url, "60")
    assert line(process) == "held"
    assert local.lease("job") is None
    kill(process)
    lease = local.lease("job")
    assert lease is not None
    lease.release()


def test_lease_of_a_stopped_process_expires(local: Store) -> None:
    process = spawn(HOLDER, local.url, "3")
    assert line(process) == "held"
    process.send_signal(signal.SIGSTOP)
    assert local.lease("job") is None
    taken: list[Lease] = []
    until(lambda: taken.extend(filter(None, [local.lease("job", seconds=60)])) or taken, "the end of its time")
    (lease,) = taken
    assert lease.generation == 2
    process.send_signal(signal.SIGCONT)  # it wakes up, sees the next generation and gives up
    assert line(process) == "lost"
    assert lease.renew()
    assert list(local._leases("job")) == [2]
    kill(process)
    lease.release()


COMPUTE = """
import sys, time
import pandas as pd
from tier.store import Store
store, key = Store(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
while store.find("train", key) is None:
    lease = store.lease(f"train-{key}")
    if lease is None:
        store.put_json("waiting.json", {})
        time.sleep(0.02)
        continue
    with lease:
        if store.find("train", key) is None:
            while not store.has_file("waiting.json"):  # at work until the other has asked too
                time.sleep(0.02)
            store.write("train", key, {"a.parquet": pd.DataFrame({"x": [1]})}, {})
            print("computed", flush=True)
print("done", flush=True)
"""


def test_two_processes_compute_a_key_once(local: Store) -> None:
    processes = [spawn(COMPUTE, local.url, KEY) for _ in range(2)]
    assert [line(process) for process in processes] == ["ready", "ready"]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    output = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sorted(output) == [["computed", "done"], ["done"]]
    assert local.find("train", KEY, need=["a.parquet"]) is not None


# The bus


def test_messages(store: Store) -> None:
    assert store.get_json("jobs/a.json") is None
    assert store.list_json("jobs") == []
    store.put_json("jobs/a.json", {"n": 1})
    before = store.stamps("jobs")
    store.put_json("jobs/a.json", {"n": 20})
    store.put_json("requests/k/one.json", {})
    assert store.stamps("jobs") != before
    assert store.get_json("jobs/a.json") == {"n": 20}
    assert store.list_json("jobs") == ["jobs/a.json"]
    assert store.list_json("requests") == ["requests/k/one.json"]
    assert store.list_json() == ["jobs/a.json", "requests/k/one.json"]
    assert store.has_file("jobs/a.json")
    store.delete("jobs/a.json")
    store.delete("jobs/a.json")
    assert not store.has_file("jobs/a.json")
    store.put_bytes("checkpoints/a.safetensors", b"\x00\x01")
    assert store.get_bytes("checkpoints/a.safetensors") == b"\x00\x01"
    store.put_bytes("jobs/b.json", b"no json")
    assert store.get_json("jobs/b.json") is None


@pytest.mark.parametrize("path", ["../x.json", "a/../b.json", "/etc/x.json", "", "a//b.json", ".hidden"])
def test_message_paths_are_checked(local: Store, path: str) -> None:
    with pytest.raises(ValueError, match="is not a path of the bus"):
        local.put_json(path, {})


def test_old_messages_and_temporary_files_are_garbage(local: Store) -> None:
    local.put_json("jobs/a.json", {})
    local.put_json("jobs/b.json", {})
    os.utime(Path(local.url) / "bus/jobs/a.json", (1, 1))
    temporary = Path(local.url) / ".tmp" / "1-dead"
    temporary.write_bytes(b"half")
    os.utime(temporary, (1, 1))
    assert {item.path for item in local.gc()} == {"bus/jobs/a.json", ".tmp/1-dead"}
    assert local.list_json("jobs") == ["jobs/b.json"]


def test_messages_that_last_are_no_garbage(local: Store) -> None:
    lasting = [f"fingerprints/{KEY}.json", f"requests/{KEY}/a.json", "engine.json"]
    for path in [*lasting, f"progress/{KEY}.json", "clients/a.json"]:
        local.put_json(path, {})
        os.utime(Path(local.url) / "bus" / path, (1, 1))
    assert {item.path for item in local.gc()} == {f"bus/progress/{KEY}.json", "bus/clients/a.json"}
    assert local.list_json() == sorted(lasting)


def test_readers_never_see_a_part(local: Store) -> None:
    """One thread writes a long message again and again; every read gives a whole one."""
    stop = threading.Event()
    local.put_json("m.json", ["x"] * 5000)

    def write() -> None:
        while not stop.is_set():
            local.put_json("m.json", ["x"] * 5000)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert all(local.get_json("m.json") == ["x"] * 5000 for _ in range(200))
    finally:
        stop.set()
        thread.join()


# Around


def test_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Store("results").url == str(tmp_path / "results")
    assert Store(f"file://{tmp_path}/results/").url == str(tmp_path / "results")
    assert Store("results").local
    assert not Store("memory://a").local
    assert Store("memory://a/").url == "memory://a"


def test_environment() -> None:
    about = environment.snapshot()
    json.dumps(about)
    assert about["cores"] >= 1
    assert about["packages"]["pandas"] == pd.__version__
    me = environment.this_process()
    assert not environment.is_gone(me)
    assert environment.is_gone({**me, "born": 1.0})  # the pid belongs to a younger process
    assert not environment.is_gone({**me, "host": "elsewhere", "pid": 2**22 + 1})
    child = subprocess.Popen([sys.executable, "-c", ""])
    child_is = {**me, "pid": child.pid, "born": environment._born(child.pid)}
    while child.poll() is None:
        time.sleep(0.01)
    assert environment.is_gone(child_is)


def test_neither_needs_torch() -> None:
    code = "import sys, tier.store, tier.environment; tier.environment.snapshot(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


# A store behind a network


@pytest.fixture
def away(remote: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, s3.Server]]:
    """A store on a server of its own, which the test may pause; its client gives up quickly."""
    with s3.Server() as server:
        server.use(monkeypatch)
        quick = {"config_kwargs": {"read_timeout": 0.5, "connect_timeout": 0.5, "retries": {"max_attempts": 0}}}
        monkeypatch.setitem(fsspec.config.conf, "s3", {**fsspec.config.conf["s3"], **quick})
        monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
        monkeypatch.setattr(store_module, "_ANSWER", 1.0)
        yield Store(server.place()), server
        server.go_on()


def test_a_store_that_is_away_says_so(away: tuple[Store, s3.Server]) -> None:
    store, server = away
    store.put_json("jobs/a.json", {})
    lease = store.lease("job", seconds=60)
    assert lease is not None
    server.pause()
    for ask in (
        lambda: store.get_json("jobs/a.json"),
        lambda: store.put_json("jobs/a.json", {}),
        lambda: store.has_file("jobs/a.json"),
        lambda: store.stamps("jobs"),
        lambda: store.delete("jobs/b.json"),
        lambda: store.holder("job"),
        lambda: store.find("train", KEY),
        lease.renew,
    ):
        with pytest.raises(Unreachable, match=r"does not answer: .*Timeout"):
            ask()
    server.go_on()
    assert lease.renew()
    assert store.get_json("jobs/a.json") == {}


def test_dear_work_waits_for_a_store_that_is_away(away: tuple[Store, s3.Server]) -> None:
    store, server = away
    server.pause()
    threading.Timer(3.0, server.go_on).start()
    began = time.monotonic()
    result = save(Store(store.url, patience=60), accuracy=0.5)
    assert time.monotonic() - began > 2.5
    found = store.find("train", KEY, ["events.parquet", "weights.safetensors"])
    assert found is not None
    assert found.record == result.record
    assert not store.verify()


def test_a_lease_that_ran_out_while_the_store_was_away_is_still_its_holder_s(
    remote: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_LATE", 2.0)
    lease = Lease(remote._files, "job", 1, 0.5)
    assert lease.create()
    time.sleep(0.6)
    assert remote.holder("job") is None  # late
    timer = threading.Timer(0.7, lease.renew)
    timer.start()
    began = time.monotonic()
    lease.seconds = 60
    assert remote.lease("job") is None
    assert time.monotonic() - began > 1.0
    assert lease.held
    timer.join()


def test_creating_what_another_had_and_released_meanwhile_is_refused(
    remote: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = remote._files
    assert isinstance(files, _Remote)
    assert files.create("leases/a@1.json", b"other")
    monkeypatch.setattr(files, "_present", lambda path: None)
    assert not files.create("leases/a@1.json", b"mine")
    assert files.read("leases/a@1.json") == b"other"


def test_an_answer_that_was_lost_is_looked_up(remote: Store) -> None:
    files = remote._files
    assert files.create("leases/a@1.json", b"mine")
    assert files.create("leases/a@1.json", b"mine")  # as the second try of a request whose first had worked
    assert not files.create("leases/a@1.json", b"other")


def test_a_large_file_is_created_once(remote: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """From two chunks on, 100 MB unless this test makes them small, s3fs uploads in parts, which the server puts
    together on condition.
    """
    kind = fsspec.get_filesystem_class("s3")
    monkeypatch.setattr(kind, "_pipe_file", functools.partialmethod(kind._pipe_file, chunksize=5 * 2**20))
    begun = []
    monkeypatch.setattr(kind, "_call_s3", recorded(kind._call_s3, begun))
    large = bytes(11 * 2**20)
    assert remote._files.create("train/large", large)
    assert not remote._files.create("train/large", b"small")
    assert begun.count("complete_multipart_upload") == 1
    assert remote._files.entries("train")["large"].size == len(large)


def recorded(call: Callable[..., Awaitable[object]], names: list[str]) -> Callable[..., Awaitable[object]]:
    """The same call, which notes the name of what is asked."""

    async def noting(self: object, name: str, *arguments: object, **more: object) -> object:
        names.append(name)
        return await call(self, name, *arguments, **more)

    return noting


def test_mistakes_of_a_remote_store_are_told_at_once(remote: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Store("s3://no-such-bucket/store", patience=60)
    assert nowhere.ls() == []
    with pytest.raises(StoreError, match=r"s3://no-such-bucket/store cannot be written to: .*bucket"):
        nowhere.put_json("jobs/a.json", {})
    with pytest.raises(StoreError, match=r"s3://no-such-bucket/store cannot be written to: .*bucket"):
        nowhere.lease("job")
    with pytest.raises(ValueError, match="Protocol not known"):
        Store("s9://bucket")


@pytest.mark.parametrize(
    "error, passing",
    [
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (OSError(errno.EBUSY, "SlowDown"), True),
        (OSError(errno.EREMOTEIO, "InternalError"), True),
        (OSError(errno.EINVAL, "InvalidRequest"), False),
        (PermissionError("AccessDenied"), False),
        (ValueError("no credentials"), False),
    ],
)
def test_which_errors_pass(error: Exception, passing: bool) -> None:
    assert store_module._passing(error) == passing


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(ValueError, match=r"needs another package: .*s3fs"):
        Store("s3://bucket")
