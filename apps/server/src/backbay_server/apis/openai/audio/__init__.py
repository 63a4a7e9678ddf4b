"""OpenAI's API of speech: transcripts, and translations into English."""
