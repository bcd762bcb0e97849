"""SoftDict as scikit-learn has it: its own checks, and the answers of the SoftDict inside."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from oracle import agree, tolerance
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from softdict import InverseDistance, SoftDict, fit_temperature
from softdict.estimators import SoftDictClassifier, SoftDictRegressor

BOTH = [SoftDictRegressor, SoftDictClassifier]
SETTINGS = [
    {},
    {"temperature": 30.0},
    {"temperature": 0},
    {"temperature": np.inf, "top_k": 7},
    {"temperature": 0.02, "similarity": "cosine"},
    {"temperature": 100.0, "weighting": "sparsemax"},
    {"similarity": InverseDistance(0.5), "top_k": 5},
]


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:300], y[:300], X[300:400], y[300:400]


def near(got, want, largest_value=1.0, largest_logit=0.0):
    """Assert that two answers agree."""
    agree(got, want, tolerance(np.float64, largest_logit, largest_value), "estimators")


def largest_logit(sd, queries):
    """Return the largest logit that matters."""
    why = sd.lookup(queries)
    scores = np.abs(why.scores[why.weights > np.finfo(float).eps])
    return scores.max() / sd.temperature if 0 < sd.temperature < np.inf else 0.0


# ---- scikit-learn's own checks -------------------------------------------------------------------


@parametrize_with_checks(
    [
        SoftDictRegressor(),
        SoftDictClassifier(),
        SoftDictRegressor(top_k=3, temperature=0.3, similarity="laplacian"),
        SoftDictClassifier(weighting="sparsemax"),
    ]
)
def test_scikit_learn_s_checks(estimator, check):
    check(estimator)


# ---- the answers are those of the SoftDict -------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_regressor_predicts_the_blend(digits, settings):
    X, y, new, _ = digits
    for targets in (y, np.column_stack([y, -y])):
        sd = SoftDict.from_arrays(X, targets, [f"row {i}" for i in range(len(X))], **settings)
        model = SoftDictRegressor(**settings).fit(X, targets)
        assert np.array_equal(model.predict(new), sd[new])
        assert np.array_equal(model.dict_.key_vectors, X)
        assert np.array_equal(model.dict_.value_vectors, targets)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_classifier_predicts_by_soft_vote(digits, settings):
    X, y, new, _ = digits
    names = np.array(list("abcdefghij"))[y]
    model = SoftDictClassifier(**settings).fit(X, names)
    shares = model.predict_proba(new)
    assert model.classes_.tolist() == list("abcdefghij")
    assert model.predict(new).tolist() == ["abcdefghij"[best] for best in shares.argmax(axis=1)]
    sd = SoftDict.from_arrays(X, names.tolist(), [f"row {i}" for i in range(len(X))], **settings)
    votes = [[vote[name] for name in model.classes_] for vote in sd.lookup(new).vote()]
    near(shares, votes, largest_logit=largest_logit(sd, new))


def test_the_ends_of_the_dial_are_nearest_neighbors(digits):
    X, y, new, _ = digits
    for k, settings in {1: {"temperature": 0}, 5: {"temperature": np.inf, "top_k": 5}}.items():
        near(
            SoftDictRegressor(**settings).fit(X, y).predict(new),
            KNeighborsRegressor(k).fit(X, y).predict(new),
            y.max(),
        )
        near(
            SoftDictClassifier(**settings).fit(X, y).predict_proba(new),
            KNeighborsClassifier(k).fit(X, y).predict_proba(new),
        )


def test_equal_rows_each_count():
    X, y = [[1.0], [1.0], [1.0]], [1, 1, 4]
    assert SoftDictRegressor().fit(X, y).predict([[1]]) == 2
    assert SoftDictClassifier(temperature=0).fit(X, y).predict([[1]]) == 1
    assert list(SoftDictRegressor().fit(X, y).dict_) == ["0", "1", "2"]


def test_far_away_and_extreme_temperatures_are_finite():
    X, y = [[0.0], [1.0], [2.0]], [10, 20, 40]
    for temperature in (0, 5e-324, 1, 1e308, np.inf):
        model = SoftDictRegressor(temperature=temperature).fit(X, y)
        assert np.isfinite(model.predict([[1e150], [-1e150], [0.5]])).all()
    assert SoftDictRegressor().fit(X, y).predict([[-1e9], [1e9]]).tolist() == [10, 40]
    with pytest.raises(ValueError, match="row 1"):
        model.predict([[0], [1e200]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes_are_kept(dtype):
    X, y = np.arange(6, dtype=dtype).reshape(3, 2), np.array([1, 2, 2], dtype=dtype)
    assert SoftDictRegressor().fit(X, y).predict(X).dtype == dtype
    assert SoftDictClassifier().fit(X, y).predict_proba(X).dtype == dtype
    assert SoftDictRegressor().fit(X, [True, False, True]).predict(X).dtype == np.float64


def test_shares_are_what_log_loss_takes(digits):
    X, y, new, y_new = digits
    for temperature in (5, 20, 50):  # asked directly, some of these are below 0 or above 1 by rounding
        shares = SoftDictClassifier(temperature=temperature).fit(X, y).predict_proba(new)
        assert shares.min() >= 0
        assert shares.max() <= 1
        assert np.isfinite(log_loss(y_new, shares))


def test_a_prediction_can_be_looked_into(digits):
    X, y, new, _ = digits
    model = SoftDictClassifier(temperature=30).fit(X, y)
    why = model.dict_.lookup(new[0])
    assert y[int(why.winner)] == model.predict(new[:1])
    assert np.array_equal(why.value, model.dict_[new[0]])


# ---- in scikit-learn's company -------------------------------------------------------------------


def test_grid_search_over_a_pipeline_on_diabetes():
    X, y = load_diabetes(return_X_y=True, scaled=False)
    grid = {"softdictregressor__temperature": [0.1, 1, 10], "softdictregressor__top_k": [20, None]}
    search = GridSearchCV(make_pipeline(StandardScaler(), SoftDictRegressor()), grid).fit(X, y)
    assert 0.44 < search.best_score_ < 0.46
    assert search.best_params_["softdictregressor__temperature"] > 0.1
    assert (search.best_estimator_[-1].n_features_in_, len(search.best_estimator_[-1].dict_)) == (10, 442)


def test_the_temperature_can_be_learned():
    X, y = load_diabetes(return_X_y=True)
    model = SoftDictRegressor().fit(StandardScaler().fit_transform(X), y)
    learned, result = fit_temperature(model.dict_)
    assert 0.5 < learned.temperature < 2  # the default is about right for columns of one scale
    assert 1 - result.fun / y.var() > 0.4


def test_grid_search_on_digits(digits):
    X, y, new, y_new = digits
    grid = {"temperature": [30, 1e4], "similarity": ["gaussian", InverseDistance(1)], "top_k": [None, 10]}
    search = GridSearchCV(SoftDictClassifier(), grid, scoring="neg_log_loss", error_score="raise").fit(X, y)
    assert search.best_params_["temperature"] == 30
    assert search.score(new, y_new) > -0.3
    assert (search.predict(new) == y_new).mean() > 0.9
    assert cross_val_score(search.best_estimator_, X, y).mean() > 0.9


@pytest.mark.parametrize("kind", BOTH)
def test_clone_and_pickle(digits, kind):
    X, y, new, _ = digits
    model = kind(temperature=30, similarity=InverseDistance(0.5), top_k=9).fit(X, y)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(new), model.predict(new))
    bare = clone(model)
    assert repr(bare) == repr(model)
    assert not hasattr(bare, "dict_")
    assert kind.__name__ in model._repr_html_()


@pytest.mark.parametrize("kind", BOTH)
def test_names_of_columns_are_kept(kind):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1.0, 2, 3], "size": [3.0, 1, 2]})
    model = kind().fit(frame, [0, 1, 1])
    assert model.feature_names_in_.tolist() == ["age", "size"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"age": "years"}))


@pytest.mark.parametrize("kind", BOTH)
def test_what_was_learned_is_a_copy(kind):
    X, y = np.array([[0.0], [5.0]]), np.array([0, 1])
    model = kind(temperature=0).fit(X, y)
    X[:], y[:] = 9, 9
    assert model.predict([[0], [5]]).tolist() == [0, 1]


@pytest.mark.parametrize("kind", BOTH)
def test_a_memory_map_is_shared(kind, digits, tmp_path):
    X, y, new, _ = digits
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    model, same = kind(temperature=30).fit(mapped, y), kind(temperature=30).fit(X, y)
    assert np.shares_memory(model.dict_.key_vectors, mapped)
    near(model.predict(new), same.predict(new), y.max(), largest_logit(same.dict_, new))
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(new), model.predict(new))


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOTH)
def test_refusals(kind):
    X, y = [[0.0, 1], [1, 0]], [0, 1]
    with pytest.raises(NotFittedError):
        kind().predict(X)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        kind().fit(sparse.csr_array(X), y)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        kind().fit(X, y).predict(sparse.csr_array(X))
    with pytest.raises(ValueError, match="NaN"):
        kind().fit([[np.nan, 1], [1, 0]], y)
    with pytest.raises(ValueError, match="3 features"):
        kind().fit(X, y).predict([[1, 2, 3]])
    for wrong in ({"temperature": -1}, {"similarity": "manhattan"}, {"weighting": "max"}, {"top_k": 0}):
        model = kind(**wrong)  # as scikit-learn wants it, nothing is checked here
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} is"):
            model.fit(X, y)
    with pytest.raises(ValueError, match="could not convert"):
        SoftDictRegressor().fit(X, ["red", "green"])
    with pytest.raises(ValueError, match="continuous"):
        SoftDictClassifier().fit(X, [0.5, 1.5])
