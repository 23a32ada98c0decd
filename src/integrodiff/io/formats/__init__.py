"""One module for each image file format, with a ``Reader`` and a ``Writer``."""
