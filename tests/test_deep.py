"""examples/deep.py: what it prints and draws follows from a plain computation, whatever the noise."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from softdict import SelfAttention

ROOT = Path(__file__).parents[1]
PATH = ROOT / "examples" / "deep.py"
SEEDS = range(12)
ENDS = [("tired", "animal", "street"), ("wide", "street", "animal")]


def load():
    spec = importlib.util.spec_from_file_location("deep", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


deep = load()


# ---- the same in plain NumPy ---------------------------------------------------------------------


def formula(x, residual, layers=32, w_v=1 / 8, temperature=0.2):
    """Return the words after each layer, and the weights of each, one word at a time by the formula.

    The example's features come first: pronoun, thing, state, alive, extent.
    """
    w_q = np.eye(x.shape[1])
    w_q[0, 1], w_q[0, 2], w_q[3, 3], w_q[4, 4] = 1.5, 1.25, 2, 2
    steps, weights = [x], []
    for _ in range(layers):
        words, shares = [], []
        for word in x:
            scores = np.array([(word @ w_q) @ other for other in x]) / temperature
            e = np.exp(scores - max(scores))
            shares.append(e / e.sum())
            new = shares[-1] @ x * w_v + (word if residual else 0)
            words.append(new / np.sqrt(new @ new))
        x = np.array(words)
        steps.append(x)
        weights.append(np.array(shares))
    return steps, weights


def cosine(a, b):
    return a @ b / np.sqrt((a @ a) * (b @ b))


def pairs(x):
    return [cosine(x[i], x[j]) for i in range(len(x)) for j in range(i)]


def columns(words, steps):
    """Return the columns of one half of the table, a row for each layer."""
    it = words.index("it")
    start = [steps[0][words.index(word)] for word in ("it", "animal", "street", words[-1])]
    return np.array([[*(cosine(x[it], word) for word in start), np.mean(pairs(x))] for x in steps])


@pytest.fixture(scope="module")
def plain():
    """Return words and, with residuals and without, steps and weights of the example's own sentence."""
    words = deep.sentence()
    x = deep.embed(words)
    return words, {residual: formula(x, residual, 110) for residual in (True, False)}


# ---- what it prints ------------------------------------------------------------------------------


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-W", "error", PATH, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    done = run(cwd=tmp_path_factory.mktemp("deep"))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_fits_80_columns(printed):
    assert 60 < max(map(len, printed.splitlines())) <= 80


def test_the_table_is_the_formula_s(printed, plain):
    words, both = plain
    rows = re.findall(r"^ +(\d+) ((?: +-?\d\.\d\d){10})$", printed, re.M)
    assert [int(layer) for layer, _ in rows] == [0, 1, 2, 4, 8, 16, 32]
    want = np.hstack([columns(words, both[residual][0]) for residual in (True, False)])
    for layer, numbers in rows:
        np.testing.assert_allclose(np.array(numbers.split(), float), want[int(layer)], rtol=0, atol=0.00501)


def test_whom_it_listens_to_is_the_formula_s(printed, plain):
    words, both = plain
    found = re.findall(r'^in layer (\d+) "it" listens to (.+)$', printed, re.M)
    assert [int(layer) for layer, _ in found] == [1, 32]
    for layer, text in found:
        weights = both[True][1][int(layer) - 1][words.index("it")]
        best = np.argsort(-weights)[:4]
        names, shares = zip(*(entry.split() for entry in text.split(", ")), strict=True)
        assert list(names) == [words[i] for i in best]
        np.testing.assert_allclose(np.array(shares, float), weights[best], rtol=0, atol=0.00501)


def test_the_conclusions_are_the_formula_s(printed, plain):
    words, both = plain
    wide = deep.sentence("wide")
    for text, sentence, steps in (
        ('with residuals "it" has come nearest to', words, both[True][0]),
        ('and with "wide" in place of "tired" to', wide, formula(deep.embed(wide), True)[0]),
    ):
        now = steps[32][sentence.index("it")]
        near = {word: cosine(now, x) for word, x in zip(sentence, steps[0], strict=True)}
        assert f"{text}: {max(near, key=near.get)}\n" in printed
    least = {residual: [min(pairs(x)) for x in steps] for residual, (steps, _) in both.items()}
    assert f"in the end: {least[True][32]:.2f} with residuals, {least[False][32]:.2f} without\n" in printed
    kept, lost = (next(i for i, x in enumerate(least[residual]) if x > 0.99) for residual in (True, False))
    assert f"0.99 alike: {kept} with residuals, {lost} without\n" in printed


# ---- the effect does not hang on the noise -------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("last", "right", "wrong"), ENDS)
def test_it_takes_on_the_noun_that_fits_layer_by_layer(last, right, wrong, seed):
    words, layer = deep.sentence(last), deep.by_hand()
    it = words.index("it")
    steps = deep.deepen(deep.embed(words, seed), layer, residual=True)
    np.testing.assert_allclose(steps, formula(steps[0], True)[0], rtol=0, atol=1e-9)
    story = deep.story(words, steps)
    assert deep.nearest(words, steps) == right
    assert story[right][-1] > story[wrong][-1] + 0.2
    assert (np.diff(story[right][[0, 1, 2, 4, 8, 16, 32]]) > 0).all()  # more in every row of the table
    assert story[last][-1] > story[last][0] + 0.2
    assert 0.3 < story["it"][-1] < 0.7  # it is still itself too

    first, final = (layer.lookup(steps[i], words)[0].weights[it] for i in (0, 31))
    right, wrong = words.index(right), words.index(wrong)
    assert 0.5 < first[right] / first[wrong] < 2  # one layer cannot tell them apart
    assert final[right] > 10 * final[wrong]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("last", ["tired", "wide"])
def test_without_residuals_all_words_become_one(last, seed):
    x, layer = deep.embed(deep.sentence(last), seed), deep.by_hand()
    kept, lost = (deep.deepen(x, layer, residual) for residual in (True, False))
    assert np.mean(pairs(x)) < 0.1
    assert np.mean(pairs(kept[-1])) < 0.25
    assert min(pairs(lost[-1])) > 1 - 1e-9
    mean, least = deep.alike(np.array([x, kept[-1], lost[-1]]))
    np.testing.assert_allclose(mean, [np.mean(pairs(y)) for y in (x, kept[-1], lost[-1])], atol=1e-12)
    np.testing.assert_allclose(least, [min(pairs(y)) for y in (x, kept[-1], lost[-1])], atol=1e-12)


def test_without_residuals_the_blur_comes_faster_and_faster():
    """Dong et al., 2021: what is left of the differences shrinks by a larger factor in each layer."""
    lost = formula(deep.embed(deep.sentence()), False)[0]
    left = np.array([np.linalg.norm(x - x.mean(axis=0)) / np.linalg.norm(x) for x in lost])
    left = left[: np.argmax(left < 1e-12)]
    drops = -np.diff(np.log(left))
    assert len(left) > 8
    assert drops[-1] > 2 * drops[-2] > 4 * drops[-3] > 0


def test_the_blur_does_not_come_from_small_steps():
    """The eighth in w_v makes no difference where nothing is added to."""
    x, layer = deep.embed(deep.sentence()), deep.by_hand()
    whole = SelfAttention(layer.w_q, layer.w_k, 8 * layer.w_v, similarity="dot", temperature=0.2)
    small, large = (deep.deepen(x, one, residual=False) for one in (layer, whole))
    np.testing.assert_allclose(small, large, rtol=0, atol=1e-9)


def test_the_last_word_alone_decides():
    """Words but the last start the same in both sentences, and "it" knows neither noun."""
    tired, wide = (deep.embed(deep.sentence(last)) for last in ("tired", "wide"))
    np.testing.assert_array_equal(tired[:-1], wide[:-1])
    it, animal, street = (tired[deep.sentence().index(word)] for word in ("it", "animal", "street"))
    assert max(abs(it @ animal), abs(it @ street)) < 0.1


# ---- the picture ---------------------------------------------------------------------------------


def test_the_picture_is_written_and_shows_both_panels(tmp_path, printed, plain):
    done = run("--plot", "deep.png", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
    content = (tmp_path / "deep.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(content) > 20_000

    words, both = plain
    panels = [deep.story(words, deep.deepen(deep.embed(words), deep.by_hand(), r)) for r in (True, False)]
    figure = deep.draw(panels)
    assert [ax.get_title() for ax in figure.axes] == ["with residuals: x + layer(x)", "without: layer(x)"]
    assert [ax.get_xlabel() for ax in figure.axes] == ["layer", "layer"]
    assert figure.axes[0].get_ylabel() == 'cosine of "it" with words at the start'
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["it", "animal", "street", "tired", "any two words, with each other"]
    for ax, residual in zip(figure.axes, (True, False), strict=True):
        lines = np.array([line.get_ydata() for line in ax.lines])
        np.testing.assert_allclose(lines.T, columns(words, both[residual][0])[:33], rtol=0, atol=1e-9)
        assert ax.get_ylim()[0] < lines.min() < lines.max() < ax.get_ylim()[1]
        looks = {(line.get_color(), line.get_linestyle()) for line in ax.lines}
        assert len(looks) == len({color for color, _ in looks}) == 5


def test_without_matplotlib_it_says_what_to_install(tmp_path, printed, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match=r'matplotlib is not installed.*pip install "softdict\[plot\]"'):
        deep.main(["--plot", str(tmp_path / "deep.png")])
    assert capsys.readouterr().out == printed  # the numbers come first
    assert not list(tmp_path.iterdir())


def test_matplotlib_is_loaded_for_the_picture_only():
    code = f"import sys, runpy; sys.argv[1:] = []; runpy.run_path({str(PATH)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint('matplotlib' in sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.splitlines()[-1] == "False"
