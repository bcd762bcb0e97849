"""Attention is a soft dictionary lookup."""

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
