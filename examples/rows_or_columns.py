"""Words as rows or words as columns? Each is the other's transpose, as long as the axes keep their names.

With rows, as in "Attention is all you need" and here, attention is softmax(Q K^T / sqrt(d)) V: softmax
along each row. With columns, as in many a lecture, it is V softmax(K^T Q / sqrt(d)): softmax down each
column, and V on the left. Either way a query's shares sum to 1, over the entries; what an entry is given
need not. And q . k = k . q, but Q and K are not interchangeable:

    rows:    each query's row sums to 1.0 1.0 1.0 1.0
             the entries' columns to  0.355 1.305 1.748 0.592
    columns: each query's column to   1.0 1.0 1.0 1.0
             the entries' rows to     0.355 1.305 1.748 0.592
    each answer is the other's transpose: True
    SelfAttention takes rows: True
    head 0 of 1
    query asks (down), entry answers (across)
              I   have      a    lot  sum
    I     0.098  0.402  0.402  0.098    1
    have  0.165  0.165  0.335  0.335    1
    a     0.065  0.266  0.539  0.131    1
    lot   0.028  0.472  0.472  0.028    1
    sum   0.355   1.31   1.75  0.592    4
    the new words:   [[2.3, 2.09], [2.17, 3.51], [2.47, 2.6], [2.44, 1.67]]
    Q and K swapped: [[2.17, 2.49], [2.13, 4.42], [2.3, 3.91], [2.3, 2.09]]
"""

import numpy as np

from softdict import SelfAttention

words = ["I", "have", "a", "lot"]
X = np.array([[1.0, 0], [0, 1], [1, 1], [2, 0]])  # (n, d_model): each word is a row
W_Q, W_K, W_V = np.array([[0.0, 2], [1, 0]]), np.array([[1.0, 0], [1, 1]]), np.array([[1.0, 3], [2, 0]])


def softmax(z, axis):
    """Return shares that sum to 1 along an axis."""
    e = np.exp(z - z.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


Q, K, V = X @ W_Q, X @ W_K, X @ W_V  # (n, d), (n, d), (n, e)
by_row = softmax(Q @ K.T / np.sqrt(2), axis=1)  # (query, entry)
rows = by_row @ V
print("rows:    each query's row sums to", *by_row.sum(axis=1).round(3))
print("         the entries' columns to ", *by_row.sum(axis=0).round(3))

q, k, v = W_Q.T @ X.T, W_K.T @ X.T, W_V.T @ X.T  # (d, n), (d, n), (e, n): each word is a column
by_column = softmax(k.T @ q / np.sqrt(2), axis=0)  # (entry, query)
columns = v @ by_column
print("columns: each query's column to  ", *by_column.sum(axis=0).round(3))
print("         the entries' rows to    ", *by_column.sum(axis=1).round(3))

layer, swapped = SelfAttention(W_Q, W_K, W_V), SelfAttention(W_K, W_Q, W_V)
print("each answer is the other's transpose:", np.allclose(rows, columns.T))
print("SelfAttention takes rows:", np.allclose(layer(X), rows))
print(layer.lookup(X, words))
print("the new words:  ", layer(X).round(2).tolist())
print("Q and K swapped:", swapped(X).round(2).tolist())
