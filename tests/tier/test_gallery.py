"""Maps in 8 bits and steps come back as they went in."""

import numpy as np
import pandas as pd
import pytest

from tier.gallery import columns, degenerate, encode, look

REST = {"label": 2, "predicted": 1, "confidence": 0.75, "target": 2}


def rows(maps: np.ndarray, steps: dict[str, np.ndarray]) -> list[dict[str, object]]:
    """As `gallery.parquet` holds them."""
    frame = pd.DataFrame(REST, index=range(len(maps))).assign(
        index=range(5, 5 + len(maps)), member=[True, False, True][: len(maps)], **encode(maps, steps)
    )
    for order in ("morf", "lerf"):
        for level in range(2):
            frame[f"{order}_{level}"] = np.float32(-0.5 * level)
    return frame.to_dict("records")  # type: ignore[return-value]


def test_a_map_comes_back_to_within_half_a_step_and_its_steps_exactly() -> None:
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(3, 4, 6)).astype(np.float32) * np.array([1e-12, 1.0, 1e9], np.float32)[:, None, None]
    steps = {order: rng.integers(0, 256, (3, 4, 6), dtype=np.uint8) for order in ("morf", "lerf")}
    for place, row in enumerate(rows(maps, steps)):
        made = look(row, 4, 6)
        assert np.abs(made.map - maps[place]).max() <= np.abs(maps[place]).max() / 254 * 1.0001
        assert (made.map.shape, made.map.dtype) == ((4, 6), np.float32)
        assert (made.morf == steps["morf"][place]).all()
        assert (made.lerf == steps["lerf"][place]).all()
        assert (made.index, made.member) == (5 + place, place != 1)
        assert (made.label, made.predicted, made.target, made.confidence) == (2, 1, 2, 0.75)
        assert made.paths["lerf"].tolist() == [0.0, -0.5]


def test_maps_without_any_order_and_images_that_are_nobody_s() -> None:
    maps = np.zeros((3, 2, 2), np.float32)
    maps[1] = 3.0
    maps[2, 0, 1] = np.nan
    steps = {order: np.zeros((3, 2, 2), np.uint8) for order in ("morf", "lerf")}
    zero, constant, broken = rows(maps, steps)
    assert not look(zero, 2, 2).map.any()
    assert (look(constant, 2, 2).map == 3.0).all()
    assert np.isnan(look(broken, 2, 2).map).all()
    for nobody in (None, pd.NA, float("nan")):
        assert look(zero | {"member": nobody}, 2, 2).member is None


def test_bytes_of_another_size_are_refused() -> None:
    steps = {order: np.zeros((1, 2, 2), np.uint8) for order in ("morf", "lerf")}
    with pytest.raises(ValueError, match="reshape"):
        look(rows(np.ones((1, 2, 2)), steps)[0], 3, 2)


def test_columns_of_both_orders() -> None:
    assert columns(2) == {"morf": ["morf_0", "morf_1"], "lerf": ["lerf_0", "lerf_1"]}


def test_degenerate_maps() -> None:
    maps = np.random.default_rng(0).normal(size=(5, 3, 4))
    maps[1], maps[2, 0, 0], maps[3, 0, 0] = 0.25, np.nan, np.inf
    assert degenerate(maps).tolist() == [False, True, True, True, False]
