"""Families of models, by the names of transformers' classes."""

from __future__ import annotations

from ..family import Families
from . import decoders, delta_rules, encoders, experts, gemma, recurrent

FAMILIES: Families = {
    **decoders.FAMILIES,
    **experts.FAMILIES,
    **gemma.FAMILIES,
    **recurrent.FAMILIES,
    **delta_rules.FAMILIES,
    **encoders.FAMILIES,
}
