"""The vocabulary of the tiny Whisper, and windows as its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tiny_gguf import train_tokenizer
from tokenizers import AddedToken, Tokenizer

from .speech import WORDS
from .windows import Window

START, END, SILENCE, NO_TIMESTAMPS = (
    "<|startoftranscript|>",
    "<|endoftext|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
PREVIOUS = "<|startofprev|>"
UNSPOKEN = START, "<|translate|>", "<|transcribe|>", "<|startoflm|>", PREVIOUS, SILENCE
MARKS = END, *UNSPOKEN, NO_TIMESTAMPS
TEXT_TOKENS = 512  # at most; each word is one


def make_tokenizer(positions: int) -> Tokenizer:
    """The words, then Whisper's marks and times, one more than there are positions."""
    made = train_tokenizer([f" {word}" for word in WORDS] * 2, TEXT_TOKENS, special=())
    made.add_special_tokens([AddedToken(name, special=True) for name in MARKS])
    made.add_tokens([AddedToken(f"<|{n * 0.02:.2f}|>") for n in range(positions + 1)])
    return made


class Words:
    """Windows as tokens: with times or without."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.start, self.end, self.silence, self.plain = (
            tokenizer.token_to_id(name) for name in (START, END, SILENCE, NO_TIMESTAMPS)
        )
        self.ids = {word: tokenizer.encode(f" {word}").ids for word in WORDS}

    def row(self, window: Window, *, times: bool) -> tuple[list[int], list[int]]:
        """The tokens of a window, and what follows each; -100 where that is not to be learned."""
        if not window.heard:
            first = self.plain + 1 if times else self.plain
            return [self.start, first], [self.silence, self.end]
        ids = [self.start] if times else [self.start, self.plain]
        for words, begin, end in window.heard:
            ids += [self._time(begin)] if times else []
            ids += [id for word in words for id in self.ids[word] if end is not None]
            ids += [self._time(end)] if times and end is not None else []
        targets = [*ids[1:], self.end]
        return ids, targets if times else [-100, *targets[1:]]

    def _time(self, row: int) -> int:
        return self.plain + 1 + row

    def table(self, windows: Sequence[Window], *, times: bool) -> tuple[list[list[int]], list[list[int]]]:
        """Tokens and targets, (windows, length)."""
        rows = [self.row(window, times=times) for window in windows]
        length = max(len(ids) for ids, _ in rows)
        tokens = [ids + [self.end] * (length - len(ids)) for ids, _ in rows]
        targets = [learned + [-100] * (length - len(learned)) for _, learned in rows]
        return tokens, targets
