"""``python -m integrodiff.cli`` is the command ``integrodiff``."""

from integrodiff.cli import main

if __name__ == "__main__":  # processes that a batch starts look at this file as well
    main()
