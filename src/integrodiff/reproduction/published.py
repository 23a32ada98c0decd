"""The numbers of the paper, from its section on experiments."""

from __future__ import annotations

TITLES = {"pm": "PM", "eed": "EED", "iid": "IID", "iad": "IAD"}
"""The models of its comparison, by the names they have here."""

LEVELS = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
"""Noise levels of its table."""

TEST_IMAGES = 100

TABLE_1 = {
    "pm": (32.00, 28.02, 25.94, 24.55, 23.56, 22.83),
    "eed": (32.15, 28.33, 26.37, 25.11, 24.24, 23.55),
    "iid": (32.10, 28.32, 26.43, 25.25, 24.41, 23.78),
    "iad": (32.41, 28.64, 26.74, 25.52, 24.61, 23.81),
}
"""Mean PSNR in dB on the test images, at the noise levels."""

REDUCED_LAW = {"alpha": 1.64, "beta": 2.46, "lambda_0": 1.47}
"""Trained parameters of the reduced model."""

FULL_LAW_NUMBERS, REDUCED_LAW_NUMBERS = 96, 3
"""Parameters of the full model, at all noise levels together, and of the reduced one."""

GAP = 0.07
"""Mean PSNR in dB by which the full model exceeds the reduced one."""

FIGURE_1_LEVELS = (20.0, 50.0)
FIGURE_2_LEVEL = 50.0

CAMERAMAN = {"pm": 24.21, "eed": 25.60, "iid": 25.63, "iad": 26.02}
"""PSNR in dB of the results in Figure 2."""
