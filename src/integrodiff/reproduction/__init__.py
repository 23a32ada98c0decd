"""The tables and figures of the paper, reproduced: what ``integrodiff reproduce`` computes.

Each module is one of them: a function that computes a plain result, and one that writes it as
JSON, CSV, Markdown and, for figures, as a picture. :mod:`integrodiff.reproduction.published`
holds the paper's own numbers.

T. Alt, J. Weickert, "Learning integrodifferential models for image denoising", IEEE International
Conference on Acoustics, Speech and Signal Processing, 2021.
"""
