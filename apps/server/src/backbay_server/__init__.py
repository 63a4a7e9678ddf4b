"""A server for models on any backbay backend, with the APIs of OpenAI, Anthropic and Ollama."""

from .application import app
from .settings import ServerSettings

__all__ = ["ServerSettings", "app"]
