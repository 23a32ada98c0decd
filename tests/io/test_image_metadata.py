"""Image files: profiles, dates, texts and tags that a denoised image keeps."""

from __future__ import annotations

import io
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from image_samples import HEIGHT, ICC_PROFILE, WIDTH, XMP, exif, values
from PIL import Image, PngImagePlugin

from integrodiff.io import ImageFile, Metadata, read_image, write_image
from integrodiff.io.formats.exif import (
    Directory,
    Layout,
    Tag,
    directory_bytes,
    read_block,
    read_directory,
)
from integrodiff.io.formats.tiff_tags import TiffDetails, TiffPageTags


def test_png_metadata(tmp_path: Path) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("Title", "Grain")
    info.add_itxt("Note", "Körnung", lang="de")
    info.add_text("Long", "x" * 500, zip=True)
    info.add_itxt("XML:com.adobe.xmp", XMP)
    info.add(b"gAMA", struct.pack(">I", 45455))
    Image.fromarray(values(HEIGHT, WIDTH)).save(
        tmp_path / "in.png", pnginfo=info, icc_profile=ICC_PROFILE, exif=exif(), dpi=(300, 150)
    )
    write_image(tmp_path / "out.png", read_image(tmp_path / "in.png"))
    with Image.open(tmp_path / "in.png") as old, Image.open(tmp_path / "out.png") as new:
        new.load()
        old.load()
        assert new.info == old.info
        assert new.info["icc_profile"] == ICC_PROFILE
        assert new.info["exif"] == exif()
        assert new.info["dpi"] == pytest.approx((300, 150), abs=0.02)
        assert new.info["Note"] == "Körnung"
        assert new.info["xmp"] == XMP
        assert new.info["gamma"] == pytest.approx(0.45455)


def test_jpeg_metadata(tmp_path: Path) -> None:
    Image.fromarray(values(HEIGHT, WIDTH)).save(
        tmp_path / "in.jpg",
        icc_profile=ICC_PROFILE,
        exif=exif(),
        dpi=(300, 150),
        comment=b"by hand",
        xmp=XMP,
    )
    assert write_image(tmp_path / "out.jpg", read_image(tmp_path / "in.jpg")) == ()
    with Image.open(tmp_path / "out.jpg") as new:
        expected = {"icc_profile": ICC_PROFILE, "exif": exif(), "dpi": (300, 150)}
        expected |= {"comment": b"by hand", "xmp": XMP}
        assert {name: new.info[name] for name in expected} == expected


def test_no_resolution_is_made_up(tmp_path: Path) -> None:
    Image.fromarray(values(HEIGHT, WIDTH)).save(tmp_path / "in.jpg", exif=exif())
    assert read_image(tmp_path / "in.jpg").metadata.dpi is None


def test_tiff_metadata(tmp_path: Path) -> None:
    description = "Körnung 5 µm".encode()
    tags: list[Any] = [
        (270, 2, 0, description, True),
        (274, 3, 1, 8, True),
        (306, 2, 0, "2024:05:06 07:08:09", True),
        (33432, 2, 0, "all of us", True),
        (700, 1, len(XMP), XMP, True),
        (33550, 12, 3, (0.5, 0.25, 0.0), True),
        (286, 5, 1, (7, 2), True),
    ]
    tifffile.imwrite(
        tmp_path / "in.tif",
        values(HEIGHT, WIDTH, dtype="uint16"),
        resolution=((1234, 10), (77, 3)),
        resolutionunit="centimeter",
        iccprofile=ICC_PROFILE,
        software="a microscope",
        metadata=None,
        extratags=tags,
    )
    image = read_image(tmp_path / "in.tif")
    assert image.notes == ()
    assert image.metadata.dpi == pytest.approx((123.4 * 2.54, 77 / 3 * 2.54))
    write_image(tmp_path / "out.tif", image)
    assert tags_of(tmp_path / "out.tif") == tags_of(tmp_path / "in.tif")
    assert description in (tmp_path / "out.tif").read_bytes()


def tags_of(path: Path, page: int = 0) -> dict[str, Any]:
    """Return all tags but those that say where the pixels lie."""
    with tifffile.TiffFile(path) as tif:
        tags = {tag.name: tag.value for tag in tif.pages[page].aspage().tags}
    return {name: value for name, value in tags.items() if not name.startswith("Strip")}


def test_orientation_of_one_byte_is_none(tmp_path: Path) -> None:
    tag = (274, 1, 1, b"\x06", True)
    tifffile.imwrite(tmp_path / "in.tif", values(HEIGHT, WIDTH), extratags=[tag])
    assert read_image(tmp_path / "in.tif").metadata.orientation == 1


def test_every_page_keeps_its_own_tags(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "in.tif") as writer:
        for number in range(3):
            writer.write(
                values(HEIGHT, WIDTH),
                description=f"slice {number}",
                resolution=(100 + number, 200),
                metadata=None,
            )
    write_image(tmp_path / "out.tif", read_image(tmp_path / "in.tif"))
    for number in range(3):
        tags = tags_of(tmp_path / "out.tif", number)
        assert tags == tags_of(tmp_path / "in.tif", number)
        assert tags["ImageDescription"] == f"slice {number}"


def test_tags_that_are_left_out_are_named(tmp_path: Path) -> None:
    tifffile.imwrite(
        tmp_path / "in.tif",
        values(HEIGHT, WIDTH),
        extratags=[(65000, 3, 1, 5, True), (42113, 2, 0, "0", True)],
    )
    read = read_image(tmp_path / "in.tif")
    (left_out,) = read.notes
    assert "65000" in left_out
    (rule,) = read.nodata
    assert (rule.lowest, rule.highest, rule.words) == (0, 0, "nodata 0")


def test_ome_xml_names_the_new_type(tmp_path: Path) -> None:
    samples = values(3, HEIGHT, WIDTH, dtype="uint16")
    tifffile.imwrite(
        tmp_path / "in.ome.tif",
        samples,
        metadata={"axes": "ZYX", "SignificantBits": 12},
        photometric="minisblack",
    )
    image = read_image(tmp_path / "in.ome.tif")
    write_image(tmp_path / "out.ome.tif", image.with_pixels(image.pixels.astype(np.float32)))
    with tifffile.TiffFile(tmp_path / "out.ome.tif") as tif:
        assert tif.ome_metadata is not None
        assert 'Type="float"' in tif.ome_metadata
        assert "SignificantBits" not in tif.ome_metadata
        assert tif.series[0].kind == "ome"
        assert tif.series[0].axes == "ZYX"
        assert np.array_equal(tif.asarray(), samples.astype(np.float32))


@pytest.mark.parametrize("source", [".jpg", ".png"])
def test_metadata_travels_to_tiff_and_back(tmp_path: Path, source: str) -> None:
    Image.fromarray(values(HEIGHT, WIDTH, 3)).save(
        tmp_path / f"in{source}", icc_profile=ICC_PROFILE, exif=exif(), dpi=(300, 300)
    )
    notes = write_image(tmp_path / "out.tif", read_image(tmp_path / f"in{source}"))
    assert notes == ()
    tags = tags_of(tmp_path / "out.tif")
    assert tags["InterColorProfile"] == ICC_PROFILE
    assert tags["Orientation"] == 6
    assert tags["XResolution"][0] / tags["XResolution"][1] == pytest.approx(300, abs=0.02)
    assert write_image(tmp_path / "again.png", read_image(tmp_path / "out.tif")) == ()
    with Image.open(tmp_path / "again.png") as again:
        assert again.info["icc_profile"] == ICC_PROFILE
        assert dict(again.getexif()) == {0x010F: "a camera", 0x0112: 6}
        assert again.info["dpi"] == pytest.approx((300, 300), abs=0.02)


def exif_with_all_parts(order: str) -> bytes:
    """Return EXIF data with a resolution, a position on the earth, and a thumbnail."""
    tags = Image.Exif()
    tags[0x010F], tags[0x4746], tags[0xC4A5] = "a camera", 5, b"for printers"
    tags[0x011A], tags[0x011B], tags[0x0128] = 240.0, 120.0, 3
    tags.get_ifd(0x8769).update({0x829A: 0.004, 0x927C: b"notes of the maker" * 100})
    tags.get_ifd(0x8825).update({1: "N", 2: (49.0, 15.0, 30.0)})
    tags.endian = order
    data = bytearray(tags.tobytes())
    # The place of the next directory, that of the thumbnail, follows the tags of the first one.
    number = struct.unpack_from(f"{order}H", data, 14)[0]
    struct.pack_into(f"{order}I", data, 16 + 12 * number, len(data) - 6)
    return bytes(data) + bytes(6)


@pytest.mark.parametrize("order", ["<", ">"])
def test_exif_data_in_a_tiff_file(tmp_path: Path, order: str) -> None:
    block = exif_with_all_parts(order)
    Image.fromarray(values(HEIGHT, WIDTH)).save(tmp_path / "in.png", exif=block)
    notes = write_image(tmp_path / "out.tif", read_image(tmp_path / "in.png"))
    assert notes == (
        "not carried over to TIFF: the thumbnail in the EXIF data",
        "not carried over to TIFF: tags of the EXIF data with the numbers 50341",
    )
    with tifffile.TiffFile(tmp_path / "out.tif") as tif:
        assert tif.byteorder == order
        tags = {tag.name: tag.value for tag in tif.pages.first.tags}
    assert tags["ExifTag"]["MakerNote"] == b"notes of the maker" * 100
    assert tags["ExifTag"]["ExposureTime"] == 0.004
    assert tags["GPSTag"]["GPSLatitude"] == (49, 1, 15, 1, 30, 1)
    assert (tags["Make"], tags["Rating"]) == ("a camera", 5)
    assert (tags["XResolution"], tags["YResolution"]) == ((240, 1), (120, 1))
    assert tags["ResolutionUnit"] == 3


def test_exif_data_of_the_pages_of_a_bigtiff(tmp_path: Path) -> None:
    block = read_block(exif_with_all_parts("<"))
    page = TiffPageTags(exif=block.directory.below)
    details = TiffDetails(photometric=1, big=True, pages=(TiffPageTags(), page, page))
    stack = ImageFile(pixels=values(3, HEIGHT, WIDTH), metadata=Metadata(own=details))
    write_image(tmp_path / "one.tif", stack)
    write_image(tmp_path / "two.tif", read_image(tmp_path / "one.tif"))
    with tifffile.TiffFile(tmp_path / "two.tif") as tif:
        assert tif.is_bigtiff
        assert np.array_equal(tif.asarray(), stack.pixels)
        found = [item.aspage().tags.valueof(34665) for item in tif.pages]
    assert found[0] is None
    for exif_tags in found[1:]:
        assert exif_tags["MakerNote"] == b"notes of the maker" * 100


@given(
    st.dictionaries(st.integers(1, 30_000), st.binary(max_size=40), max_size=8),
    st.dictionaries(st.integers(1, 30_000), st.binary(max_size=40), max_size=8),
    st.sampled_from("<>"),
    st.booleans(),
    st.integers(0, 50),
)
def test_directories_come_back_from_every_place(
    top: dict[int, bytes], lower: dict[int, bytes], order: Any, big: bool, place: int
) -> None:
    tags, more = (
        tuple(Tag(code, 7, len(value), value) for code, value in sorted(part.items()))
        for part in (top, lower)
    )
    directory = Directory(tags, ((34665, Directory(more)),))
    layout = Layout(order, big)
    stream = io.BytesIO(bytes(place) + directory_bytes(directory, place, layout))
    assert read_directory(stream, place, layout) == directory


@given(st.binary(max_size=200), st.sampled_from([b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08", b""]))
def test_nonsense_is_read_or_refused(data: bytes, start: bytes) -> None:
    with suppress(ValueError):
        assert len(read_block(start + data).directory.tags) <= len(data)


@pytest.mark.parametrize("cut", [7, 13, 15, 40, 150])
def test_damaged_exif_data_are_named_and_the_image_is_written(tmp_path: Path, cut: int) -> None:
    block = exif_with_all_parts(">")[:cut]
    image = ImageFile(pixels=values(HEIGHT, WIDTH), metadata=Metadata(exif=block))
    (note,) = write_image(tmp_path / "out.tif", image)
    assert "EXIF data, which are damaged" in note
    assert np.array_equal(read_image(tmp_path / "out.tif").pixels, image.pixels)


def test_damaged_exif_data_in_a_tiff_file(tmp_path: Path) -> None:
    Image.fromarray(values(HEIGHT, WIDTH)).save(tmp_path / "in.png", exif=exif_with_all_parts("<"))
    write_image(tmp_path / "whole.tif", read_image(tmp_path / "in.png"))
    whole = (tmp_path / "whole.tif").read_bytes()
    with tifffile.TiffFile(tmp_path / "whole.tif") as tif:
        place = tif.pages.first.tags[34853].valueoffset
    for wrong in (0xFFFFFFF0, 8):  # beyond the file, and the directory of the image itself
        damaged = whole[:place] + struct.pack("<I", wrong) + whole[place + 4 :]
        (tmp_path / "in.tif").write_bytes(damaged)
        image = read_image(tmp_path / "in.tif")
        assert any("not carried over: GPSTag" in note for note in image.notes)
        write_image(tmp_path / "out.tif", image, overwrite=True)
        tags = tags_of(tmp_path / "out.tif")
        assert "GPSTag" not in tags
        assert tags["ExifTag"]["ExposureTime"] == 0.004


def test_what_another_format_cannot_take_is_said(tmp_path: Path) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("Title", "Grain")
    Image.fromarray(values(HEIGHT, WIDTH)).save(tmp_path / "in.png", pnginfo=info)
    Image.fromarray(values(HEIGHT, WIDTH)).save(tmp_path / "in.jpg", comment=b"by hand")
    tifffile.imwrite(tmp_path / "in.tif", values(HEIGHT, WIDTH), description="grain")
    for name, lost in (("in.png", "text"), ("in.jpg", "comment"), ("in.tif", "descriptions")):
        image = read_image(tmp_path / name)
        for suffix in {".png", ".jpg", ".tif"} - {name[2:]}:
            (note,) = write_image(tmp_path / f"out{suffix}", image, overwrite=True)
            assert lost in note


def test_black_stays_black_where_white_was_zero(tmp_path: Path) -> None:
    samples = values(HEIGHT, WIDTH)
    tifffile.imwrite(tmp_path / "in.tif", samples, photometric="miniswhite")
    write_image(tmp_path / "out.png", read_image(tmp_path / "in.tif"))
    assert np.array_equal(read_image(tmp_path / "out.png").pixels, 255 - samples)


def test_writing_is_silent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    bad_tag = (65001, 2, 0, "x" * 40, True)
    tifffile.imwrite(tmp_path / "in.tif", values(HEIGHT, WIDTH), extratags=[bad_tag])
    with tifffile.TiffFile(tmp_path / "in.tif") as tif:
        entry = tif.pages.first.tags[65001].offset
    data = bytearray((tmp_path / "in.tif").read_bytes())
    data[entry + 8 : entry + 12] = b"\xff\xff\xff\x7f"  # its value lies far behind the file
    (tmp_path / "in.tif").write_bytes(data)
    image = read_image(tmp_path / "in.tif")
    assert any("65001" in note for note in image.notes)
    write_image(tmp_path / "out.tif", image)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
