"""Denoisers of other packages, each behind one function, with the grid its settings come from.

They take a float32 image on the scale [0, 255] and its noise level, compute on one thread as far
as a package lets itself be told, and return floating point. Settings named ``strength`` are
factors of the noise level.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Image: TypeAlias = NDArray[np.floating[Any]]
Settings: TypeAlias = Mapping[str, float]


@dataclass(frozen=True)
class Peer:
    """A denoiser of another package.

    Attributes
    ----------
    run : callable
        Takes a noisy image on the scale [0, 255], its noise level, and the settings by keyword.
    grid : mapping of str to tuple of float
        Increasing values to choose from, for each setting.
    title : str
        In words.
    packages : tuple of str
        What must be installed, as pip names it.
    slow : bool
        Whether it takes so long that fewer images must do.
    """

    run: Callable[..., Image]
    grid: Mapping[str, tuple[float, ...]]
    title: str
    packages: tuple[str, ...] = ("scikit-image",)
    slow: bool = False

    def unavailable(self) -> str | None:
        """Return in one line why the peer cannot run here, or None if it can."""
        try:
            self.release()
        except PackageNotFoundError as missing:
            return f"{missing.name} is not installed; get it with: pip install '.[bench]'"
        return None

    def release(self) -> str:
        """Return what computes, with versions."""
        return ", ".join(f"{package} {version(package)}" for package in self.packages)


# ---- scikit-image ----


def _restoration() -> Any:
    return importlib.import_module("skimage.restoration")


def _total_variation(noisy: Image, sigma: float, strength: float) -> Image:
    found: Image = _restoration().denoise_tv_chambolle(noisy, weight=strength * sigma)
    return found


def _nonlocal_means(noisy: Image, sigma: float, strength: float) -> Image:
    found: Image = _restoration().denoise_nl_means(
        noisy,
        patch_size=5,
        patch_distance=6,
        h=strength * sigma,
        sigma=sigma,
        fast_mode=True,
        preserve_range=True,
    )
    return found


def _wavelet(noisy: Image, sigma: float, strength: float, method: str = "BayesShrink") -> Image:
    found: Image = _restoration().denoise_wavelet(
        noisy, sigma=strength * sigma, wavelet="db2", method=method
    )
    return found


def _wavelet_visu(noisy: Image, sigma: float, strength: float) -> Image:
    return _wavelet(noisy, sigma, strength, "VisuShrink")


def _wavelet_spun(noisy: Image, sigma: float, strength: float) -> Image:
    settings = {"sigma": sigma, "strength": strength}
    found: Image = _restoration().cycle_spin(
        noisy, _wavelet, max_shifts=5, workers=1, func_kw=settings
    )
    return found


def _bilateral(noisy: Image, sigma: float, strength: float, radius: float) -> Image:
    # It refuses negative values, as noise makes them, and has a table of colours from 0 to the
    # largest value; what is added here is subtracted again.
    lowest = noisy.min()
    found: Image = lowest + _restoration().denoise_bilateral(
        noisy - lowest, sigma_color=strength * sigma, sigma_spatial=radius
    )
    return found


# ---- OpenCV ----


def _opencv() -> Any:
    package = importlib.import_module("cv2")
    package.setNumThreads(1)
    return package


def _opencv_nonlocal_means(noisy: Image, sigma: float, strength: float) -> Image:
    rounded = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
    found: NDArray[np.uint8] = _opencv().fastNlMeansDenoising(rounded, h=strength * sigma)
    return found.astype(np.float32)


def _opencv_cosine(noisy: Image, sigma: float, strength: float) -> Image:
    # Without a margin of its own it leaves pixels at the border that are not numbers.
    margin = 8
    padded = np.pad(noisy.astype(np.float32), margin, mode="reflect")
    result = np.zeros_like(padded)
    _opencv().xphoto.dctDenoising(padded, result, strength * sigma)
    return result[margin:-margin, margin:-margin]


# ---- SimpleITK ----


def _simpleitk(name: str, noisy: Image, conductance: float, iterations: float) -> Image:
    package: Any = importlib.import_module("SimpleITK")
    package.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
    result = getattr(package, name)(
        package.GetImageFromArray(noisy),
        timeStep=0.125,  # its bound in two dimensions
        conductanceParameter=conductance,
        numberOfIterations=round(iterations),
    )
    found: Image = package.GetArrayFromImage(result)
    return found


def _itk_gradient(noisy: Image, _: float, conductance: float, iterations: float) -> Image:
    return _simpleitk("GradientAnisotropicDiffusion", noisy, conductance, iterations)


def _itk_curvature(noisy: Image, _: float, conductance: float, iterations: float) -> Image:
    return _simpleitk("CurvatureAnisotropicDiffusion", noisy, conductance, iterations)


# ---- DIPlib ----


def _diplib(name: str, noisy: Image, *numbers: float) -> Image:
    package: Any = importlib.import_module("diplib")
    package.SetNumberOfThreads(1)
    return np.asarray(getattr(package, name)(noisy, *numbers), np.float32)


def _dip_perona_malik(noisy: Image, sigma: float, strength: float, iterations: float) -> Image:
    return _diplib("PeronaMalikDiffusion", noisy, round(iterations), strength * sigma)


def _dip_gaussian(noisy: Image, sigma: float, strength: float, iterations: float) -> Image:
    return _diplib("GaussianAnisotropicDiffusion", noisy, round(iterations), strength * sigma)


def _dip_robust(noisy: Image, sigma: float, strength: float, iterations: float) -> Image:
    return _diplib("RobustAnisotropicDiffusion", noisy, round(iterations), strength * sigma)


def _dip_coherence(noisy: Image, _: float, derivative: float, iterations: float) -> Image:
    # The scale of its tensor, 1, is the smallest it takes.
    return _diplib("CoherenceEnhancingDiffusion", noisy, derivative, 1.0, round(iterations))


# ---- others ----


def _bm3d(noisy: Image, sigma: float, strength: float) -> Image:
    package = importlib.import_module("bm3d")
    profile = package.BM3DProfile()
    profile.num_threads = 1
    found: Image = package.bm3d(noisy, strength * sigma, profile)
    return found


def _medpy(noisy: Image, sigma: float, strength: float, iterations: float) -> Image:
    package: Any = importlib.import_module("medpy.filter.smoothing")
    found: Image = package.anisotropic_diffusion(
        noisy, niter=round(iterations), kappa=strength * sigma, gamma=0.2
    )
    return found


# ---- the table ----

_BAYES = {"strength": (0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15)}
_WAVELETS = ("scikit-image", "PyWavelets")
_OPENCV = ("opencv-contrib-python-headless",)
_ITK = ("SimpleITK",)
_DIP = ("diplib",)
_FEW = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0, 25.0)
_MANY = (3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0, 25.0, 32.0, 40.0, 50.0, 63.0)
_CONDUCTANCE = (1.3, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0)
_CONTRAST = (1.0, 1.3, 1.6, 2.0, 2.5, 3.2, 4.0)

PEERS: dict[str, Peer] = {
    "tv": Peer(
        _total_variation, {"strength": (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)}, "TV, Chambolle"
    ),
    "nlm": Peer(_nonlocal_means, {"strength": (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)}, "NL-means, fast"),
    "wavelet": Peer(_wavelet, _BAYES, "wavelet, Bayes", _WAVELETS),
    "wavelet-visu": Peer(
        _wavelet_visu,
        {"strength": (0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6)},
        "wavelet, Visu",
        _WAVELETS,
    ),
    "wavelet-spin": Peer(_wavelet_spun, _BAYES, "wavelet, cycle-spun", _WAVELETS),
    "bilateral": Peer(
        _bilateral,
        {"strength": (1.0, 1.25, 1.5, 2.0, 2.5), "radius": (1.1, 1.5, 2.0, 2.7)},
        "bilateral",
    ),
    "opencv-nlm": Peer(
        _opencv_nonlocal_means,
        {"strength": (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)},
        "OpenCV NL-means, 8 bit",
        _OPENCV,
    ),
    "opencv-dct": Peer(
        _opencv_cosine, {"strength": (0.7, 0.8, 0.9, 1.0, 1.1, 1.2)}, "OpenCV DCT", _OPENCV
    ),
    "itk-gradient": Peer(
        _itk_gradient,
        {"conductance": _CONDUCTANCE, "iterations": _MANY},
        "SimpleITK gradient diffusion",
        _ITK,
    ),
    "itk-curvature": Peer(
        _itk_curvature,
        {
            "conductance": _CONDUCTANCE[:-1],
            "iterations": (2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 16.0, 22.0, 32.0, 45.0),
        },
        "SimpleITK curvature diffusion",
        _ITK,
    ),
    "dip-pm": Peer(
        _dip_perona_malik,
        {"strength": _CONTRAST, "iterations": _FEW},
        "DIPlib Perona-Malik",
        _DIP,
    ),
    "dip-gauss": Peer(
        _dip_gaussian,
        {"strength": (0.5, 1.0, 2.0, 4.0, 16.0), "iterations": (3.0, 6.0, 13.0, 25.0, 50.0, 100.0)},
        "DIPlib Gaussian diffusion",
        _DIP,
    ),
    "dip-robust": Peer(
        _dip_robust,
        {"strength": (2.5, 3.2, 4.0, 5.0, 6.3), "iterations": _FEW},
        "DIPlib robust diffusion",
        _DIP,
    ),
    "dip-coherence": Peer(
        _dip_coherence,
        {"derivative": (1.0, 1.5), "iterations": (8.0, 16.0, 32.0)},
        "DIPlib coherence-enhancing",
        _DIP,
        slow=True,
    ),
    "medpy": Peer(
        _medpy,
        {"strength": _CONTRAST, "iterations": _FEW},
        "MedPy Perona-Malik",
        ("MedPy",),
    ),
    "bm3d": Peer(_bm3d, {"strength": (0.9, 0.95, 1.0, 1.05, 1.1)}, "BM3D", ("bm3d",), slow=True),
}
"""The peers by name."""
