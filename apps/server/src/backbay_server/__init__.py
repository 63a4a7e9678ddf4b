"""A server for models on any backbay backend, with the APIs of OpenAI, Anthropic and Ollama."""

from .application import app
from .settings import Settings

__all__ = ["Settings", "app"]
