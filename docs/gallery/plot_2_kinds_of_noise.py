"""
Kinds of noise
==============

Photon noise, Rician noise and correlated noise are told to ``denoise``, or found by it. Taking them
for white Gaussian noise is worse.
"""

import matplotlib.pyplot as plt
import numpy as np

from integrodiff import PoissonGaussian, denoise

rng = np.random.default_rng(0)
y, x = np.mgrid[:160, :160]
shapes = 0.15 + 0.85 * (np.hypot(y - 80, x - 80) < 45) * (0.5 + 0.5 * np.sin(x / 7.0))


def show(title: str, clean: np.ndarray, noisy: np.ndarray, results: dict[str, np.ndarray]) -> None:
    """Draw an image, and results with their root mean square error."""
    pictures = {"clean": clean, "noisy": noisy, **results}
    figure, axes = plt.subplots(1, 4, figsize=(10, 2.9), layout="constrained")
    figure.suptitle(title)
    for axis, (name, image) in zip(axes, pictures.items(), strict=True):
        axis.imshow(image, cmap="gray", vmin=clean.min(), vmax=clean.max())
        error = np.sqrt(np.mean((image - clean) ** 2))
        axis.set_title(name if image is clean else f"{name}: {error:.2f}", fontsize=10)
        axis.set_axis_off()


# %%
# **Photon counts.** The variance is the mean, so noise is strongest where the image is brightest.

clean = 30 * shapes
counts = rng.poisson(clean).astype(float)
results = {
    "as Gaussian": denoise(counts, sigma=np.sqrt(clean.mean())),
    "as Poisson": denoise(counts, noise="poisson"),
}
show("photon counts, root mean square errors", clean, counts, results)

# %%
# **A camera** with gain 2, offset 100 and readout noise 6, known or estimated.

clean = 100 + 2 * 30 * shapes
raw = 100 + 2 * rng.poisson(30 * shapes) + rng.normal(0, 6, shapes.shape)
results = {
    "known detector": denoise(raw, noise=PoissonGaussian(gain=2, offset=100, readout=6)),
    "estimated": denoise(raw, noise="poisson-gaussian"),
}
show("camera", clean, raw, results)

# %%
# **MRI magnitudes** have a bias where there is no signal, which Rician noise explains.

clean = 60 * (shapes > 0.2)
real, imaginary = rng.normal(0, 10, (2, *clean.shape))
magnitude = np.hypot(clean + real, imaginary)
results = {
    "as Gaussian": denoise(magnitude, sigma=10),
    "as Rician": denoise(magnitude, sigma=10, noise="rician"),
}
show("magnitudes", clean, magnitude, results)

# %%
# **Correlated noise**, as after interpolation. Its level at coarse scales is found.

clean = 150 * shapes
white = rng.normal(0, 40, (163, 163))
noise = sum(white[i : i + 160, j : j + 160] for i in range(3) for j in range(3)) / 6
results = {
    "as white": denoise(clean + noise, sigma=float(noise.std())),
    "estimated": denoise(clean + noise),
}
show("correlated noise", clean, clean + noise, results)
