"""A SoftDict as memory between steps: the key-value cache of a language model.

Words come one at a time, and each asks those before it, itself included: causal self-attention. Nothing
old is computed again. At each step a SoftDict gets one more entry, the key and the value of the new
word under a name of its own, and the new word's query asks it. Step by step that gives the rows of the
whole, also where a word is said twice:

    step  asks    most from       alive weary    row of the whole
       0  the     the 0    1.00   0.000 0.000    0.000 0.000
       1  animal  the 0    0.50   0.500 0.000    0.500 0.000
       2  was     animal 1 0.61   0.613 0.000    0.613 0.000
       3  tired   animal 1 0.91   0.914 0.029    0.914 0.029
       4  and     the 0    0.20   0.200 0.200    0.200 0.200
       5  it      animal 1 0.75   0.748 0.236    0.748 0.236
       6  slept   it 5     0.93   0.029 0.009    0.029 0.009
       7  and     the 0    0.12   0.125 0.125    0.125 0.125
       8  slept   it 5     0.91   0.028 0.009    0.028 0.009
    the same, to rounding: True

The new "it" is mostly "animal" with some "tired", though it was given nothing of either.
"""

import numpy as np

from softdict import SelfAttention, SoftDict

# A word is a noun, an adjective, a pronoun, a verb, or none of these.
WORDS = {"the": [0, 0, 0, 0], "animal": [1, 0, 0, 0], "was": [0, 0, 0, 1], "tired": [0, 1, 0, 0],
         "and": [0, 0, 0, 0], "it": [0, 0, 1, 0], "slept": [0, 0, 0, 1]}  # fmt: skip
SENTENCE = "the animal was tired and it slept and slept".split()
W_Q = np.array([[0.0, 0, 0], [6, 0, 0], [9, 7, 0], [2, 0, 8]])  # a pronoun asks for nouns, then adjectives
W_K = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])  # nouns, adjectives and pronouns answer
W_V = np.array([[1.0, 0], [0, 1], [0, 0], [0, 0]])  # a noun says "alive", an adjective says "weary"


def text(row):
    """Write two numbers."""
    return " ".join(f"{number:.3f}" for number in row)


layer = SelfAttention(W_Q, W_K, W_V, causal=True)
x = np.array([WORDS[word] for word in SENTENCE])  # (n, d_model)
whole = layer(x)  # (n, e), all words at once

memory, answers = SoftDict(similarity="scaled_dot"), []
print("step  asks    most from       alive weary    row of the whole")
for step, word in enumerate(SENTENCE):
    query, key, value = (rows[0, 0] for rows in layer.project(x[step : step + 1]))  # head 0 of one word
    memory.add(f"{word} {step}", key, value)  # a name of its own: "slept" alone would overwrite "slept"
    look = memory.lookup(query)
    answers.append(look.value)
    best = look.top(1)[0]
    print(f"{step:4}  {word:6}  {best.key:8} {best.weight:.2f}   {text(look.value)}    {text(whole[step])}")
print("the same, to rounding:", np.allclose(answers, whole))
