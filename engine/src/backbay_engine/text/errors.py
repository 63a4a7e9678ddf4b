"""What can go wrong between text and tokens."""

from __future__ import annotations

from backbay import BackbayError


class TokenizerError(BackbayError, ValueError):
    """A vocabulary that cannot be used, a text that is no text, or an id that is no token."""


class TemplateError(BackbayError):
    """A chat template that is wrong, refuses its input, or takes more than it may."""
