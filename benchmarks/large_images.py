"""Large images for benchmarks: noisy, made block by block, as OME-Zarr with shards.

python benchmarks/large_images.py plane big.zarr --size 40000
python benchmarks/large_images.py volume big.zarr --size 2048 1024 1024
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec

SIGMA = 400.0
"""Noise of the generated images, whose grey values go from 2000 to 12000."""


def block(place: tuple[slice, ...], seed: int) -> NDArray[np.uint16]:
    """Return a part of the image: waves, discs and edges, with noise that depends on the seed."""
    axes = [np.arange(part.start, part.stop, dtype=np.float32) for part in place]
    mesh = np.meshgrid(*axes, indexing="ij", sparse=True)
    waves = sum(np.sin(axis / (23 + 11 * n)) for n, axis in enumerate(mesh))
    cells = sum((axis // (61 + 16 * n)).astype(np.int32) for n, axis in enumerate(mesh)) % 3
    rng = np.random.default_rng((seed, *(part.start for part in place)))
    noise = rng.standard_normal(np.shape(cells), dtype=np.float32)
    values = 6000 + 900 * waves + 1200 * cells + SIGMA * noise
    return np.clip(np.rint(values), 0, 65535).astype(np.uint16)


def write(path: Path, shape: tuple[int, ...], chunk: int, shard: int, levels: int) -> None:
    """Write an image in OME-Zarr 0.5; its smaller resolutions are declared and left empty."""
    names = "zyx"[-len(shape) :]
    group = zarr.open_group(path, mode="w", zarr_format=3)
    datasets: list[Any] = []
    for level in range(levels):
        size = tuple(max(1, length >> level) for length in shape)
        array = group.create_array(
            f"s{level}",
            shape=size,
            dtype="uint16",
            chunks=(chunk,) * len(shape),
            shards=(shard,) * len(shape),
            compressors=BloscCodec(cname="lz4", clevel=1),
            dimension_names=list(names),
        )
        scale = {"type": "scale", "scale": [float(1 << level)] * len(shape)}
        datasets.append({"path": f"s{level}", "coordinateTransformations": [scale]})
        if level == 0:
            starts = (range(0, length, shard) for length in size)
            for number, start in enumerate(product(*starts)):
                place = tuple(
                    slice(at, min(at + shard, n)) for at, n in zip(start, size, strict=True)
                )
                array[place] = block(place, number)
    group.attrs["ome"] = {
        "version": "0.5",
        "multiscales": [
            {
                "axes": [{"name": name, "type": "space"} for name in names],
                "datasets": datasets,
                "type": "mean",
            }
        ],
    }


def main() -> None:
    """Write the image that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["plane", "volume"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", type=int, nargs="+", required=True)
    arguments = parser.parse_args()
    if arguments.kind == "plane":
        size = tuple(arguments.size) if len(arguments.size) > 1 else (arguments.size[0],) * 2
        write(arguments.path, size, chunk=512, shard=2048, levels=4)
    else:
        size = tuple(arguments.size) if len(arguments.size) > 1 else (arguments.size[0],) * 3
        write(arguments.path, size, chunk=64, shard=256, levels=3)
    print(json.dumps({"path": str(arguments.path), "size": size}))


if __name__ == "__main__":
    main()
