"""Write what is said in a sound, by a Whisper: a folder of transformers, or whisper.cpp's file.

The text is written as it comes, a line for each segment.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from backbay.cli import say, say_json

from ..port.transcription import TranscriptFields
from ..sound.audio import RATE, Audio
from ..sound.prepared_sound import PreparedAudio
from ..text.transcripts import Segment
from ..text.transcripts.marks import TASKS
from ..text.transcripts.transcript import VTT, cue
from .model_arguments import (
    ProgressBar,
    add_backend_arguments,
    add_model_arguments,
    add_worker_arguments,
    open_model,
)


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("file", help="the sound: WAV, FLAC, OGG or MP3")
    add_model_arguments(parser)
    add_backend_arguments(parser)
    add_worker_arguments(parser)
    add("--language", metavar="CODE", help="the language, such as de; by default it is detected")
    add("--task", choices=TASKS, default=TASKS[0], help="translate: into English (transcribe)")
    add("--prompt", metavar="TEXT", default="", help="a text that precedes the sound, such as names")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--srt", action="store_true", help="print subtitles in SubRip's format")
    forms.add_argument("--vtt", action="store_true", help="print subtitles in WebVTT's format")
    forms.add_argument("--json", action="store_true", help="print JSON, with languages and probabilities")


def run(args: Namespace) -> int:
    with open_model(args, args.backend) as llm:
        sound: PreparedAudio = llm.prepare(Audio(args.file))
        options: TranscriptFields = {"language": args.language, "task": args.task, "prompt": args.prompt}
        if args.json:
            say_json(llm.transcribe(sound, **options).entry)
            return 0
        segments = llm.transcribe(sound, stream=True, **options)
        if args.vtt:
            say(VTT.removesuffix("\n"))
        with ProgressBar(sys.stderr, "transcribing") as bar:
            for number, segment in enumerate(segments, 1):
                _print(segment, args, number)
                if not sys.stdout.isatty():  # otherwise the segments show it
                    bar.show(segment.end * RATE / sound.samples)
    return 0


def _print(segment: Segment, args: Namespace, number: int) -> None:
    if args.srt or args.vtt:
        say(cue(segment, number if args.srt else None).removesuffix("\n"))
    else:
        say(segment.text.strip())
    sys.stdout.flush()
