"""Attention is a soft dictionary lookup."""

from softdict.blend import Partial, lookup_weights, soft_lookup
from softdict.mapping import HardView, Lookup, Match, SoftDict
from softdict.scores import Bilinear, InverseDistance
from softdict.transformer import attention, attention_weights
from softdict.weights import Entmax

__version__ = "0.1.0"

__all__ = [
    "Bilinear",
    "Entmax",
    "HardView",
    "InverseDistance",
    "Lookup",
    "Match",
    "Partial",
    "SoftDict",
    "attention",
    "attention_weights",
    "lookup_weights",
    "soft_lookup",
]
