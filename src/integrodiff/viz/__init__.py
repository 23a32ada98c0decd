"""Pictures and quality measures for ``compare``, ``explain`` and ``demo``."""
