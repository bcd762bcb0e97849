"""A study group of words guesses how "I have a lot" goes on.

Each word has a key, how much it has to say, and a value, what follows it. "lot" scores 100 and the
others 1: the group follows "lot", which ends the sentence with a full stop.

    what comes next? asks 4 entries (dot, T = 1)
    entry  value  score  share
    lot    '.'      100   100%  ██████████████████████
    I      'am'       1  <0.1%  ▏
    have   'to'       1  <0.1%  ▏
    a      'lot'      1  <0.1%  ▏
    hard: .   soft: no blend
    rests on 1 of 4 entries

Put "Cash or credit card?" in front. Those words score 1000, and now "of" comes next. Nothing about
"lot" has changed, but weights are relative: adding an entry changes every other answer.

    what comes next? asks 8 entries (dot, T = 1)
    entry   value  score  share
    Cash    'of'    1000  25.0%  █████▌
    or      'of'    1000  25.0%  █████▌
    credit  'of'    1000  25.0%  █████▌
    card?   'of'    1000  25.0%  █████▌
    lot     '.'      100     0%
    I       'am'       1     0%
    have    'to'       1     0%
    a       'lot'      1     0%
    hard: of   soft: no blend
    rests on 4 of 8 entries

Rows or columns? In the weights of self-attention a row asks and a column answers. Each row sums to
1, since each word divides its attention among all. The columns need not: some are heard more.

    query asks (down), entry answers (across)
              I   have      a    lot  sum
    I     0.197  0.072  0.197  0.534    1
    have  0.083  0.610  0.225  0.083    1
    a     0.109  0.297  0.297  0.297    1
    lot   0.016  0.853  0.115  0.016    1
    sum   0.404   1.83  0.834  0.930    4

With words as rows the answer is softmax(Q K^T) V. With words as columns, which are Q^T, K^T and V^T
here, it is V softmax(K^T Q), and V stands on the left. Each is the other's transpose. With V on the
right, as one often sees it printed, the shapes do not fit.

    as rows:    [[0.341, 2.728], [1.303, 1.004], [0.703, 2.078], [1.722, 0.409]]
    as columns: [[0.341, 1.303, 0.703, 1.722], [2.728, 1.004, 2.078, 0.409]]
    each is the other's transpose: True
    softdict says the same: True
    with V on the right: (4, 4) @ (2, 4) does not fit

And q . k = k . q, but Q and K are not interchangeable: softmax runs over those who answer.

    Q and K swapped: [[0.634, 1.634], [0.224, 3.418], [0.403, 2.559], [0.56, 1.56]]
"""

import numpy as np

from softdict import SoftDict, lookup_weights, soft_lookup
from softdict.display import matrix

# q . k is how much a word has to say. The question is 1, so that a word's key is its score.
SCORES = {"lot": 100.0, "Cash": 1000.0, "or": 1000.0, "credit": 1000.0, "card?": 1000.0}


def score(words):
    """Give each word a key vector of width 1."""
    return [[SCORES.get(word, 1.0)] for word in words]


# ---- weights are relative ------------------------------------------------------------------------

group = SoftDict({"I": "am", "have": "to", "a": "lot", "lot": "."}, encoder=score, similarity="dot")
print(group.lookup("what comes next?"))

question = SoftDict.fromkeys(["Cash", "or", "credit", "card?"], "of", encoder=score, similarity="dot")
print((question | group).lookup("what comes next?"))

# ---- rows or columns -----------------------------------------------------------------------------

words = ["I", "have", "a", "lot"]
Q = np.array([[1.0, 0], [0, 1], [1, 1], [0, 2]])  # (m, d): one row for each word that asks
K = np.array([[1.0, 0], [0, 2], [1, 1], [2, 0]])  # (n, d): one row for each word that answers
V = np.array([[1.0, 0], [2, 0], [0, 3], [0, 4]])  # (n, e)


def softmax(z, axis):
    """Return shares that sum to 1 along an axis."""
    e = np.exp(z - z.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


print(matrix(words, words, lookup_weights(Q, K, similarity="dot")))

rows = softmax(Q @ K.T, axis=1) @ V
columns = V.T @ softmax(K @ Q.T, axis=0)  # the columns of Q.T, K.T and V.T are the words
print("as rows:   ", rows.round(3).tolist())
print("as columns:", columns.round(3).tolist())
print("each is the other's transpose:", np.allclose(rows, columns.T))
print("softdict says the same:", np.allclose(rows, soft_lookup(Q, K, V, similarity="dot")))

shares = softmax(K @ Q.T, axis=0)
try:
    shares @ V.T
except ValueError:
    print(f"with V on the right: {shares.shape} @ {V.T.shape} does not fit")

# ---- who asks and who answers --------------------------------------------------------------------

print("Q and K swapped:", soft_lookup(K, Q, V, similarity="dot").round(3).tolist())
