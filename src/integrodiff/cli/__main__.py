"""Run the command line as ``python -m integrodiff.cli``."""

from integrodiff.cli import main

if __name__ == "__main__":  # worker processes of a batch import this file too
    main()
