"""The page computes what the library computes, under Node and in a browser; its panels do what they say."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from softdict import InverseDistance, SoftDict, attention_weights, play
from softdict.cli import main
from softdict.encoders import CharNgrams
from softdict.playground import SIMILARITIES, STORY

DATA = files("softdict").joinpath("data")
ARITHMETIC = DATA.joinpath("playground.js").read_text(encoding="utf-8")
INF = float("inf")
NEAR = 1e-9  # of what two languages may differ in the last bits
TEMPERATURES = 0.0, 1e-3, 0.7, 25.0, INF

needs_node = pytest.mark.skipif(not shutil.which("node"), reason="there is no node on the PATH")


# ---- the same cases for the library and for the page ---------------------------------------------

#: Runs every case by the page's functions; JSON has no infinity, so temperatures come as text.
RUN = """
const run = (cases) => cases.map(({ kind, T, ...c }) => {
  T = Number(T);
  if (kind === "draws") return draws(c.seed, c.trials, c.n, c.d);
  if (kind === "attention") {
    const weights = attention(c.q, c.k, T, c);
    return { weights, rows: rowSums(weights), columns: rowSums(transpose(weights)) };
  }
  const scores = score(c.similarity, c.query, c.keys), { weights, nullWeight } = weigh(scores, T, c);
  return { scores, weights, nullWeight, value: blend(weights, c.values), effective: effective(weights),
           winner: winner(scores, c.where) };
});
"""

KEYS = {
    1: [[6.0], [12.0], [18.0]],
    2: [[1.0, 0.0], [0.0, 1.0], [3.0, 3.0], [0.0, 0.0], [1.0, 1e-200]],
    3: [[1e5, 1e5, 1.0], [1e5, 1e5, 2.0], [-1.0, 2.0, 0.5], [1e-170, 0.0, 0.0]],
    9: np.random.default_rng(9).normal(size=(6, 9)).tolist(),
}
QUERIES = {
    1: [[12.0], [10.0], [1e6]],
    2: [[1.0, 0.1], [1.0, 0.0], [0.0, 0.0]],
    3: [[1e5, 1e5, 1.5], [1e-170, 1e-170, 0.0]],
    9: [KEYS[9][2], np.random.default_rng(0).normal(size=9).tolist()],
}


def js(number: float) -> str:
    return "Infinity" if number == INF else str(number)


def lookups() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found = []
    for d, similarity, temperature, null_score in itertools.product(
        KEYS, SIMILARITIES, TEMPERATURES, (None, -0.3, 0.0, 2.0)
    ):
        keys, n = KEYS[d], len(KEYS[d])
        values = [[float(j), 1.0 - j * j] for j in range(n)] if d == 2 else [3.0 * j - 1 for j in range(n)]
        sd = SoftDict.from_arrays(
            np.array(keys), np.array(values), [f"entry {j}" for j in range(n)],
            similarity=similarity, temperature=temperature, null_score=null_score,
        )  # fmt: skip
        masks = None, [j % 3 != 1 for j in range(n)], [False] * n
        for query, where in itertools.product(QUERIES[d], masks):
            why = sd.lookup(np.array(query), where=None if where is None else np.array(where))
            case = {
                "kind": "lookup", "similarity": similarity, "T": js(temperature), "query": query,
                "keys": keys, "values": values, "where": where, "nullScore": null_score,
            }  # fmt: skip
            want = {
                "scores": sd.lookup(np.array(query)).scores, "weights": why.weights,
                "nullWeight": why.null_weight, "value": why.value, "effective": why.effective,
                "winner": -1 if why.winner is None else why.keys.index(why.winner),
            }  # fmt: skip
            found.append((case, want))
    return found


def attentions() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(2, 5, 3))
    found = []
    for temperature, similarity, where, wrong in itertools.product(
        TEMPERATURES, SIMILARITIES, (None, [True, False, True, True, False]), (False, True)
    ):
        settings = {"temperature": temperature, "similarity": similarity}
        if wrong:  # softmax down the columns: each key's queries share
            weights = attention_weights(k, q, **settings, where=None if where is None else np.array(where)).T
        else:
            weights = attention_weights(q, k, **settings, where=None if where is None else np.array(where))
        case = {
            "kind": "attention", "T": js(temperature), "q": q.tolist(), "k": k.tolist(),
            "similarity": similarity, "where": where, "wrongAxis": wrong,
        }  # fmt: skip
        found.append((case, {"weights": weights, "rows": weights.sum(1), "columns": weights.sum(0)}))
    return found


def drawn() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found = []
    for seed, d in ((1, 2), (7, 32), (123456, 129)):
        rng = np.random.RandomState(seed)  # whose numbers never change
        q, k = rng.normal(size=(20, 1, d)), rng.normal(size=(20, 8, d))
        raw, scaled = (attention_weights(q, k, similarity=s)[:, 0] for s in ("dot", "scaled_dot"))
        case = {"kind": "draws", "T": "1", "seed": seed, "trials": 20, "n": 8, "d": d}
        found.append((case, {"raw": raw, "scaled": scaled}))
    return found


def fixtures() -> tuple[list[Any], list[Any]]:
    """Return cases, and what the library says of them, in this run."""
    cases, wants = zip(*lookups(), *attentions(), *drawn(), strict=True)
    return list(cases), list(wants)


CASES, WANTED = fixtures()


def differences(found: list[Any]) -> list[str]:
    """Return where the page and the library differ."""
    assert len(found) == len(WANTED)
    wrong = []
    for case, got, want in zip(CASES, found, WANTED, strict=True):
        for name, numbers in want.items():
            page, library = np.array(got[name], float), np.array(numbers, float)  # null would be NaN
            if page.shape != library.shape or not np.allclose(page, library, rtol=NEAR, atol=NEAR):
                wrong.append(f"{name} of {case}: {page} in place of {library}")
    return wrong


def by_node(source: str = ARITHMETIC) -> list[Any]:
    given = json.dumps(CASES)
    program = f"{source}\n{RUN}\nconsole.log(JSON.stringify(run(JSON.parse(require('fs').readFileSync(0)))))"
    done = subprocess.run(
        ["node", "-e", program], input=given, capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


@needs_node
def test_node_computes_what_the_library_computes():
    assert len(CASES) > 1000
    assert differences(by_node()) == []


@needs_node
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Math.exp(tempered(", "Math.exp(1.000001 * tempered("),
        ("(score - best) / temperature", "(score - best) / (temperature + 1e-6)"),
        ("score === best ? 0 :", ""),
        ("loudest >= nullScore", "loudest > nullScore"),
        ("Math.sqrt(Math.max(width, 1))", "Math.sqrt(Math.max(width, 2))"),
        ("(a - b) * (a - b)) / 2", "(a - b) * (a - b)) / 2.000001"),
        ("? -Number.MIN_VALUE : score", "? score : score"),
        ("wrongAxis ? transpose(shares(transpose(scores))) :", ""),
        ("1812433253", "1812433255"),
    ],
)
def test_one_wrong_constant_is_seen(right, wrong):
    assert ARITHMETIC.count(right) == 1
    assert differences(by_node(ARITHMETIC.replace(right, wrong)))


# ---- the file --------------------------------------------------------------------------------------


def test_one_file_that_asks_nothing_of_the_network(tmp_path):
    path = tmp_path / "page.html"
    assert play(None, path) is None
    assert path.stat().st_size < 400_000
    page = path.read_text(encoding="utf-8")
    assert "{{" not in page.replace("${", "")
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#)|@import|url\(|fetch\(|XMLHttp", page)
    assert set(re.findall(r"https?://[^\s\"'`)]+", page)) == {"http://www.w3.org/2000/svg"}  # a name


def data_of(path: Any) -> dict[str, Any]:
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.S)[1])


# ---- what is handed in -----------------------------------------------------------------------------


def test_numbers_are_kept_to_the_last_bit(tmp_path):
    keys = np.array([[0.1, 1e-300], [1 / 3, -2.0]])
    play(SoftDict.from_arrays(keys, [0.1, 0.2], ["a", "b"], temperature=INF), tmp_path / "page.html")
    yours = data_of(tmp_path / "page.html")["sets"]["yours"]
    assert (array(yours["keys"]) == keys).all()
    assert array(yours["values"]).tolist() == [0.1, 0.2]
    assert (yours["temperature"], yours["names"], yours["codes"]) == ("Infinity", ["a", "b"], ["'a'", "'b'"])


def array(packed: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["bytes"]), f"<{packed['kind']}").reshape(packed["shape"])


def test_coordinates_that_are_zero_everywhere_take_no_room(tmp_path):
    texts = ["the cat", "a dog", "some trains"]
    sd = SoftDict(zip(texts, texts, strict=True), encoder=CharNgrams(8192), similarity="scaled_dot")
    play(sd, tmp_path / "page.html", queries=["cats?"])
    yours = data_of(tmp_path / "page.html")["sets"]["yours"]
    keys, (query,) = array(yours["keys"]), yours["queries"]
    assert (yours["width"], yours["measures"], query["code"]) == (8192, False, "'cats?'")
    assert keys.shape[1] < 100
    scores = sd.lookup("cats?").scores
    assert np.allclose(keys @ array(query["key"]) / np.sqrt(8192), scores, rtol=NEAR)


def test_wide_keys_are_drawn_in_their_main_directions(tmp_path):
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(60, 5)) * [1, 30, 1, 10, 1]
    play(SoftDict.from_arrays(keys, np.zeros(60)), tmp_path / "page.html")
    spots = np.array(data_of(tmp_path / "page.html")["sets"]["yours"]["plane"])
    assert spots.shape == (40, 2)
    widest = (keys[:40] - keys[:40].mean(0))[:, [1, 3]]
    for axis in (0, 1):
        assert abs(np.corrcoef(spots[:, axis], widest[:, axis])[0, 1]) > 0.95


HOSTILE = [
    "</script><script>window.taken = 1</script>",
    "<img src=x onerror='window.taken = 1'>",
    "<!--<script>",
    "\"'`\\ \u2028 \x7f {{ data }} ${1} \ud800",
    "__proto__",
]


def hostile() -> SoftDict:
    keys = np.arange(len(HOSTILE) * 2.0).reshape(-1, 2)
    return SoftDict.from_arrays(keys, HOSTILE[::-1], HOSTILE)


def test_no_text_ends_the_script(tmp_path):
    play(hostile(), tmp_path / "page.html", queries=[HOSTILE[0]])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    plain = tmp_path / "plain.html"
    play(None, plain)
    for mark in ("<script", "</script", "<!--", "<img"):
        assert page.count(mark) == plain.read_text(encoding="utf-8").count(mark)
    yours = data_of(tmp_path / "page.html")["sets"]["yours"]
    assert (yours["names"], yours["values"]) == (HOSTILE, HOSTILE[::-1])


@pytest.mark.parametrize(
    ("sd", "queries", "error", "words"),
    [
        (None, ["cat"], ValueError, ["'cat'", "a SoftDict"]),
        ({1: 2.0}, [], TypeError, ["{1: 2.0}", "SoftDict"]),
        (SoftDict(), [], ValueError, ["empty", "None"]),
        (SoftDict({1: 2.0}, weighting="sparsemax"), [], ValueError, ["'sparsemax'", "weighting='softmax'"]),
        (SoftDict({1: 2.0}, top_k=1), [], ValueError, ["top_k is 1", "top_k=None"]),
        (SoftDict({1: 2.0}, min_score=0.5), [], ValueError, ["min_score is 0.5"]),
        (SoftDict({1: 2.0}, similarity=InverseDistance(1.0)), [], ValueError, ["InverseDistance"]),
        (SoftDict({1: 2.0}), [[1, 2]], ValueError, ["[1, 2]", "one by one"]),
        (SoftDict({1: 2.0}), ["cat"], KeyError, ["cat"]),
        (SoftDict.from_arrays(np.random.default_rng(0).normal(size=(900, 90)), np.zeros(900)), [], ValueError,
         ["bytes", "400,000", "fewer"]),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path, sd, queries, error, words):
    with pytest.raises(error) as caught:
        play(sd, tmp_path / "page.html", queries)
    assert all(word in str(caught.value) for word in words)
    assert not (tmp_path / "page.html").exists()


def test_the_command_writes_the_page(tmp_path, capsys):
    page, saved = tmp_path / "page.html", tmp_path / "words.npz"
    assert main(["play", str(page)]) == 0
    assert set(data_of(page)["sets"]) == set(STORY)
    SoftDict({"cat": 1.0, "dog": 2.0}, encoder=CharNgrams(64)).save(saved)
    assert main(["play", str(page), "--load", str(saved), "--query", "cats"]) == 0
    assert data_of(page)["sets"]["yours"]["queries"][0]["name"] == "cats"
    assert capsys.readouterr() == ("", "")
    for wrong, words in (
        ([str(tmp_path / "none" / "page.html")], "cannot write"),
        ([str(page), "--load", str(tmp_path / "none.npz")], "cannot read"),
        ([str(page), "--load", str(page)], "npz"),
        ([], "OUT.html"),
    ):
        assert main(["play", *wrong]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
