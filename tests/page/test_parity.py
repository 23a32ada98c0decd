"""What the page computes itself is what the package computes.

The laws of the models, the noise estimate and the scale are written twice, in Python and in
JavaScript; these tests hold the second to the first. Kernels are the same source, compiled twice.
"""

from __future__ import annotations

import base64
import io
import json
import shlex
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from command_line import run
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter, laplace

from integrodiff import denoise, load_model
from integrodiff.arrays import array_image
from integrodiff.models.files import MODEL_NAMES
from integrodiff.request import Request, resolve
from integrodiff.stages import Term, cascade, coupling_field, discrete_gaussian

pytestmark = pytest.mark.slow

LEVELS = (0.5, 2.0, 7.3, 10.0, 15.0, 25.0, 33.3, 50.0, 60.0, 85.0)
SCALES = (0.1, 0.7, 1.1, 3.0, 7.0)
Ask = Callable[[str, Any], Any]
close = np.testing.assert_allclose


@pytest.fixture
def ask(node: Callable[..., Any], tmp_path: Path) -> Ask:
    """Ask the modules of the page for something."""

    def asked(task: str, given: Any) -> Any:
        file = tmp_path / f"{task}.json"
        file.write_text(json.dumps(given))
        return node("parity.mjs", task, file)

    return asked


def stored(image: NDArray[Any], path: Path) -> dict[str, Any]:
    """Write an image for node, and describe it."""
    path.write_bytes(np.ascontiguousarray(image).tobytes())
    return {"path": str(path), "shape": image.shape, "dtype": str(image.dtype)}


def in_bytes(image: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def rough_colour(blur: float) -> NDArray[np.uint8]:
    """White noise on a texture that is the same everywhere, in the luminance alone."""
    rng = np.random.default_rng(0)
    texture = gaussian_filter(rng.normal(size=(192, 192)), blur)
    grey = 128 + 30 * texture / texture.std()
    return in_bytes(grey[..., None] + rng.normal(0, 20, (192, 192, 3)))


def compressed(image: NDArray[np.uint8], quality: int, subsampling: int = -1) -> NDArray[np.uint8]:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality, subsampling=subsampling)
    return np.asarray(Image.open(file))


def described(term: Term) -> dict[str, Any]:
    return {
        "order": term.derivatives.order,
        "tensor": term.coupling.kind == "tensor",
        "mix": float(term.coupling.mix),
        "integrationScale": float(term.coupling.integration_scale),
        "couplingWeights": [float(weight) for weight in term.coupling.weights],
        "fluxWeights": [float(weight) for weight in term.flux_weights],
        "contrasts": [float(contrast) for contrast in term.diffusivity.contrasts],
    }


def test_kernels_of_the_blur(ask: Ask) -> None:
    wanted = [(scale, mass) for scale in (0, 0.0025, 0.3, 1, 7, 30) for mass in (2**-24, 2**-53)]
    for (scale, mass), taps in zip(wanted, ask("taps", wanted), strict=True):
        close(taps, discrete_gaussian(scale, mass), rtol=1e-12, atol=1e-300)


def test_laws_of_all_models_at_all_noise_levels(ask: Ask) -> None:
    wanted = [(name, level) for name in MODEL_NAMES for level in LEVELS]
    for (name, level), found in zip(wanted, ask("laws", wanted), strict=True):
        evolution = load_model(name).evolution(level)
        assert found["steps"] == evolution.steps
        close(found["tau"], evolution.tau, rtol=1e-10, err_msg=name)
        close(found["scales"], evolution.scales, rtol=1e-12)
        close(found["pulls"], evolution.pulls(), rtol=1e-12)
        assert len(found["schedule"]) == len(evolution.schedule)
        for terms, expected in zip(found["schedule"], evolution.schedule, strict=True):
            for term, other in zip(terms, map(described, expected), strict=True):
                assert term.keys() == other.keys()
                for key, value in other.items():
                    close(term[key], value, rtol=1e-11, err_msg=f"{name} {key}")


def noisy_images() -> dict[str, NDArray[Any]]:
    """White and correlated noise, compressed and clipped images, in all types, large and small."""
    from skimage.data import astronaut, camera

    rng = np.random.default_rng(0)
    grey, colour = camera()[:300, :401], astronaut()[:301, :203]

    def noise(image: NDArray[Any], level: float) -> NDArray[np.float64]:
        return image + rng.normal(0, level, image.shape)

    found: dict[str, NDArray[Any]] = {
        "photograph": grey,
        "white": in_bytes(noise(grey, 20)),
        "float": noise(grey, 5).astype(np.float32),
        "correlated": in_bytes(grey + 2.5 * gaussian_filter(rng.normal(0, 20, grey.shape), 1)),
        "compressed": compressed(in_bytes(noise(grey, 20)), 75),
        "deep": np.clip(noise(grey, 15) * 200, 0, 65535).astype(np.uint16),
        "clipped": in_bytes(noise((1.6 * grey.astype(np.float64) - 60).astype(np.int64), 30)),
        "colour": in_bytes(noise(colour, 15)),
        "compressed colour": compressed(in_bytes(noise(colour, 10)), 60),
        "rough colour": rough_colour(0.7),
        "rougher colour": rough_colour(0.5),
        "compressed rough colour": compressed(rough_colour(0.7), 75, 0),
        "grey as colour": np.repeat(in_bytes(noise(grey, 20))[:150, :200, None], 3, 2),
        "small": in_bytes(noise(grey[100:130, 100:125], 10)),
        "tiny": grey[100:112, 100:106],
        "constant": np.full((40, 50), 7, np.uint8),
    }
    # Flat parts are black, so that all noise without texture is clipped.
    texture = np.zeros((300, 300))
    texture[:, 150:] = 128 + 8 * gaussian_filter(rng.normal(0, 40, (300, 150)), 1.2)
    # Noise that is partly correlated, by differences at high frequencies and at all of them.
    blurred = gaussian_filter(np.random.default_rng(5).normal(0, 1, grey.shape), 0.59)
    rough = noise(grey, 15)
    return found | {
        "empty sample": in_bytes(noise(colour, 15)) * np.array([1, 0, 1], np.uint8),
        "dark": in_bytes(noise(grey[:, :301] // 16, 25)),
        "texture on black": in_bytes(noise(texture, 20)),
        "uneven": (grey / 20 + np.linspace(1, 41, 401) * blurred).astype(np.float32),
        "sharpened": (rough - laplace(rough)).astype(np.float32),
        "strip": in_bytes(noise(grey[100:121], 20)),
    }


def test_noise_scale_and_colour_space(ask: Ask, tmp_path: Path) -> None:
    images = noisy_images()
    requests = [("iad-plus", None), ("pm", None), ("iad-plus", 8.0), ("eed", 30.0)]
    given = [
        {"image": stored(image, tmp_path / f"{n}.raw"), "requests": requests}
        for n, image in enumerate(images.values())
    ]
    for (name, image), answers in zip(images.items(), ask("resolve", given), strict=True):
        source = array_image(image, channel_axis=-1 if image.ndim == 3 else None)
        for (model, sigma), found in zip(requests, answers, strict=True):
            request = Request(model=load_model(model), sigma=sigma)
            if name == "tiny" and sigma is None:
                with pytest.raises(ValueError, match="too small to estimate"):
                    resolve(request, source)
                assert "too small to estimate" in found["error"]
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (channel,) = resolve(request, source).channels
            message = f"{name} {model} {sigma}"
            if sigma is None:
                close(found["sigmas"], channel.sigmas, rtol=1e-5, err_msg=message)
            close(found["forward"], channel.space.forward, rtol=1e-5, atol=1e-9)
            close(found["backward"], channel.space.backward, rtol=1e-5, atol=1e-9)
            factors = [group["factor"] for group in found["groups"]]
            levels = [group["level"] for group in found["groups"]]
            close(factors, channel.scaling, rtol=1e-5, err_msg=message)
            close(levels, [level.sigma for level in channel.levels], rtol=1e-5)
            for group, shape in zip(found["groups"], channel.shapes, strict=True):
                expected = [shape.relative(scale) for scale in SCALES]
                close(group["relative"], expected, rtol=1e-5, err_msg=message)


def test_the_result_is_that_of_the_compiled_engine(ask: Ask, tmp_path: Path) -> None:
    images = noisy_images()
    chosen = [
        *(("white", model, None) for model in MODEL_NAMES),
        ("colour", "iad-plus", None),
        ("colour", "iad-deep", 12.0),
        ("correlated", "iad-plus", None),
        ("deep", "iad-fast", None),
        ("empty sample", "iad-plus", None),
        ("tiny", "iad-plus", 9.0),
    ]
    given = []
    for n, (name, model, sigma) in enumerate(chosen):
        file = stored(images[name][:120, :90], tmp_path / f"{n}.raw")
        given.append({"image": file, "model": model, "sigma": sigma})
    for (name, model, sigma), found in zip(chosen, ask("denoise", given), strict=True):
        image = np.ascontiguousarray(images[name][:120, :90])
        axis = -1 if image.ndim == 3 else None
        expected = denoise(
            image, sigma, model=model, exact=True, as_float=True, channel_axis=axis, engine="native"
        )
        of_255 = 255 / (65535 if image.dtype == np.uint16 else 255)
        difference = np.abs(np.reshape(found, image.shape) - expected).max() * of_255
        assert difference < 0.01, (name, model, difference)


@pytest.mark.long
@pytest.mark.parametrize("contrast", [1.0, 0.02])
def test_bands_and_parts_are_those_of_the_whole_image(
    ask: Ask, tmp_path: Path, contrast: float
) -> None:
    """Strong noise on little structure is smoothed most, and so has the longest reach."""
    from skimage.data import camera

    rng = np.random.default_rng(1)
    clean = contrast * np.concatenate([camera(), camera()[::-1]])[200:700, :150]
    tall = (clean + rng.normal(0, 40, clean.shape)).astype(np.float32)
    image = stored(tall, tmp_path / "tall.raw")
    part = {"x": 20, "y": 240, "width": 60, "height": 50}
    for model in ("iad-plus", "iad-deep"):
        same = {"image": image, "model": model, "sigma": None}
        whole, bands, alone = ask(
            "denoise", [same, {**same, "limit": 2**20}, {**same, "part": part}]
        )
        result = np.reshape(whole, tall.shape)
        assert np.abs(np.reshape(bands, tall.shape) - result).max() < 0.005
        assert np.abs(np.reshape(alone, (50, 60)) - result[240:290, 20:80]).max() < 0.005


@pytest.mark.parametrize("model", ["iad", "iid", "iad-plus", "iad-deep"])
def test_structure_and_diffusivities_at_a_place(ask: Ask, tmp_path: Path, model: str) -> None:
    image = noisy_images()["float"][:90, :80]
    places = [(0, 0), (40, 45), (80, 90), (12, 70)]
    sigma, step = 20.0, 2
    given = {"image": stored(image, tmp_path / "image.raw"), "model": model, "sigma": sigma}
    (answers,) = ask("explain", [{**given, "step": step, "places": places}])
    evolution = load_model(model).evolution(sigma)
    (term,) = (term for term in evolution.terms(step) if term.derivatives.order == 1)
    smoothed = cascade(image[None].astype(np.float64), evolution.scales)
    field: Any = coupling_field(smoothed, term)
    for (x, y), found in zip(places, answers, strict=True):
        if term.coupling.kind == "trace":
            trace = field[..., y, x].item()
            close([found["larger"], found["smaller"]], trace, rtol=1e-5)
            eigenvalues = np.array([trace, trace])
        else:
            xx, xy, yy = (part[..., y, x].item() for part in (field.xx, field.xy, field.yy))
            eigenvalues = np.linalg.eigvalsh([[xx, xy], [xy, yy]])[::-1]
            close([found["larger"], found["smaller"]], eigenvalues, rtol=1e-5, atol=1e-6)
        shown = [i for i, weight in enumerate(term.flux_weights) if weight > 0]
        for i, row in zip(shown, found["scales"], strict=True):
            gates = np.exp(-eigenvalues / (2 * float(term.diffusivity.contrasts[i]) ** 2))
            close([row["across"], row["along"]], gates, rtol=1e-4, atol=1e-9)


# ---- files ----


def example(shape: tuple[int, ...], dtype: type, seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.floating):
        return rng.normal(0, 3, shape).astype(dtype)
    # Runs of equal values, so that compression has something to do.
    values = rng.integers(0, np.iinfo(dtype).max, shape, endpoint=True)
    return np.repeat(values, 2, axis=1)[:, : shape[1]].astype(dtype)


def png_file(image: NDArray[Any], kind: int, depth: int, **chunks: bytes) -> bytes:
    """Return a PNG file of any kind of colours and depth, with further chunks."""

    def chunk(name: bytes, data: bytes) -> bytes:
        length, check = len(data), zlib.crc32(name + data)
        return struct.pack(">I", length) + name + data + struct.pack(">I", check)

    height, width = image.shape[:2]
    shifts = np.arange(depth - 1, -1, -1)
    bits = (image.reshape(height, -1, 1) >> shifts & 1).astype(np.uint8).reshape(height, -1)
    rows = b"".join(b"\0" + np.packbits(row).tobytes() for row in bits)
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + b"".join(chunk(name.encode(), data) for name, data in chunks.items())
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


GREY, RGB, PALETTE, GREY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
"""Kinds of colours of PNG."""


def transparent_pngs() -> dict[str, bytes]:
    """Return PNG files with transparency of each kind, all with the same waves and noise."""
    y, x = np.mgrid[:40, :44]
    grey = 0.5 + 0.3 * np.sin(x / 5 + y / 9) + np.random.default_rng(3).normal(0, 0.07, (40, 44))
    colour = grey[..., None] * np.array([1, 0.8, 0.6])
    alpha = np.where(x + y < 30, 0.3, 1.0)

    def in_bits(image: NDArray[np.float64], depth: int) -> NDArray[np.int64]:
        found: NDArray[np.float64] = np.rint(np.clip(image, 0, 1) * (2**depth - 1))
        return found.astype(np.int64)

    def with_alpha(image: NDArray[np.float64], depth: int) -> NDArray[np.int64]:
        return in_bits(np.dstack([image, alpha]), depth)

    def key(image: NDArray[np.int64]) -> bytes:
        return np.atleast_1d(image[7, 9]).astype(">u2").tobytes()

    found = {
        "grey-alpha.png": png_file(with_alpha(grey, 8), GREY_ALPHA, 8),
        "deep-grey-alpha.png": png_file(with_alpha(grey, 16), GREY_ALPHA, 16),
        "alpha.png": png_file(with_alpha(colour, 8), RGB_ALPHA, 8),
        "deep-alpha.png": png_file(with_alpha(colour, 16), RGB_ALPHA, 16),
    }
    for depth in (1, 2, 4, 8, 16):
        image = in_bits(grey, depth)
        found[f"key-{depth}.png"] = png_file(image, GREY, depth, tRNS=key(image))
    for depth in (8, 16):
        image = in_bits(colour, depth)
        found[f"colour-key-{depth}.png"] = png_file(image, RGB, depth, tRNS=key(image))
    for depth in (1, 4, 8):
        ramp = np.linspace(0, 255, 2**depth).astype(np.uint8)
        palette = np.stack([ramp, ramp[::-1], ramp // 2], axis=-1).tobytes()
        alphas = bytes([0, 90, 200][: 2**depth - 1])  # opaque beyond these
        image = in_bits(grey, depth)
        found[f"palette-{depth}.png"] = png_file(image, PALETTE, depth, PLTE=palette)
        found[f"soft-palette-{depth}.png"] = png_file(
            image, PALETTE, depth, PLTE=palette, tRNS=alphas
        )
    return found


def read_back(name: str, data: bytes) -> NDArray[Any]:
    if name.endswith(".tif"):
        return tifffile.imread(io.BytesIO(data))
    return np.asarray(Image.open(io.BytesIO(data)))


def test_files_are_read_and_written_with_all_bits(ask: Ask, tmp_path: Path) -> None:
    images: dict[str, NDArray[Any]] = {}

    def png(name: str, image: NDArray[Any], **options: Any) -> None:
        Image.fromarray(image).save(tmp_path / name, **options)
        images[name] = image

    def tiff(name: str, image: NDArray[Any], **options: Any) -> None:
        tifffile.imwrite(tmp_path / name, image, **options)
        images[name] = image

    png("grey.png", example((31, 17), np.uint8))
    png("colour.png", example((8, 19, 3), np.uint8))
    png("transparent.png", example((9, 7, 4), np.uint8))
    png("deep.png", example((13, 21), np.uint16))
    wide = example((5, 6, 3), np.uint16)
    (tmp_path / "wide.png").write_bytes(png_file(wide, RGB, 16))
    images["wide.png"] = wide
    bits = example((11, 13), np.uint8) > 127
    Image.fromarray(bits).save(tmp_path / "bits.png")
    images["bits.png"] = bits.astype(np.uint8) * np.uint8(255)
    rgb: dict[str, Any] = {"photometric": "rgb"}
    tiff("grey.tif", example((31, 17), np.uint8))
    tiff("deep.tif", example((40, 33), np.uint16), rowsperstrip=7)
    tiff("big-endian.tif", example((12, 10), np.uint16), byteorder=">")
    tiff("float.tif", example((20, 21), np.float32))
    tiff("double.tif", example((20, 21), np.float64), byteorder=">")
    tiff("colour.tif", example((20, 21, 3), np.uint16), **rgb)
    tiff("tiles.tif", example((70, 45, 3), np.uint8), tile=(16, 32), **rgb)
    planes = example((3, 18, 22), np.uint8)
    tifffile.imwrite(tmp_path / "planes.tif", planes, planarconfig="separate", **rgb)
    images["planes.tif"] = np.moveaxis(planes, 0, -1)
    tiff("deflate.tif", example((60, 45), np.uint16), compression="zlib", predictor=True)
    tiff("float-deflate.tif", example((60, 45), np.float32), compression="zlib", predictor=True)
    pytest.importorskip("imagecodecs")
    tiff("lzw.tif", example((200, 150), np.uint8), compression="lzw")
    tiff("lzw-deep.tif", example((90, 70, 3), np.uint16), compression="lzw", predictor=True, **rgb)
    tiff("packbits.tif", example((60, 45), np.uint8), compression="packbits")
    answers = ask("files", [str(tmp_path / name) for name in images])
    for (name, image), found in zip(images.items(), answers, strict=True):
        assert "error" not in found, (name, found.get("error"))
        assert found["type"].lower() == f"{image.dtype}array", name
        np.testing.assert_array_equal(np.reshape(found["data"], image.shape), image, err_msg=name)
        if name == "wide.png":
            continue  # Pillow reads 8 bits of it
        copy = read_back(found["name"], base64.b64decode(found["written"]))
        assert copy.dtype == image.dtype, name
        np.testing.assert_array_equal(copy, image, err_msg=name)


def expanded(data: bytes) -> NDArray[Any]:
    """Return a PNG file with palettes and transparent colours as colours and alpha."""
    picture = Image.open(io.BytesIO(data))
    if picture.mode == "P":
        return np.asarray(picture.convert("RGBA" if picture.has_transparency_data else "RGB"))
    import imagecodecs

    return np.asarray(imagecodecs.png_decode(data))


def test_transparency_of_png_is_kept(ask: Ask, tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    files = transparent_pngs()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    answers = ask("files", [str(tmp_path / name) for name in files])
    for (name, data), found in zip(files.items(), answers, strict=True):
        image = expanded(data)
        assert "error" not in found, (name, found.get("error"))
        assert found["stride"] == image.shape[-1], name
        assert found["samples"] == (3 if image.shape[-1] > 2 else 1), name
        np.testing.assert_array_equal(np.reshape(found["data"], image.shape), image, err_msg=name)
        copy = expanded(base64.b64decode(found["written"]))
        assert copy.dtype == image.dtype, name
        np.testing.assert_array_equal(copy, image, err_msg=name)


def transparent_tiffs(folder: Path) -> list[str]:
    """Write TIFF files with transparency of each kind, together and in planes, and return names."""
    rng = np.random.default_rng(4)
    y, x = np.mgrid[:40, :44]
    waves = 120 + 60 * np.sin(x / 5 + y / 9)
    samples = [waves * part for part in (1, 0.8, 0.6)]
    noisy = in_bytes(np.stack(samples) + rng.normal(0, 15, (3, 40, 44)))
    alpha = np.where(x + y < 30, 80, 255).astype(np.uint8)
    names = []
    for kind in ("unassalpha", "assocalpha", "unspecified"):
        for colours, photometric in ((3, "rgb"), (1, "minisblack"), (1, "miniswhite")):
            for planes in ("contig", "separate"):
                if colours == 1 and kind == "unspecified":
                    continue
                image = np.stack([*noisy[:colours], alpha])
                if planes == "contig":
                    image = np.moveaxis(image, 0, -1)
                names.append(f"{kind}-{photometric}-{planes}.tif")
                options: dict[str, Any] = {"photometric": photometric, "planarconfig": planes}
                tifffile.imwrite(folder / names[-1], image, extrasamples=[kind], **options)
    tifffile.imwrite(folder / "white.tif", noisy[0], photometric="miniswhite")
    tifffile.imwrite(folder / "planes.tif", noisy, photometric="rgb", planarconfig="separate")
    return [*names, "white.tif", "planes.tif"]


def layout_of_tiff(data: bytes) -> tuple[NDArray[Any], Any, tuple[int, ...]]:
    """Return the values with all samples of a pixel together, their colours and what is extra."""
    with tifffile.TiffFile(io.BytesIO(data)) as tif:
        page = tif.pages.first
        image = page.asarray()
        if page.planarconfig == 2 and image.ndim == 3:
            image = np.moveaxis(image, 0, -1)
        return image, page.photometric, tuple(page.extrasamples)


def samples_in(path: Path) -> list[Any]:
    """Return the values in a file; of TIFF also the colours, and what is extra."""
    import imagecodecs

    data = path.read_bytes()
    return [imagecodecs.png_decode(data)] if path.suffix == ".png" else [*layout_of_tiff(data)]


def test_kind_of_transparency_in_tiff_is_kept(ask: Ask, tmp_path: Path) -> None:
    names = transparent_tiffs(tmp_path)
    for name, found in zip(names, ask("files", [str(tmp_path / n) for n in names]), strict=True):
        assert "error" not in found, (name, found.get("error"))
        image, *colours = layout_of_tiff((tmp_path / name).read_bytes())
        copy, *written = layout_of_tiff(base64.b64decode(found["written"]))
        assert written == colours, name
        np.testing.assert_array_equal(copy, image, err_msg=name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tifffile")
def test_code_and_command_give_the_result(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the file: palettes, few bits, transparency, planes."""
    pytest.importorskip("imagecodecs")
    monkeypatch.chdir(tmp_path)
    files = transparent_pngs()
    few = np.random.default_rng(0).integers(0, 2, (40, 44))
    files |= {"bits.png": png_file(few, GREY, 1), "few.png": png_file(few, GREY, 2)}
    for name, data in files.items():
        Path(name).write_bytes(data)
    names = [*files, *transparent_tiffs(tmp_path)]
    masks = ("bits.png", "key-1.png", "palette-1.png", "soft-palette-1.png")
    deep = ("deep-grey-alpha.png", "deep-alpha.png", "key-16.png", "colour-key-16.png")
    given = [
        {"path": str(tmp_path / name), "model": "pm", "sigma": 3000 if name in deep else 12}
        for name in names
    ]
    for name, found in zip(names, ask("shown", given), strict=True):
        result = tmp_path / found["name"]
        result.write_bytes(base64.b64decode(found["written"]))
        expected, *colours = samples_in(result)
        result.unlink()
        exec(found["python"], {})  # noqa: S102
        results = {"python": samples_in(result)}
        words = shlex.split(found["command"])
        if name in masks:
            assert words[0] == "#", name
        else:
            done = run(*words[1:3], "by-command" + result.suffix, *words[4:], "--overwrite")
            assert done.exit_code == 0, (name, done.output)
            results["command"] = samples_in(Path("by-command" + result.suffix))
        for way, (image, *same) in results.items():
            assert same == colours, (name, way)
            assert (image.shape, image.dtype) == (expected.shape, expected.dtype), (name, way)
            difference = np.abs(image.astype(np.int64) - expected)
            # Within a hundredth of one of 255 grey levels, and rounded.
            assert difference.max() <= (4 if name in deep else 1), (name, way)


def test_range_is_that_of_the_colours(ask: Ask, tmp_path: Path) -> None:
    deep = np.dstack([example((9, 8), np.uint16) % 1000 + 1, np.full((9, 8), 65535, np.uint16)])
    real = np.dstack([np.linspace(2, 5, 72).reshape(9, 8), np.full((9, 8), 99)])
    given = [
        {"image": stored(image, tmp_path / f"{n}.raw"), "samples": 1}
        for n, image in enumerate((deep.astype(np.uint16), real))
    ]
    assert ask("ranges", given) == [1023, 3]


def test_resolution_of_tiff_is_kept(ask: Ask, tmp_path: Path) -> None:
    paths = []
    for resolution in (300.5, 500_000.0, 3e9):
        paths.append(str(tmp_path / f"{resolution}.tif"))
        options: dict[str, Any] = {"resolution": (resolution,) * 2, "resolutionunit": 3}
        tifffile.imwrite(paths[-1], example((6, 5), np.uint8), **options)
    for path, found in zip(paths, ask("files", paths), strict=True):
        written = base64.b64decode(found["written"])
        with tifffile.TiffFile(path) as before, tifffile.TiffFile(io.BytesIO(written)) as after:
            assert after.pages.first.resolution == pytest.approx(before.pages.first.resolution)
            assert after.pages.first.resolutionunit == before.pages.first.resolutionunit


def tags_of_tiff(tags: dict[int, int], kind: int = 4, count: int = 1) -> bytes:
    """Return the beginning of a TIFF file with these tags."""
    entries = [struct.pack("<HHII", tag, kind, count, value) for tag, value in tags.items()]
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + b"".join(entries) + bytes(4)


def test_files_that_cannot_be_read_say_why(ask: Ask, tmp_path: Path) -> None:
    reasons: dict[str, str] = {}

    def broken(name: str, data: bytes, reason: str) -> None:
        (tmp_path / name).write_bytes(data)
        reasons[name] = reason

    grey = example((64, 64), np.uint8)
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "PNG")
    whole = file.getvalue()
    broken("short.png", whole[:-200], "ends too early")
    damaged = bytearray(whole)
    damaged[60:90] = b"x" * 30
    broken("damaged.png", bytes(damaged), "damaged")
    huge = bytearray(whole)
    huge[16:24] = (40000).to_bytes(4, "big") + (30000).to_bytes(4, "big")
    broken("huge.png", bytes(huge), "1200 megapixels")
    broken("key.png", png_file(grey, GREY, 8, tRNS=b"\0"), "transparent colour is damaged")
    broken("text.png", b"not an image at all", "neither PNG nor TIFF")
    broken("empty.png", b"", "it is empty")
    unknown: dict[str, Any] = {"planarconfig": "contig", "extrasamples": ["unspecified"]}
    of_two = {**unknown, "photometric": "minisblack"}
    keys = (34735, "H", 4, (1, 1, 0, 0), False)
    of_satellite = {**unknown, "photometric": "rgb", "extratags": [keys]}
    refused: list[tuple[str, NDArray[Any], dict[str, Any], str]] = [
        ("stack.tif", np.stack([grey, grey]), {}, "several pages"),
        ("signed.tif", grey.astype(np.int16), {}, "16 bits with a sign"),
        ("wide.tif", grey.astype(np.uint32), {}, "32 bits"),
        ("nan.tif", np.full((9, 9), np.nan, np.float32), {}, "81 of its values are not finite"),
        ("big.tif", grey, {"bigtiff": True}, "BigTIFF"),
        ("two.tif", np.dstack([grey, grey]), of_two, "it has two channels"),
        ("bands.tif", np.dstack([grey] * 4), of_satellite, "it has four bands"),
    ]
    for name, image, options, reason in refused:
        tifffile.imwrite(tmp_path / name, image, **options)
        reasons[name] = reason
    tifffile.imwrite(tmp_path / "cut.tif", grey)
    broken("cut.tif", (tmp_path / "cut.tif").read_bytes()[:-500], "ends too early")
    # A tile that is larger than all images, and tags with more values than anybody can hold.
    tile = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: 30_000, 323: 30_000}
    broken("tile.tif", tags_of_tiff({**tile, 324: 8, 325: 4}), "900 megapixels")
    many = tags_of_tiff(dict.fromkeys(range(1000, 61_000), 0), kind=1, count=2**22)
    broken("tags.tif", many + bytes(2**22), "header is damaged")
    for (name, reason), found in zip(
        reasons.items(), ask("files", [str(tmp_path / name) for name in reasons]), strict=True
    ):
        assert found.keys() == {"error"}, name
        assert found["error"].startswith(name), found
        assert reason in found["error"], (name, found["error"])


def test_commands_are_quoted_for_the_shell(ask: Ask) -> None:
    names = ["plain.png", "two words.png", "it's.tif", "-dash.png", "$(x).png"]
    settings = {"model": "iad", "defaultModel": "iad-plus", "sigma": 12.5}
    image = {"format": "png", "dtype": "uint8", "samples": 1, "stride": 1}
    given = [{"image": {**image, "name": name}, "settings": settings} for name in names]
    for name, (command, python) in zip(names, ask("commands", given), strict=True):
        words = shlex.split(command)
        assert words[:2] == ["integrodiff", "denoise"]
        assert words[2].removeprefix("./") == name
        assert words[4:] == ["--sigma", "12.5", "--model", "iad", "--exact"]
        compile(python, name, "exec")
        assert repr(name) in python or json.dumps(name) in python
