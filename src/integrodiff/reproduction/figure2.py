"""Figure 2 of the paper: the cameraman at s = 50, denoised by the four models."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from integrodiff.engines import get_engine
from integrodiff.errors import ImageFileError
from integrodiff.learning.images import DATA_VARIABLE, noise
from integrodiff.models import Model
from integrodiff.reproduction._results import Result, about, decibel, markdown_table, write_numbers
from integrodiff.reproduction.published import CAMERAMAN, FIGURE_2_LEVEL, TITLES
from integrodiff.viz.metrics import psnr

MODELS = tuple(TITLES)
FILE = "set12/cameraman.png"
REMARK = (
    "The paper's cameraman is another version of the photograph than this file, so the numbers "
    "cannot be compared one by one."
)


@dataclass(frozen=True)
class Cameraman:
    """The image, and the SHA-256 of its file."""

    pixels: NDArray[np.float32]
    sha256: str


def read_cameraman(folder: Path | None) -> Cameraman:
    """Read ``set12/cameraman.png`` below the given folder, or the one INTEGRODIFF_DATA names.

    Raises
    ------
    FileNotFoundError
        If there is no such folder or file.
    ImageFileError
        If it is not an image.
    """
    from PIL import Image, UnidentifiedImageError

    named = folder or os.environ.get(DATA_VARIABLE)
    if not named:
        raise FileNotFoundError(
            f"figure2 needs {FILE}, which is not downloaded; name the folder that holds it by an "
            f"option or by the environment variable {DATA_VARIABLE}"
        )
    path = Path(named) / FILE
    if not path.is_file():
        raise FileNotFoundError(f"figure2 needs {path}, which is not there")
    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("L"), np.float32)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ImageFileError(f"{path} cannot be read as an image: {error}") from error
    return Cameraman(pixels, hashlib.sha256(path.read_bytes()).hexdigest())


def compute(
    models: Mapping[str, Model], image: Cameraman
) -> tuple[Result, dict[str, NDArray[Any]]]:
    """Return the PSNRs beside the paper's, and the images of the panels."""
    clean = image.pixels
    noisy = clean + noise(FIGURE_2_LEVEL, 0, clean.shape)
    panels: dict[str, NDArray[Any]] = {"original": clean, "noisy": noisy}
    engine = get_engine("numpy")
    for name in MODELS:
        evolution = models[name].evolution(FIGURE_2_LEVEL)
        panels[name] = engine.evolve(noisy[None, None], evolution)[0, 0]
    found: dict[str, dict[str, float]] = {}
    for name in ("noisy", *MODELS):
        found[name] = {"ours": decibel(psnr(panels[name], clean))}
        if name in CAMERAMAN:
            found[name]["paper"] = CAMERAMAN[name]
            found[name]["difference"] = decibel(found[name]["ours"] - CAMERAMAN[name])
    result: Result = {
        "what": "Figure 2: PSNR in dB of the denoised cameraman",
        **about({name: models[name] for name in MODELS}),
        "sigma": FIGURE_2_LEVEL,
        "image": {"file": FILE, "shape": list(clean.shape), "sha256": image.sha256},
        "psnr": found,
        "remark": REMARK,
    }
    return result, panels


def markdown(result: Result) -> str:
    """Return the table of PSNRs, and what to keep in mind."""
    rows = [
        [
            TITLES.get(name, name),
            f"{row['ours']:.2f}",
            f"{row['paper']:.2f}" if "paper" in row else "",
            f"{row['difference']:+.2f}" if "paper" in row else "",
        ]
        for name, row in result["psnr"].items()
    ]
    height, width = result["image"]["shape"]
    return (
        f"## Figure 2: PSNR in dB on the cameraman, s = {result['sigma']:g}\n\n"
        f"{markdown_table(['image', 'ours', 'paper', 'difference'], rows)}\n"
        f"The image is {result['image']['file']}, {width} x {height} pixels. {result['remark']}\n"
    )


def write(result: Result, panels: Mapping[str, NDArray[Any]], folder: Path) -> list[Path]:
    """Write ``figure2`` as JSON, CSV, Markdown and PNG; return the paths."""
    from integrodiff.viz.drawing import new_figure, save_figure

    table: list[list[object]] = [["image", "ours", "paper", "difference"]]
    for name, row in result["psnr"].items():
        table.append([name, row["ours"], row.get("paper", ""), row.get("difference", "")])
    paths = write_numbers(folder, "figure2", result, markdown(result), table)
    figure = new_figure(6.0, 9.6)
    for axes, (name, pixels) in zip(figure.subplots(3, 2).flat, panels.items(), strict=True):
        # Every pixel as a square: interpolation would smooth what is to be seen.
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        quality = f", {result['psnr'][name]['ours']:.2f} dB" if name in result["psnr"] else ""
        axes.set_title(TITLES.get(name, name) + quality)
        axes.set_axis_off()
    return [*paths, save_figure(figure, folder / "figure2.png", dots_per_inch=200)]
