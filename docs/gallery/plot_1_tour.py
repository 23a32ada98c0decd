"""
A tour
======

What integrodiff does to an image: before and after, what was removed, how it decides, and how the
image changes from step to step.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.data import camera

from integrodiff import compare, denoise, estimate_sigma, explain

# %%
# A photograph with Gaussian noise of standard deviation 25. Its level can be estimated.

clean = camera()[40:296, 150:406].astype(np.float32)
noisy = clean + np.random.default_rng(0).normal(0, 25, clean.shape).astype(np.float32)
print(f"estimated noise level: {estimate_sigma(noisy):.1f}")

# %%
# One call denoises. The third picture is what was removed: if it showed the shapes of objects,
# structure would have been lost.

result = denoise(noisy)
figure = compare(noisy, result, clean)

# %%
# The mean grey value is the same as before, and the norm has not grown. Both are theorems.

print(f"mean before {noisy.mean():.4f}, after {result.mean():.4f}")
print(f"norm before {np.linalg.norm(noisy):.1f}, after {np.linalg.norm(result):.1f}")

# %%
# How it decides: one structure tensor for all scales says how strong and how coherent structures
# are and where they point; the diffusivity across and along them follows, for each scale.

figure = explain(noisy, sigma=25)

# %%
# A few explicit steps are all. ``callback`` sees each of them.

steps = [noisy]
denoise(noisy, sigma=25, callback=lambda step: steps.append(step.image()))
figure, axes = plt.subplots(1, 4, figsize=(10, 2.8), layout="constrained")
for axis, number in zip(axes, (0, 1, 3, len(steps) - 1), strict=True):
    axis.imshow(steps[number][60:188, 60:188], cmap="gray", vmin=0, vmax=255)
    error = np.sqrt(np.mean((steps[number] - clean) ** 2))
    axis.set_title(f"step {number}: error {error:.1f}", fontsize=10)
    axis.set_axis_off()
