"""Images of other libraries come back as such, and those that cannot are refused with advice."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from integrodiff import (
    Denoiser,
    EngineUnavailableError,
    VolumeModelWarning,
    denoise,
    estimate_sigma,
)
from integrodiff.engines.gpu import driver_has_gpu

SETTINGS: dict[str, Any] = {"data_range": 255, "model": "pm"}


def noisy(*shape: int, dtype: str = "float32") -> NDArray[Any]:
    return np.random.default_rng(0).normal(100, 20, shape).clip(0, 255).astype(dtype)


class TestAlpha:
    @pytest.mark.slow
    def test_is_returned_as_it_is(self) -> None:
        for axes, place in (("YXS", 2), ("SYX", 0), ("TYXS", 3)):
            lengths = {"T": 2, "Y": 12, "X": 13, "S": 4}
            image = noisy(*(lengths[letter] for letter in axes), dtype="uint8")
            found = np.moveaxis(denoise(image, 20, axes=axes, **SETTINGS), place, -1)
            moved = np.moveaxis(image, place, -1)
            expected = denoise(moved[..., :3], 20, axes=axes.replace("S", "") + "S", **SETTINGS)
            np.testing.assert_array_equal(found[..., :3], expected)
            np.testing.assert_array_equal(found[..., 3], moved[..., 3])

    def test_in_place_and_as_floats(self) -> None:
        image = noisy(12, 13, 4, dtype="uint8")
        expected = denoise(image, 20, channel_axis=-1, **SETTINGS)
        floats = denoise(image, 20, channel_axis=-1, as_float=True, **SETTINGS)
        np.testing.assert_array_equal(floats[..., 3], image[..., 3])
        denoise(image, 20, channel_axis=-1, out=image, **SETTINGS)
        np.testing.assert_array_equal(image, expected)

    @pytest.mark.slow
    def test_four_bands_by_name(self) -> None:
        image = noisy(12, 13, 4)
        for more in ({"colour": "joint"}, {"colour": "separate"}, {"sigma": [20] * 4}):
            found = denoise(image, channel_axis=-1, **{"sigma": 20, **SETTINGS, **more})
            assert found[..., 3].std() < 0.9 * image[..., 3].std()

    def test_masks_have_no_alpha(self) -> None:
        image, mask = noisy(12, 13, 4), np.random.default_rng(1).random((12, 13)) > 0.2
        settings = {"channel_axis": -1, "engine": "numpy", **SETTINGS}
        found = denoise(image, 20, mask=mask, **settings)
        np.testing.assert_array_equal(
            found[..., :3], denoise(image[..., :3], 20, mask=mask, **settings)
        )
        image[..., 3] = np.nan
        np.testing.assert_array_equal(
            denoise(image, 20, mask=mask, **settings)[..., :3], found[..., :3]
        )


class TestPillow:
    @pytest.mark.parametrize(
        ("mode", "shape", "dtype"),
        [
            ("L", (12, 13), "uint8"),
            ("I;16", (12, 13), "uint16"),
            ("F", (12, 13), "float32"),
            ("RGB", (12, 13, 3), "uint8"),
            ("RGBA", (12, 13, 4), "uint8"),
        ],
    )
    def test_comes_back(self, mode: str, shape: tuple[int, ...], dtype: str) -> None:
        pixels = noisy(*shape, dtype=dtype)
        image = Image.fromarray(pixels)
        image.info["comment"] = "kept"
        found: Any = denoise(image, 20, **SETTINGS)
        assert (found.mode, found.info["comment"]) == (image.mode, "kept") == (mode, "kept")
        axes = "YX" if len(shape) == 2 else "YXS"
        np.testing.assert_array_equal(np.asarray(found), denoise(pixels, 20, axes=axes, **SETTINGS))

    def test_floating_point_is_an_array(self) -> None:
        found = denoise(Image.fromarray(noisy(12, 13, 3, dtype="uint8")), 20, as_float=True)
        assert isinstance(found, np.ndarray)

    def test_inks_are_all_denoised(self) -> None:
        pixels = noisy(24, 25, 4, dtype="uint8")
        pixels[..., 1] = 7  # an empty ink is returned as it is
        image = Image.frombytes("CMYK", (25, 24), pixels.tobytes())
        image.info["comment"] = "kept"
        found: Any = denoise(image, **SETTINGS)
        assert (found.mode, found.size, found.info["comment"]) == ("CMYK", (25, 24), "kept")
        expected = denoise(pixels, axes="YXS", colour="joint", **SETTINGS)
        np.testing.assert_array_equal(np.asarray(found), expected)
        assert (expected[..., 1] == 7).all()
        assert expected[..., 3].std() < 0.9 * pixels[..., 3].std()

    @pytest.mark.parametrize(("key", "mode"), [(0, "LA"), ((1, 2, 3), "RGBA")])
    def test_a_transparent_colour_becomes_alpha(self, key: Any, mode: str) -> None:
        shape = (12, 13) if mode == "LA" else (12, 13, 3)
        pixels = np.maximum(noisy(*shape, dtype="uint8"), 4)
        pixels[:5] = key
        image = Image.fromarray(pixels)
        image.info |= {"transparency": key, "comment": "kept"}
        found: Any = denoise(image, 20, **SETTINGS)
        assert (found.mode, found.info["comment"]) == (mode, "kept")
        assert "transparency" not in found.info
        expected = np.full((12, 13), 255)
        expected[:5] = 0
        np.testing.assert_array_equal(np.asarray(found)[..., -1], expected)
        assert image.info["transparency"] == key
        image.info["transparency"] = "a text of this name"
        named: Any = denoise(image, 20, **SETTINGS)
        assert named.mode == image.mode

    def test_transparency_beside_grey_is_kept(self) -> None:
        pixels = noisy(12, 13, 2, dtype="uint8")
        found: Any = denoise(Image.fromarray(pixels), 20, **SETTINGS)
        assert found.mode == "LA"
        np.testing.assert_array_equal(np.asarray(found)[..., 1], pixels[..., 1])
        expected = denoise(pixels[..., 0].copy(), 20, **SETTINGS)
        np.testing.assert_array_equal(np.asarray(found)[..., 0], expected)

    @pytest.mark.parametrize("mode", ["RGB", "RGBA"])
    def test_palettes_come_back_as_colours(self, mode: str) -> None:
        image = Image.fromarray(noisy(12, 13, 3, dtype="uint8")).quantize(32)
        image.info["comment"] = "kept"
        if mode == "RGBA":
            image.info["transparency"] = 3
        found: Any = denoise(image, 20, **SETTINGS)
        assert (found.mode, found.info) == (mode, {"comment": "kept"})
        expected = denoise(np.asarray(image.convert(mode)), 20, axes="YXS", **SETTINGS)
        np.testing.assert_array_equal(np.asarray(found), expected)

    @pytest.mark.parametrize("mode", ["1", "YCbCr", "LAB", "HSV"])
    def test_others_are_refused(self, mode: str) -> None:
        with pytest.raises(TypeError, match=rf"mode '{mode}'.*convert"):
            denoise(Image.new(mode, (12, 13)), 20)


class TestTorch:
    @pytest.mark.slow
    def test_comes_back(self) -> None:
        torch = pytest.importorskip("torch")
        pixels, mask = noisy(3, 12, 13), np.random.default_rng(1).random((12, 13)) > 0.2
        settings = {"channel_axis": 0, "engine": "numpy", **SETTINGS}
        found: Any = denoise(torch.from_numpy(pixels), 20, mask=torch.from_numpy(mask), **settings)
        assert isinstance(found, torch.Tensor)
        expected = denoise(pixels, 20, mask=mask, **settings)
        np.testing.assert_array_equal(found.numpy(), expected)
        with pytest.raises(TypeError, match="bfloat16"):
            denoise(torch.zeros((4, 4), dtype=torch.bfloat16), 20)


class TestXarray:
    @pytest.mark.slow
    def test_names_tell_the_axes(self) -> None:
        xr = pytest.importorskip("xarray")
        pixels = noisy(2, 12, 13)
        image = xr.DataArray(
            pixels,
            dims=("time", "lat", "lon"),
            coords={"lat": np.arange(12.0)},
            attrs={"units": "K"},
            name="temperature",
        )
        found: Any = denoise(image, 20, **SETTINGS)
        expected = denoise(pixels, 20, axes="TYX", **SETTINGS)
        xr.testing.assert_identical(found, image.copy(data=expected))
        turned: Any = denoise(image.transpose("lon", "time", "lat"), 20, **SETTINGS)
        xr.testing.assert_identical(turned.transpose(*image.dims), found)

    def test_masks_are_aligned_by_name(self) -> None:
        xr = pytest.importorskip("xarray")
        pixels, valid = noisy(12, 12), np.random.default_rng(1).random((12, 12)) > 0.2
        image = xr.DataArray(pixels, dims=("y", "x"))
        mask = xr.DataArray(valid.T, dims=("x", "y"))
        settings = {"engine": "numpy", **SETTINGS}
        found: Any = denoise(image, 20, mask=mask, **settings)
        np.testing.assert_array_equal(found.values, denoise(pixels, 20, mask=valid, **settings))

    def test_masks_are_taken_at_the_coordinates_of_the_image(self) -> None:
        xr = pytest.importorskip("xarray")
        pixels, valid = noisy(12, 13), np.random.default_rng(1).random((12, 13)) > 0.2
        image = xr.DataArray(pixels, dims=("lat", "lon"), coords={"lat": np.arange(12.0)[::-1]})
        mask = image.copy(data=valid)
        settings = {"engine": "numpy", **SETTINGS}
        expected = denoise(pixels, 20, mask=valid, **settings)
        larger = xr.concat([mask, mask.assign_coords(lat=mask.lat + 20)], "lat")
        for given in (mask, mask.sortby("lat"), larger):
            found: Any = denoise(image, 20, mask=given, **settings)
            np.testing.assert_array_equal(found.values, expected)
        with pytest.raises(ValueError, match="all coordinates of the image along lat"):
            denoise(image, 20, mask=mask[1:], **settings)

    def test_levels_with_other_names_or_coordinates_are_refused(self) -> None:
        xr = pytest.importorskip("xarray")
        pixels, levels = noisy(12, 12), np.full((12, 12), 20.0)
        levels[:, :6] = 40
        image = xr.DataArray(pixels, dims=("lat", "lon"), coords={"lat": np.arange(12.0)})
        good = image.copy(data=levels)
        settings = {"engine": "numpy", **SETTINGS}
        expected = denoise(pixels, levels, **settings)
        found: Any = denoise(image, good, **settings)
        np.testing.assert_array_equal(found.values, expected)
        with pytest.raises(ValueError, match="transpose it"):
            denoise(image, good.transpose("lon", "lat"), **settings)
        with pytest.raises(ValueError, match="different coordinates along lat"):
            denoise(image, good[::-1], **settings)

    def test_unknown_names(self) -> None:
        xr = pytest.importorskip("xarray")
        image = xr.DataArray(noisy(3, 12, 13), dims=("run", "y", "x"))
        with pytest.raises(ValueError, match="are ambiguous"):
            denoise(image, 20, **SETTINGS)
        found: Any = denoise(image, 20, axes="QYX", **SETTINGS)
        assert found.dims == image.dims

    @pytest.mark.slow
    def test_accessor(self) -> None:
        xr = pytest.importorskip("xarray")
        import integrodiff.xarray  # noqa: F401

        image = xr.DataArray(noisy(40, 41), dims=("y", "x"))
        xr.testing.assert_identical(
            image.integrodiff.denoise(20, **SETTINGS), denoise(image, 20, **SETTINGS)
        )
        assert image.integrodiff.estimate_sigma() == pytest.approx(20, rel=0.2)
        levels = xr.DataArray([10.0, 40.0], dims="band", coords={"band": ["red", "blue"]})
        bands = (levels / 20 * image).expand_dims(time=3).assign_attrs(units="K")
        found = bands.integrodiff.estimate_sigma()
        xr.testing.assert_identical(found, levels.assign_attrs(units="K").copy(data=found.values))
        np.testing.assert_allclose(found, levels, rtol=0.2)
        valid = image.notnull() & (image.y > 3)
        assert (bands.integrodiff.estimate_sigma(mask=valid) != found).all()
        renamed = bands.rename(band="run")
        np.testing.assert_array_equal(renamed.integrodiff.estimate_sigma(axes="TCYX"), found)
        if importlib.util.find_spec("matplotlib") is not None:
            assert len(image.integrodiff.compare(image).axes) > 6
            assert len(image.integrodiff.explain(20, model="pm").axes) > 12

    @pytest.mark.slow
    def test_coordinates_give_the_spacing_of_a_volume(self) -> None:
        xr = pytest.importorskip("xarray")
        pixels = noisy(4, 12, 13)
        coords = {"z": np.arange(4) * 2.5, "y": np.arange(12) * -2.0, "x": np.arange(13) * 2.0}
        image = xr.DataArray(pixels, dims=("z", "y", "x"), coords=coords)
        settings: Any = {**SETTINGS, "engine": "numpy", "model": "iad-plus"}
        found: Any = denoise(image, 20, **settings)
        expected = denoise(pixels, 20, axes="ZYX", spacing=(1.25, 1, 1), **settings)
        np.testing.assert_array_equal(found.values, expected)
        given: Any = denoise(image, 20, spacing=(1, 1, 1), **settings)
        equal = denoise(pixels, 20, axes="ZYX", **settings)
        np.testing.assert_array_equal(given.values, equal)
        uneven = image.assign_coords(z=[0, 1, 2, 4])
        with pytest.warns(VolumeModelWarning, match="coordinates of z are not evenly spaced"):
            taken: Any = denoise(uneven, 20, **settings)
        np.testing.assert_array_equal(taken.values, equal)
        assert denoise(uneven, 20, spacing=(1, 1, 1), **settings).shape == pixels.shape
        image.coords["z"].attrs["units"] = "µm"  # the other two may be in any
        other: Any = denoise(image, 20, **settings)
        np.testing.assert_array_equal(other.values, equal)


class TestDask:
    def test_is_told_how(self) -> None:
        da = pytest.importorskip("dask.array")
        frames = da.from_array(noisy(2, 12, 13), chunks=(1, 6, 7))
        with pytest.raises(TypeError, match=r"integrodiff.dask.denoise\(image, .*compute\(\)"):
            denoise(frames, 20, axes="TYX")

    def test_noise_is_not_estimated_without_a_word(self) -> None:
        da, xr = pytest.importorskip("dask.array"), pytest.importorskip("xarray")
        image = da.from_array(noisy(40, 41), chunks=20)
        for given in (image, xr.DataArray(image, dims=("y", "x"))):
            with pytest.raises(TypeError, match=r"call estimate_sigma\(image\.compute\(\)\)"):
                estimate_sigma(given)
            assert estimate_sigma(given.compute()) == estimate_sigma(noisy(40, 41))

    def test_in_xarray(self) -> None:
        xr = pytest.importorskip("xarray")
        pytest.importorskip("dask.array")
        import integrodiff.dask

        whole = xr.DataArray(noisy(2, 12, 13), dims=("time", "lat", "lon"))
        image = whole.chunk({"time": 1, "lat": 6})
        with pytest.raises(TypeError, match=r"compute\(\).*integrodiff.dask.denoise\(image.data"):
            denoise(image, 20)
        lazy = image.copy(data=integrodiff.dask.denoise(image.data, 20, axes="TYX", **SETTINGS))
        assert lazy.chunks is not None
        xr.testing.assert_allclose(lazy.compute(), denoise(whole, 20, **SETTINGS), atol=1e-3)


class Exchanged:
    """An array of a library of its own, which exchanges data by DLPack alone."""

    def __init__(self, data: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.data, self.device = data, device

    def __dlpack__(self, **how: Any) -> Any:
        if self.device[0] != 1:
            raise BufferError("this memory is elsewhere")
        return self.data.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def to_device(self, device: str, stream: object = None) -> Exchanged:
        assert (device, stream) == ("cpu", None)
        return Exchanged(self.data)

    def __array_namespace__(self, **_: Any) -> type[Exchanged]:
        return Exchanged

    @staticmethod
    def from_dlpack(array: Any) -> Exchanged:
        return Exchanged(np.from_dlpack(array))

    @staticmethod
    def asarray(array: Any, device: tuple[int, int]) -> Exchanged:
        return Exchanged(array, device)


class Giver:
    """A type that only gives its data away."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __dlpack__(self, **how: Any) -> Any:
        return self.data.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        found: tuple[int, int] = self.data.__dlpack_device__()
        return found


class TestDLPack:
    @pytest.mark.parametrize("device", [(1, 0), (2, 1)])
    def test_comes_back_to_its_device(self, device: tuple[int, int]) -> None:
        pixels, valid = noisy(12, 13), np.random.default_rng(1).random((12, 13)) > 0.2
        image: Any = Exchanged(pixels, device)
        mask: Any = Exchanged(valid, device)
        settings: dict[str, Any] = {**SETTINGS, "engine": "numpy"}
        found: Any = denoise(image, 20, mask=mask, **settings)
        assert isinstance(found, Exchanged)
        assert found.device == device
        np.testing.assert_array_equal(found.data, denoise(pixels, 20, mask=valid, **settings))

    @pytest.mark.skipif(driver_has_gpu(), reason="there are engines for arrays on a GPU here")
    def test_is_not_moved_without_being_asked(self) -> None:
        image: Any = Exchanged(noisy(12, 13), (2, 1))
        with pytest.raises(EngineUnavailableError, match=r"where it is, on a GPU.*engine='native'"):
            denoise(image, 20, **SETTINGS)

    def test_a_giver_gets_an_array(self) -> None:
        pixels = noisy(12, 13)
        found = denoise(Giver(pixels), 20, **SETTINGS)
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, denoise(pixels, 20, **SETTINGS))

    @pytest.mark.slow
    def test_dtypes_without_equal_in_numpy(self) -> None:
        torch = pytest.importorskip("torch")
        with pytest.raises(TypeError, match=r"Giver.*cannot be read by NumPy.*convert it"):
            denoise(Giver(torch.zeros((4, 4), dtype=torch.bfloat16)), 20)

    @pytest.mark.slow
    @pytest.mark.slow
    def test_tensors_by_their_own_protocol(self) -> None:
        torch = pytest.importorskip("torch")
        pixels = noisy(12, 13)
        found = denoise(Giver(torch.from_numpy(pixels)), 20, **SETTINGS)
        np.testing.assert_array_equal(found, denoise(pixels, 20, **SETTINGS))


@pytest.mark.slow
def test_no_library_is_imported() -> None:
    code = (
        "import sys, numpy as np; from integrodiff import denoise; denoise(np.ones((4, 4)), 0.1); "
        "assert not {'torch', 'PIL', 'xarray', 'dask'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_denoiser_takes_them_too() -> None:
    pixels = noisy(12, 13, dtype="uint8")
    found: Any = Denoiser(20, **SETTINGS)(Image.fromarray(pixels))
    np.testing.assert_array_equal(np.asarray(found), denoise(pixels, 20, **SETTINGS))
