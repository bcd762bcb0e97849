"""The shortest proof that the house stands: the law of the limit, and tiles against the definition."""

import numpy as np

from softdict import SoftDict, _backend, soft_lookup


def test_a_dict_is_one_end_of_the_dial():
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(50, 9)) * 1e4, rng.normal(size=50)
    sd = SoftDict(zip(keys.tolist(), values.tolist(), strict=True), temperature=0)
    assert [sd[key] for key in sd] == list(sd.hard.values()) == values.tolist()
    assert sd[keys].tolist() == values.tolist()


def test_tiles_agree_with_the_definition(monkeypatch):
    rng = np.random.default_rng(1)
    query, keys, values = rng.normal(size=(7, 3)), rng.normal(size=(90, 3)), rng.normal(size=(90, 2))
    whole = soft_lookup(query, keys, values)
    monkeypatch.setattr(_backend, "budget_mib", 0.001)
    np.testing.assert_allclose(soft_lookup(query, keys, values), whole, rtol=1e-13)
