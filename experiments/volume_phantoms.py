"""Volumes that are made, not scanned: for training and for tables.

Each maker returns a clean volume of ``side`` voxels along each axis, grey values from 0 to 255; its
number is the seed, so that it is the same in every run. None of them contains a scan.

natural
    Crops of BSDS500 training images that move, turn and grow smoothly from slice to slice, then
    turned by a random permutation of the axes.
ellipsoids
    Ellipsoids of all sizes and orientations on a smooth background, some with waves inside.
anatomy
    Part of a head: air, skin, skull, fluid, a folded grey layer of a few voxels, white matter,
    nuclei, ventricles and vessels, with the contrasts of different weightings and a smooth field
    over all of it.
thin
    Curved sheets and tubes, one to four voxels thick, of different sizes.

Voxels are means over 2 x 2 x 2 points, as a scanner averages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates

Floats = NDArray[np.float64]
Random = np.random.Generator


def training_images(data: Path) -> list[Path]:
    """Return the photographs that may be trained on."""
    found = sorted((data / "bsds500" / "images" / "train").glob("*.jpg"))
    if not found:
        raise SystemExit(f"no training images of BSDS500 in {data}")
    return found


def natural(paths: list[Path], number: int, side: int) -> Floats:
    """Return a photograph that moves, turns and grows from slice to slice."""
    rng = np.random.default_rng((1, number))
    path = paths[int(rng.integers(len(paths)))]
    image = np.asarray(Image.open(path).convert("L"), np.float64)
    z, y, x = np.meshgrid(*[np.arange(side) - (side - 1) / 2] * 3, indexing="ij")
    angle = rng.normal(0, 0.02) * z
    growth = np.exp(rng.normal(0, 0.01) * z)
    direction = rng.uniform(0, 2 * np.pi)
    speed = rng.uniform(0.3, 1.2)
    margin = 0.75 * side + speed * side
    height, width = image.shape
    row = rng.uniform(min(margin, height / 2), max(height - margin, height / 2))
    column = rng.uniform(min(margin, width / 2), max(width - margin, width / 2))
    rows = row + growth * (np.cos(angle) * y - np.sin(angle) * x) + speed * np.sin(direction) * z
    columns = column + growth * (np.sin(angle) * y + np.cos(angle) * x)
    columns = columns + speed * np.cos(direction) * z
    volume = map_coordinates(image, [rows, columns], order=3, mode="mirror")
    return np.ascontiguousarray(np.clip(volume, 0, 255).transpose(rng.permutation(3)))


def ellipsoids(number: int, side: int) -> Floats:
    """Return random ellipsoids on a smooth background."""
    rng = np.random.default_rng((2, number))
    points = _points(side)
    volume = 60 + 60 * np.sin(points @ rng.normal(0, 1.5 / side, 3) + rng.uniform(0, 6))
    for _ in range(40):
        inside = _ellipsoid(rng, points, side, 0.04, 0.45)
        grey = rng.uniform(0, 255)
        texture = rng.uniform(0, 12) * np.sin(points @ rng.normal(0, 0.6, 3))
        volume = np.where(inside, grey + texture, volume)
    return _voxels(volume)


def anatomy(number: int, side: int) -> Floats:
    """Return a part of a head."""
    rng = np.random.default_rng((3, number))
    points = _points(side)
    radius = rng.uniform(55, 95)
    axes, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    direction = rng.normal(size=3)
    direction /= np.linalg.norm(direction)
    # The middle of the crop lies anywhere from the ventricles to the skin, often among the folds.
    centre = side / 2 - direction * rng.beta(2.5, 1.2) * radius
    offset = (points - centre) @ axes / np.array([1.0, rng.uniform(0.8, 1), rng.uniform(0.75, 1)])
    depth = radius - np.sqrt((offset**2).sum(-1)) + 2 * _field(rng, side, 10)
    skin, skull, fluid = 4.0, rng.uniform(8, 12), rng.uniform(10, 15)
    folds = rng.uniform(4, 11) * _field(rng, side, rng.uniform(2.5, 5))
    folded = depth - fluid - 3 + folds
    # Grey values of air, skin, bone, fluid, grey and white matter.
    tables = ((2, 190, 25, 45, 125, 185), (2, 120, 20, 245, 150, 100), (2, 170, 30, 20, 165, 135))
    greys = np.array(tables[int(rng.integers(3))], float)
    greys = np.clip(greys + rng.normal(0, 12, 6) * (greys > 5), 0, 255)
    volume = np.full(depth.shape, greys[0])
    for threshold, grey in ((0.0, greys[1]), (skin, greys[2]), (skull, greys[3])):
        volume = np.where(depth > threshold, grey, volume)
    thickness = rng.uniform(2.5, 4.5)
    volume = np.where((folded > 0) & (depth > skull), greys[4], volume)
    volume = np.where((folded > thickness) & (depth > skull), greys[5], volume)
    deep = depth > 0.45 * radius
    for _ in range(4):
        nucleus = deep & _ellipsoid(rng, points, side, 0.1, 0.35)
        volume = np.where(nucleus, (greys[4] + greys[5]) / 2 + rng.normal(0, 8), volume)
    ventricle = (depth > 0.7 * radius) & (_field(rng, side, 7) > 0.7)
    volume = np.where(ventricle, greys[3], volume)
    for _ in range(int(rng.integers(0, 3))):
        volume = np.where(_tube(rng, side, 9, rng.uniform(0.7, 1.6)), rng.uniform(0, 255), volume)
    tissue = volume > 10
    volume = volume * (1 + rng.uniform(0, 0.12) * _field(rng, side, 20))
    volume = volume + tissue * rng.uniform(0, 4) * _field(rng, side, 1.5)
    return _voxels(volume)


def thin(number: int, side: int) -> Floats:
    """Return curved sheets and tubes."""
    rng = np.random.default_rng((4, number))
    volume = rng.uniform(20, 160) + rng.uniform(5, 30) * _field(rng, side, 12)
    for _ in range(int(rng.integers(3, 7))):
        size, thickness = rng.uniform(4, 14), np.exp(rng.uniform(0, np.log(4)))
        shape = _sheet if rng.uniform() < 0.5 else _tube
        volume = np.where(shape(rng, side, size, thickness), rng.uniform(0, 255), volume)
    return _voxels(volume)


MAKERS: dict[str, Callable[[int, int], Floats]] = {
    "ellipsoids": ellipsoids,
    "anatomy": anatomy,
    "thin": thin,
}
"""Kinds that need no images."""

KINDS = ("natural", *MAKERS)


def volume_of(kind: str, number: int, side: int, images: list[Path]) -> Floats:
    """Return a volume of any kind."""
    return natural(images, number, side) if kind == "natural" else MAKERS[kind](number, side)


def _points(side: int) -> Floats:
    """Return points at two places along each axis of each voxel, in voxels."""
    return np.stack(np.meshgrid(*[(np.arange(2 * side) + 0.5) / 2] * 3, indexing="ij"), -1)


def _voxels(fine: Floats) -> Floats:
    """Return the means over the points of each voxel."""
    side = len(fine) // 2
    blocks = fine.reshape(side, 2, side, 2, side, 2).mean(axis=(1, 3, 5))
    return np.asarray(np.clip(blocks, 0, 255))


def _field(rng: Random, side: int, scale: float) -> Floats:
    """Return a smooth random field at the points, of variance one; ``scale`` is in voxels."""
    step = max(scale / 2, 0.5)
    size, margin = int(np.ceil(side / step)) + 13, 6
    width = scale / step
    coarse = gaussian_filter(rng.normal(size=(size,) * 3), width)
    coarse *= (4 * np.pi * width**2) ** 0.75
    places = margin + (np.arange(2 * side) + 0.5) / 2 / step
    for axis in range(3):
        coarse = _interpolated(coarse, places, axis)
    return coarse


def _interpolated(field: Floats, places: Floats, axis: int) -> Floats:
    """Return values between the samples along one axis, by Catmull and Rom's cubic."""
    base = np.floor(places).astype(int)
    t = places - base
    weights = (
        -t / 2 + t**2 - t**3 / 2,
        1 - 2.5 * t**2 + 1.5 * t**3,
        t / 2 + 2 * t**2 - 1.5 * t**3,
        -(t**2) / 2 + t**3 / 2,
    )
    shape = [1] * field.ndim
    shape[axis] = len(places)
    total = np.zeros([len(places) if n == axis else size for n, size in enumerate(field.shape)])
    for k, weight in enumerate(weights):
        total += weight.reshape(shape) * np.take(field, base + k - 1, axis=axis)
    return total


def _ellipsoid(
    rng: Random, points: Floats, side: int, least: float, most: float
) -> NDArray[np.bool_]:
    axes, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    radii = side * np.exp(rng.uniform(np.log(least), np.log(most), 3))
    offset = (points - rng.uniform(0, side, 3)) @ axes / radii
    return np.asarray((offset**2).sum(-1) < 1)


def _distance(rng: Random, side: int, scale: float) -> Floats:
    """Return about the distance in voxels to a curved surface."""
    field = _field(rng, side, scale) - rng.normal(0, 0.3)
    slope = np.sqrt(sum(part**2 for part in np.gradient(field, 0.5)))
    return np.asarray(np.abs(field) / np.maximum(slope, 0.05 / scale))


def _sheet(rng: Random, side: int, scale: float, thickness: float) -> NDArray[np.bool_]:
    return np.asarray(_distance(rng, side, scale) < thickness / 2)


def _tube(rng: Random, side: int, scale: float, thickness: float) -> NDArray[np.bool_]:
    one, other = _distance(rng, side, scale), _distance(rng, side, scale)
    return np.asarray(one**2 + other**2 < (thickness / 2) ** 2)


# ---- two kinds that nothing is trained on ----


def ct(number: int, side: int) -> Floats:
    """Return a body in air: fat, muscle, organs of low contrast, bones, vessels and gas."""
    rng = np.random.default_rng((5, number))
    points = _points(side)
    middle = points - side / 2
    wall = 0.46 * side - np.sqrt(middle[..., 1] ** 2 + (middle[..., 2] / 0.9) ** 2)
    wall = wall + 1.5 * _field(rng, side, 12)
    volume = np.where(wall > 0, 95.0, 5.0)
    inside = wall > rng.uniform(3, 6)
    volume = np.where(inside, 118.0, volume)
    for _ in range(14):
        organ = inside & _ellipsoid(rng, points, side, 0.06, 0.3)
        volume = np.where(organ, 118 + rng.normal(0, 9), volume)
    for _ in range(4):
        vessel = inside & _tube(rng, side, rng.uniform(8, 14), rng.uniform(2, 5))
        volume = np.where(vessel, rng.uniform(140, 180), volume)
    for _ in range(5):
        bone = inside & _ellipsoid(rng, points, side, 0.05, 0.16)
        volume = np.where(bone, 225 + 15 * _field(rng, side, 1.5), volume)
    gas = inside & _ellipsoid(rng, points, side, 0.05, 0.12)
    return _voxels(np.where(gas, 8.0, volume))


def tomogram(number: int, side: int) -> Floats:
    """Return a cell in ice: double membranes, filaments and many small particles, all dark."""
    rng = np.random.default_rng((6, number))
    points = _points(side)
    volume = 150 + 6 * _field(rng, side, 10)
    for _ in range(3):
        distance = _distance(rng, side, rng.uniform(10, 16))
        for offset in (0.0, 3.5):
            volume = np.where(np.abs(distance - offset) < 0.9, 85.0, volume)
    for _ in range(4):
        volume = np.where(_tube(rng, side, 12, rng.uniform(2, 3.5)), 95.0, volume)
    for _ in range(side**3 // 3000):
        centre, radius = rng.uniform(0, side, 3), rng.uniform(1.2, 4)
        lowest = np.clip(np.floor(2 * (centre - radius)).astype(int), 0, 2 * side - 1)
        highest = np.clip(np.ceil(2 * (centre + radius)).astype(int) + 1, 1, 2 * side)
        box = tuple(slice(a, b) for a, b in zip(lowest, highest, strict=True))
        ball = ((points[box] - centre) ** 2).sum(-1) < radius**2
        volume[box] = np.where(ball, rng.uniform(75, 115), volume[box])
    return _voxels(volume)


EVALUATED = {"ct": ct, "tomogram": tomogram}


def ramp_noise(rng: Random, shape: tuple[int, ...], level: float) -> Floats:
    """Return noise of filtered back-projection: a ramp with a window in each slice, (z, y, x)."""
    noise = np.fft.fft2(rng.normal(size=shape))
    y, x = (np.fft.fftfreq(size) for size in shape[1:])
    frequency = np.minimum(np.hypot(y[:, None], x[None, :]), 0.5)
    # A detector and an interpolation have smoothed before.
    noise *= np.sqrt(frequency) * np.cos(np.pi * frequency) ** 2
    found = np.fft.ifft2(noise).real
    return np.asarray(found * (level / found.std()))


def without_wedge(volume: Floats, tilt: float = 60.0) -> Floats:
    """Return a volume (z, y, x) without the frequencies that tilts about y up to ``tilt`` miss."""
    spectrum = np.fft.fftn(volume)
    z, _, x = (np.fft.fftfreq(size) for size in volume.shape)
    known = np.abs(z[:, None, None]) <= np.tan(np.deg2rad(tilt)) * np.abs(x[None, None, :]) + 1e-9
    known = known | (np.abs(z[:, None, None]) < 1e-9)
    return np.asarray(np.fft.ifftn(spectrum * known).real)
