"""Scikit-learn estimators over a SoftDict: `SoftDictRegressor`, `SoftDictClassifier`.

They need scikit-learn 1.6 or later, the extra `sklearn`; ``import softdict`` leaves this module out.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from softdict._checks import Array
from softdict.mapping import SoftDict

_FLOATS = [np.float64, np.float32]  # others become the first


class _Asking(BaseEstimator):
    """What both share: the settings, and a SoftDict that `fit` fills and all else asks."""

    def __init__(
        self, *, similarity: Any = "gaussian", temperature: float = 1.0, weighting: Any = "softmax",
        top_k: int | None = None,
    ) -> None:  # fmt: skip
        self.similarity = similarity
        self.temperature = temperature
        self.weighting = weighting
        self.top_k = top_k

    def _learn(self, X: Array, values: Array) -> Self:
        labels = list(map(str, range(len(X))))  # so that each of several equal rows counts
        self.dict_ = SoftDict.from_arrays(X, values, labels, **self.get_params(deep=False))
        return self

    def _ask(self, X: Any) -> Any:
        check_is_fitted(self)
        return self.dict_[validate_data(self, X, dtype=_FLOATS, reset=False)]


class SoftDictRegressor(RegressorMixin, _Asking):
    """Predict the blend of all targets learned, each in the share that its row is like the row asked.

    Gaussian by default: kernel regression (Nadaraya and Watson) of bandwidth sqrt(T). With ``top_k=k,
    temperature=inf`` it is the mean of the k nearest neighbors, at temperature 0 the nearest one's target.

    **Equivalent to:** ``w = np.exp(-((x - X) ** 2).sum(-1) / 2 / T); prediction = w / w.sum() @ y``

    Parameters
    ----------
    similarity, temperature, weighting, top_k
        The settings, as in `SoftDict`; read by `fit`, which checks them.

    Attributes
    ----------
    dict_ : SoftDict
        What was learned. Row i is named ``str(i)``; ``dict_.lookup(x)`` shows which rows a prediction is
        made of; ``softdict.fit_temperature(dict_)`` chooses the temperature, leaving each row out in turn.
    n_features_in_, feature_names_in_
        Width d and, where X had such, names of the columns, as everywhere in scikit-learn.

    Notes
    -----
    Distances add up all columns, so bring them to one scale, as StandardScaler does. `fit` copies and
    costs O(n (d + e)), `predict` O(n (d + e)) a row. Sparse input, NaN and infinity are refused.

    Examples
    --------
    >>> from softdict.estimators import SoftDictRegressor
    >>> model = SoftDictRegressor(temperature=0.1).fit([[0], [1], [2]], [10, 20, 40])
    >>> model.predict([[0.9], [1.5], [99]]).round(2)    # far away the nearest row answers
    array([19.87, 30.  , 40.  ])
    >>> model.dict_.lookup([0.9]).winner
    '1'
    >>> SoftDictRegressor().fit([[0], [0], [0]], [1, 1, 4]).predict([[0]])    # equal rows each count
    array([2.])
    >>> SoftDictRegressor(temperature=-1).fit([[0]], [10])
    Traceback (most recent call last):
    ...
    ValueError: temperature is -1, but ...
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Store rows X (n, d) and targets y, (n,) or (n, e)."""
        X, y = validate_data(self, X, y, dtype=_FLOATS, multi_output=True, y_numeric=True)
        return self._learn(X, y if y.dtype.kind == "f" else y.astype(float))

    def predict(self, X: Any) -> Any:
        """Return the blends (m,) or (m, e) for rows X (m, d)."""
        return self._ask(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class SoftDictClassifier(ClassifierMixin, _Asking):
    """Predict by soft vote: all rows learned vote for their class, the more alike the louder.

    Gaussian by default. With ``top_k=k, temperature=inf`` it is the vote of the k nearest neighbors, at
    temperature 0 the nearest one decides.

    **Equivalent to:** ``w = np.exp(-((x - X) ** 2).sum(-1) / 2 / T)``,
    ``shares = w / w.sum() @ (y[:, None] == classes)``, ``prediction = classes[shares.argmax()]``

    Parameters
    ----------
    similarity, temperature, weighting, top_k
        The settings, as in `SoftDict`; read by `fit`, which checks them.

    Attributes
    ----------
    classes_ : array of shape (e,)
        The classes, sorted.
    dict_ : SoftDict
        What was learned: rows, named ``str(i)``, and ones for their classes, (n, e).
        ``dict_.lookup(x)`` shows how loudly each row votes, `fit_temperature` works here too.
    n_features_in_, feature_names_in_
        Width d and, where X had such, names of the columns, as everywhere in scikit-learn.

    Notes
    -----
    Distances add up all columns, so bring them to one scale, as StandardScaler does. Memory and time are
    those of `SoftDictRegressor`, e being the number of classes. Of equal shares the first class wins.

    Examples
    --------
    >>> from softdict.estimators import SoftDictClassifier
    >>> model = SoftDictClassifier().fit([[0], [1], [3]], ["cat", "cat", "dog"])
    >>> model.predict([[1.5], [2.5]]).tolist()
    ['cat', 'dog']
    >>> model.predict_proba([[2]]).round(2)     # 1 and 3 are as near, but 0 votes too
    array([[0.55, 0.45]])
    >>> model.predict([[1, 2]])
    Traceback (most recent call last):
    ...
    ValueError: X has 2 features, but SoftDictClassifier is expecting 1 features as input...
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Store rows X (n, d) and their classes y (n,)."""
        X, y = validate_data(self, X, y, dtype=_FLOATS)
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        return self._learn(X, np.eye(len(self.classes_), dtype=X.dtype)[index])

    def predict_proba(self, X: Any) -> Any:
        """Return the share of each class (m, e) for rows X (m, d)."""
        return np.clip(self._ask(X), 0, 1)  # rounding can lead out, by what log_loss would refuse

    def predict(self, X: Any) -> Any:
        """Return the class of the largest share (m,) for rows X (m, d)."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]
