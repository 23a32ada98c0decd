"""NPY, NIfTI, DICOM and OME-Zarr, and pictures beyond 8 bits in grey: round trips."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
import tifffile
import zarr
from command_line import run
from foreign_files import FOLDER, expected
from image_samples import HEIGHT, ICC_PROFILE, WIDTH, XMP, chunk, exif, png_bytes, values
from image_writers import write_array
from PIL import Image

import integrodiff
from integrodiff.io import open_image, read_image, write_image
from integrodiff.io.formats import nifti, zarr_slabs
from integrodiff.io.masks import read_mask
from integrodiff.io.windows import open_windows

# ---- pictures ----


@pytest.mark.parametrize(
    ("channels", "colour_type", "kind"),
    [(2, 4, "grey with alpha"), (3, 2, "RGB"), (4, 6, "RGBA")],
)
def test_png_of_16_bits_keeps_all_of_them(
    tmp_path: Path, channels: int, colour_type: int, kind: str
) -> None:
    samples = values(HEIGHT, WIDTH, channels, dtype="uint16")
    (tmp_path / "in.png").write_bytes(
        png_bytes(samples.astype(">u2").tobytes(), depth=16, colour=colour_type)
    )
    image = read_image(tmp_path / "in.png")
    assert (image.header.kind, image.pixels.dtype.name) == (kind, "uint16")
    write_image(tmp_path / "out.png", image)
    assert (tmp_path / "out.png").read_bytes()[24:26] == bytes([16, colour_type])
    again = read_image(tmp_path / "out.png")
    parts = [again.pixels.reshape(HEIGHT, WIDTH, -1)]
    parts += [] if again.alpha is None else [again.alpha[..., None]]
    assert np.array_equal(np.concatenate(parts, axis=-1), samples)


def test_png_of_16_bits_keeps_its_metadata(tmp_path: Path) -> None:
    samples = values(HEIGHT, WIDTH, 3, dtype="uint16")
    text = chunk(b"tEXt", b"Title\0Grain") + chunk(b"gAMA", struct.pack(">I", 45455))
    text += chunk(b"pHYs", struct.pack(">IIB", 11811, 5906, 1)) + chunk(b"eXIf", exif()[6:])
    key = chunk(b"tRNS", struct.pack(">3H", *map(int, samples[3, 5])))
    (tmp_path / "in.png").write_bytes(
        png_bytes(samples.astype(">u2").tobytes(), depth=16, colour=2, chunks=text + key)
    )
    image = read_image(tmp_path / "in.png")
    assert image.alpha is not None
    assert np.argwhere(image.alpha == 0).tolist() == [[3, 5]]
    assert "alpha channel" in image.notes[0]
    write_image(tmp_path / "out.png", image)
    with Image.open(tmp_path / "in.png") as old, Image.open(tmp_path / "out.png") as new:
        old.load()
        new.load()
        assert new.info == {k: v for k, v in old.info.items() if k != "transparency"}
        assert new.info["Title"] == "Grain"
        assert new.info["dpi"] == pytest.approx((300, 150), abs=0.02)


@pytest.mark.parametrize("channels", [3, 4])
def test_webp_round_trip(tmp_path: Path, channels: int) -> None:
    samples = values(HEIGHT, WIDTH, channels)
    Image.fromarray(samples).save(
        tmp_path / "in.webp",
        lossless=True,
        exact=True,
        icc_profile=ICC_PROFILE,
        exif=exif(),
        xmp=XMP,
    )
    image = read_image(tmp_path / "in.webp")
    assert image.header.kind == ("RGB" if channels == 3 else "RGBA")
    assert image.metadata.orientation == 6
    assert write_image(tmp_path / "out.webp", image) == ()
    with Image.open(tmp_path / "out.webp") as new:
        assert np.array_equal(np.asarray(new), samples)
        kept = {"icc_profile": ICC_PROFILE, "exif": exif()[6:], "xmp": XMP}
        assert {name: new.info[name] for name in kept} == kept
    if channels == 3:
        write_image(tmp_path / "out.jpg", image)
        with Image.open(tmp_path / "out.jpg") as other:
            assert other.info["exif"] == exif()


def test_palette_of_a_tiff_is_expanded(tmp_path: Path) -> None:
    indices = values(HEIGHT, WIDTH)
    for table in (values(3, 256, dtype="uint16"), values(3, 256).astype(np.uint16) * 257):
        tifffile.imwrite(tmp_path / "in.tif", indices, photometric="palette", colormap=table)
        image = read_image(tmp_path / "in.tif")
        scale = 257 if image.pixels.dtype == np.uint8 else 1
        assert np.array_equal(image.pixels.astype(int) * scale, table.T[indices])
        assert "palette" in image.notes[0]
        write_image(tmp_path / "out.tif", image, overwrite=True)
        assert np.array_equal(tifffile.imread(tmp_path / "out.tif"), image.pixels)


# ---- NPY ----


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["uint8", ">u2", "int32", "float16", ">f8"])
@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7), (2, 3, 5, 7), (5, 7, 3), (2, 5, 7, 4)])
def test_npy_round_trip(tmp_path: Path, order: Any, dtype: str, shape: tuple[int, ...]) -> None:
    samples = np.asarray(values(*shape, dtype=np.dtype(dtype).newbyteorder("=").str), dtype, order)
    np.save(tmp_path / "in.npy", samples)
    image = read_image(tmp_path / "in.npy")
    assert image.pixels.dtype.isnative
    assert image.header.pages == np.prod(shape[: -3 if shape[-1] in (3, 4) else -2], dtype=int)
    assert (image.alpha is not None) == (shape[-1] == 4)
    assert len(image.notes) == (shape[-1] in (3, 4))
    assert write_image(tmp_path / "out.npy", image) == ()
    again = np.load(tmp_path / "out.npy", allow_pickle=False)
    assert again.dtype == samples.dtype
    assert np.array_equal(again, samples)


# ---- NIfTI ----


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_nifti_round_trip(tmp_path: Path, suffix: str, kind: Any) -> None:
    samples = values(7, 6, 4, 3, dtype="int16")
    affine = np.array([[0, 2.0, 0, -5], [1, 0, 0, 3], [0, 0, 0.5, 1], [0, 0, 0, 1]])
    volume = kind(samples, affine)
    volume.header.set_xyzt_units("mm", "sec")
    volume.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"by hand"))
    nibabel.save(volume, tmp_path / f"in{suffix}")
    image = read_image(tmp_path / f"in{suffix}")
    assert np.array_equal(image.pixels, samples.T)
    changed = image.with_pixels(image.pixels // 2)
    assert write_image(tmp_path / f"out{suffix}", changed) == ()
    old: Any = nibabel.load(tmp_path / f"in{suffix}")
    new: Any = nibabel.load(tmp_path / f"out{suffix}")
    assert type(new) is kind
    assert new.header == old.header
    assert new.header.extensions == old.header.extensions
    assert np.array_equal(new.affine, affine)
    assert np.array_equal(np.asarray(new.dataobj), samples // 2)


def test_the_same_image_makes_the_same_compressed_nifti(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(values(7, 6, 5), np.eye(4)), tmp_path / "in.nii.gz")
    image = read_image(tmp_path / "in.nii.gz")
    for name in ("one.nii.gz", "other.nii.gz"):
        write_image(tmp_path / name, image)
    data = (tmp_path / "one.nii.gz").read_bytes()
    assert data[:10] == b"\x1f\x8b\x08" + bytes(5) + data[8:10]  # neither name nor time
    assert data == (tmp_path / "other.nii.gz").read_bytes()


def test_compressed_nifti_is_read_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going back in a compressed file means to decompress it from the start again."""
    places: list[int] = []

    class Watched(gzip.GzipFile):
        def seek(self, offset: int, whence: int = 0) -> int:
            places.append(offset)
            return super().seek(offset, whence)

    samples = values(7, 6, 5, 4)
    nibabel.save(nibabel.Nifti1Image(samples, np.eye(4)), tmp_path / "in.nii.gz")
    monkeypatch.setattr(nifti, "GzipFile", Watched)
    with open_image(tmp_path / "in.nii.gz") as image:
        for _ in range(2):
            places.clear()
            assert np.array_equal(np.stack(list(image.planes())), samples.T.reshape(20, 6, 7))
            assert places == sorted(places)


def test_nifti_of_other_byte_order_and_name(tmp_path: Path) -> None:
    """The content decides, also on compression."""
    samples = values(7, 6, 4, dtype="float32")
    header = nibabel.Nifti1Header(endianness=">")
    nibabel.save(nibabel.Nifti1Image(samples, np.eye(4), header), tmp_path / "in.nii.gz")
    (tmp_path / "plain.dat").write_bytes(gzip.decompress((tmp_path / "in.nii.gz").read_bytes()))
    image = read_image(tmp_path / "plain.dat")
    assert np.array_equal(image.pixels, samples.T)
    write_image(tmp_path / "out.nii", image)
    new: Any = nibabel.load(tmp_path / "out.nii")
    assert new.header.endianness == ">"
    assert np.array_equal(np.asarray(new.dataobj), samples)


# ---- DICOM ----


def dicom(path: Path, pixels: Any, **elements: Any) -> None:
    """Write a DICOM file with a private element and an unusual patient."""
    dataset = pydicom.dcmread(FOLDER / "explicit.dcm")
    dataset.Rows, dataset.Columns = pixels.shape[-2:]
    dataset.PatientName = "Gradient^Ann"
    dataset.private_block(0x0011, "integrodiff", create=True).add_new(1, "LO", "kept")
    dataset.BitsAllocated = 8 * pixels.dtype.itemsize
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    dataset.BitsStored = dataset.BitsAllocated
    for name, value in elements.items():
        setattr(dataset, name, value)
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelData = pixels.tobytes() + bytes(pixels.nbytes % 2)
    dataset.save_as(path)


def test_frames_of_dicom(tmp_path: Path) -> None:
    frames = values(3, 5, 7, dtype="int16")
    dicom(tmp_path / "in.dcm", frames, NumberOfFrames=3, RescaleIntercept=-1024, RescaleSlope=1)
    image = read_image(tmp_path / "in.dcm")
    assert np.array_equal(image.pixels, frames)
    assert "shifts by -1024" in image.notes[0]
    write_image(tmp_path / "out.dcm", image)
    new = pydicom.dcmread(tmp_path / "out.dcm")
    assert np.array_equal(new.pixel_array, frames)
    assert (new.PatientName, new[0x0011, 0x1001].value) == ("Gradient^Ann", "kept")
    assert new.RescaleIntercept == -1024


def test_a_damaged_length_in_dicom_is_not_copied(tmp_path: Path) -> None:
    """The length of the first group takes in 48 bytes behind it, in place of two other elements."""
    pixels = values(5, 7, dtype="uint16")
    write_array(tmp_path / "in.dcm", pixels, "YX")
    content = bytearray((tmp_path / "in.dcm").read_bytes())
    assert content[132:140] == b"\x02\0\0\0UL\x04\0"
    content[138], content[144:192] = 52, b"8" * 48
    (tmp_path / "in.dcm").write_bytes(content)
    write_image(tmp_path / "out.dcm", read_image(tmp_path / "in.dcm"))
    assert np.array_equal(read_image(tmp_path / "out.dcm").pixels, pixels)
    assert isinstance(pydicom.dcmread(tmp_path / "out.dcm").file_meta[0x00020000].value, int)


def test_values_stay_within_the_bits_of_dicom(tmp_path: Path) -> None:
    pixels = values(5, 7, dtype="uint16") // 16
    dicom(tmp_path / "in.dcm", pixels, BitsStored=12)
    image = read_image(tmp_path / "in.dcm")
    write_image(tmp_path / "out.dcm", image.with_pixels(pixels + np.uint16(1000)))
    new = pydicom.dcmread(tmp_path / "out.dcm").pixel_array
    assert new.max() == 4095
    assert np.array_equal(new, np.minimum(pixels + 1000, 4095))


def test_dicom_with_white_zero_becomes_tiff_alike(tmp_path: Path) -> None:
    pixels = values(5, 7)
    dicom(tmp_path / "in.dcm", pixels, PhotometricInterpretation="MONOCHROME1")
    image = read_image(tmp_path / "in.dcm")
    (note,) = write_image(tmp_path / "out.tif", image)
    assert "patient" in note
    with tifffile.TiffFile(tmp_path / "out.tif") as tif:
        assert tif.pages.first.photometric == 0
        assert np.array_equal(tif.asarray(), pixels)
    write_image(tmp_path / "out.png", image)
    assert np.array_equal(read_image(tmp_path / "out.png").pixels, 255 - pixels)
    write_image(tmp_path / "again.dcm", image)
    assert pydicom.dcmread(tmp_path / "again.dcm").PixelData[:35] == pixels.tobytes()


# ---- OME-Zarr ----


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ome04.zarr", "ome05.zarr"])
def test_ome_zarr_of_its_own_library(tmp_path: Path, name: str) -> None:
    image = read_image(FOLDER / name)
    stack = expected("grey16+negative")
    assert np.array_equal(image.pixels, stack[None])
    assert (image.axes, image.notes) == ("CZYX", ())
    assert write_image(tmp_path / "out.zarr", image.with_pixels(image.pixels // 2)) == ()
    old: Any = zarr.open_group(FOLDER / name, mode="r")
    new: Any = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert np.array_equal(new["s0"][:], stack[None] // 2)
    for level in ("s0", "s1"):
        assert new[level].metadata == old[level].metadata
    assert dict(new.attrs) == dict(old.attrs)
    # The library itself made the smaller resolution by an interpolation of the same pixels.
    assert np.abs(new["s1"][:] * 2.0 - old["s1"][:]).max() < 3000


@pytest.mark.parametrize("version", [2, 3])
def test_float_result_in_zarr(tmp_path: Path, version: Any) -> None:
    samples = values(2, 9, 11)
    zarr.create_array(
        tmp_path / "in.zarr", data=samples, zarr_format=version, chunks=(2, 4, 5)
    ).attrs["by"] = "hand"
    image = read_image(tmp_path / "in.zarr")
    assert np.array_equal(image.pixels, samples)
    write_image(tmp_path / "out.zarr", image.with_pixels(samples.astype(np.float32) / 3))
    new: Any = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert (new.dtype, new.chunks, dict(new.attrs)) == (np.float32, (2, 4, 5), {"by": "hand"})
    assert np.array_equal(new[:], samples.astype(np.float32) / 3)


@pytest.mark.slow
@pytest.mark.parametrize("largest", [1, 2 * 9 * 11, 2**27])
@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (1, 2, 9, 4)},
        {"chunks": (2, 3, 5, 11)},
        {"chunks": (1, 1, 3, 4), "shards": (1, 2, 9, 12)},
    ],
)
def test_pages_that_share_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], largest: int
) -> None:
    monkeypatch.setattr(zarr_slabs, "LARGEST_IN_MEMORY", largest)
    samples = values(2, 5, 9, 11)
    zarr.create_array(tmp_path / "in.zarr", data=samples, **options)
    image = read_image(tmp_path / "in.zarr")
    assert image.notes == ()
    assert np.array_equal(image.pixels, samples)
    write_image(tmp_path / "out.zarr", image)
    new: Any = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert (new.chunks, new.shards) == (options["chunks"], options.get("shards"))
    assert np.array_equal(new[:], samples)


def test_missing_chunks_are_mentioned(tmp_path: Path) -> None:
    array = zarr.create_array(
        tmp_path / "in.zarr", shape=(3, 9, 11), dtype="uint8", chunks=(1, 9, 6), fill_value=7
    )
    array[0] = values(9, 11)
    image = read_image(tmp_path / "in.zarr")
    assert "4 of 6 chunks are not in the folder; their pixels count as 7" in image.notes[0]
    assert (image.pixels[1:] == 7).all()


def test_what_a_zarr_folder_has_besides_is_named(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "in.zarr", mode="w")
    group.create_array("full", data=values(5, 7))
    group.create_group("labels")
    image = {"axes": [{"name": "y"}, {"name": "x"}], "datasets": [{"path": "full"}]}
    group.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    assert "labels" in read_image(tmp_path / "in.zarr").notes[0]
    text = json.loads((tmp_path / "in.zarr" / "zarr.json").read_text())
    assert text["attributes"]["ome"]["multiscales"] == [image]


# ---- all of them ----


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["explicit.dcm", "empty.nii", "ome04.zarr", "ome05.zarr", "pages.tif", "rgb16.png"]
)
def test_command_line(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    words = ("denoise", FOLDER / name, target, "--sigma", 2000, "--engine", "numpy")
    result = run(*words, "--data-range", 65535, "--slices")
    assert result.exit_code == 0, result.stderr
    before, after = read_image(FOLDER / name), read_image(target)
    assert (after.pixels.dtype, after.pixels.shape) == (before.pixels.dtype, before.pixels.shape)
    for old, new in zip(before, after, strict=True):
        denoised = integrodiff.denoise(
            old.pixels,
            2000,
            data_range=65535,
            axes="YXS" if old.pixels.ndim == 3 else "YX",
            engine="numpy",
        )
        assert np.array_equal(new.pixels, denoised)


def test_pages_can_be_read_twice_and_one_by_one(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(values(7, 6, 5), np.eye(4)), tmp_path / "in.nii.gz")
    for path in (FOLDER / "tiles.tif", FOLDER / "ome05.zarr", tmp_path / "in.nii.gz"):
        with open_image(path) as image:
            whole = read_image(path).pixels.reshape(-1, *image.layout.plane_shape)
            next(image.pages())
            for _ in range(2):
                pages = [page.pixels for page in image.pages()]
                assert np.array_equal(np.stack(pages), whole)


def test_palettes_of_tiff_pages(tmp_path: Path) -> None:
    """Each page has its own."""
    indices = values(HEIGHT, WIDTH)
    tables = [np.roll(values(3, 256).astype(np.uint16) * 257, n, axis=1) for n in (0, 5)]
    with tifffile.TiffWriter(tmp_path / "in.tif") as writer:
        for table in tables:
            writer.write(indices, photometric="palette", colormap=table, metadata=None)
    expected = np.stack([(table.T[indices] // 257).astype(np.uint8) for table in tables])
    np.testing.assert_array_equal(read_image(tmp_path / "in.tif").pixels, expected)
    with open_windows(tmp_path / "in.tif") as reader:
        found = reader.window((slice(1, 2), slice(3, HEIGHT), slice(2, 9)))
    np.testing.assert_array_equal(found, expected[1:, 3:, 2:9])


@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_the_limit_counts_pixels_and_not_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planar: str
) -> None:
    colours = values(10, 12, 3)
    samples = colours if planar == "contig" else np.moveaxis(colours, -1, 0)
    tifffile.imwrite(
        *(tmp_path / "in.tif", samples),
        photometric="rgb",
        planarconfig=planar,
        compression="zlib",
    )
    head = "NRRD0004\ntype: uint8\ndimension: 3\nsizes: 3 12 10\nkinds: RGB-color domain domain\n"
    (tmp_path / "in.nrrd").write_bytes(f"{head}encoding: raw\n\n".encode() + colours.tobytes())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 75)  # 150; there are 120 pixels, 360 samples
    for name in ("in.tif", "in.nrrd"):
        np.testing.assert_array_equal(read_image(tmp_path / name).pixels, colours)


@pytest.mark.parametrize("kind", ["ORIGINAL", ""])
def test_type_of_dicom_with_one_value(tmp_path: Path, kind: str) -> None:
    dicom(tmp_path / "in.dcm", values(5, 7), ImageType=kind)
    write_image(tmp_path / "out.dcm", read_image(tmp_path / "in.dcm"))
    assert list(pydicom.dcmread(tmp_path / "out.dcm").ImageType) == ["DERIVED", "PRIMARY"]


def test_compression_in_capitals(tmp_path: Path) -> None:
    pixels = values(3, 4, 5)
    nibabel.save(nibabel.Nifti1Image(pixels, np.eye(4)), tmp_path / "in.nii")
    write_image(tmp_path / "OUT.NII.GZ", read_image(tmp_path / "in.nii"))
    assert (tmp_path / "OUT.NII.GZ").read_bytes()[:2] == b"\x1f\x8b"
    found: Any = nibabel.load(tmp_path / "OUT.NII.GZ")
    np.testing.assert_array_equal(np.asarray(found.dataobj), pixels)


REST = (b"\xff" * 40, b"\xff\xff\xff\xf0IDAT", b"\0\0\0\3tEXta\0b\0\0\0\0")


@pytest.mark.parametrize("rest", REST)
def test_bytes_behind_a_png(tmp_path: Path, rest: bytes) -> None:
    """Some programs leave the end of a longer file there."""
    pixels = values(HEIGHT, WIDTH)
    Image.fromarray(pixels).save(tmp_path / "in.png")
    with (tmp_path / "in.png").open("ab") as stream:
        stream.write(rest)
    image = read_image(tmp_path / "in.png")
    np.testing.assert_array_equal(image.pixels, pixels)
    write_image(tmp_path / "out.png", image)
    assert b"tEXt" not in (tmp_path / "out.png").read_bytes()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_masks_of_one_bit_are_not_turned(tmp_path: Path, orientation: int) -> None:
    mask = np.random.default_rng(0).random((9, 11)) > 0.5
    tifffile.imwrite(
        *(tmp_path / "mask.tif", mask),
        photometric="minisblack",
        metadata=None,
        extratags=[(274, 3, 1, orientation, False)],
    )
    np.testing.assert_array_equal(read_mask(tmp_path / "mask.tif"), mask)


def test_masks_of_one_bit_in_other_formats(tmp_path: Path) -> None:
    mask = np.random.default_rng(0).random((9, 11)) > 0.5
    Image.fromarray(mask).save(tmp_path / "mask.bmp")
    picture = Image.fromarray(mask.astype(np.uint8))
    picture.putpalette([0, 0, 0, 255, 255, 255])
    picture.save(tmp_path / "mask.png", bits=1)
    for name in ("mask.bmp", "mask.png"):
        np.testing.assert_array_equal(read_mask(tmp_path / name), mask)


def test_colours_multiplied_by_alpha_become_straight(tmp_path: Path) -> None:
    samples = np.full((8, 9, 4), (64, 32, 16, 128), np.uint8)
    samples[0] = (9, 9, 9, 0)
    tifffile.imwrite(tmp_path / "a.tif", samples, photometric="rgb", extrasamples=[1])
    write_image(tmp_path / "a.png", read_image(tmp_path / "a.tif"))
    with Image.open(tmp_path / "a.png") as new:
        assert new.getpixel((0, 0)) == (9, 9, 9, 0)
        assert new.getpixel((0, 1)) == (128, 64, 32, 128)


@pytest.mark.parametrize(
    ("shape", "kind", "word"),
    [((8, 9), "miniswhite", "zero is white"), ((8, 9, 4), "separated", "inks")],
)
def test_npy_says_what_samples_no_longer_mean(
    tmp_path: Path, shape: tuple[int, ...], kind: str, word: str
) -> None:
    tifffile.imwrite(tmp_path / "a.tif", values(*shape), photometric=kind, metadata=None)
    notes = write_image(tmp_path / "a.npy", read_image(tmp_path / "a.tif"))
    assert any(word in note for note in notes)


def test_tiles_that_are_left_out(tmp_path: Path) -> None:
    tile = np.full((16, 16), 7, np.uint8)
    tifffile.imwrite(
        *(tmp_path / "a.tif", iter([tile, None, None, tile])),
        shape=(32, 32),
        dtype="uint8",
        tile=(16, 16),
        photometric="minisblack",
        metadata=None,
    )
    expected = np.zeros((32, 32), np.uint8)
    expected[:16, :16] = expected[16:, 16:] = 7
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif").pixels, expected)
    with open_windows(tmp_path / "a.tif") as reader:
        found = reader.window((slice(4, 32), slice(8, 24)))
    np.testing.assert_array_equal(found, expected[4:, 8:24])
