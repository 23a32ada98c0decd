"""How denoisers react to small changes, to a wrong noise level, and to nothing but noise.

    python experiments/robustness.py --data FOLDER --json results/robustness.json
        [--models iad ...] [--peers tv bm3d] [--levels 15 25 50] [--images 4] [--size 128]
        [--cnn-seconds 0] [--tuned results/peers.json] [--engine auto] [--again]

Five questions, on the first test crops of BSDS500:

Lipschitz constant, at noisy images
    ``derivative``: the largest singular value of the derivative, by power iteration (in Lanczos'
    form) with forward and reverse derivatives of PyTorch. It exists for models and the network.
    ``secant``: the largest quotient |f(x + d) - f(x)| / |d| that was found with directions d of
    one grey level per pixel, which start as random ones and as the difference f(x) - x, and go on
    as the answers to the last ones. It is only a *lower bound* of the Lipschitz constant: other
    directions may give more. It exists for all methods, and is the one to compare peers by.
    ``small_secant`` is the same with directions of a hundredth of a grey level per pixel.
    All are the largest over the images, which are centres of the crops; ``derivatives`` has those
    of the single images.
Wrong noise level
    Mean PSNR when the method is told half the noise level, the noise level, and twice it.
Pure noise
    The input is 128 everywhere, plus noise. See :func:`residual_bands` and :func:`false_edges`.
JPEG noise
    Mean PSNR of noisy crops that were stored as JPEG files, before and after denoising. The noise
    is no longer white; the method is told its level before it was stored.
Textures
    PSNR on brick, grass and gravel of scikit-image, and their mean SSIM.

Slow peers take ``--slow-images`` of the crops, which their rows say, and the derivative, which
takes minutes for a model of many steps, those of ``--derivative-images``.

With ``--cnn-seconds`` a small network in the manner of DnCNN is trained for so long on the
training crops, in processor time, and compared as well. Its numbers depend on the machine.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn
from scipy.sparse.linalg import LinearOperator, eigsh

from denoisers import PEERS, Image
from integrodiff import MODEL_NAMES
from integrodiff.learning import bsds500
from integrodiff.learning.images import CleanImages, noise
from integrodiff.learning.tangents import value_and_tangent
from integrodiff.reproduction._results import Result, decibel, markdown_table, significant
from integrodiff.stages.gradient import haar_gradient
from integrodiff.viz.metrics import psnr, ssim
from peers import TUNED, Method, Results, model_method, tuned_peers

FACTORS = (0.5, 1.0, 2.0)
"""What the methods are told, relative to the noise level."""

BANDS = (0.0, 0.25, 0.5, 0.75, np.sqrt(2.0))
"""Borders of the frequency bands, relative to the highest frequency along an axis."""

SMALL = 0.01
"""Root mean square of the directions of small secants, in grey levels."""

GREY = 128.0
EDGE = 3.0
QUESTIONS = ("lipschitz", "told", "pure_noise", "jpeg", "textures")
TEXTURES = ("brick", "grass", "gravel")
JPEG_QUALITY = 75
_NETWORK = {"layers": 5, "channels": 32}

# ---- Lipschitz constants ----


def spectral_norm(
    function: Callable[[Any], Any], point: Any, *, tolerance: float = 1e-3, seed: int = 0
) -> float:
    """Return the largest singular value of a function's derivative."""
    return largest_direction(function, point, tolerance=tolerance, seed=seed)[0]


def largest_direction(
    function: Callable[[Any], Any], point: Any, *, tolerance: float = 1e-3, seed: int = 0
) -> tuple[float, NDArray[np.float64]]:
    """Return the largest singular value of a function's derivative, and its direction.

    Lanczos' method: power iteration with the derivative and its transpose that makes use of all
    its directions. Where plain power iteration took 40 products, it needed 21.

    Parameters
    ----------
    function : callable
        From a tensor to a tensor of the same shape.
    point : tensor
        Where the derivative is taken.
    tolerance : float
        Relative accuracy of the square of the value.
    seed : int
        Of the first direction.
    """
    import torch

    transposed = torch.func.vjp(function, point)[1]

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        direction = torch.tensor(vector, dtype=point.dtype).reshape(point.shape)
        with torch.no_grad():
            tangent = value_and_tangent(function, (point,), (direction,))[1]
        found: NDArray[np.float64] = transposed(tangent)[0].numpy().ravel()
        return found

    size = point.numel()
    start = np.random.default_rng(seed).normal(size=size)
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    squares, directions = eigsh(operator, 1, v0=start, tol=tolerance)
    return float(np.sqrt(squares[0])), directions[:, 0].reshape(point.shape)


def secant_bound(
    denoise: Callable[[Image], Image],
    noisy: Image,
    *,
    step: float = 1.0,
    randoms: int = 2,
    iterations: int = 6,
    seed: int = 0,
) -> float:
    """Return the largest difference quotient found, a lower bound of the Lipschitz constant.

    A direction's answer, the change of the result, is the next direction. If the derivative is
    symmetric this is power iteration; if it is not, the quotients are lower bounds all the same.

    Parameters
    ----------
    denoise : callable
        The method, for one noise level.
    noisy : ndarray
        Where quotients are taken.
    step : float
        Root mean square of every direction, in grey levels.
    randoms : int
        Number of random first directions; the difference image is one more.
    iterations : int
        Quotients for each first direction.
    seed : int
        Of the random directions.
    """
    rng = np.random.default_rng(seed)
    result = denoise(noisy).astype(np.float64)
    starts = [rng.normal(size=noisy.shape) for _ in range(randoms)]
    best = 0.0
    for direction in (*starts, result - noisy):
        for _ in range(iterations):
            size = float(np.sqrt(np.mean(direction**2)))
            if size == 0:
                break
            moved = (noisy + direction * (step / size)).astype(noisy.dtype)
            change = denoise(moved).astype(np.float64) - result
            length = float(np.linalg.norm(moved.astype(np.float64) - noisy))
            best = max(best, float(np.linalg.norm(change)) / length)
            direction = change
    return best


def lipschitz(
    method: Method, images: Sequence[Image], level: float, differentiated: int | None = None
) -> Result:
    """Return all estimates, the largest over the images; the first ones are differentiated."""
    norms: list[float] = []
    secants: dict[float, list[float]] = {1.0: [], SMALL: []}
    for k, clean in enumerate(images):
        noisy = clean + noise(level, k, clean.shape)
        for step, found in secants.items():
            found.append(secant_bound(lambda image: method.denoise(image, level), noisy, step=step))
        if method.tensors is not None and (differentiated is None or k < differentiated):
            norms.append(_derivative_norm(method.tensors, noisy, level))
    return {
        "derivative": significant(max(norms)) if norms else None,
        "derivatives": [significant(norm) for norm in norms],
        "secant": significant(max(secants[1.0])),
        "small_secant": significant(max(secants[SMALL])),
    }


def _derivative_norm(tensors: Callable[[Any, float], Any], noisy: Image, level: float) -> float:
    import torch

    point = torch.tensor(noisy, dtype=torch.float64)
    return spectral_norm(lambda image: tensors(image, level), point)


# ---- wrong noise level ----


def told_wrong(method: Method, images: Sequence[Image], level: float) -> Result:
    """Return the mean PSNR for each factor by which the noise level is told wrong."""
    found: Result = {}
    for factor in FACTORS:
        values = [
            psnr(method.denoise(clean + noise(level, k, clean.shape), factor * level), clean)
            for k, clean in enumerate(images)
        ]
        found[f"{factor:g}"] = decibel(sum(values) / len(values))
    return found


# ---- pure noise ----


def residual_bands(residual: Image, before: Image) -> list[float]:
    """Return what is left of the noise in four bands of frequencies, from low to high.

    Both images are transformed by the cosine transform, which fits reflecting boundaries. The
    radius of a coefficient is the length of its frequency vector, where one is the highest
    frequency along an axis. In each band the value is the sum of squares of the residual over
    that of the noise. The mean grey value belongs to no band.
    """
    axes = [np.arange(n) / n for n in residual.shape]
    radius = np.hypot(axes[0][:, None], axes[1][None, :])
    after, initial = (
        dctn(part.astype(np.float64), norm="ortho") ** 2 for part in (residual, before)
    )
    after[0, 0] = initial[0, 0] = 0
    bands = pairwise(BANDS)
    masks = [(radius >= low) & (radius < high) for low, high in bands]
    return [float(after[mask].sum() / initial[mask].sum()) for mask in masks]


def gradient_magnitude(image: Image) -> NDArray[np.float64]:
    """Return the length of the gradient between the pixels, in grey levels per pixel."""
    x, y = haar_gradient(image.astype(np.float64)[None])
    length: NDArray[np.float64] = np.hypot(x, y)[0, 1:-1, 1:-1]
    return length


def edge_threshold(images: Sequence[Image]) -> float:
    """Return three times the median gradient magnitude of clean photographs."""
    return EDGE * float(np.median([np.median(gradient_magnitude(image)) for image in images]))


def false_edges(result: Image, threshold: float) -> float:
    """Return the share of pixels of a denoised constant image that look like edges.

    The reference is the same for all methods and noise levels: the median gradient magnitude of
    each clean photograph of this run, and of these the median. A pixel counts as an edge if the
    gradient of the result exceeds three times the reference, as the edges of photographs do. The
    image is constant, so every one of them is false.
    """
    return float(np.mean(gradient_magnitude(result) > threshold))


def pure_noise(method: Method, shape: tuple[int, ...], level: float, threshold: float) -> Result:
    """Return what a method makes of a constant image with noise."""
    before = noise(level, 0, shape)
    flat = np.full(shape, GREY, np.float32)
    result = method.denoise(flat + before, level)
    residual = result.astype(np.float64) - GREY
    return {
        "bands": [significant(band) for band in residual_bands(residual, before)],
        "all": significant(float(np.mean(residual**2) / np.mean(before.astype(np.float64) ** 2))),
        "false_edges": significant(false_edges(result, threshold)),
    }


# ---- JPEG noise and textures ----


def jpeg(image: Image, quality: int) -> Image:
    """Return a grey image as it comes back from a JPEG file."""
    from PIL import Image as Pictures

    file = io.BytesIO()
    rounded = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    Pictures.fromarray(rounded).save(file, "JPEG", quality=quality)
    with Pictures.open(file) as picture:
        return np.asarray(picture, np.float32)


def jpeg_noise(method: Method, images: Sequence[Image], level: float) -> Result:
    """Return the mean PSNR of noisy images from JPEG files, and of what a method makes of them."""
    before, after = [], []
    for k, clean in enumerate(images):
        stored = jpeg(clean + noise(level, k, clean.shape), JPEG_QUALITY)
        before.append(psnr(stored, clean))
        after.append(psnr(method.denoise(stored, level), clean))
    return {"noisy": decibel(float(np.mean(before))), "told": decibel(float(np.mean(after)))}


def texture(name: str, size: int) -> Image:
    """Return the centre of a texture of scikit-image."""
    from skimage import data

    whole = getattr(data, name)().astype(np.float32)
    top, left = ((side - size) // 2 for side in whole.shape)
    found: Image = np.ascontiguousarray(whole[top : top + size, left : left + size])
    return found


def textures(method: Method, size: int, level: float) -> Result:
    """Return the PSNR of each texture, and their mean SSIM."""
    found: Result = {}
    similarities = []
    for k, name in enumerate(TEXTURES):
        clean = texture(name, size)
        result = method.denoise(clean + noise(level, k, clean.shape), level)
        found[name] = decibel(psnr(result, clean))
        similarities.append(ssim(result, clean))
    return {**found, "ssim": decibel(float(np.mean(similarities)))}


# ---- the small network ----


def network(layers: int, channels: int) -> Any:
    """Return an untrained network: convolutions, and the noise as its output.

    Its input has a second channel, the noise level, so that it can be told a wrong one.
    """
    from torch import nn

    sizes = [2, *[channels] * (layers - 1), 1]
    parts: list[nn.Module] = []
    for before, after in pairwise(sizes):
        parts += [nn.Conv2d(before, after, 3, padding=1, padding_mode="reflect"), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def apply(net: Any, images: Any, levels: Any) -> Any:
    """Denoise tensors ``(image, row, column)`` with one noise level each."""
    import torch

    scaled = images / 255
    maps = (levels / 255)[:, None, None].expand_as(scaled)
    return images - 255 * net(torch.stack([scaled, maps], dim=1))[:, 0]


def train_network(images: CleanImages, seconds: float, *, batch: int = 16, size: int = 48) -> Any:
    """Train for some processor time on random parts of the images with noise of levels 5 to 75."""
    import torch

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    net = network(**_NETWORK)
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    began, steps = time.process_time(), 0
    while (share := (time.process_time() - began) / seconds) < 1:
        optimiser.param_groups[0]["lr"] = 2e-3 * (0.5 + 0.5 * np.cos(np.pi * share))
        height, width = (side - size + 1 for side in images.pixels.shape[1:])
        corners = zip(
            rng.integers(len(images), size=batch),
            rng.integers(height, size=batch),
            rng.integers(width, size=batch),
            strict=True,
        )
        parts = [images.pixels[k, y : y + size, x : x + size] for k, y, x in corners]
        clean = torch.tensor(np.stack(parts))
        levels = torch.tensor(rng.uniform(5, 75, batch).astype(np.float32))
        noisy = clean + levels[:, None, None] * torch.randn(clean.shape)
        # Relative to the noise, so that all levels count.
        error = (apply(net, noisy, levels) - clean) / levels[:, None, None]
        optimiser.zero_grad()
        error.square().mean().backward()
        optimiser.step()
        steps += 1
    print(f"the network was trained for {steps} steps in {seconds:g} processor s", flush=True)
    return net.eval()


def network_method(net: Any, seconds: float) -> Method:
    """Return a network as a method."""
    import torch

    double = network(**_NETWORK)
    double.load_state_dict(net.state_dict())
    double = double.double().eval().requires_grad_(requires_grad=False)

    def run(noisy: Image, sigma: float) -> Image:
        with torch.no_grad():
            images = torch.tensor(noisy, dtype=torch.float32)[None]
            found: Image = apply(net, images, torch.tensor([float(sigma)]))[0].numpy()
        return found

    def tensors(image: Any, sigma: float) -> Any:
        return apply(double, image[None], torch.tensor([sigma], dtype=image.dtype))[0]

    return Method(
        name="cnn",
        title=f"CNN, {_NETWORK['layers']} layers x {_NETWORK['channels']}",
        denoise=run,
        parameters=sum(part.numel() for part in net.parameters()),
        engine=f"torch {torch.__version__}",
        threads=str(torch.get_num_threads()),
        identity=network_identity(seconds),
        tensors=tensors,
    )


def network_identity(seconds: float) -> str:
    """Return what the network's numbers depend on, but for the speed of the machine."""
    return f"{_NETWORK} trained for {seconds:g} s of processor time"


# ---- all of it ----


def measure(
    method: Method,
    images: CleanImages,
    settings: Result,
    row: Result,
    save: Callable[[], object],
) -> None:
    """Fill the row of one method, as far as it is not known yet."""
    clean, size = list(images.pixels), settings["size"]
    margins = [(side - size) // 2 for side in clean[0].shape]
    centres = [image[margins[0] :, margins[1] :][:size, :size] for image in clean]
    for level in settings["levels"]:
        found = row.setdefault("levels", {}).setdefault(f"{level:g}", {})
        if "lipschitz" not in found:
            differentiated = settings.get("differentiated")
            found["lipschitz"] = lipschitz(method, centres, level, differentiated)
            save()
        if "told" not in found:
            found["told"] = told_wrong(method, clean, level)
            save()
        if "pure_noise" not in found:
            threshold = settings["edge_threshold"]
            found["pure_noise"] = pure_noise(method, clean[0].shape, level, threshold)
            save()
        if "jpeg" not in found:
            found["jpeg"] = jpeg_noise(method, clean, level)
            save()
        if "textures" not in found:
            found["textures"] = textures(method, size, level)
            save()
        print(f"{method.name}, s = {level:g}: done", flush=True)


def table(document: Result, level: float) -> str:
    """Return the rows at one noise level as Markdown."""
    lines = []
    for row in document["rows"].values():
        found = row["levels"].get(f"{level:g}", {})
        if len(found) < len(QUESTIONS):
            continue
        norms, told, flat, stored, woven = (found[question] for question in QUESTIONS)
        lines.append(
            [
                row["title"],
                "-" if norms["derivative"] is None else f"{norms['derivative']:.3f}",
                f"{norms['secant']:.3f}",
                f"{norms['small_secant']:.3f}",
                *(f"{value:.2f}" for value in told.values()),
                *(f"{value:.2g}" for value in flat["bands"]),
                f"{100 * flat['false_edges']:.2g} %",
                f"{stored['told']:.2f}",
                *(f"{woven[name]:.2f}" for name in TEXTURES),
                f"{woven['ssim']:.3f}",
                str(row.get("images", document["settings"]["images"])),
            ]
        )
    header = ["method", "Lipschitz, derivative", "secant (lower bound)", "small secant"]
    header += [f"told {factor:g} s" for factor in FACTORS]
    header += [f"noise left, band {k + 1}" for k in range(len(BANDS) - 1)]
    header += ["false edges", f"JPEG {JPEG_QUALITY}", *TEXTURES, "SSIM of textures", "crops"]
    return f"s = {level:g}\n\n{markdown_table(header, lines)}"


def methods(arguments: argparse.Namespace, known: Result) -> list[Method]:
    """Return all methods; the network is trained unless its numbers are known."""
    found = [model_method(name, arguments.engine) for name in arguments.models]
    found += tuned_peers(arguments.peers, arguments.tuned)
    seconds = arguments.cnn_seconds
    levels = known.get("levels", {})
    complete = all(len(levels.get(f"{s:g}", {})) == len(QUESTIONS) for s in arguments.levels)
    same = known.get("identity") == network_identity(seconds)
    if seconds > 0 and (arguments.again or not (complete and same)):
        training = bsds500("train", arguments.data)
        found.append(network_method(train_network(training, seconds), seconds))
    return found


def main() -> None:
    """Measure and print a Markdown table for each noise level."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--models", nargs="*", default=list(MODEL_NAMES), metavar="MODEL")
    parser.add_argument("--peers", nargs="*", default=[], choices=PEERS, metavar="PEER")
    parser.add_argument("--levels", nargs="+", type=float, default=[15.0, 25.0, 50.0])
    parser.add_argument("--images", type=int, default=4, help="number of test crops")
    parser.add_argument("--slow-images", type=int, default=4, help="the same for slow peers")
    parser.add_argument("--derivative-images", type=int, help="the same for the derivative")
    parser.add_argument("--size", type=int, default=128, help="of their centres, for Lipschitz")
    parser.add_argument("--cnn-seconds", type=float, default=0.0, help="training of the network")
    parser.add_argument("--engine", default="auto", help="who computes the models")
    parser.add_argument("--tuned", type=Path, default=TUNED, help="settings of the peers")
    parser.add_argument("--again", action="store_true", help="measure what the file has, too")
    parser.add_argument("--json", type=Path, required=True, help="where the numbers go")
    arguments = parser.parse_args()

    images = bsds500("test", arguments.data, arguments.images)
    settings = {
        "images": len(images),
        "data_sha256": images.fingerprint,
        "levels": arguments.levels,
        "size": arguments.size,
        "differentiated": arguments.derivative_images,
        "edge_threshold": significant(edge_threshold(list(images.pixels))),
    }
    what = "Lipschitz constants, PSNR in dB with a wrong noise level, and pure noise"
    results = Results(arguments.json, what, settings)
    for method in methods(arguments, results.rows.get("cnn", {})):
        head = {
            "title": method.title,
            "parameters": method.parameters,
            "engine": method.engine,
            "identity": method.identity,
        }
        # A network that was just trained is another one than before.
        again = arguments.again or method.name == "cnn"
        row = results.row(method.name, head, again=again)
        slow = method.name in PEERS and PEERS[method.name].slow
        row["images"] = min(arguments.slow_images if slow else len(images), len(images))
        measure(method, images.part(0, row["images"]), settings, row, results.save)
    for level in arguments.levels:
        print(table(results.document, level))


if __name__ == "__main__":
    main()
