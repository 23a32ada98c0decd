"""
Volumes, spacing and masks
==========================

A volume is denoised in three dimensions, with the distances of its voxels. Invalid voxels are left
alone, and influence nothing.
"""

import matplotlib.pyplot as plt
import numpy as np

from integrodiff import compare, denoise, explain

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
# Three orthogonal planes through a point, in the proportions of the voxels: before, after, and what
# was removed.

point = {"Z": 8, "Y": 40, "X": 40}
figure = compare(noisy, volume, axes="ZYX", spacing=(1.3, 1, 1), at=point)

# %%
# How the model for volumes decides: where structures are surfaces or lines, which way they point
# (the direction across them is red for X, green for Y, blue for Z), and what flows at each scale.

figure = explain(noisy, sigma=25, axes="ZYX", spacing=(1.3, 1, 1), at=point)

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
