"""
Beside other denoisers
======================

One photograph and the denoisers of scikit-image, with the noise level known to all. One image is
no statistics: :doc:`/guide/comparison` has the numbers, and says where others win.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.data import camera
from skimage.restoration import denoise_nl_means, denoise_tv_chambolle

from integrodiff import denoise

sigma = 25
clean = camera()[40:296, 150:406].astype(float)
noisy = clean + np.random.default_rng(0).normal(0, sigma, clean.shape)


def psnr(image: np.ndarray) -> float:
    """Return the PSNR in dB."""
    return float(10 * np.log10(255**2 / np.mean((image - clean) ** 2)))


results = {
    "noisy": noisy,
    "TV (scikit-image)": 255 * denoise_tv_chambolle(noisy / 255, weight=0.11),
    "NL-means (scikit-image)": denoise_nl_means(
        noisy, patch_size=5, patch_distance=6, h=0.7 * sigma, sigma=sigma, fast_mode=True
    ),
    "pm": denoise(noisy, sigma, model="pm", data_range=255),
    "iad": denoise(noisy, sigma, model="iad", data_range=255),
    "iad-plus": denoise(noisy, sigma),
}
figure, axes = plt.subplots(2, 3, figsize=(10, 7), layout="constrained")
for axis, (name, image) in zip(axes.flat, results.items(), strict=True):
    axis.imshow(image[40:168, 40:168], cmap="gray", vmin=0, vmax=255)
    axis.set_title(f"{name}: {psnr(image):.2f} dB", fontsize=10)
    axis.set_axis_off()

# %%
for name, image in sorted(results.items(), key=lambda item: -psnr(item[1])):
    print(f"{psnr(image):.2f} dB  {name}")
