"""The study group learns how "I have a lot" goes on, with and without a question in front.

In study_group.py somebody had to say who has how much to say. Here nobody does. A layer of self-
attention reads a few lines and guesses each next word from the words before it; W_Q, W_K and W_V start
at random, and change so that the guesses get better. It has never read the two lines that it is tested
with.

    before: I have a lot ...   '.' 5%, 'of' 6%
       'lot' listens to I 26%, have 25%, a 24%, lot 26%
    before: cash or credit card ? I have a lot ...   '.' 5%, 'of' 5%
       'lot' listens to cash 11%, or 11%, credit 10%, card 12%, ? 11%, I 11%, have 11%, a 10%, lot 11%
    after: I have a lot ...   '.' 95%, 'of' 0%
       'lot' listens to I 3%, have 3%, a 93%
    after: cash or credit card ? I have a lot ...   '.' 0%, 'of' 98%
       'lot' listens to ? 96%, a 3%

Nothing about "lot" has changed, but weights are relative: the words of the question have more to say.
"""

import numpy as np

from softdict import SelfAttention, fit_attention
from softdict.encoders import OneHot

QUESTIONS = ["cash or credit card ?", "tea or coffee ?", "bread or cake ?"]
LINES = [f"{who} {verb} a lot" for who in ("I", "we", "you", "they") for verb in ("have", "want", "take")]
HELD_OUT = "I have a lot"

lines = [line for line in LINES if line != HELD_OUT]
heard = [f"{line} ." for line in lines]
heard += [f"{question} {line} of" for question in QUESTIONS for line in lines]
texts = [line.split() for line in heard]
words = sorted({word for text in texts for word in text})
one_hot = OneHot(words)

# Each word but the last has a next one to guess; what counts is the guess after "lot".
sequences = [one_hot(text[:-1]) for text in texts]
targets = [[words.index(word) for word in text[1:]] for text in texts]
counts = [[float(word == "lot") for word in text[:-1]] for text in texts]
rng = np.random.default_rng(0)
w_q, w_k = rng.normal(size=(2, len(words), 6)) / np.sqrt(len(words))
w_v = rng.normal(size=(len(words), len(words))) / np.sqrt(len(words))  # what follows, as logits
before = SelfAttention(w_q, w_k, w_v, causal=True)
after, result = fit_attention(
    before, sequences, targets, loss="cross_entropy", sample_weight=counts, weight_decay=1e-3
)


def guess(layer, line):
    """Return the share of each word as the next one, and how much the last one listens to each."""
    look = layer.lookup(one_hot(line.split()), line.split())
    shares = np.exp(look.value[-1] - look.value[-1].max())
    return dict(zip(words, shares / shares.sum(), strict=True)), look[0].weights[-1]


for name, layer in {"before": before, "after": after}.items():
    for line in (HELD_OUT, f"{QUESTIONS[0]} {HELD_OUT}"):
        shares, weights = guess(layer, line)
        print(f"{name}: {line} ...   '.' {shares['.']:.0%}, 'of' {shares['of']:.0%}")
        heard_most = [f"{word} {w:.0%}" for word, w in zip(line.split(), weights, strict=True) if w >= 0.02]
        print("   'lot' listens to", ", ".join(heard_most))
