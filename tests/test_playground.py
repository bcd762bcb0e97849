"""The page computes what the library computes, under Node and in a browser; its panels do what they say."""

from __future__ import annotations

import ast
import base64
import copy
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from softdict import InverseDistance, SoftDict, attention_weights, play
from softdict.cli import help_topics, main
from softdict.encoders import CharNgrams
from softdict.playground import SIMILARITIES, STORY, numbers

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
        for name, wanted in want.items():
            page, library = np.array(got[name], float), np.array(wanted, float)  # null would be NaN
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


def array(packed: Any) -> np.ndarray:
    if isinstance(packed, list):
        return np.array([array(row) for row in packed])

    def part(name: str, kind: str) -> np.ndarray:
        return np.frombuffer(base64.b64decode(packed[name]), kind)

    numbers, places = part("numbers", f"<{packed['kind']}"), part("places", "u1")
    flat = np.zeros(np.prod(packed["shape"], dtype=int))
    some = np.unpackbits(part("bits", "u1"), count=flat.size).astype(bool)
    flat[some] = numbers[places] if len(places) else numbers
    return flat.reshape(packed["shape"])


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    texts = ["the cat and the dog and the cat", "", "a", "trains " * 300]
    return [
        CharNgrams()(texts),
        rng.normal(size=(5, 40)) * (rng.random((5, 40)) < 0.2),
        rng.integers(-1, 2, size=(9, 33)) * -0.0,
        rng.choice([0.0, -0.0, 0.1, 1e-300], size=(3, 50)),
        np.arange(300.0).repeat(9).reshape(10, -1),  # more than a byte can tell
        rng.choice([0.5, 3.0], size=(4, 2, 8)),
        rng.normal(size=77).astype(np.float32),
        np.zeros((4, 0)),
        np.array([2.5]),
    ]


@needs_node
def test_the_page_reads_numbers_to_the_last_bit():
    unpack = re.search(r"^const bytes = .*?^}$", DATA.joinpath("panels.js").read_text("utf-8"), re.S | re.M)
    packed = [numbers(x) for x in arrays()]
    program = f"""{unpack[0]}
    const given = JSON.parse(require("fs").readFileSync(0));
    const hex = (x) => Buffer.from(new Float64Array(unpack(x).flat()).buffer).toString("hex");
    console.log(JSON.stringify(given.map(hex)));"""
    done = subprocess.run(
        ["node", "-e", program],
        input=json.dumps(packed),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == [x.astype("<f8").tobytes().hex() for x in arrays()]
    assert [array(x).tobytes() for x in packed] == [
        x.reshape(len(x), -1).astype(float).tobytes() for x in arrays()
    ]


def test_a_hundred_paragraphs_fit(tmp_path):
    topics = [entry.text for entry in help_topics()]
    texts = [text for text in topics if 250 < len(text) < 450][:100]
    sd = SoftDict(zip(texts, texts, strict=True), encoder=CharNgrams(), similarity="cosine", temperature=0.05)
    assert len(sd) == 100
    play(sd, tmp_path / "page.html", queries=["how do I write an anonymous function?"] * 9)
    assert (tmp_path / "page.html").stat().st_size < 400_000
    yours = data_of(tmp_path / "page.html")["sets"]["yours"]
    assert (array(yours["keys"]) == sd.key_vectors[:, (sd.key_vectors != 0).any(axis=0)]).all()
    points = np.random.default_rng(0).normal(size=(3000, 2))  # whole: a row of its own takes more room
    play(SoftDict.from_arrays(points, np.zeros(3000)), tmp_path / "page.html")


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
        (SoftDict({"cat": 1.0}, encoder=CharNgrams()), "my roses need cutting", TypeError,
         ["queries is 'my roses need cutting', one text", "queries=['my roses need cutting']"]),
        (SoftDict.from_arrays(np.random.default_rng(0).normal(size=(900, 90)), np.zeros(900)), [], ValueError,
         ["bytes", "400,000", "fewer", "CharNgrams(d=512)"]),
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
    given = tmp_path / "given.npz"
    SoftDict({"cat": 1.0}, encoder=lambda texts: [[len(text)] for text in texts]).save(given)
    for wrong, words in (
        ([str(tmp_path / "none" / "page.html")], "cannot write"),
        ([str(page), "--load", str(tmp_path / "none.npz")], "cannot read"),
        ([str(page), "--load", str(page)], "npz"),
        ([str(page), "--load", str(given)], "play(SoftDict.load(...), "),
        ([], "OUT.html"),
    ):
        assert main(["play", *wrong]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1


@pytest.mark.parametrize("encoder", ["ngram", "tfidf"])
def test_the_command_shows_an_index_that_was_saved(tmp_path, capsys, encoder):
    pytest.importorskip("sklearn" if encoder == "tfidf" else "numpy")
    texts, index, page = tmp_path / "pets.md", tmp_path / "index.npz", tmp_path / "page.html"
    texts.write_text("The dog barks.\n\n# Cats\n\nA cat purrs.\n\nNo cat swims.\n", encoding="utf-8")
    question = ["ask", "which cat swims?", "--json", "--temperature", "0.05"]
    assert main([*question, str(texts), "--encoder", encoder, "--save", str(index)]) == 0
    answer = json.loads(capsys.readouterr().out)["entries"]
    assert main(["play", str(page), "--load", str(index), "--query", question[1]]) == 0
    yours = data_of(page)["sets"]["yours"]
    assert yours["names"] == ["pets.md:1", "Cats pets.md:5", "Cats pets.md:7"]
    assert (yours["similarity"], yours["temperature"]) == ("cosine", 0.05)
    keys, query = array(yours["keys"]), array(yours["queries"][0]["key"])
    cosines = keys @ query / np.linalg.norm(keys, axis=1) / np.linalg.norm(query)
    page_says = dict(zip(yours["values"], cosines, strict=True))
    assert page_says == pytest.approx({entry["value"]: entry["score"] for entry in answer}, rel=1e-5)


def test_an_index_that_is_too_large_for_a_page(tmp_path, capsys):
    index = tmp_path / "index.npz"
    assert main(["ask", "what is a lambda?", "--save", str(index)]) == 0
    capsys.readouterr()
    assert main(["play", str(tmp_path / "page.html"), "--load", str(index)]) == 2
    said = capsys.readouterr().err
    assert "400,000" in said
    assert "an index of fewer or shorter files" in said


# ---- in a browser ----------------------------------------------------------------------------------

PANELS = "dict", "plane", "highlighter", "roles", "head", "dimension"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play_wright:  # Debian's Chromium, or else the one that Playwright has installed
        found = shutil.which("chromium")
        browser = play_wright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, tmp_path):
    """Open pages from files; at the end see that they asked for nothing else and complained of nothing."""
    requests, said, contexts = [], [], []

    def open_page(sd: Any = None, queries: Any = (), width: int = 1280, **options: Any) -> Any:
        path = tmp_path / "page.html"
        play(sd, path, queries)
        options = {"viewport": {"width": width, "height": 900}, "reduced_motion": "reduce"} | options
        contexts.append(chromium.new_context(**options))
        page = contexts[-1].new_page()
        page.route(lambda url: url != path.as_uri(), lambda route: route.abort())
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.as_uri())
        return page

    yield open_page
    assert set(requests) == {(tmp_path / "page.html").as_uri()}
    assert said == []
    for context in contexts:
        context.close()


def reveal(page: Any, panel: str, choice: int = 0) -> str:
    """Make a guess, with the keyboard, and return what is said of it."""
    assert page.locator(f"#{panel} .reveal").is_hidden()
    page.locator(f"#{panel} .guess input").nth(choice).focus()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    assert page.locator(f"#{panel} .reveal").is_visible()
    return page.locator(f"#{panel} .guess output").inner_text()


def reproduced(page: Any, panel: str, sd: Any = None) -> Any:
    """Run the Python that a panel shows, and return what its last line returns."""
    namespace = {"sd": copy.copy(sd)}
    exec(page.locator("#imports").text_content(), namespace)
    *before, last = ast.parse(page.locator(f"#{panel}-python").text_content()).body
    exec(compile(ast.Module(before, []), panel, "exec"), namespace)
    return eval(compile(ast.Expression(last.value), panel, "eval"), namespace)


def data(page: Any, where: str) -> Any:
    """Return the numbers that are shown, to their last digits."""
    return np.array([json.loads(x.get_attribute("value")) for x in page.locator(f"{where} data").all()])


def same(shown: Any, computed: Any) -> None:
    assert np.shape(shown) == np.shape(computed)
    assert np.allclose(shown, computed, rtol=NEAR, atol=NEAR)


def turn(page: Any, panel: str, *angles: float) -> str:
    """Drag the hand of a dial through angles, clockwise from the top; return the T that it shows."""
    dial = page.locator(f"#{panel} .dial svg")
    dial.scroll_into_view_if_needed()
    box = dial.bounding_box()
    for i, angle in enumerate(np.radians(angles)):
        r = box["width"] * 0.3
        y = box["y"] + box["height"] * 60 / 118 - r * np.cos(angle)
        page.mouse.move(box["x"] + box["width"] / 2 + r * np.sin(angle), y)
        if i == 0:
            page.mouse.down()
    page.mouse.up()
    return page.locator(f"#{panel} .dial output").inner_text()


@pytest.mark.browser
def test_the_browser_computes_what_the_library_computes(opened):
    assert differences(opened().evaluate(f"(cases) => {{ {RUN} return run(cases) }}", CASES)) == []


@pytest.mark.browser
@pytest.mark.parametrize("panel", PANELS)
def test_a_guess_comes_first_and_is_answered(opened, panel):
    page = opened()
    page.locator(f"#{panel} .guess button").click()  # nothing was chosen
    choices = page.locator(f"#{panel} .guess input").count()
    said = [reveal(page, panel)]
    for choice in range(1, choices):
        page.reload()
        said.append(reveal(page, panel, choice))
    assert sorted(text.split(":")[0] for text in said) == ["Not so"] * (choices - 1) + ["Right"]
    assert len({text.split(": ", 1)[1] for text in said}) == 1


@pytest.mark.browser
@pytest.mark.parametrize("panel", ["dict", "plane", "highlighter", "head"])
def test_the_dial_has_two_end_stops(opened, panel):
    page = opened()
    reveal(page, panel)
    middle = page.locator(f"#{panel} .dial output").inner_text()
    assert turn(page, panel, 0, -60, -120, -150, -179) == "T = 0"  # past the stop
    assert "temperature=0" in page.locator(f"#{panel}-python").text_content().splitlines()[-1]
    for_all(page, panel)
    assert turn(page, panel, -135, -170, 170, 140) == "T = 0"  # the stop holds: no jump to the other end
    assert turn(page, panel, -90, 0, 90, 150) == "T = \u221e"
    assert 'temperature=float("inf")' in page.locator(f"#{panel}-python").text_content()
    for_all(page, panel)
    page.keyboard.press("Home")  # the dial has the focus
    assert page.locator(f"#{panel} .dial output").inner_text() == "T = 0"
    page.keyboard.press("ArrowRight")
    assert 0 < float(page.locator(f"#{panel} .dial output").inner_text().split()[-1]) < 0.1
    page.keyboard.press("End")
    slider = page.locator(f"#{panel}").get_by_role("slider", name="Temperature T")
    assert slider.get_attribute("aria-valuetext") == "T infinite, the plain mean"
    for _ in range(50):
        page.keyboard.press("ArrowLeft")
    assert page.locator(f"#{panel} .dial output").inner_text() == middle
    for_all(page, panel)


def for_all(page: Any, panel: str) -> None:
    """Compare what a panel with a dial shows with what its Python returns."""
    where = {"dict": ".answer:has(#dict-soft)", "plane": ".bars", "head": ".sentence"}
    shown = texts(page) if panel == "highlighter" else data(page, f"#{panel} {where[panel]}")
    same(shown[0] if panel == "dict" else shown, reproduced(page, panel))


def texts(page: Any) -> Any:
    """Return the shares of the texts as they are stored, where the page shows them best first."""
    shown = data(page, "#highlighter .texts")
    assert (np.diff(shown) <= 0).all()
    stored = np.empty(len(shown))
    stored[[int(x.get_attribute("value")) - 1 for x in page.locator(".texts li").all()]] = shown
    return stored


@pytest.mark.browser
def test_dict_is_asked_and_edited(opened):
    page = opened()
    reveal(page, "dict")
    hard, soft = page.locator("#dict .answer").all()

    def both() -> tuple[str, Any]:
        shown = json.loads(page.locator("#dict-soft").get_attribute("value"))
        same(shown, reproduced(page, "dict"))
        return hard.inner_text().splitlines()[-1], shown

    assert both() == ("KeyError: 10", pytest.approx(15.88, abs=0.01))
    page.get_by_label("Ask for").fill("12")
    assert both()[0] == "20"
    page.get_by_label("value of 12").fill("-1.5e1")
    assert both()[0] == "-15"
    page.get_by_label("value of 12").fill("much")  # no number: nothing changes
    assert both()[0] == "-15"
    assert page.get_by_label("value of 12").get_attribute("aria-invalid") == "true"
    page.locator("#dict").get_by_placeholder("key").fill("13")
    page.locator("#dict").get_by_placeholder("value").fill("40")
    page.keyboard.press("Enter")
    before = both()[1]
    page.get_by_label("delete 6").focus()
    page.keyboard.press("Enter")
    assert both()[1] != before
    page.get_by_label("null_score").fill("0")
    assert "silent entry takes" in soft.inner_text()
    assert abs(both()[1]) < abs(before)
    page.get_by_label("null_score").fill("")
    for name in ("12", "13", "18"):
        page.get_by_label(f"delete {name}").click()
    assert "KeyError" in soft.inner_text()
    with pytest.raises(KeyError, match="empty"):
        reproduced(page, "dict")
    page.get_by_label("Ask for").fill("1, 2")
    assert "ValueError" in soft.inner_text()


@pytest.mark.browser
def test_dict_of_your_own(opened):
    texts = ["a cat", "a dog", "the \u00e9clair"]
    sd = SoftDict(dict(zip(texts, ["meows", "barks", "is eaten"], strict=True)), encoder=CharNgrams(),
                  similarity="cosine", temperature=0.1)  # fmt: skip
    page = opened(sd, queries=["cats", "dogs"])
    reveal(page, "dict")
    soft = page.locator("#dict .answer").nth(1)
    for text, answer in (("cats", "KeyError: 'cats'"), ("a dog", "barks"), ("mice", 'KeyError: "mice"')):
        page.get_by_label("Ask for").fill(text)
        assert page.locator("#dict .answer").first.inner_text().splitlines()[-1] == answer
        if text == "mice":
            assert "not encoded" in soft.inner_text()
        else:
            shown = json.loads(page.locator("#dict-soft").get_attribute("value"))
            want = reproduced(page, "dict", sd)
            assert shown == pytest.approx(want, abs=NEAR)
    page.get_by_label("Ask for").fill("cats")
    page.get_by_label("value of a dog").fill("meows")
    assert json.loads(page.locator("#dict-soft").get_attribute("value")) == pytest.approx(
        reproduced(page, "dict", sd.copy()), abs=NEAR
    )
    page.locator("#dict").get_by_label("Entries").select_option("an example")
    assert data(page, "#dict tbody").shape == (3,)
    for_all(page, "dict")


@pytest.mark.browser
def test_dict_of_vectors(opened):
    sd = SoftDict(
        {(0, 1): [1.0, 2.0], (1, 0): [3.0, 4.0], (1, 1): [5.0, 6.0]}, temperature=0.5, null_score=-1.0
    )
    page = opened(sd)
    reveal(page, "dict")
    same(json.loads(page.locator("#dict-soft").get_attribute("value")), reproduced(page, "dict", sd))
    page.get_by_label("Ask for").fill("(1, 0)")
    page.get_by_label("value of (1, 0)").fill("7, 8")
    assert page.locator("#dict .answer").first.inner_text().splitlines()[-1] == "[7, 8]"
    page.locator("#dict").get_by_placeholder("key").fill("2, 2")
    page.locator("#dict").get_by_placeholder("value").fill("1, 1")
    page.keyboard.press("Enter")
    same(json.loads(page.locator("#dict-soft").get_attribute("value")), reproduced(page, "dict", sd.copy()))


@pytest.mark.browser
@pytest.mark.parametrize("labels", [None, [3, (1, 2), b"bytes", True], ["1", "a b ", "", "\u00e9"]])
@pytest.mark.parametrize("d", [1, 2, 20])
def test_keys_of_every_kind(opened, labels, d):
    keys = np.random.default_rng(0).normal(size=(4, d)) * (np.arange(d) != 10)
    sd = SoftDict.from_arrays(keys, [1.0, 2.0, 3.0, 4.0], labels, similarity="scaled_dot")
    page = opened(sd, queries=[np.ones(d)])
    for panel in ("dict", "plane", "highlighter"):
        reveal(page, panel)
    for_all(page, "plane")
    questions = page.get_by_label("The question")
    for i in range(5):
        questions.select_option(index=i)
        same(texts(page), reproduced(page, "highlighter", sd))
    names = page.locator("#dict tbody th").all_text_contents()
    page.get_by_label("Ask for").fill(names[2] if d == 20 or labels else str(keys[2].tolist()))
    assert page.locator("#dict .answer").first.inner_text().splitlines()[-1] == "3"
    page.locator("#dict tbody input").nth(2).fill("30")
    page.locator("#dict tbody button").first.click()
    same(json.loads(page.locator("#dict-soft").get_attribute("value")), reproduced(page, "dict", sd.copy()))


@pytest.mark.browser
def test_one_entry_is_enough(opened):
    page = opened(SoftDict({6: 8.0}))
    for panel in PANELS:
        reveal(page, panel)
    assert data(page, "#dict tbody").tolist() == data(page, "#plane .bars").tolist() == [1]


@pytest.mark.browser
def test_labels_get_a_vector_when_added(opened):
    sd = SoftDict.from_arrays([[0.0, 1], [1, 0]], [1.0, 2.0], ["up", "right"], temperature=0.5)
    page = opened(sd)
    reveal(page, "dict")
    for place, text in (("name", "left"), ("its vector", "-1, 0"), ("value", "3")):
        page.locator("#dict").get_by_placeholder(place).fill(text)
    page.keyboard.press("Enter")
    page.get_by_label("Ask for").fill("left")
    same(json.loads(page.locator("#dict-soft").get_attribute("value")), reproduced(page, "dict", sd.copy()))
    page.get_by_label("Ask for").fill("0.5, 0.5")
    same(json.loads(page.locator("#dict-soft").get_attribute("value")), reproduced(page, "dict", sd.copy()))


@pytest.mark.browser
def test_plane_is_dragged_and_filled(opened):
    page = opened()
    assert "(1, 0) by gaussian, but (3, 3) by dot" in reveal(page, "plane")
    best = {}
    turn(page, "plane", 0, -120, -150)
    for similarity in SIMILARITIES:
        page.locator("#plane").get_by_role("combobox").select_option(similarity)
        best[similarity] = data(page, "#plane .bars").argmax()
        for_all(page, "plane")
    assert (best["gaussian"], best["dot"]) == (0, 2)
    turn(page, "plane", -135, 0)
    map_ = page.locator("#plane .map")
    map_.scroll_into_view_if_needed()
    box = map_.bounding_box()
    before = data(page, "#plane .bars")
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, box["y"] + 90, steps=4)
    page.mouse.up()
    at = [page.get_by_label(f"query {axis}").input_value() for axis in "xy"]
    handle = page.locator("#plane .query")
    assert handle.get_attribute("aria-valuetext") == f"x {at[0]}, y {at[1]}"
    spot = handle.locator("path").bounding_box()
    assert abs(spot["x"] + spot["width"] / 2 - box["x"] - 150) < 6
    assert abs(data(page, "#plane .bars") - before).max() > 0.01
    for_all(page, "plane")
    page.keyboard.press("ArrowUp")  # the query has the focus
    page.keyboard.press("Shift+ArrowLeft")
    assert float(page.get_by_label("query y").input_value()) > float(at[1])
    for_all(page, "plane")
    page.get_by_label("query x").fill("2.5")
    page.keyboard.press("Enter")
    before = data(page, "#plane .bars")
    page.get_by_role("button", name="Add entry here").click()
    after = data(page, "#plane .bars")
    assert (after[:3] < before).all()  # a new entry takes from all
    marks = [x.evaluate("x => parseFloat(x.style.left)") for x in page.locator("#plane .track b").all()]
    assert np.array(marks[:3]) / 100 == pytest.approx(before, abs=1e-6)  # as styles are kept
    for_all(page, "plane")
    page.get_by_role("button", name="Remove newest").click()
    same(data(page, "#plane .bars"), before)


@pytest.mark.browser
@pytest.mark.parametrize(
    "keys",
    [
        [65, 70, 72, 88, 90, 91, 95, 110],
        [(1, 1), (1.1, 1.05), (0.9, 1.2), (4, 4), (4.2, 3.9), (0, 3)],
        [(0, 0), (0, 0.2), (9, 9), (9, 8.8)],
    ],
)
def test_labels_of_the_plane_stand_apart(opened, keys):
    page = opened(SoftDict({key: 1.0 for key in keys}, temperature=4))
    reveal(page, "plane")
    frame = page.locator("#plane .map").bounding_box()
    found = [x.bounding_box() for x in page.locator("#plane .map text").all()]
    assert len(found) == len(keys)
    for a, b in itertools.combinations(found, 2):  # the boxes of lines of text are taller than their letters
        beside = max(a["x"], b["x"]) >= min(a["x"] + a["width"], b["x"] + b["width"])
        assert beside or max(a["y"], b["y"]) + 5 >= min(a["y"] + a["height"], b["y"] + b["height"])
    for box in found:
        assert frame["x"] <= box["x"] < box["x"] + box["width"] <= frame["x"] + frame["width"]


@pytest.mark.browser
def test_an_answer_that_is_a_sentence_has_one_full_stop(opened):
    page = opened(
        SoftDict({"Open on Saturdays.": "yes", "Closed": "no"}, encoder=CharNgrams()), ["saturdays"]
    )
    said = reveal(page, "highlighter")
    assert "Open on Saturdays. It gets" in said


@pytest.mark.browser
@pytest.mark.parametrize("d", [1, 2, 5])
def test_plane_of_your_own(opened, d):
    keys = np.random.default_rng(d).normal(size=(6, d))
    sd = SoftDict.from_arrays(keys, np.arange(6.0), similarity="laplacian", temperature=2)
    page = opened(sd)
    reveal(page, "plane")
    for_all(page, "plane")
    page.locator("#plane .query").focus()
    page.keyboard.press("Shift+ArrowRight")
    for_all(page, "plane")
    query = [float(page.get_by_label(f"query {axis}").input_value()) for axis in "xy"][:d]
    if d <= 2:
        same(data(page, "#plane .bars"), sd.lookup(np.array(query)).weights)


@pytest.mark.browser
def test_plane_answers_fingers(opened):
    page = opened(width=390, has_touch=True, is_mobile=True)
    page.locator("#plane .guess input").first.tap()
    page.locator("#plane .guess button").tap()
    page.locator("#plane .map").scroll_into_view_if_needed()
    before = page.locator("#plane .query").get_attribute("aria-valuetext")
    page.locator("#plane .map").tap(position={"x": 60, "y": 60})
    assert page.locator("#plane .query").get_attribute("aria-valuetext") != before
    page.locator("#plane .dial svg").tap(position={"x": 30, "y": 125})
    assert page.locator("#plane .dial output").inner_text() == "T = 0"
    for_all(page, "plane")


@pytest.mark.browser
def test_highlighter_inks_every_question(opened):
    page = opened()
    reveal(page, "highlighter")
    questions = page.get_by_label("The question")
    count = questions.locator("option").count()
    assert count == len(STORY["notes"][1]) + 5
    for i in range(count):
        questions.select_option(index=i)
        for_all(page, "highlighter")
        inks = [
            x.evaluate("x => getComputedStyle(x).backgroundColor") for x in page.locator(".texts li").all()
        ]
        assert inks[0] != inks[-1]


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_best_of_many_texts_is_in_sight_and_a_cut_is_seen(opened, width):
    names = [f"note {i}" for i in range(30)] + ["the cat", "a dog"]
    sd = SoftDict(zip(names, names, strict=True), encoder=CharNgrams(), similarity="cosine", temperature=0.05)
    page = opened(sd, queries=["cats", "dogs"], width=width)
    reveal(page, "dict")
    reveal(page, "highlighter")
    box = page.locator(".texts")
    for question, best in (("cats", "the cat"), ("dogs", "a dog")):
        box.evaluate("x => x.scrollTo(0, 500)")
        page.get_by_label("The question").select_option(question)
        assert box.evaluate("x => x.scrollTop") == 0
        assert box.locator(".head span").first.inner_text() == best
    turn(page, "highlighter", 0, 90, 150)
    assert box.locator(".head span").first.inner_text() == best  # a dial moves no text
    for long in (box, page.locator("#dict .scroll")):
        assert long.evaluate("x => x.scrollHeight > x.clientHeight")
        fade = long.evaluate(
            "x => [getComputedStyle(x, '::after')].map((s) => s.position + s.backgroundImage)"
        )
        assert fade[0].startswith("stickylinear-gradient")


@pytest.mark.browser
def test_roles_swapped_and_along_the_wrong_axis(opened):
    page = opened()
    assert "67.7%" in reveal(page, "roles")

    def matrix() -> Any:
        cells = data(page, "#roles tbody")
        n = int(len(cells) ** 0.5)
        cells = cells.reshape(n, n + 1)
        same(cells[:, :-1], reproduced(page, "roles"))
        same(cells[:, -1], cells[:, :-1].sum(1))
        same(data(page, "#roles tfoot"), cells[:, :-1].sum(0))
        return cells[:, :-1]

    plain = matrix()
    same(plain.sum(1), np.ones(len(plain)))
    assert data(page, "#roles tfoot").max() == pytest.approx(8.27, abs=0.01)
    page.get_by_label("Q and K swapped").check()
    swapped = matrix()
    first = page.locator("#roles .bars li").first
    assert first.inner_text().split() == ["tired", "23.9%"]
    page.get_by_label("softmax along the wrong axis").check()
    wrong = matrix()
    same(wrong, swapped.T)
    same(wrong.sum(0), np.ones(len(wrong)))
    assert page.locator("#roles tbody .odd").count() == len(wrong)  # row sums that are not 1
    page.get_by_label("queries ask, keys answer").check()
    page.locator("#roles tbody").get_by_role("button", name="animal").focus()
    page.keyboard.press("Enter")
    assert "animal" in page.locator("#roles h3").inner_text()
    assert page.evaluate("document.activeElement.textContent") == "animal"


@pytest.mark.browser
def test_real_head_listens(opened):
    page = opened()
    assert "67.7%" in reveal(page, "head")
    sentence = page.locator("#head .sentence")
    assert sentence.locator("[aria-pressed=true] span").inner_text() == "it"
    for_all(page, "head")
    page.get_by_label("wide").check()
    for_all(page, "head")
    assert page.locator("#head .bars li").first.inner_text().split() == ["[CLS]", "32.6%"]
    assert "\u201c[CLS]\u201d, a mark: nothing" in page.locator("#head").inner_text()
    page.get_by_label("are left out").check()
    for_all(page, "head")
    assert data(page, "#head .sentence").sum() == pytest.approx(1)
    assert page.locator("#head .bars li").first.inner_text().split()[0] == "animal"
    page.get_by_label("are cut off").check()
    for_all(page, "head")
    assert data(page, "#head .sentence").sum() < 0.7
    sentence.get_by_role("button", name="street").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.firstChild.textContent") == "street"
    for_all(page, "head")


@pytest.mark.browser
def test_dimension_draws_for_real(opened):
    page = opened()
    reveal(page, "dimension")
    width = page.get_by_label("Width d of query and keys")
    width.focus()
    page.keyboard.press("Home")
    seen = []
    for d in (2, 8, 32, 128, 512, 2048):
        assert page.get_by_text(f"d = {d}", exact=True).is_visible()
        pair = [
            float(page.locator(f"#dimension-{name}").get_attribute("value")) for name in ("raw", "scaled")
        ]
        same(pair, reproduced(page, "dimension"))
        seen.append(pair)
        page.keyboard.press("ArrowRight")
    raw, scaled = np.transpose(seen)
    assert raw[[0, 2, 5]] == pytest.approx([0.41, 0.82, 0.98], abs=0.03)
    assert scaled[[0, 2, 5]] == pytest.approx([0.33, 0.36, 0.37], abs=0.03)
    assert page.locator("#dimension .chart circle").count() == 6
    page.get_by_role("button", name="Draw again").click()
    assert page.locator("#dimension .chart circle").count() == 1
    assert float(page.locator("#dimension-raw").get_attribute("value")) != raw[-1]


@pytest.mark.browser
def test_hostile_text_stays_text(opened):
    sd = hostile()
    page = opened(sd, queries=[HOSTILE[0]])
    for panel in PANELS:
        reveal(page, panel)
    for name in HOSTILE:
        assert page.get_by_text(name.replace("\ud800", "\ufffd")[:9], exact=False).first.is_visible()
    assert page.evaluate("[typeof window.taken, document.images.length]") == ["undefined", 0]
    page.get_by_label("value of __proto__").fill("</script>")
    page.get_by_label("Ask for").fill("__proto__")
    shown = dict(json.loads(page.locator("#dict-soft").get_attribute("value")))
    assert shown == pytest.approx(reproduced(page, "dict", sd.copy()), abs=NEAR)
    same(texts(page), reproduced(page, "highlighter", sd))


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits(opened, width):
    page = opened(width=width)
    for panel in PANELS:
        reveal(page, panel)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cut = """() => [...document.querySelectorAll("button, legend, label, .answer, h3, output, td, p")]
        .filter((x) => !x.matches(".matrix th *") && getComputedStyle(x).display !== "inline")
        .filter((x) => x.scrollWidth > x.clientWidth + 2).map((x) => x.outerHTML)"""
    assert page.evaluate(cut) == []


@pytest.mark.browser
def test_every_control_has_a_name(opened):
    page = opened(SoftDict({(0, 1): 1.0, (1, 0): 2.0}))
    for panel in PANELS:
        reveal(page, panel)
    nameless = """() => [...document.querySelectorAll("button, input, select, [tabindex], [role]")]
        .filter((x) => !x.getAttribute("aria-label") && !x.labels?.length && !x.textContent.trim())
        .map((x) => x.outerHTML)"""
    assert page.evaluate(nameless) == []


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(opened, scheme):
    page = opened(color_scheme=scheme)
    for panel in PANELS:
        reveal(page, panel)
    page.evaluate("document.getAnimations().forEach((x) => x.finish())")
    colors = page.evaluate("""() => {
        const style = getComputedStyle(document.documentElement);
        const names = ["back", "card", "well", "ink", "text", "quiet", "query", "hard"];
        return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    }""")

    def light(color: str) -> float:
        channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    for text, ground in [
        *itertools.product(["text", "quiet"], ["back", "card", "well"]),
        ("text", "ink"), ("query", "card"), ("hard", "card"), ("card", "query"),
    ]:  # fmt: skip
        dark, bright = sorted([light(colors[text]), light(colors[ground])])
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, (text, ground)
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", back))) < 200) == (scheme == "dark")


@pytest.mark.browser
def test_nothing_moves_where_less_motion_is_wanted(opened):
    for motion, lasts in (("reduce", "0s"), ("no-preference", "0.15s, 0.15s")):
        bar = opened(reduced_motion=motion).locator("#dict .track i").first
        assert bar.evaluate("x => getComputedStyle(x).transitionDuration") == lasts
