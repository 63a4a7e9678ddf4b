"""What can go wrong beside what backbay's own errors say."""

from __future__ import annotations

from backbay import BackbayError


class CacheShiftError(BackbayError):
    """A range cannot be taken out of a sequence here, since what follows it cannot be moved."""


class RequestError(BackbayError, ValueError):
    """A request that cannot be served as it is: an empty prompt, one too long, a token that is none."""


class LogitsError(BackbayError):
    """A forward pass gave NaN where it should give scores."""


class TokenizerError(BackbayError, ValueError):
    """A vocabulary that cannot be used, a text that is no text, or an id that is no token."""


class TemplateError(BackbayError):
    """A chat template that is wrong, refuses its input, or takes more than it may."""
