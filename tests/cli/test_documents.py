"""Every piece of code in the README and the docs is run, or checked for what it names."""

from __future__ import annotations

from pathlib import Path

import documents
import pytest
from documents import PAGES, ROOT, Snippet

COMMANDS = list(dict.fromkeys(snippet for page in PAGES for snippet in documents.commands(page)))
CALLS = [snippet for page in PAGES for snippet in documents.calls(page)]
# Those of the README are run by tests/unit/test_readme.py, which knows what they print.
WITH_PYTHON = [
    page for page in PAGES if documents.python_blocks(page) and page != ROOT / "README.md"
]
# It adds models, engines and formats to the package.
EXTENDING = ROOT / "docs/guide/extending.md"
TRAINING = ROOT / "docs/guide/training.md"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in WITH_PYTHON if page != TRAINING], ids=name)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    for package in documents.imported(page):
        pytest.importorskip(package)
    apart = page == EXTENDING
    (documents.run_python_apart if apart else documents.run_python)(page, tmp_path)


@pytest.mark.long
def test_python_blocks_about_training_run(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[train]'")
    documents.run_python(TRAINING, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of volumes and of small images
@pytest.mark.parametrize("page", [page for page in PAGES if documents.commands(page)], ids=name)
def test_commands_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, snippet in enumerate(documents.commands(page)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        try:
            documents.check(snippet, folder)
        except AssertionError as error:
            raise AssertionError(f"{snippet}\n{error}") from error


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_calls_in_backticks_run(call: Snippet) -> None:
    assert documents.evaluate(call.text).size


def test_commands_are_indented() -> None:
    """Blocks of a shell have one form, the one that the tests find."""
    assert not [str(found) for page in PAGES for found in documents.fenced_commands(page)]


def test_python_is_fenced() -> None:
    """Blocks of Python have one form, the one that the tests find."""
    assert not [str(found) for page in PAGES for found in documents.indented_python(page)]


def test_most_commands_of_the_readme_run(tmp_path: Path) -> None:
    """The mechanism finds the commands of the README, and takes few of them for placeholders."""
    found = documents.commands(ROOT / "README.md")
    own = [snippet for snippet in found if snippet.text.startswith("integrodiff denoise ")]
    assert len(own) >= 15
    assert len(documents.python_blocks(ROOT / "README.md")) >= 1
    assert len(CALLS) >= 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("integrodiff denoise noisy.png clean.png --nonsense", "no option --nonsense"),
        ("integrodiff denoise absent.png clean.png", "absent.png"),
        ("integrodiff reproduce all --nonsense", "no option --nonsense"),
        ("integrodiff nonsense", "no command nonsense"),
        ("python experiments/nonsense.py", "there is no experiments/nonsense.py"),
        ("python experiments/frontier.py --nonsense", "no option --nonsense"),
        ("make nonsense", "there is no target nonsense"),
        ("pip install '.[nonsense]'", "nonsense"),
    ],
)
def test_wrong_commands_are_found(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=problem):
        documents.check(Snippet(ROOT / "README.md", 1, text), tmp_path)
