"""
An error map
============

Where is a result wrong, and by how much? If the truth is unknown, noise is added to the result
several times: the mean deviation of the new results is the bias, their standard deviation the
scatter. Here the truth is known, so the map can be checked.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.data import camera

from integrodiff import denoise

rng = np.random.default_rng(0)
clean = camera()[60:252, 180:372].astype(np.float32)
sigma = 20
noisy = clean + rng.normal(0, sigma, clean.shape).astype(np.float32)
result = denoise(noisy, sigma)

# %%
# The result takes the part of the truth.

repeated = np.stack(
    [
        denoise(result + rng.normal(0, sigma, clean.shape).astype(np.float32), sigma)
        for _ in range(8)
    ]
)
bias = repeated.mean(axis=0) - result
scatter = repeated.std(axis=0)
predicted = np.sqrt(bias**2 + scatter**2)

# %%
# The true error of many results, from the clean image.

true = np.stack(
    [denoise(clean + rng.normal(0, sigma, clean.shape).astype(np.float32), sigma) for _ in range(8)]
)
error = np.sqrt(np.mean((true - clean) ** 2, axis=0))

figure, axes = plt.subplots(2, 2, figsize=(8, 7.4), layout="constrained")
pictures = [
    ("result", result, "gray", (0, 255)),
    ("error map, from the result alone", predicted, "magma", (0, 20)),
    ("true error", error, "magma", (0, 20)),
    ("bias of the error map", bias, "RdBu", (-15, 15)),
]
for axis, (title, image, colours, (low, high)) in zip(axes.flat, pictures, strict=True):
    drawn = axis.imshow(image, cmap=colours, vmin=low, vmax=high)
    axis.set_title(title, fontsize=10)
    axis.set_axis_off()
    figure.colorbar(drawn, ax=axis, shrink=0.8)

# %%
# The map finds the places; it is too small where structure was lost completely, since the result
# does not have it any more.

together = np.corrcoef(predicted.ravel(), error.ravel())[0, 1]
print(f"correlation of map and true error: {together:.2f}")
print(f"median of the map {np.median(predicted):.1f}, of the true error {np.median(error):.1f}")
