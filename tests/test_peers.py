"""The same answers as well-known libraries give, where they mean the same thing."""

import numpy as np
import pytest
from oracle import tolerance

from softdict import InverseDistance, lookup_weights, soft_lookup

pytestmark = pytest.mark.peers


def problem(m=40, n=70, d=16, e=5, lead=()):
    rng = np.random.default_rng(3)
    return (rng.normal(size=(*lead, *shape)) for shape in ((m, d), (n, d), (n, e)))


@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_scaled_dot_is_torch_s_scaled_dot_product_attention(lead):
    torch = pytest.importorskip("torch")
    query, key, value = problem(lead=lead)
    where = np.random.default_rng(4).random((*lead, 40, 70)) < 0.7
    bias = np.random.default_rng(5).normal(size=(40, 70))
    for mask in (None, where, bias):
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *map(torch.from_numpy, (query, key, value)),
            attn_mask=None if mask is None else torch.from_numpy(np.broadcast_to(mask, where.shape).copy()),
        )
        option = {} if mask is None else {"where" if mask.dtype == bool else "bias": mask}
        ours = soft_lookup(query, key, value, similarity="scaled_dot", **option)
        assert np.abs(ours - theirs.numpy()).max() <= tolerance(np.float64, 10, np.abs(value).max())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # theirs, about random numbers
def test_gaussian_is_statsmodels_kernel_regression():
    nonparametric = pytest.importorskip("statsmodels.nonparametric.kernel_regression")
    query, keys, values = problem(d=2, e=1)
    bandwidth = 0.7
    model = nonparametric.KernelReg(values[:, 0], keys, "cc", reg_type="lc", bw=[bandwidth] * 2)
    theirs, _ = model.fit(query)
    ours = soft_lookup(query, keys, values[:, 0], temperature=bandwidth**2)
    assert np.abs(ours - theirs).max() <= tolerance(np.float64, 100, np.abs(values).max())


def test_inverse_distance_is_scikit_learn_s_weighted_neighbors():
    neighbors = pytest.importorskip("sklearn.neighbors")
    query, keys, values = problem()
    model = neighbors.KNeighborsRegressor(7, weights=lambda distance: 1 / (distance**2 + 0.5))
    theirs = model.fit(keys, values).predict(query)
    ours = soft_lookup(query, keys, values, similarity=InverseDistance(0.5), top_k=7)
    assert np.abs(ours - theirs).max() <= tolerance(np.float64, 10, np.abs(values).max())


def test_the_hard_limit_is_faiss_s_exact_search():
    faiss = pytest.importorskip("faiss")
    query, keys, _ = (x.astype(np.float32) for x in problem(m=200, n=1000))
    index = faiss.IndexFlatL2(16)
    index.add(keys)
    _, nearest = index.search(query, 1)
    weights = lookup_weights(query, keys, temperature=0)
    assert weights.argmax(axis=1).tolist() == nearest[:, 0].tolist()
    assert (weights.max(axis=1) == 1).all()
