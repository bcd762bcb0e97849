"""Attention is a soft dictionary lookup.

`SoftDict` is a dict that understands "close to": ``sd[query]`` blends, ``sd.lookup(query)`` says why,
``sd.hard`` is the plain dict. `soft_lookup` is the same over arrays, `attention` and `SelfAttention` in the
words of the Transformer, `fit`, `fit_temperature` and `fit_attention` learn, `play` writes the playground.

Beside them: `softdict.encoders` (texts and objects to vectors), `softdict.plot`, `softdict.estimators`
(scikit-learn) and `softdict.dask`. ``python -m softdict`` gives a tour.

>>> from softdict import SoftDict
>>> SoftDict({0: 10.0, 1: 20.0, 2: 40.0}, temperature=0.1)[0.9]
19.869...
"""

from softdict.blend import Partial, lookup_weights, soft_lookup
from softdict.gradients import check_vjp, soft_lookup_vjp
from softdict.learning import Mapped, fit, fit_attention, fit_temperature
from softdict.mapping import HardView, Lookup, Match, SoftDict
from softdict.playground import play
from softdict.scores import Bilinear, InverseDistance
from softdict.transformer import (
    Lookups,
    SelfAttention,
    attention,
    attention_vjp,
    attention_weights,
    real_head,
)
from softdict.weights import Entmax

__version__ = "0.1.0"

__all__ = [
    "Bilinear",
    "Entmax",
    "HardView",
    "InverseDistance",
    "Lookup",
    "Lookups",
    "Mapped",
    "Match",
    "Partial",
    "SelfAttention",
    "SoftDict",
    "attention",
    "attention_vjp",
    "attention_weights",
    "check_vjp",
    "fit",
    "fit_attention",
    "fit_temperature",
    "lookup_weights",
    "play",
    "real_head",
    "soft_lookup",
    "soft_lookup_vjp",
]
