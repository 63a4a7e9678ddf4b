"""Chat templates: from the messages of a conversation to a prompt."""

from .template import ChatTemplate, TemplateLimits, chat_template_from_gguf

__all__ = ["ChatTemplate", "TemplateLimits", "chat_template_from_gguf"]
