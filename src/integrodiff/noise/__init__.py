"""The noise of an image: its level, its variation over the image, and photon noise."""
