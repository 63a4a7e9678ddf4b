"""Transcripts: Whisper's marks and rules, and the segments that its tokens become."""

from .marks import TranscriptMarks
from .rules import TranscriptRules
from .segments import window_segments
from .transcript import Segment, Transcript

__all__ = ["Segment", "Transcript", "TranscriptMarks", "TranscriptRules", "window_segments"]
