"""``python -m integrodiff.cli`` is the command ``integrodiff``."""

from integrodiff.cli import main

main()
