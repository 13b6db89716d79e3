"""Stage results in folders, leases and small messages: the only code that knows paths.

    {root}/{stage}/{key}/record.json      the commit marker, written last: config, metrics, files with size and sha256
    {root}/{stage}/{key}/*.parquet, *.safetensors
    {root}/damaged/...                    results that failed a check, each with its reason
    {root}/leases/{name}@{generation}.json
    {root}/bus/...                        small mutable files: requests, jobs, progress, heartbeats, checkpoints

Results are only ever added: a file is created under a name that is free and never overwritten, and the record, itself
a conditional create, names the files that belong to it. So two writers of one key cannot mix their files, and a writer
that is killed leaves a folder without a record, which nobody reads. Nothing is ever unpickled: tables are parquet,
arrays are safetensors, the rest is JSON.

The root is any fsspec URL. Leases and commits are free of races where creating a file can be made conditional: on local
file systems, on S3 and Google Cloud Storage, and on `memory://` within its one process. Settings such as an endpoint
come from fsspec's own configuration (e.g. `FSSPEC_S3_ENDPOINT_URL`), so that every process finds the same store. A
store behind a network may be away for a while: that is `Unreachable`, at once or after the store's `patience`.
"""

import asyncio
import errno
import hashlib
import json
import logging
import math
import os
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import fsspec
import fsspec.asyn
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
from fsspec.implementations.local import LocalFileSystem

from tier import environment

log = logging.getLogger(__name__)

RECORD = "record.json"
RESERVED = ("bus", "damaged", "leases")  # folders of the root that are no stages
CHECKPOINT = "checkpoint"  # the stage of training states; bus/checkpoints/{run}.json names a run's last one
# Messages that are as true after years as on the first day: what data was like, where a run stopped, what is wanted;
# and what the engine wrote about itself when it began.
LASTING = ("fingerprints/", "checkpoints/", "requests/", "engine.json")
HOUR, DAY = 3600.0, 86400.0

_STAGE = re.compile(r"[a-z][a-z0-9_]*")
_KEY = re.compile(r"[0-9a-f]{8,64}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\.(parquet|safetensors)")
_ASIDE = re.compile(r"(?P<stage>[a-z][a-z0-9_]*)-(?P<key>[0-9a-f]{8,16})-(?P<when>\d{8}T\d{6})-[0-9a-f]{6}")
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*")  # of a bus path; a lease's name; a stored file
_LATE = 4.0  # seconds in which a lease that ran out while the store was away is renewed: twice the longest _PAUSE
_ANSWER = 30.0  # seconds in which a store must answer
_PAUSE = 2.0  # seconds at most before a store that does not answer is asked again

Content = pd.DataFrame | Mapping[str, np.ndarray]
T = TypeVar("T")


class StoreError(RuntimeError):
    """The store cannot do what was asked; the message says why."""


class Unreachable(StoreError):
    """The store does not answer at the moment; it may later."""


class DamagedError(StoreError):
    """A committed file is missing or its bytes are not those that were written; the result has been set aside."""


@dataclass(frozen=True)
class Entry:
    """A file or folder as a listing gives it. `stamp` differs when the file has been written again."""

    size: int
    stamp: object
    modified: float  # seconds since 1970; now where the file system does not tell
    folder: bool = False


@dataclass(frozen=True)
class Problem:
    """A result that `Store.verify` finds wrong or `Store.damaged` lists."""

    store: str
    stage: str
    key: str
    reason: str
    when: str | None = None  # ISO time at which it was set aside; None while it is in its place


@dataclass(frozen=True)
class Garbage:
    """Something `Store.gc` removes or, in a dry run, would remove."""

    path: str
    size: int  # bytes
    reason: str


@dataclass(frozen=True)
class Result:
    """A committed stage result: its record, and its files read on demand and checked against the record."""

    store: "Store" = field(repr=False)
    stage: str
    key: str
    record: dict[str, Any] = field(repr=False)

    @property
    def metrics(self) -> dict[str, Any]:
        """The record's metrics."""
        metrics: dict[str, Any] = self.record["metrics"]
        return metrics

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that the result holds."""
        return tuple(self.record["files"])

    @property
    def omitted(self) -> dict[str, str]:
        """Files that the stage makes but this copy does not hold, each with the reason."""
        omitted: dict[str, str] = self.record["omitted"]
        return omitted

    @property
    def size(self) -> int:
        """Bytes of all files, without the record."""
        return sum(int(entry["bytes"]) for entry in self.record["files"].values())

    def has(self, name: str) -> bool:
        """Whether the result holds the file."""
        return name in self.record["files"]

    def read(self, name: str) -> bytes:
        """The bytes of a file.

        Raises KeyError when the result does not hold it, and DamagedError when it is not what was written; the result
        is then set aside, so that asking for the stage again computes it.
        """
        return self.store._load(self, name)

    def frame(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """A parquet file as a DataFrame; only the named columns are decoded, in the order given.

        Raises KeyError naming the columns there are when one is missing, and as `read` does.
        """
        source = pq.ParquetFile(pa.BufferReader(self.read(name)))
        names = source.schema_arrow.names
        missing = [column for column in columns or () if column not in names]
        if missing:
            raise KeyError(f"{name} has no column {', '.join(missing)}; it has {', '.join(names)}")
        frame: pd.DataFrame = source.read(columns=None if columns is None else list(columns)).to_pandas()
        return frame if columns is None else frame[list(columns)]

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """A safetensors file as named arrays. Raises as `read` does."""
        arrays: dict[str, np.ndarray] = safetensors.numpy.load(self.read(name))
        return arrays


class Store:
    """Results by stage and key under a root URL.

    `below` is a read-only store that is looked up first, e.g. the demo results of `assets/`. A read-only store is never
    modified; what is damaged there counts as absent, and `verify` reports it. A store behind a network that does not
    answer is asked again for `patience` seconds, for work that is too dear to be lost, and then raises Unreachable.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        read_only: bool = False,
        below: "Store | None" = None,
        patience: float = 0.0,
    ) -> None:
        self._files, self.url = _open(os.fspath(url), patience)
        self.read_only = read_only
        self.below = below
        self._verified: dict[str, tuple[object, str]] = {}  # path -> (stamp, sha256), so that a file is hashed once

    def __repr__(self) -> str:
        return f"Store({self.url!r}{', read_only=True' if self.read_only else ''})"

    @property
    def local(self) -> bool:
        """Whether looking up a file costs microseconds rather than a request over the network."""
        return not isinstance(self._files, _Remote)

    # Results

    def find(self, stage: str, key: str, need: Sequence[str] = ()) -> Result | None:
        """The committed, undamaged result that holds every file in `need`, or None.

        Checks that all files are there with their recorded size, and the sha256 of those in `need`. A damaged result is
        set aside under `damaged/` with the reason, so that it is computed again.
        """
        check(stage, key)
        if self.below is not None and (found := self.below.find(stage, key, need)) is not None:
            return found
        return self._find_here(stage, key, need)

    def write(self, stage: str, key: str, files: Mapping[str, Content], record: Mapping[str, Any]) -> Result:
        """Store a result and return it; names end in `.parquet` (a DataFrame, without its index) or `.safetensors`.

        The record gets `stage, key, files`, and where missing `created, environment, metrics, parents, omitted`;
        numbers that are not finite become null. If the key already has a result with these files, that one stays and
        is returned. Raises StoreError when the store is read-only and ValueError on a name that cannot be stored.
        """
        check(stage, key)
        return self._add(stage, key, {name: _encode(name, content) for name, content in files.items()}, record)

    def export(
        self,
        stage: str,
        key: str,
        to: "Store",
        omit: Sequence[str] = (),
        reason: str = "left out to keep the store small; computed on demand",
    ) -> Result:
        """Copy a result into another store without the files in `omit`, whose absence its record explains.

        What `to` already holds is not written again. Raises KeyError when there is no such result.
        """
        source = self.find(stage, key)
        if source is None:
            raise KeyError(f"{self.url} has no result {stage}/{key}")
        omitted = source.omitted | {name: reason for name in omit if source.has(name)}
        kept = {name: source.read(name) for name in source.files if name not in omit}
        return to._add(stage, key, kept, source.record | {"omitted": omitted})

    def discard(self, stage: str, key: str) -> None:
        """Remove a result from this store, e.g. a checkpoint that a later one replaces; no error when there is none."""
        self._writable()
        check(stage, key)
        names = self._files.entries(f"{stage}/{key}")
        for name in sorted(names, key=lambda name: name != RECORD):  # the record first: nobody reads the rest then
            self._files.delete(f"{stage}/{key}/{name}")

    def ls(self, stage: str | None = None) -> list[Result]:
        """All committed results, of one stage or of all, oldest first; those of `below` are included."""
        found = {} if self.below is None else {(r.stage, r.key): r for r in self.below.ls(stage)}
        for name, key in self._keys(stage):
            if (name, key) not in found and (result := self._find_here(name, key, ())) is not None:
                found[name, key] = result
        return sorted(found.values(), key=lambda r: (r.record["created"], r.stage, r.key))

    def verify(self) -> list[Problem]:
        """Read every committed file, here and in `below`, and report what is missing or differs; changes nothing."""
        problems = [] if self.below is None else self.below.verify()
        for stage, key in self._keys(None):
            raw = self._record(stage, key)
            if raw is None:
                continue  # unfinished: no result, and `gc` looks after it
            try:
                record = _parse(raw, stage, key)
                reasons = self._faults(stage, key, record, list(record["files"]))
            except ValueError as error:
                reasons = [str(error)]
            problems += [Problem(self.url, stage, key, reason) for reason in reasons]
        return problems

    def damaged(self) -> list[Problem]:
        """The results that were set aside here, oldest first. What else lies under `damaged/` is not ours to list."""
        folders = [name for name, entry in self._files.entries("damaged").items() if entry.folder]
        found = [problem for name in folders if (problem := self._was_set_aside(name)) is not None]
        return sorted(found, key=lambda problem: (problem.when or "", problem.stage, problem.key))

    def gc(
        self,
        dry_run: bool = False,
        damaged_days: float = 30.0,
        bus_days: float = 7.0,
        checkpoint_days: float = 30.0,
    ) -> list[Garbage]:
        """Remove what nobody reads any more, and say what it was: unfinished results and left-over files older than an
        hour; results whose record has an `expires` time (ISO, UTC) over an hour ago; checkpoints of runs that are
        stored, those older than `checkpoint_days`, and after an hour those that a later one has replaced; expired
        leases; damaged results older than `damaged_days`; messages older than `bus_days`, except `LASTING` ones. What
        a run that goes on needs stays.

        With `dry_run`, only say. Raises StoreError when the store is read-only.
        """
        self._writable()
        found = [*self._stale_results(), *self._stale_checkpoints(checkpoint_days), *self._stale_leases()]
        found += [*self._stale("damaged", damaged_days, "damaged"), *self._stale("bus", bus_days, "old message")]
        found += self._files.leftovers(time.time() - HOUR)
        garbage = list({item.path: item for item in found}.values())
        if not dry_run:
            for item in garbage:
                self._files.delete(item.path)
            self._files.prune()
        return garbage

    # Leases

    def lease(self, name: str, seconds: float = 30.0) -> "Lease | None":
        """Take the lease `name`, or None when another holds it. A daemon thread renews it until its release.

        It is free again when released, when not renewed for `seconds`, or at once when its holder ran on this machine
        and its process has ended. Machines that share a store need clocks that agree to a few seconds.

        A holder is a file with a generation number. To take over, a process creates the next generation, which only one
        can do, and then looks again: it must be the highest, and no other may be alive. If two meet, both step back.
        Behind a network, a holder that is late gets a moment more: the store may have been away for everyone.
        """
        self._writable()
        _check_name(name)
        for _ in range(8):
            held = self._leases(name)
            if not self.local and any(map(_silent, held.values())):
                time.sleep(_LATE)
                held = self._leases(name)
            if any(map(_alive, held.values())):
                return None
            lease = self._claim(name, max(held, default=0) + 1, seconds)
            if lease is not None:
                return lease
            time.sleep(random.uniform(0.01, 0.1))
        return None

    def holder(self, name: str) -> dict[str, Any] | None:
        """Who holds the lease (`process`, `expires`), or None when it is free."""
        _check_name(name)
        alive = [content for content in self._leases(name).values() if _alive(content)]
        return alive[-1] if alive else None

    # Small mutable files

    def put_json(self, path: str, content: Any) -> None:
        """Write a JSON file of the bus in one step: a reader sees the old content or the new, never a part."""
        self.put_bytes(path, _to_json(content))

    def get_json(self, path: str) -> Any | None:
        """A JSON file of the bus, or None when it is missing or not JSON."""
        raw = self.get_bytes(path)
        try:
            return None if raw is None else json.loads(raw)
        except ValueError:
            log.warning("%s/bus/%s is not JSON", self.url, path)
            return None

    def put_bytes(self, path: str, data: bytes) -> None:
        """Write a file of the bus in one step, e.g. a training checkpoint."""
        self._writable()
        self._files.replace(_bus(path), data)

    def get_bytes(self, path: str) -> bytes | None:
        """A file of the bus, or None when it is missing."""
        try:
            return self._files.read(_bus(path))
        except FileNotFoundError:
            return None

    def has_file(self, path: str) -> bool:
        """Whether the bus has the file."""
        return self._files.exists(_bus(path))

    def list_json(self, prefix: str = "") -> list[str]:
        """Sorted paths of the JSON files in a folder of the bus and below it."""
        return sorted(self.stamps(prefix))

    def stamps(self, prefix: str = "") -> dict[str, object]:
        """Like `list_json`, each path with a value that changes whenever the file is written."""
        folder = _bus(prefix) if prefix else "bus"
        start = f"{prefix}/" if prefix else ""
        return {start + name: e.stamp for name, e in self._files.walk(folder).items() if name.endswith(".json")}

    def delete(self, path: str) -> None:
        """Remove a file of the bus; no error when it is gone already."""
        self._writable()
        self._files.delete(_bus(path))

    # Inside

    def _writable(self) -> None:
        if self.read_only:
            raise StoreError(f"{self.url} is read-only")

    def _keys(self, stage: str | None) -> Iterator[tuple[str, str]]:
        """(stage, key) of every result folder, finished or not."""
        for name in self._stages() if stage is None else filter(_is_stage, [stage]):
            yield from ((name, key) for key in sorted(self._files.entries(name)) if _KEY.fullmatch(key))

    def _stages(self) -> list[str]:
        """Stages that have results here."""
        return [name for name in sorted(self._files.entries("")) if _is_stage(name)]

    def _record(self, stage: str, key: str) -> bytes | None:
        """A record's bytes, or None when there is none. An empty one is a name just taken; see `_Local._link`."""
        try:
            return self._files.read(f"{stage}/{key}/{RECORD}") or None
        except FileNotFoundError:
            return None

    def _find_here(self, stage: str, key: str, need: Sequence[str]) -> Result | None:
        """`find` in this store only."""
        raw = self._record(stage, key)
        if raw is None:
            return None
        try:
            record = _parse(raw, stage, key)
        except ValueError as error:
            self._set_aside(stage, key, raw, str(error))
            return None
        if any(name not in record["files"] for name in need):
            return None
        faults = self._faults(stage, key, record, need)
        if faults:
            self._set_aside(stage, key, raw, "; ".join(faults))
            return None
        return Result(self, stage, key, record)

    def _faults(self, stage: str, key: str, record: Mapping[str, Any], hashed: Sequence[str]) -> list[str]:
        """What is wrong with a result's files: missing, another size and, for those in `hashed`, another sha256."""
        entries = self._files.entries(f"{stage}/{key}")
        faults = []
        for name, file in record["files"].items():
            stored = file.get("path", name)
            entry = entries.get(stored)
            if entry is None:
                faults.append(f"{name} is missing")
            elif entry.size != file["bytes"]:
                faults.append(f"{name} has {entry.size} bytes instead of {file['bytes']}")
            elif name in hashed and self._sha256(f"{stage}/{key}/{stored}", entry) != file["sha256"]:
                faults.append(f"{name} has another sha256 than when it was written")
        return faults

    def _sha256(self, path: str, entry: Entry) -> str:
        known = self._verified.get(path)
        if known is None or known[0] != entry.stamp:
            known = (entry.stamp, hashlib.sha256(self._files.read(path)).hexdigest())
            self._verified[path] = known
        return known[1]

    def _load(self, result: Result, name: str) -> bytes:
        """The verified bytes of a result's file; see `Result.read`."""
        where = f"{result.stage}/{result.key}"
        file = result.record["files"].get(name)
        if file is None:
            reason = result.omitted.get(name, f"it has {', '.join(result.files) or 'no files'}")
            raise KeyError(f"{where} does not hold {name}: {reason}")
        try:
            data = self._files.read(f"{where}/{file.get('path', name)}")
        except FileNotFoundError:
            fault = f"{name} is missing"
        else:
            if hashlib.sha256(data).hexdigest() == file["sha256"]:
                return data
            fault = f"{name} has another sha256 than when it was written"
        with suppress(ValueError):
            raw = self._record(result.stage, result.key)
            if raw is not None and json.loads(raw) == result.record:
                self._set_aside(result.stage, result.key, raw, fault)
        raise DamagedError(f"{where}: {fault}; ask for it again to compute it anew")

    def _set_aside(self, stage: str, key: str, judged: bytes, reason: str) -> None:
        """Move a damaged result to `damaged/`, unless its record is no longer the one that was judged."""
        log.warning("%s: %s/%s is damaged: %s", self.url, stage, key, reason)
        if self.read_only:
            return
        with suppress(FileNotFoundError):  # another process was faster
            if self._files.read(f"{stage}/{key}/{RECORD}") != judged:
                return
            to = f"damaged/{stage}-{key[:16]}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
            self._files.move(f"{stage}/{key}", to)
            about = {"stage": stage, "key": key, "reason": reason, "set_aside": _now()}
            self._files.replace(f"{to}/damaged.json", _to_json(about))

    def _was_set_aside(self, folder: str) -> Problem | None:
        """What is known of a damaged result: its note, else only the folder's name, when the note was never written."""
        match = _ASIDE.fullmatch(folder)
        if match is None:
            return None
        problem = Problem(self.url, match["stage"], match["key"], "the reason was not recorded")
        with suppress(ValueError):  # no date
            when = datetime.strptime(match["when"], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
            problem = replace(problem, when=when.isoformat())
        try:
            about = json.loads(self._files.read(f"damaged/{folder}/damaged.json"))
        except (FileNotFoundError, ValueError):
            return problem
        if not isinstance(about, dict):
            return problem
        known = {"stage": "stage", "key": "key", "reason": "reason", "when": "set_aside"}
        return replace(problem, **{k: about[v] for k, v in known.items() if isinstance(about.get(v), str)})

    def _add(self, stage: str, key: str, files: Mapping[str, bytes], record: Mapping[str, Any]) -> Result:
        """Create the files, then commit the record; see `write`."""
        self._writable()
        present = self._find_here(stage, key, list(files))
        if present is not None:
            return present
        full = {"created": _now(), "metrics": {}, "parents": {}, "omitted": {}, **record}
        full.setdefault("environment", environment.snapshot())
        full |= {"stage": stage, "key": key, "files": {}, "writer": secrets.token_hex(8)}
        for name in sorted(files):
            full["files"][name] = self._create(f"{stage}/{key}", name, files[name])
        return self._commit(stage, key, full)

    def _create(self, folder: str, name: str, data: bytes) -> dict[str, Any]:
        """Store bytes under a free name and describe them. The name is taken only after a killed or rival writer."""
        about = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        if self._files.create(f"{folder}/{name}", data):
            return about
        with suppress(FileNotFoundError):
            if self._files.read(f"{folder}/{name}") == data:  # the same computation gives the same bytes
                return about
        stem, _, suffix = name.rpartition(".")
        stored = f"{stem}.{secrets.token_hex(4)}.{suffix}"
        if not self._files.create(f"{folder}/{stored}", data):
            raise StoreError(f"{self.url}: cannot create {folder}/{stored}")
        return {**about, "path": stored}

    def _commit(self, stage: str, key: str, record: dict[str, Any]) -> Result:
        """Publish a result by creating its record; if another was first and holds the same files, return that one."""
        path = f"{stage}/{key}/{RECORD}"
        raw = _to_json(record)
        while not self._files.create(path, raw):
            present = self._find_here(stage, key, list(record["files"]))
            if present is not None:
                return present
            if self._files.exists(path):  # a copy without files that we have, e.g. an export; or a name just taken
                self._files.replace(path, raw)
                break
        return Result(self, stage, key, json.loads(raw))

    def _leases(self, name: str) -> dict[int, dict[str, Any]]:
        """The lease's files by generation, ascending; one that is not JSON counts as ended."""
        found: dict[int, dict[str, Any]] = {}
        for file in self._files.entries("leases"):
            if _lease_name(file) == name:
                with suppress(FileNotFoundError):
                    found[int(file.rpartition("@")[2].removesuffix(".json"))] = self._read_lease(f"leases/{file}")
        return dict(sorted(found.items()))

    def _read_lease(self, path: str) -> dict[str, Any]:
        try:
            content = json.loads(self._files.read(path))
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def _claim(self, name: str, generation: int, seconds: float) -> "Lease | None":
        """Create a generation of the lease and look whether it stands alone; see `lease`."""
        lease = Lease(self._files, name, generation, seconds)
        if not lease.create():
            return None
        rivals = self._leases(name)
        mine = rivals.pop(generation, {})
        if mine.get("token") != lease.token:
            return None
        if any(other > generation or _alive(content) for other, content in rivals.items()):
            self._files.delete(lease.path)
            return None
        for other in rivals:
            self._files.delete(_lease_path(name, other))
        lease.start()
        return lease

    def _stale_results(self) -> Iterator[Garbage]:
        """Unfinished or expired result folders, and files that no record names, unless someone may be writing them."""
        busy = self._busy()
        for stage, key in self._keys(None):
            if key in busy:
                continue
            folder = f"{stage}/{key}"
            entries = self._files.entries(folder)
            used = set()
            if (raw := self._record(stage, key)) is not None:
                try:
                    record = _parse(raw, stage, key)
                except ValueError:
                    continue  # damaged: `find` sets it aside
                if _expired(record):
                    for name in sorted(entries, key=lambda name: name != RECORD):  # the record first, as in `discard`
                        yield Garbage(f"{folder}/{name}", entries[name].size, f"kept until {record['expires']}")
                    continue
                used = {RECORD, *(file.get("path", name) for name, file in record["files"].items())}
            for name, entry in entries.items():
                if name not in used and entry.modified < time.time() - HOUR:
                    yield Garbage(f"{folder}/{name}", entry.size, "written by a run that did not finish")

    def _stale_checkpoints(self, days: float) -> Iterator[Garbage]:
        """Pointers to checkpoints that no run will ask for, and checkpoints that no other pointer names."""
        busy, wanted = self._busy(), set()
        for name, entry in self._files.walk("bus/checkpoints").items():
            run = name.removesuffix(".json")
            if not _KEY.fullmatch(run):
                continue
            pointer = self.get_json(f"checkpoints/{name}")
            key = pointer.get("key") if isinstance(pointer, dict) else None
            if run not in busy and self._stored(run):
                yield Garbage(f"bus/checkpoints/{name}", entry.size, "points to a checkpoint of a run that is stored")
            elif run not in busy and entry.modified < time.time() - days * DAY:
                yield Garbage(f"bus/checkpoints/{name}", entry.size, f"of a run interrupted over {days:g} days ago")
            elif isinstance(key, str):
                wanted.add(key)
        for _, key in self._keys(CHECKPOINT):
            if key not in wanted:
                yield from self._stale_checkpoint(key, busy)

    def _stale_checkpoint(self, key: str, busy: set[str]) -> Iterator[Garbage]:
        """The files of a checkpoint that no pointer names, unless that may be written just now."""
        entries = self._files.entries(f"{CHECKPOINT}/{key}")
        raw = self._record(CHECKPOINT, key)
        if raw is None or RECORD not in entries:
            return  # unfinished
        with suppress(ValueError):
            run = str(_parse(raw, CHECKPOINT, key).get("run"))
            if run in busy:
                return
            if entries[RECORD].modified >= time.time() - HOUR and not self._stored(run):
                return
        for name in sorted(entries, key=lambda name: name != RECORD):  # the record first: nobody reads the rest then
            yield Garbage(f"{CHECKPOINT}/{key}/{name}", entries[name].size, "a checkpoint that no run will go on from")

    def _stored(self, run: str) -> bool:
        """Whether this store holds the result of a run, of whatever stage."""
        if not _KEY.fullmatch(run):
            return False
        return any(self._complete(stage, run) for stage in self._stages() if stage != CHECKPOINT)

    def _complete(self, stage: str, key: str) -> bool:
        """Whether this store holds a result with all its files; changes nothing."""
        raw = self._record(stage, key)
        if raw is None:
            return False
        try:
            record = _parse(raw, stage, key)
        except ValueError:
            return False
        return not record["omitted"] and not self._faults(stage, key, record, ())

    def _busy(self) -> set[str]:
        """Keys that someone computes just now: leases are named {stage}-{key}."""
        names = (_lease_name(file) for file, content in self._all_leases() if _alive(content))
        return {name.rpartition("-")[2] for name in names if name is not None}

    def _stale_leases(self) -> Iterator[Garbage]:
        for file, content in self._all_leases():
            if not _alive(content):
                yield Garbage(f"leases/{file}", 0, "expired lease")

    def _all_leases(self) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for file in self._files.entries("leases"):
            if _lease_name(file) is not None:
                with suppress(FileNotFoundError):
                    found.append((file, self._read_lease(f"leases/{file}")))
        return found

    def _stale(self, folder: str, days: float, reason: str) -> Iterator[Garbage]:
        for name, entry in self._files.walk(folder).items():
            if entry.modified < time.time() - days * DAY and not (folder == "bus" and name.startswith(LASTING)):
                yield Garbage(f"{folder}/{name}", entry.size, f"{reason}, older than {days:g} days")


class Lease:
    """A lease that this process holds; a context manager that releases it. Made by `Store.lease`."""

    def __init__(self, files: "_Files", name: str, generation: int, seconds: float) -> None:
        self.name = name
        self.generation = generation
        self.seconds = seconds
        self.token = secrets.token_hex(8)
        self.path = _lease_path(name, generation)
        self._files = files
        self._expires = 0.0
        self._ended = threading.Event()  # released, or lost to another

    @property
    def held(self) -> bool:
        """Whether the lease is still ours: neither released, nor taken over, nor past its expiry."""
        return not self._ended.is_set() and time.time() < self._expires

    def create(self) -> bool:
        """Create the lease's file; False when the generation is taken."""
        expires = time.time() + self.seconds
        if not self._files.create(self.path, self._content(expires)):
            return False
        self._expires = expires
        return True

    def start(self) -> None:
        """Begin to renew every third of the lease's time."""
        threading.Thread(target=self._keep, name=f"lease {self.name}", daemon=True).start()

    def renew(self) -> bool:
        """Extend the lease; False, from then on, when another has taken it over."""
        if self._ended.is_set():
            return False
        expires = time.time() + self.seconds
        if self._mine():
            self._files.replace(self.path, self._content(expires))
            # Written first, looked second, and a taker does it the other way round: one of us sees the other.
            if not any(other > self.generation for other in self._generations()):
                self._expires = expires
                return True
            self._files.delete(self.path)
        log.warning("the lease %s was taken over by another process", self.name)
        self._ended.set()
        return False

    def release(self) -> None:
        """Give the lease back."""
        if not self._ended.is_set():
            self._ended.set()
            if self._mine():
                self._files.delete(self.path)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _keep(self) -> None:
        while not self._ended.wait(self.seconds / 3):
            try:
                self.renew()
            except (OSError, StoreError) as error:  # a network that fails for a moment; if it lasts, the lease expires
                log.warning("cannot renew the lease %s: %s", self.name, error)

    def _mine(self) -> bool:
        try:
            return bool(json.loads(self._files.read(self.path)).get("token") == self.token)
        except (FileNotFoundError, ValueError, AttributeError):
            return False

    def _generations(self) -> list[int]:
        files = [file for file in self._files.entries("leases") if _lease_name(file) == self.name]
        return [int(file.rpartition("@")[2].removesuffix(".json")) for file in files]

    def _content(self, expires: float) -> bytes:
        return _to_json({"token": self.token, "expires": expires, "process": environment.this_process()})


class _Files(Protocol):
    """The few file operations that the store needs; paths are relative to the root."""

    def read(self, path: str) -> bytes: ...
    def exists(self, path: str) -> bool: ...
    def replace(self, path: str, data: bytes) -> None: ...
    def create(self, path: str, data: bytes) -> bool: ...
    def delete(self, path: str) -> None: ...
    def move(self, folder: str, to: str) -> None: ...
    def entries(self, folder: str) -> dict[str, Entry]: ...
    def walk(self, folder: str) -> dict[str, Entry]: ...
    def leftovers(self, before: float) -> list[Garbage]: ...
    def prune(self) -> None: ...


class _Local:
    """Files under a directory. A file takes its name in one step, when it is complete; names with a dot are ours."""

    TEMPORARY = ".tmp"

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def read(self, path: str) -> bytes:
        try:
            return (self.root / path).read_bytes()
        except NotADirectoryError as error:
            raise FileNotFoundError(path) from error

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def replace(self, path: str, data: bytes) -> None:
        self._place(path, data, os.replace)

    def create(self, path: str, data: bytes) -> bool:
        try:
            self._place(path, data, self._link)
        except FileExistsError:
            return False
        return True

    def delete(self, path: str) -> None:
        target = self.root / path
        target.unlink(missing_ok=True)
        with suppress(OSError):  # not empty; empty folders would pile up, and listings walk them all
            target.parent.rmdir()

    def move(self, folder: str, to: str) -> None:
        (self.root / to).parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.root / folder, self.root / to)

    def entries(self, folder: str) -> dict[str, Entry]:
        found = {}
        try:
            with os.scandir(self.root / folder) as listing:
                for item in listing:
                    if not item.name.startswith("."):
                        with suppress(FileNotFoundError):
                            found[item.name] = self._entry(item)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return found

    def walk(self, folder: str) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for name, entry in self.entries(folder).items():
            if entry.folder:
                found |= {f"{name}/{below}": e for below, e in self.walk(f"{folder}/{name}").items()}
            else:
                found[name] = entry
        return found

    def leftovers(self, before: float) -> list[Garbage]:
        files = self.entries(self.TEMPORARY).items()
        return [
            Garbage(f"{self.TEMPORARY}/{name}", entry.size, "left by a killed process")
            for name, entry in files
            if entry.modified < before
        ]

    def prune(self) -> None:
        """Remove folders in which nothing is left."""
        for folder, _, _ in os.walk(self.root, topdown=False):
            if Path(folder) != self.root:
                with suppress(OSError):  # not empty
                    os.rmdir(folder)

    @staticmethod
    def _entry(item: os.DirEntry[str]) -> Entry:
        about = item.stat()
        return Entry(about.st_size, (about.st_mtime_ns, about.st_size, about.st_ino), about.st_mtime, item.is_dir())

    def _place(self, path: str, data: bytes, finish: Callable[[Path, Path], None]) -> None:
        """Write to a temporary file, then let `finish(temporary, target)` give it its name."""
        target = self.root / path
        temporary = self.root / self.TEMPORARY / f"{os.getpid()}-{secrets.token_hex(6)}"
        for _ in range(5):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(data)
                finish(temporary, target)
            except FileNotFoundError:  # another process removed the folder when it was empty for a moment
                continue
            finally:
                temporary.unlink(missing_ok=True)
            return
        raise StoreError(f"cannot write {target}: its folder vanishes again and again")

    @staticmethod
    def _link(temporary: Path, target: Path) -> None:
        """Give the file its name unless that is taken; raises FileExistsError."""
        try:
            os.link(temporary, target)
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError:
            # No hard links here (FAT, some network mounts). Taking the name is still exclusive; only the content, as a
            # whole, comes an instant later. Until then a record counts as absent and a lease as ended: its taker looks
            # again before it believes itself alone.
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
            os.replace(temporary, target)


class _Remote:
    """Objects under a prefix of any other fsspec file system.

    Errors come as FileNotFoundError, Unreachable or StoreError, whatever classes the file system's libraries have.
    """

    _creating = threading.Lock()  # memory:// looks, then writes; within its one process this makes it one step

    def __init__(self, filesystem: Any, root: str, url: str, patience: float) -> None:
        self.fs = filesystem
        self.root = root.rstrip("/")
        self.url = url
        self.patience = patience

    def read(self, path: str) -> bytes:
        data: bytes = self._ask(lambda: self._call("cat_file", self._full(path)))
        return data

    def exists(self, path: str) -> bool:
        self.fs.invalidate_cache()
        try:
            self._ask(lambda: self._call("info", self._full(path)))  # `exists` takes any error for a no
        except FileNotFoundError:
            return False
        return True

    def replace(self, path: str, data: bytes) -> None:
        try:
            self._ask(lambda: self._call("pipe_file", self._full(path), data, limit=_limit(data)))
        except FileNotFoundError as error:
            raise StoreError(f"{self.url} cannot be written to: {error}") from error

    def create(self, path: str, data: bytes) -> bool:
        try:
            return self._ask(lambda: self._create(path, data))
        except FileNotFoundError as error:
            raise StoreError(f"{self.url} cannot be written to: {error}") from error

    def _create(self, path: str, data: bytes) -> bool:
        try:
            with self._creating:
                self._call("pipe_file", self._full(path), data, mode="create", limit=_limit(data))
        except Exception as refusal:
            # S3's refusal may come as EINVAL, EBUSY or FileExistsError, and also after a try that had worked although
            # its answer was lost: look who has it.
            present = self._present(path)
            if present is None and not _was_taken(refusal):
                raise
            return present == data
        return True

    def _present(self, path: str) -> bytes | None:
        try:
            data: bytes = self._call("cat_file", self._full(path))
        except FileNotFoundError:
            return None
        return data

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._ask(lambda: self._call("rm_file", self._full(path)))

    def move(self, folder: str, to: str) -> None:
        """Copy, then delete; the record goes first, so that nobody reads the folder while it is taken apart."""
        names = sorted(self.walk(folder), key=lambda name: name != RECORD)
        for name in names:
            self.replace(f"{to}/{name}", self.read(f"{folder}/{name}"))
            self.delete(f"{folder}/{name}")

    def entries(self, folder: str) -> dict[str, Entry]:
        full = self._full(folder)
        self.fs.invalidate_cache()
        try:
            listing = self._ask(lambda: self._call("ls", full, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        found = {}
        for item in listing:
            name = item["name"].rstrip("/").rpartition("/")[2]
            if item["name"].strip("/") != full.strip("/"):  # S3 may list the folder itself
                found[name] = self._entry(item)
        return found

    def walk(self, folder: str) -> dict[str, Entry]:
        full = self._full(folder)
        self.fs.invalidate_cache()
        try:
            listing = self._ask(lambda: self._call("find", full, detail=True))
        except FileNotFoundError:
            return {}
        start = len(full.strip("/")) + 1
        return {path.strip("/")[start:]: self._entry(item) for path, item in listing.items()}

    def leftovers(self, before: float) -> list[Garbage]:
        return []  # an upload that does not finish leaves no object

    def prune(self) -> None:
        """Object stores have no folders."""

    def _ask(self, request: Callable[[], T]) -> T:
        """What a request returns, asked again while the store does not answer and patience lasts."""
        end, pause = time.monotonic() + self.patience, 0.1
        while True:
            try:
                return request()
            except (FileNotFoundError, NotADirectoryError):
                raise
            except Exception as error:
                if not _passing(error):
                    raise StoreError(f"{self.url}: {_words(error)}") from error
                left = end - time.monotonic()
                if left <= 0:
                    raise Unreachable(f"the store {self.url} does not answer: {_words(error)}") from error
                log.warning("the store %s does not answer; asked again for %.0f s: %s", self.url, left, _words(error))
            time.sleep(min(pause, max(left, 0.0)))
            pause = min(2 * pause, _PAUSE)

    def _call(self, name: str, *arguments: Any, limit: float | None = None, **options: Any) -> Any:
        """Call a method of the file system; one that runs in fsspec's event loop is ended after `limit` seconds, or
        `_ANSWER`. Without, an upload would wait for ever for the server's "100 Continue", which has no time-out.
        """
        if not getattr(self.fs, "async_impl", False):
            return getattr(self.fs, name)(*arguments, **options)

        async def bounded() -> Any:
            return await asyncio.wait_for(getattr(self.fs, f"_{name}")(*arguments, **options), limit or _ANSWER)

        try:
            return fsspec.asyn.sync(self.fs.loop, bounded)
        except TimeoutError as error:
            raise TimeoutError(str(error) or f"Timeout after {limit or _ANSWER:.0f} s") from error

    @staticmethod
    def _entry(item: Mapping[str, Any]) -> Entry:
        when = next((item[name] for name in ("LastModified", "mtime", "modified", "created") if item.get(name)), None)
        modified = when.timestamp() if isinstance(when, datetime) else when
        tag = item.get("ETag") or item.get("etag")  # says which content; the same may be written again
        return Entry(
            size=int(item.get("size") or 0),
            stamp=(str(tag), str(when), item.get("size")),
            modified=float(modified) if isinstance(modified, int | float) else time.time(),
            folder=item["type"] == "directory",
        )

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root


# Errors of the libraries below fsspec that are no OSError: botocore's and aiohttp's for a connection that fails, and
# for an answer that breaks off. By name, since a store elsewhere does without these libraries.
_PASSING = {"HTTPClientError", "ClientConnectionError", "ClientPayloadError", "IncompleteReadError", "IncompleteRead",
            "ResponseParserError", "ConnectionError", "TimeoutError"}  # fmt: skip
_PASSING_CODES = {errno.EBUSY, errno.EIO, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EAGAIN,
                  getattr(errno, "EREMOTEIO", errno.EIO)}  # fmt: skip


def _limit(data: bytes) -> float:
    """Seconds that an upload may take: 1 MB/s is slow."""
    return _ANSWER + len(data) / 1e6


def _passing(error: Exception) -> bool:
    """Whether a request may succeed later: the store cannot be reached, is overloaded or broke off."""
    if any(kind.__name__ in _PASSING for kind in type(error).__mro__):
        return True
    return isinstance(error, OSError) and error.errno in _PASSING_CODES


def _was_taken(refusal: Exception) -> bool:
    """Whether creating was refused for a file that was there, even if it is gone by now."""
    answer = getattr(refusal.__cause__, "response", None)
    code = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
    return isinstance(refusal, FileExistsError) or code in ("PreconditionFailed", "412")


def _words(error: Exception) -> str:
    """An error's first line, with its kind."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0].rstrip(": ")


def _open(url: str, patience: float) -> tuple[_Files, str]:
    """The file operations of a root URL, and the URL in the form that any process understands.

    Raises ValueError when there is no file system for such a URL or its package is not installed.
    """
    try:
        filesystem, root = fsspec.core.url_to_fs(os.path.expanduser(url), use_listings_cache=False)
    except ImportError as error:
        raise ValueError(f"the store {url} needs another package: {error}") from error
    if isinstance(filesystem, LocalFileSystem):
        root = os.path.abspath(root)
        return _Local(root), root
    return _Remote(filesystem, root, url.rstrip("/"), patience), url.rstrip("/")


def check(stage: str, key: str) -> None:
    """Raise ValueError unless the stage is an identifier and the key hexadecimal: neither can then leave the root."""
    if not _is_stage(stage):
        raise ValueError(f"'{stage}' cannot be a stage's name: lower-case letters, digits and _, and not {RESERVED}")
    if not _KEY.fullmatch(key):
        raise ValueError(f"'{key}' is not a key: 8 to 64 hexadecimal digits")


def _is_stage(name: str) -> bool:
    return _STAGE.fullmatch(name) is not None and name not in RESERVED


def _check_name(name: str) -> None:
    if not _SEGMENT.fullmatch(name):
        raise ValueError(f"'{name}' cannot be a lease's name: letters, digits, _ . = -")


def _bus(path: str) -> str:
    """A bus path below the root; raises ValueError when it could leave the bus."""
    if not all(_SEGMENT.fullmatch(part) for part in path.split("/")):
        raise ValueError(f"'{path}' is not a path of the bus: letters, digits, _ . = - between slashes")
    return f"bus/{path}"


def _parse(raw: bytes, stage: str, key: str) -> dict[str, Any]:
    """A record from its bytes. Raises ValueError saying what is wrong with it."""
    try:
        record = json.loads(raw)
    except ValueError as error:
        raise ValueError(f"{RECORD} is not JSON: {error}") from None
    if not isinstance(record, dict) or (record.get("stage"), record.get("key")) != (stage, key):
        raise ValueError(f"{RECORD} is not the record of {stage}/{key}")
    if not all(isinstance(record.get(name), dict) for name in ("files", "metrics", "omitted")):
        raise ValueError(f"{RECORD} lacks files, metrics or omitted")
    for name, file in record["files"].items():
        sound = isinstance(file, dict) and isinstance(file.get("bytes"), int) and isinstance(file.get("sha256"), str)
        if not sound or not _FILE.fullmatch(name) or not _SEGMENT.fullmatch(file.get("path", name)):
            raise ValueError(f"{RECORD} does not describe {name} properly")
    if not isinstance(record.get("created"), str):
        raise ValueError(f"{RECORD} lacks created")
    return record


def _encode(name: str, content: Content) -> bytes:
    """A file's bytes: parquet with zstd for a DataFrame, safetensors for named arrays.

    Raises ValueError when name and content do not fit, and TypeError when the content cannot be stored.
    """
    if not _FILE.fullmatch(name):
        raise ValueError(f"'{name}' cannot be stored: a plain name that ends in .parquet or .safetensors")
    if isinstance(content, pd.DataFrame) != name.endswith(".parquet"):
        raise ValueError(f"{name}: a DataFrame goes into .parquet, named arrays into .safetensors")
    if isinstance(content, pd.DataFrame):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pandas(content, preserve_index=False), sink, compression="zstd")
        return bytes(sink.getvalue())
    arrays = {key: np.asarray(value, order="C") for key, value in content.items()}
    wrong = [key for key, value in arrays.items() if value.dtype.kind not in "biuf"]
    if wrong:
        raise TypeError(f"{name}: {', '.join(wrong)} must be numbers or truth values")
    return bytes(safetensors.numpy.save(arrays))


def _to_json(content: Any) -> bytes:
    return json.dumps(_plain(content), sort_keys=True, indent=1, allow_nan=False).encode()


def _plain(value: Any) -> Any:
    """A JSON-ready copy: numpy scalars and arrays become Python's, numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _alive(lease: Mapping[str, Any]) -> bool:
    """Whether a lease's holder may still be working."""
    process, expires = lease.get("process"), lease.get("expires")
    gone = isinstance(process, dict) and environment.is_gone(process)
    return not gone and isinstance(expires, int | float) and expires > time.time()


def _silent(lease: Mapping[str, Any]) -> bool:
    """Whether a lease has run out although its holder is not known to have ended: it may just not reach the store."""
    process, expires = lease.get("process"), lease.get("expires")
    if not isinstance(process, dict) or not isinstance(expires, int | float):
        return False
    return expires <= time.time() and not environment.is_gone(process)


def _expired(record: Mapping[str, Any]) -> bool:
    """Whether a result's time was over an hour ago, so that whoever found it in time has read it by now."""
    with suppress(KeyError, TypeError, ValueError):  # it has none, or one that nobody understands
        return datetime.fromisoformat(record["expires"]).timestamp() < time.time() - HOUR
    return False


def _lease_path(name: str, generation: int) -> str:
    return f"leases/{name}@{generation}.json"


def _lease_name(file: str) -> str | None:
    """The name of the lease that a file belongs to; None for any other file."""
    name, _, generation = file.removesuffix(".json").rpartition("@")
    return name if name and generation.isdecimal() and file.endswith(".json") else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
