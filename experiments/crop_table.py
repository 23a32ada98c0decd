"""Tables of mean PSNR on crops of BSDS500: ways of denoising in rows, kinds of noise in columns."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from denoisers import Image
from integrodiff import NoiseLevelWarning
from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.learning import bsds500
from integrodiff.reproduction._results import markdown_table
from peers import Results


def print_table(
    description: str,
    file: str,
    what: str,
    ways: Iterable[str],
    columns: Sequence[str],
    mean_psnr: Callable[[str, Sequence[Image], str, str], float],
) -> None:
    """Measure what a file of results does not have yet, as the command line says, and print it.

    Parameters
    ----------
    description : str
        What the command does; its first line is for the help.
    file : str
        Where the numbers go, unless the command line names another file.
    what : str
        What the numbers are, for the file.
    ways, columns : iterable of str
        Names of the rows and of the columns.
    mean_psnr : callable
        Called with way, clean images, column and name of the model.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds bsds500")
    parser.add_argument("--json", type=Path, default=Path(file))
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--split", default="train", choices=["train", "test"])
    parser.add_argument("--count", type=int, default=50, help="only the first crops")
    arguments = parser.parse_args()
    images = bsds500(arguments.split, arguments.data, arguments.count)
    results = Results(arguments.json, what, {"images": len(images), "source": images.source})
    # Some ways have to be told noise levels far from those of the training.
    warnings.simplefilter("ignore", NoiseLevelWarning)
    lines = []
    for way in ways:
        row = results.row(way, {"identity": arguments.model, "psnr": {}})
        for column in columns:
            if column not in row["psnr"]:
                row["psnr"][column] = mean_psnr(way, list(images.pixels), column, arguments.model)
                results.save()
        lines.append([way, *(f"{row['psnr'][column]:.2f}" for column in columns)])
    print(markdown_table(["PSNR [dB]", *columns], lines))
