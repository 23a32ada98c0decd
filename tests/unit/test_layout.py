"""Axes strings: what they accept, and how they divide an image into planes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from integrodiff.layout import Layout


@pytest.mark.parametrize(
    ("axes", "shape", "message"),
    [
        ("YXK", (2, 3, 4), "unknown letter 'K'"),
        ("YXTT", (2, 3, 4, 5), "'T' more than once"),
        ("TX", (2, 3), "needs Y and X"),
        ("TYX", (2, 3), "names 3 axes, and the image has 2"),
        ("YX", (0, 3), "image is empty"),
    ],
)
def test_refused(axes: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout(axes, shape)


@given(
    st.permutations("YXTCZS").flatmap(
        lambda letters: st.integers(2, 6).map(
            lambda n: "".join(x for x in letters if x in "YX" or letters.index(x) < n)
        )
    ),
    st.lists(st.integers(1, 3), min_size=6, max_size=6),
)
def test_planes_are_all_of_the_image_once(axes: str, lengths: list[int]) -> None:
    layout = Layout(axes, tuple(lengths[: len(axes)]))
    array = np.arange(np.prod(layout.shape)).reshape(layout.shape)
    planes = list(layout.planes(array))
    assert len(planes) == layout.plane_count
    assert {plane.shape for plane in planes} == {layout.plane_shape}
    np.testing.assert_array_equal(
        np.sort(np.concatenate([p.ravel() for p in planes])), array.ravel()
    )
    canonical = layout.canonical
    assert canonical.axes.endswith("YXS" if "S" in axes else "YX")
    assert canonical.plane_count == layout.plane_count


def test_planes_know_their_channel() -> None:
    layout = Layout("TCYX", (2, 3, 4, 5))
    array = np.broadcast_to(np.arange(3)[None, :, None, None], layout.shape)
    for number, plane in enumerate(layout.planes(array)):
        assert (plane == layout.channel_of(number)).all()
    assert Layout("TYX", (2, 4, 5)).channel_of(1) == 0


def test_pages_without_a_name_may_have_several_axes() -> None:
    layout = Layout("QQYXS", (2, 3, 4, 5, 3))
    assert (layout.plane_count, layout.channels, layout.samples) == (6, 1, 3)
