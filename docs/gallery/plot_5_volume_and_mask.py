"""
Volumes, spacing and masks
==========================

A volume is denoised in three dimensions, with the distances of its voxels. Invalid voxels are left
alone, and influence nothing.
"""

import matplotlib.pyplot as plt
import numpy as np

from integrodiff import denoise

rng = np.random.default_rng(0)
z, y, x = np.mgrid[:16, :96, :96].astype(float)
clean = 80 + 90 * (np.hypot(np.hypot(1.3 * (z - 8), y - 44), x - 50) < 26)
clean += 60 * (np.hypot(y - 30 - z, x - 30) < 7)
noisy = clean + rng.normal(0, 25, clean.shape)

# %%
# As one volume, and slice by slice.

volume = denoise(noisy, sigma=25, axes="ZYX", spacing=(1.3, 1, 1))
slices = denoise(noisy, sigma=25, axes="QYX")
for name, result in (("noisy", noisy), ("slice by slice", slices), ("volume", volume)):
    print(f"{name}: error {np.sqrt(np.mean((result - clean) ** 2)):.2f}")

# %%
# A round field of view: everything outside is invalid, and comes back as it was.

valid = np.hypot(y[0] - 48, x[0] - 48) < 44
scan = np.where(valid, noisy, -2000)
result = denoise(scan, sigma=25, axes="ZYX", spacing=(1.3, 1, 1), mask=valid)
print("changed outside:", int((result != scan)[:, ~valid].sum()))
print(f"mean inside, before {scan[:, valid].mean():.6f}, after {result[:, valid].mean():.6f}")

figure, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
for axis, (name, image) in zip(
    axes,
    {"clean": clean, "noisy": noisy, "volume": volume, "with a mask": result}.items(),
    strict=True,
):
    axis.imshow(image[8], cmap="gray", vmin=40, vmax=260)
    axis.set_title(name, fontsize=10)
    axis.set_axis_off()
