"""The house: what stands where, what is loaded when, how long it is, and what must not be in it."""

from __future__ import annotations

import ast
import fnmatch
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import softdict

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "softdict"

#: A module imports only from modules above it in this list, which is the reading order too.
LAYERS = """
    _checks _backend scores weights _tensors blend gradients _store encoders display plot persistence mapping
    transformer learning estimators dask playground cli
""".split()

#: What a reader of `lookup = score -> weigh -> blend` has to read; at most so many lines of code together.
CORE, MOST_LINES = ("scores", "weights", "blend", "_store", "mapping"), 1500

#: What `import softdict` must not load: each takes longer to load than most lookups, or is an extra.
LATE = ("matplotlib", "scipy.optimize", "sklearn", "numba", "torch", "dask")


def sources() -> dict[str, str]:
    """Return the source of every module by its name: `weights`, or `some.thing` in a folder."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path.read_text(
            encoding="utf-8"
        )
    return found


# ---- a module imports only from modules above it -------------------------------------------------


def imported(source: str, modules: frozenset[str]) -> Iterator[str]:
    """Yield the modules of softdict that a module imports, at its top or inside functions.

    `__init__` stands for a name that only the package itself has.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "softdict" if node.level else ""  # the package is flat: one dot is softdict itself
            base = ".".join(filter(None, (base, node.module)))
            dotted = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for parts in (name.split(".") for name in dotted):
            if parts[0] == "softdict":
                yield parts[1] if parts[1:] and parts[1] in modules else "__init__"


def wrong_imports(module: str, source: str, init: str) -> list[str]:
    """Return what a module imports from its own place in the list or from below."""
    modules = frozenset(LAYERS)
    through_init = max(imported(init, modules), key=LAYERS.index)  # a name of __init__ needs all of these
    above = set(LAYERS[: LAYERS.index(module)])
    found = [through_init if name == "__init__" else name for name in imported(source, modules)]
    return [name for name in found if name not in above]


def test_every_module_is_on_the_list():
    assert set(sources()) - {"__init__", "__main__"} <= set(LAYERS)
    assert set(CORE) <= set(sources())


@pytest.mark.parametrize("module", sorted(set(sources()) & set(LAYERS)))
def test_a_module_imports_only_from_modules_above_it(module):
    assert wrong_imports(module, sources()[module], sources()["__init__"]) == []


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("from softdict.blend import answer", ["blend"]),
        ("import softdict.mapping", ["mapping"]),
        ("from softdict import display as d, _checks", ["display"]),
        ("from .weights import Entmax", ["weights"]),
        ("from . import cli", ["cli"]),
        ("from softdict import SoftDict", ["playground"]),
        ("def f():\n    if True:\n        import softdict.plot", ["plot"]),
        ("import math\nimport numpy\nfrom softdict._checks import brief", []),
    ],
)
def test_the_reader_of_imports_sees_all_ways_to_import(source, wrong):
    assert wrong_imports("weights" if wrong == [] else "scores", source, sources()["__init__"]) == wrong


# ---- what is loaded when -------------------------------------------------------------------------


def loaded(code: str) -> set[str]:
    """Return which of LATE a fresh process has loaded after this code."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*(m for m in {LATE} if m in sys.modules))"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


def test_import_is_light():
    assert loaded("import softdict") == set()


def test_the_check_for_light_imports_can_fail():
    assert "scipy.optimize" in loaded("import softdict, scipy.optimize")


# ---- names and sizes -----------------------------------------------------------------------------


def definitions(source: str) -> set[str]:
    """Return the names of all functions, methods and classes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)}


def test_nothing_bears_the_name_of_a_module():
    names = set().union(*map(definitions, sources().values()), softdict.__all__)
    assert {"soft_lookup", "SoftDict", "popitem"} <= names  # the reader reads
    assert names & ({*LAYERS, *sources()} - {"__init__", "__main__"}) == set()


def lines_of_code(source):
    """Count the lines that hold code: not those of docstrings and comments, nor empty ones."""
    documented = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            documented |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(n not in documented and line.strip()[:1] not in ("", "#") for n, line in lines)


def test_the_core_is_short():
    assert lines_of_code('"""Say."""\n\n# why\nx = 1\n') == 1
    lines = {module: lines_of_code(sources()[module]) for module in CORE}
    assert 0 < sum(lines.values()) <= MOST_LINES, f"{lines} make {sum(lines.values())} lines"


# ---- documentation -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", softdict.__all__)
def test_what_is_exported_is_defined_and_shown(name):
    doc = inspect.getdoc(getattr(softdict, name)) or ""
    assert "Equivalent to:" in doc, "no definition"
    assert ">>>" in doc, "no example"


def public_methods(cls: type) -> Iterator[tuple[str, object]]:
    """Yield public methods, class methods and properties, those of Python's own bases left out."""
    own = {k: v for base in reversed(cls.__mro__) if base.__module__.startswith("softdict")
           for k, v in vars(base).items()}  # fmt: skip
    for name, member in own.items():
        if not name.startswith("_") and (callable(member) or isinstance(member, (property, classmethod))):
            yield name, member


@pytest.mark.parametrize("name", [n for n in softdict.__all__ if inspect.isclass(getattr(softdict, n))])
def test_public_methods_have_docstrings(name):
    cls = getattr(softdict, name)
    assert inspect.getdoc(cls)
    assert [method for method, member in public_methods(cls) if not inspect.getdoc(member)] == []


def test_the_reader_of_methods_finds_them():
    found = dict(public_methods(softdict.SoftDict))
    assert {"get", "lookup", "from_arrays", "hard", "key_vectors", "popitem"} <= set(found)


def test_docstring_examples_are_run(pytestconfig):
    assert "--doctest-modules" in pytestconfig.getini("addopts")
    assert "softdict" in pytestconfig.getini("testpaths")


# ---- what must not be in any file ----------------------------------------------------------------

# Put together here, so that this file passes its own test.
PLACES = [f"/{place}/" for place in ("tmp", "work", "root", "home", "Users")]
HERE = "(local" + "host|127" + r"\.0\.0\.1)"
PRIVATE = re.compile(
    "|".join([*map(re.escape, PLACES), rf"(index|proxy|registry).*{HERE}", rf"{HERE}\S*/simple"])
)


def files() -> list[Path]:
    """Return the files of the repository, without what .gitignore names."""
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()] + [".git"]

    def kept(path: Path) -> bool:
        names = path.name, path.relative_to(ROOT).as_posix()
        return not any(fnmatch.fnmatch(name, pattern) for name in names for pattern in ignored)

    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if kept(Path(folder, name))]
        found += [path for name in names if kept(path := Path(folder, name))]
    return found


def test_no_file_tells_where_it_was_made():
    seen = files()
    assert {PACKAGE / "mapping.py", ROOT / "README.md", Path(__file__).resolve()} <= set(seen)
    assert not any("__pycache__" in path.parts for path in seen)
    told = {}
    for path in seen:
        if match := PRIVATE.search(path.read_bytes().decode("utf-8", "replace")):
            told[path.relative_to(ROOT).as_posix()] = match[0]
    assert told == {}


@pytest.mark.parametrize(
    "text", [*(f"see {place}x" for place in PLACES), "--index-url http://local" + "host:3141/root"]
)
def test_the_search_for_places_can_find(text):
    assert PRIVATE.search(text)


# ---- one version ---------------------------------------------------------------------------------


def test_one_version_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)$", citation, re.M) == [softdict.__version__]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\d\S*)", changes, re.M)
    assert versions[:1] == [softdict.__version__], "the newest version comes first"
