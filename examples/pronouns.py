"""Pronouns learn to ask for nouns, although nobody tells them to.

Every sentence is like "girl showed boys the lamp and it shone": three nouns, and a pronoun that agrees
with one of them. A word's vector says what it is (a noun, a pronoun, a verb ...) and whether it is a
she, a he, an it or a they; the rest is random, and the word's own. A layer of self-attention starts
from random matrices. It is told only what the pronoun should *become*, the own part of its noun. That
it pays to ask for a noun that agrees, it finds out. How much the pronoun listens to each word, as ink,
in sentences whose nouns it has never met:

            doors brought stone the mother and they sang
    before:  ░░░░░ ░░░░░░░ ░░░░░ ░░░ ░░░░░░ ░░░ ░░░░ ░░░░
    after:   █████         ░░░░░                ░░░░
            mother threw trees the stone and they fell
    before:  ░░░░░░ ░░░░░ ░░░░░ ░░░ ░░░░░ ░░░ ░░░░ ░░░░
    after:   ░░░░░░       ▓▓▓▓▓     ░░░░░     ░░░░
            queens left father the niece and he broke
    before:  ░░░░░░ ░░░░ ░░░░░░ ░░░ ░░░░░ ░░░ ░░ ░░░░░
    after:               ██████     ░░░░░     ░░
    pronouns whose noun has the largest weight, in new sentences
      before                20%
      after                100%
      shuffled              40%
      bag of words          40%

The last lines are what to compare with: a layer that learned from targets in the wrong order, and the
best guess from the mean of all words, which knows what was said, but not who is meant.
"""

import numpy as np

from softdict import SelfAttention, fit_attention

KINDS = {
    "she": "girl queen aunt nun actress witch sister lady mother niece".split(),
    "he": "boy king uncle monk actor wizard brother lord father nephew".split(),
    "it": "lamp house clock table kite bell boat tree stone door".split(),
    "they": "boys cats twins kings lamps birds boats trees queens doors".split(),
}
VERBS = "showed gave brought sold left threw".split()
ENDS = "shone slept sang fell rose broke".split()
ROLES = ["noun", "pronoun", "verb", "end", *KINDS]
OWN = 12  # how many numbers are a word's own
NOUNS, PRONOUN = (0, 2, 4), 6  # their places in a sentence


def vectors(rng):
    """Return the vector of every word: its roles, and what is its own."""
    roles = {"the": [], "and": [], **{v: ["verb"] for v in VERBS}, **{e: ["end"] for e in ENDS}}
    for pronoun, nouns in KINDS.items():
        roles |= {pronoun: ["pronoun", pronoun], **{noun: ["noun", pronoun] for noun in nouns}}
    own = rng.normal(size=(len(roles), OWN)) / np.sqrt(OWN)
    has = [[role in those for role in ROLES] for those in roles.values()]
    return dict(zip(roles, np.hstack([has, own]), strict=True))


def sentences(rng, count, places):
    """Return sentences of eight words, and the place of the noun that each one's pronoun stands for."""
    made = []
    for _ in range(count):
        kinds = rng.permutation(list(KINDS))[:3]
        a, b, c = (rng.choice([KINDS[kind][i] for i in places]) for kind in kinds)
        which = rng.integers(3)
        verb, end = rng.choice(VERBS), rng.choice(ENDS)
        made.append(([a, verb, b, "the", c, "and", kinds[which], end], NOUNS[which]))
    return made


def heard(layer, words, table):
    """Return how much the pronoun listens to each word."""
    return layer.lookup([table[word] for word in words], words)[0].weights[PRONOUN]


def score(layer, found, table):
    """Return the share of pronouns whose noun has the largest weight of all words."""
    return np.mean([heard(layer, words, table).argmax() == at for words, at in found])


def examples(table, made):
    """Return the vectors of sentences, what their words should become, and whose answer counts."""
    x = np.array([[table[word] for word in words] for words, _ in made])
    targets, counts = np.zeros((*x.shape[:2], OWN)), np.zeros(x.shape[:2])
    targets[:, PRONOUN], counts[:, PRONOUN] = [table[words[at]][-OWN:] for words, at in made], 1
    return x, targets, counts


def learn(seed):
    """Return layers before learning, after, and after learning from shuffled targets; and the test."""
    rng = np.random.default_rng(seed)
    table = vectors(rng)
    known, new = sentences(rng, 100, range(7)), sentences(rng, 200, range(7, 10))
    x, targets, counts = examples(table, known)
    before = SelfAttention.random(x.shape[2], width=4, value_width=OWN, d_out=OWN, rng=rng)
    layers = {"before": before}
    for name, goal in {"after": targets, "shuffled": rng.permutation(targets)}.items():
        layers[name], _ = fit_attention(
            before, x, goal, sample_weight=counts, weight_decay=1e-4, max_iter=60, progress=False
        )
    return layers, known, new, table


def bag_of_words(known, new, table):
    """Return the score of guessing among the nouns, by least squares, from the mean of all words."""
    x, targets, _ = examples(table, known)
    ask, *_ = np.linalg.lstsq(x.mean(axis=1), targets[:, PRONOUN], rcond=None)
    right = 0
    for words, at in new:
        guess = np.mean([table[word] for word in words], axis=0) @ ask
        right += at == max(NOUNS, key=lambda place: guess @ table[words[place]][-OWN:])
    return right / len(new)


def ink(layer, words, table):
    """Return the same as ink in the place of each word."""
    shades = np.searchsorted([0.05, 0.25, 0.5, 0.75], heard(layer, words, table))
    return " ".join(" ░▒▓█"[shade] * len(word) for word, shade in zip(words, shades, strict=True))


if __name__ == "__main__":
    layers, known, new, table = learn(seed=7)
    for words, _ in new[:3]:
        print("       ", " ".join(words))
        print("before: ", ink(layers["before"], words, table))
        print("after:  ", ink(layers["after"], words, table))
    print("pronouns whose noun has the largest weight, in new sentences")
    for name, layer in layers.items():
        print(f"  {name:20} {round(score(layer, new, table), 1):4.0%}")
    print(f"  {'bag of words':20} {round(bag_of_words(known, new, table), 1):4.0%}")
