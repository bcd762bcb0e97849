"""Whatever a reader sees is run: blocks of the README and the docs, examples; and links lead somewhere."""

from __future__ import annotations

import ast
import doctest
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import softdict
from softdict import dask, estimators, plot
from softdict.cli import main

ROOT = Path(__file__).parents[1]
TEXTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PAGES = [path for path in TEXTS if path.parent != ROOT or path.name == "README.md"]
#: What needs a library of the extra `peers` runs where that is there.
PEERS = {"docs/how-to/torch.md"}
#: Those that read the weights of a real Transformer have tests of their own, test_real_transformer.py.
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if "real_" not in path.name)

#: Notes for later authors argue; every other page has something to run.
PROSE = ROOT / "docs" / "design-notes"

#: What a fence may say; anything else, `py` or `pycon`, would be Python that nobody runs.
PYTHON = {"python", "{code-cell} ipython3"}
LANGUAGES = PYTHON | {"bash", "text"}

#: Fences that Sphinx reads, and that hold nothing to run.
DIRECTIVES = {"{toctree}", "{raw}", "{eval-rst}"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ---- blocks --------------------------------------------------------------------------------------


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    source: str
    line: int  # of its first line, counted from 0


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page; ValueError for those that nobody would run."""
    found, lines, start = [], text.splitlines(), None
    for i, line in enumerate(lines):
        if not re.match(r"\s*(```|~~~)", line):
            continue
        if start is None:
            start = i
        elif line.strip() == "```":
            language = lines[start].removeprefix("```")
            if language in LANGUAGES:
                found.append(Block(language, "\n".join(lines[start + 1 : i]) + "\n", start + 1))
            elif language.split(" ")[0] not in DIRECTIVES:
                raise ValueError(f"line {start + 1}: {lines[start]!r} opens a block of no known language")
            start = None
    if start is not None:
        raise ValueError(f"line {start + 1}: the block is not closed")
    return found


def run_page(text: str, name: str) -> int:
    """Run the Python blocks of a page in one namespace; return how many there are."""
    namespace: dict[str, Any] = {"__name__": "page"}
    python = [block for block in blocks(text) if block.language in PYTHON]
    for block in python:
        if ">>>" not in block.source:
            source = re.sub(r"^:tags: .*$", "", block.source, flags=re.M)  # of a cell
            code = compile("\n" * block.line + source, name, "exec")
            if "raises-exception" in block.source:
                with pytest.raises(Exception, match=r"."):
                    exec(code, namespace)
            else:
                exec(code, namespace)
            continue
        flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        test = doctest.DocTestParser().get_doctest(block.source, namespace, name, name, block.line)
        said: list[str] = []
        runner = doctest.DocTestRunner(optionflags=flags)
        failed = runner.run(test, out=said.append, clear_globs=False).failed
        namespace.update(test.globs)  # a copy was run
        assert not failed, "".join(said)
    return len(python)


def marked(page: Path) -> Any:
    return pytest.param(page, marks=[pytest.mark.peers] * (name_of(page) in PEERS), id=name_of(page))


@pytest.mark.parametrize("page", [*map(marked, PAGES)])
def test_every_block_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a page may write files
    text = page.read_text(encoding="utf-8")
    count = run_page(text, name_of(page))
    run_elsewhere = page.name == "index.md" or ":: softdict" in text or page.is_relative_to(PROSE)
    assert count or run_elsewhere, "nothing on this page is run"


SHELL = {
    name_of(page): "".join(code.source for code in blocks(page.read_text("utf-8")) if code.language == "bash")
    for page in (ROOT / "docs").rglob("*.md")
}  # those of README are run by .ci/run


@pytest.mark.parametrize("page", [page for page, source in SHELL.items() if source])
def test_every_shell_block_runs(page, tmp_path):
    command = f'set -eu; softdict() {{ "{sys.executable}" -m softdict "$@"; }}\n' + SHELL[page]
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_pages_are_found():
    assert set(map(name_of, PAGES)) >= PEERS
    assert {"README.md", "docs/index.md", "docs/start/6-a-real-transformer.md"} <= set(map(name_of, PAGES))
    assert {"hello.py", "study_group.py"} <= {path.name for path in EXAMPLES}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nassert 1 == 2\n```", AssertionError),
        ("```python\nx = 1\n```\n\n```python\n>>> x + 1\n3\n```", AssertionError),
        ("```python\n>>> 1 / 0\n0\n```", AssertionError),
        ("```py\nassert 1 == 2\n```", ValueError),
        ("```\n>>> 1 + 1\n3\n```", ValueError),
        ("- in a list:\n  ```python\n  1 / 0\n  ```", ValueError),
        ("~~~python\n1 / 0\n~~~", ValueError),
        ("```python\n1 / 0\n", ValueError),
    ],
)
def test_a_wrong_block_is_noticed(text, error):
    with pytest.raises(error):
        run_page(text, "page")


def test_blocks_share_a_namespace():
    assert (
        run_page("```python\nx = 1\n```\n```python\n>>> x\n1\n>>> y = 2\n```\n```python\ny\n```", "page") == 3
    )
    assert run_page("only words, and `code`", "page") == 0


# ---- links ---------------------------------------------------------------------------------------


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    titles = re.findall(r"^#+ (.+)$", without_blocks(text), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path, text: str) -> list[str]:
    """Return the links of a page to files, or to headings, that are not there."""
    prose = re.sub(r"`[^`\n]*`", "", without_blocks(text))
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", prose) + re.findall(r"^\[[^\]]+\]: (\S+)", prose, re.M):
        if re.match(r"[a-z]+:", target):  # https: and mailto: lead out
            continue
        where, _, heading = target.partition("#")
        path = page.parent / where if where else page
        there = path.exists() and path.resolve().is_relative_to(ROOT)
        if not there or (heading and heading not in anchors(path.read_text(encoding="utf-8"))):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_links_lead_somewhere(page):
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_noticed():
    text = "[a](LICENSE) [b](nothing.md) [c](https://example.org) [d](README.md#softdict) [e](README.md#no)"
    assert broken_links(ROOT / "README.md", text) == ["nothing.md", "README.md#no"]


# ---- the reference -------------------------------------------------------------------------------


def test_the_reference_has_every_public_name():
    pages = (ROOT / "docs" / "reference").glob("*.md")
    shown = [name for page in pages for name in re.findall(r":: (softdict\.\S+)", page.read_text("utf-8"))]
    there = {f"softdict.{name}" for name in softdict.__all__}
    there |= {"softdict.encoders.CharNgrams", "softdict.encoders.OneHot"}  # beside what modules share
    for module in (dask, estimators, plot):
        defined = [x for x in vars(module).values() if getattr(x, "__module__", "") == module.__name__]
        there |= {f"{x.__module__}.{x.__name__}" for x in defined if not x.__name__.startswith("_")}
    assert len(shown) == len(set(shown))
    assert set(shown) == there


# ---- examples, and what the README says that the command prints ----------------------------------


def predicted(source: str) -> list[str]:
    """Return the indented lines of a docstring: what the run is said to print."""
    doc = ast.get_docstring(ast.parse(source)) or ""
    return [line.removeprefix("    ").rstrip() for line in doc.splitlines() if line.startswith("    ")]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_prints_what_its_docstring_says(path, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "COLUMNS": "80"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    printed = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
    assert printed, "it prints nothing"
    assert printed == predicted(path.read_text(encoding="utf-8"))


def test_the_readme_shows_what_ask_prints(capsys, monkeypatch):
    """Names of topics are compared, not shares: Python's help has other texts in each version."""
    monkeypatch.setenv("COLUMNS", "80")
    readme = blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    (shown,) = [block.source for block in readme if " asks " in block.source and block.language == "text"]
    (command,) = [block.source for block in readme if "softdict ask" in block.source]
    assert main(["ask", re.findall(r'ask "(.+)"', command)[0]]) == 0
    printed = capsys.readouterr().out
    words = re.findall(r"^[a-z]+(?: [a-z]+)*\??", shown, re.M)
    assert {"function", "lambda", "entry", "hard", "rests on"} <= set(words)
    assert [word for word in words if not re.search(rf"^{re.escape(word)}", printed, re.M)] == []


def test_the_page_on_performance_shows_what_was_measured():
    folder = ROOT / "tests" / "benchmarks"
    files = [folder / "results" / f"{mode}.json" for mode in ("fast", "core")]
    command = [sys.executable, folder / "draw.py", "--table", *files]
    table = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stdout
    assert table.count("|") > 50
    assert table.strip() in (ROOT / "docs" / "explanation" / "performance.md").read_text(encoding="utf-8")
