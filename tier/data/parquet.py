"""Hugging Face style parquet: one file, or a folder of shards such as `train-00000-of-00002.parquet`.

- Image column: a struct with `bytes` (and `path`), or plain binary; one called `image` or the like before others.
- Label column: `label`, else another usual name, else the class column with the most classes; a choice is said in the
  notes. Class names come from the metadata (ClassLabel), else they are the values found.
- Other columns of numbers, booleans or short texts are kept in `extra`; `track` (or `group`) also becomes `groups`.
- Shards of several splits (by file name or folder) are merged, and the split is kept as the extra column `split`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tier.config import Data
from tier.data import DataError, Dataset, Progress, limit_rows, shortened
from tier.data.folder import SPLITS
from tier.data.images import CHUNK, Item, decode_all

if TYPE_CHECKING:
    import pyarrow as pa

LABELS = ("label", "labels", "fine_label", "class", "target", "category", "y")
IMAGES = ("image", "img", "images", "picture")
GROUPS = ("track", "group", "groups", "group_id")
LONGEST_TEXT = 200  # characters; longer texts are not kept: every row of a numpy text column is as wide as the longest
SHARD = re.compile(r"(?P<split>.+?)-(?P<index>\d{5})-of-(?P<count>\d{5})(-[0-9a-f]+)?")


@dataclass(frozen=True)
class Columns:
    """Which columns of a file are used for what; `class_names` is None when the schema does not give them."""

    image: str
    label: str
    class_names: tuple[str, ...] | None
    extra: tuple[str, ...]
    notes: tuple[str, ...]


def is_parquet(path: Path) -> bool:
    """Whether the path is a parquet file, or a folder with some in it."""
    return path.suffix == ".parquet" if path.is_file() else bool(_shards(path))


def load(path: Path, config: Data, progress: Progress | None = None) -> Dataset:
    """The images of a parquet file or of a folder of shards, at `config.image_size`.

    Raises DataError when a shard is missing or damaged, or when no image or label column can be told.
    """
    files = [path] if path.is_file() else _shards(path)
    _refuse_missing_shards(files)
    try:
        return _load(path, files, config, progress)
    except _arrow_errors() as error:
        raise DataError(f"'{path}' cannot be read as parquet ({error}): fetch its files again") from error


def _load(path: Path, files: list[Path], config: Data, progress: Progress | None) -> Dataset:
    columns = find_columns(_schema(files), str(path))
    table, splits = _table(files, columns)
    values, names, notes = _labels(table[columns.label], columns, str(path))
    labelled = np.flatnonzero(values >= 0)
    if len(labelled) == 0:
        raise DataError(f"'{path}' has no row with a label in its column '{columns.label}'")
    if len(labelled) < len(values):
        notes.append(f"{len(values) - len(labelled)} of {len(values)} rows left out: without a label")
    rows = labelled[limit_rows(values[labelled], config.limit)]
    decoded = decode_all(_items(files, columns.image, rows), len(rows), config.image_size, str(path), progress)
    rows = rows[decoded.kept]
    extra, dropped = _extra(table, columns, rows)
    if len(set(splits)) > 1:
        extra["split"] = np.array(splits)[rows]
        notes.append(f"splits merged: {', '.join(sorted(set(splits)))}; kept as the column 'split'")
    group = next((name for name in GROUPS if name in columns.extra), None)
    if group is not None:
        notes.append(f"groups taken from the column '{group}'")
    return Dataset(
        images=decoded.images,
        labels=values[rows],
        class_names=names,
        groups=None if group is None else _groups(table[group])[rows],
        extra=extra,
        notes=(*columns.notes, *notes, *dropped, *decoded.notes),
        refused=decoded.refused,
    )


def _shards(path: Path) -> list[Path]:
    visible = (
        file for file in path.rglob("*.parquet") if not any(p.startswith(".") for p in file.relative_to(path).parts)
    )
    return sorted(visible, key=lambda file: file.parts)


def _refuse_missing_shards(files: list[Path]) -> None:
    """Raise DataError when a file name says that there should be more shards than there are."""
    wanted: dict[tuple[Path, str, int], set[int]] = {}
    for file in files:
        if match := SHARD.fullmatch(file.stem):
            wanted.setdefault((file.parent, match["split"], int(match["count"])), set()).add(int(match["index"]))
    for (folder, split, count), found in wanted.items():
        missing = [f"{split}-{k:05d}-of-{count:05d}.parquet" for k in range(count) if k not in found]
        if missing:
            raise DataError(
                f"'{folder}' lacks {len(missing)} of {count} shards: {shortened(missing, 5)}. Fetch them as well"
            )


def _split_of(file: Path) -> str:
    """The split that a file belongs to by its name or its folder's, or ''."""
    if match := SHARD.fullmatch(file.stem):
        return match["split"]
    return next((name for name in (file.stem, file.parent.name) if name.lower() in SPLITS), "")


def _arrow_errors() -> tuple[type[Exception], ...]:
    import pyarrow as pa

    return (pa.ArrowException, OSError)


def _schema(files: list[Path]) -> "pa.Schema":
    """The schema that all files share. Raises DataError naming the file that differs."""
    import pyarrow.parquet as pq

    schema: pa.Schema = pq.read_schema(files[0])
    for file in files[1:]:
        if not pq.read_schema(file).equals(schema):
            raise DataError(f"'{file}' has other columns than '{files[0].name}': keep one data set per folder")
    return schema


def find_columns(schema: "pa.Schema", source: str) -> Columns:
    """Choose the image, label and extra columns. Raises DataError listing the columns when one cannot be told."""
    features, notes = _features(schema)
    image = _first(IMAGES, [f.name for f in schema if _kind(features, f.name) == "Image" or _holds_images(f.type)])
    if image is None:
        raise DataError(
            f"'{source}' has no image column (struct<bytes, path> or binary); its columns: {', '.join(schema.names)}"
        )
    label = _label(schema, features, image)
    if label is None:
        raise DataError(f"'{source}' has no label column; name it 'label'. Its columns: {', '.join(schema.names)}")
    if label != "label":
        notes.append(f"labels taken from the column '{label}'")
    names = features.get(label, {}).get("names")
    others = [f for f in schema if f.name not in (image, label)]
    extra = tuple(f.name for f in others if _is_scalar(f.type))
    if left_out := [f.name for f in others if f.name not in extra]:
        notes.append(f"columns left out, neither numbers nor texts: {', '.join(left_out)}")
    return Columns(image, label, tuple(map(str, names)) if names else None, extra, tuple(notes))


def _features(schema: "pa.Schema") -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The columns' descriptions in the Hugging Face metadata, and a note when it cannot be read."""
    text = (schema.metadata or {}).get(b"huggingface")
    if text is None:
        return {}, []
    try:
        features = json.loads(text)["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}, []
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}, ["the schema's Hugging Face metadata is damaged and was ignored"]


def _kind(features: dict[str, dict[str, Any]], name: str) -> str:
    return str(features.get(name, {}).get("_type", ""))


def _first(preferred: tuple[str, ...], candidates: list[str]) -> str | None:
    """The candidate that comes first among the preferred names, else the first candidate."""
    return next((name for name in preferred if name in candidates), candidates[0] if candidates else None)


def _label(schema: "pa.Schema", features: dict[str, dict[str, Any]], image: str) -> str | None:
    """A usual name, else the class column with the most classes (fine, not coarse), else the only integer column."""
    import pyarrow.types as types

    usable = [
        f
        for f in schema
        if f.name != image and (types.is_integer(f.type) or types.is_boolean(f.type) or _is_text(f.type))
    ]
    names = [f.name for f in usable]
    if usual := next((name for name in LABELS if name in names), None):
        return usual
    classes = [name for name in names if _kind(features, name) == "ClassLabel"]
    if classes:
        return max(classes, key=lambda name: len(features[name].get("names") or ()))
    integers = [f.name for f in usable if types.is_integer(f.type)]
    return integers[0] if len(integers) == 1 else None


def _holds_images(kind: "pa.DataType") -> bool:
    import pyarrow.types as types

    if types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_scalar(kind: "pa.DataType") -> bool:
    import pyarrow.types as types

    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or _is_text(kind))


def _table(files: list[Path], columns: Columns) -> tuple["pa.Table", list[str]]:
    """All rows of every column but the images, and the split of each row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.read_table(file, columns=[columns.label, *columns.extra], partitioning=None) for file in files]
    splits = [_split_of(file) for file, table in zip(files, tables, strict=True) for _ in range(table.num_rows)]
    return pa.concat_tables(tables).combine_chunks(), splits


def _labels(column: "pa.ChunkedArray", columns: Columns, source: str) -> tuple[np.ndarray, tuple[str, ...], list[str]]:
    """Labels (N,) int64 with -1 for none, class names, notes. Raises DataError for a label without a class name."""
    import pyarrow.types as types

    missing = np.asarray(column.is_null())
    values = np.array(column.to_pylist(), dtype=object)
    if types.is_integer(column.type):
        missing |= np.array([value is None or value < 0 for value in values])
    labels = np.full(len(values), -1, np.int64)
    if columns.class_names is not None and types.is_integer(column.type):
        labels[~missing] = values[~missing].astype(np.int64)
        if len(labels) and labels.max() >= len(columns.class_names):
            raise DataError(
                f"'{source}' has the label {labels.max()}, but names only {len(columns.class_names)} classes"
            )
        return labels, columns.class_names, []
    found, codes = np.unique(values[~missing], return_inverse=True)
    labels[~missing] = codes
    note = f"the schema names no classes: they are the {len(found)} values of '{columns.label}'"
    return labels, tuple(map(str, found)), [note]


def _items(files: list[Path], image: str, rows: np.ndarray) -> Iterator[tuple[str, Item]]:
    """The encoded images of the wanted rows (ascending, counted over all files), a batch at a time."""
    import pyarrow.parquet as pq

    start = 0
    for file in files:
        with pq.ParquetFile(file) as parquet:
            for group in range(parquet.num_row_groups):
                end = start + parquet.metadata.row_group(group).num_rows
                if np.searchsorted(rows, start) < np.searchsorted(rows, end):
                    for batch in parquet.iter_batches(CHUNK, row_groups=[group], columns=[image]):
                        wanted = (
                            rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + batch.num_rows)] - start
                        )
                        yield from _batch(batch.column(0).take(_indices(wanted)), file, start + wanted)
                        start += batch.num_rows
                start = end


def _indices(rows: np.ndarray) -> "pa.Array":
    import pyarrow as pa

    return pa.array(rows, pa.int64())


def _batch(column: "pa.Array", file: Path, rows: np.ndarray) -> Iterator[tuple[str, Item]]:
    """Each image's name, from its path, else its file and row (over all files), and its bytes."""
    import pyarrow.types as types

    names: list[Any] = [None] * len(rows)
    if types.is_struct(column.type):
        children = dict(zip([f.name for f in column.type], column.flatten(), strict=True))
        contents = children["bytes"].to_pylist()
        if "path" in children:
            names = children["path"].to_pylist()
    else:
        contents = column.to_pylist()
    for name, content, row in zip(names, contents, rows, strict=True):
        yield (str(name) if name else f"{file.name} row {row}"), content or b""


def _extra(table: "pa.Table", columns: Columns, rows: np.ndarray) -> tuple[dict[str, np.ndarray], list[str]]:
    """The other columns as (M,) arrays: texts with '' for none, numbers with NaN for none; and which are left out."""
    extra: dict[str, np.ndarray] = {}
    notes = []
    for name in columns.extra:
        column = table[name].take(_indices(rows))
        if _is_text(column.type):
            texts = [value or "" for value in column.to_pylist()]
            if max(map(len, texts), default=0) > LONGEST_TEXT:
                notes.append(f"column '{name}' left out: texts longer than {LONGEST_TEXT} characters")
                continue
            extra[name] = np.array(texts, dtype=np.str_)
        elif column.null_count:
            extra[name] = np.array(
                [np.nan if value is None else value for value in column.to_pylist()], dtype=np.float64
            )
        else:
            extra[name] = column.to_numpy()
    return extra, notes


def _groups(column: "pa.ChunkedArray") -> np.ndarray:
    """Group numbers (N,) int64 in the order of the values; a row without a value is a group of its own."""
    values = np.array(column.to_pylist(), dtype=object)
    missing = np.asarray(column.is_null())
    found, codes = np.unique(values[~missing], return_inverse=True)
    groups = np.empty(len(values), np.int64)
    groups[~missing] = codes
    groups[missing] = len(found) + np.arange(missing.sum())
    return groups
