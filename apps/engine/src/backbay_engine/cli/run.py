"""Continue a text, or chat.

The model continues the text as it stands; with --chat, it answers the text as a message of a chat, or asks for messages.
Ctrl+C ends an answer, Ctrl+D ends a chat.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from backbay import BackbayError, OptionError
from backbay.cli import add_json, file_to_write, note, say_json, standard_input, standard_line, whole
from backbay.internals import read_regular

from ..errors import ContextOverflowError, RequestError
from ..images.image import Image
from ..llm import LLM
from ..port.chats import ChatRequest
from ..port.request_maker import UserPrompt
from ..runner.requests.answer import Completion, Timings
from ..runner.requests.handle import Handle
from ..sound.audio import Audio
from ..text.answers import PlainReader
from ..text.formats import FormatKind, ResponseFormat, check_format
from ..text.sampling import SamplingParams
from .conversations import AnswerPrinter, SavedConversation
from .model_arguments import (
    adapter_scales,
    add_adapter_arguments,
    add_backend_arguments,
    add_image_arguments,
    add_model_arguments,
    add_speculation_arguments,
    add_worker_arguments,
    open_model,
)

IMAGE = "/image"
LARGEST_FORMAT = 1 << 24  # bytes of a file with a response format
SAMPLING = {
    "temperature": (float, "0 chooses the most likely token"),
    "top_k": (int, "choose among this many most likely tokens"),
    "top_p": (float, "choose among the most likely tokens that together have this probability"),
    "min_p": (float, "choose among tokens with this share of the most likely token's probability"),
    "repetition_penalty": (float, "above 1 makes recent tokens less likely"),
    "seed": (int, "the same seed gives the same answer"),
}


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser)
    add_backend_arguments(parser)
    add_worker_arguments(parser)
    add_adapter_arguments(parser)
    add = parser.add_argument
    add("text", nargs="?", help="the text; by default standard input, if it is a pipe or a file")
    add("-p", "--prompt", metavar="TEXT", help="the text; - reads standard input")
    chat = "chat, in the form of the model's own template; reasoning goes to standard error"
    add("--chat", action="store_true", help=chat)
    add_image_arguments(parser, "a picture, which the text or the first question of a chat asks about")
    heard = "a sound that the text or the first question of a chat asks about; may be repeated"
    add("--audio", action="append", default=[], metavar="FILE", help=heard)
    add("--system", metavar="TEXT", help="system message of the chat")
    most = "most tokens of the answer; by default all that fit"
    add("-n", "--max-tokens", type=whole(1), metavar="N", help=most)
    end = "a string that ends the answer; may be repeated"
    add("--stop", action="append", default=[], metavar="TEXT", help=end)
    kept = "when the context is full, keep this many first tokens and go on"
    add("--num-keep", type=whole(0), metavar="N", help=kept)
    formats = parser.add_mutually_exclusive_group()
    for option, of_file, holds in (
        (
            "--json-schema",
            format_type("schema"),
            "the answer is JSON that is valid by the schema in this file",
        ),
        (
            "--grammar",
            format_type("grammar"),
            "the answer is a text of the Lark or GBNF grammar in this file",
        ),
    ):
        formats.add_argument(option, dest="response_format", type=of_file, metavar="FILE", help=holds)
    session = (
        "keep the conversation in this file; the next run with this file goes on with it. Whoever wrote a file decides "
        "the answers: take none of those you do not trust"
    )
    add("--session", type=file_to_write, metavar="FILE", help=session)
    add_speculation_arguments(parser)
    for name, (kind, what) in SAMPLING.items():
        add(f"--{name.replace('_', '-')}", type=sampling_type(name, kind), metavar="X", help=what)
    add("--quiet", action="store_true", help="print neither timings nor reasoning")
    add_json(parser)


def sampling_type(name: str, kind: type[int | float]) -> Callable[[str], int | float]:
    """The argparse type of a sampling option; SamplingParams checks the value."""

    def parse(text: str) -> int | float:
        value = kind(text)
        try:
            SamplingParams(**{name: value})  # type: ignore[arg-type]
        except OptionError as error:
            raise ArgumentTypeError(str(error)) from None
        return value

    parse.__name__ = kind.__name__  # argparse shows it in its error
    return parse


def format_type(kind: FormatKind) -> Callable[[str], ResponseFormat]:
    """The argparse type of a file with a response format."""

    def parse(path: str) -> ResponseFormat:
        try:
            wanted = ResponseFormat(kind, read_regular(path, LARGEST_FORMAT).decode())
            check_format(wanted)
        except OSError as error:
            raise ArgumentTypeError(f"{path} cannot be read: {error.strerror or error}") from None
        except (UnicodeError, BackbayError) as error:
            raise ArgumentTypeError(f"{path}: {error}") from None
        return wanted

    return parse


def run(args: Namespace) -> int:
    for option, files, noun in (("--image", args.image, "pictures"), ("--audio", args.audio, "sounds")):
        if args.session is not None and files:
            raise OptionError(f"--session and {option}: a conversation with {noun} cannot be kept in a file")
    text = text_of(args)
    session = SavedConversation(args.session, chat=args.chat)
    if args.system and session.messages:
        raise OptionError(f"--system is for a new conversation, and {args.session} holds one")
    with open_model(args, args.backend) as llm:
        session.restore(llm)
        if args.chat:
            return converse(llm, args, text, session)
        prompt = prompt_of(llm, media_of(args), text or "")
        asked = session.prompt(llm, prompt) if isinstance(prompt, str) else prompt
        handle, _ = print_answer(llm, asked, args)
        session.keep(llm, handle)
    return 0


def text_of(args: Namespace) -> str | None:
    """The text that is given; None if a chat asks for messages."""
    if args.text is not None and args.prompt is not None:
        raise OptionError("the text is given twice, as an argument and with -p; leave out one of them")
    text: str | None = args.prompt if args.text is None else args.text
    piped = text is None and not args.chat and sys.stdin is not None and not sys.stdin.isatty()
    if text == "-" or piped:
        text = standard_input()
    if (piped and not text) or (text is None and not args.chat):
        raise OptionError("give a prompt with -p TEXT, as an argument or on standard input, or --chat")
    return text


def media_of(args: Namespace) -> list[Image | Audio]:
    """The pictures and sounds of the arguments."""
    return [*map(Image, args.image), *map(Audio, args.audio)]


def prompt_of(llm: LLM, media: Sequence[Image | Audio], text: str) -> UserPrompt:
    """The prompt of a text; with pictures or sounds, it is a question in the model's chat template, if it has one."""
    if not media:
        return text
    if llm.tokenizer.chat_template is None:
        return [*media, text]
    return llm.chat_prompt([{"role": "user", "content": content_of(media, text)}])


def content_of(media: Sequence[Image | Audio], text: str) -> str | list[Any]:
    """The content of a message."""
    return [*media, {"type": "text", "text": text}] if media else text


def converse(llm: LLM, args: Namespace, first: str | None, session: SavedConversation) -> int:
    """Ask and answer until the end of input. With a prompt, answer once. `/image FILE` goes with the next question."""
    media = media_of(args)
    system = [{"role": "system", "content": args.system}] if args.system else []
    messages: list[dict[str, Any]] = session.messages or system
    while (question := first if first is not None else read_question()) is not None:
        if first is None and question.strip().split(maxsplit=1)[0] == IMAGE:
            if args.session is not None:
                note(f"{IMAGE}: a conversation with pictures cannot be kept in {args.session}")
            else:
                media += next_picture(llm, question.strip()[len(IMAGE) :].strip())
            continue
        messages.append({"role": "user", "content": content_of(media, question)})
        media = []
        try:
            handle, completion = answer_last(llm, messages, args, goes_on=first is None)
        except ContextOverflowError as error:
            if first is not None:
                raise
            note(f"{error}; ask for less")
            messages.pop()
            continue
        messages.append(completion.message)
        session.keep(llm, handle, messages)
        if first is not None:
            break
    return 0


def answer_last(
    llm: LLM, messages: list[dict[str, Any]], args: Namespace, *, goes_on: bool
) -> tuple[Handle[Completion], Completion]:
    """Answer the last message. If the conversation has become too long, its oldest questions go, with a note."""
    shorter = list(messages)
    while True:
        chat = llm.prepare_chat(shorter, response_format=args.response_format)
        try:
            answered = print_answer(llm, chat, args, goes_on=goes_on)
        except ContextOverflowError as error:
            asked = [n for n, message in enumerate(shorter) if message["role"] == "user"]
            if len(asked) < 2:
                raise
            note(f"{error}: the oldest question and its answer are left out")
            del shorter[asked[0] : asked[1]]
        else:
            messages[:] = shorter
            return answered


def next_picture(llm: LLM, path: str) -> list[Image]:
    """The picture that goes with the next question; none, with a note why, if it cannot be taken."""
    if not path:
        note(f"{IMAGE} FILE: name the picture's file")
        return []
    try:
        picture = Image(path)
        llm.prepare(picture)
    except RequestError as error:
        note(str(error))
        return []
    note(f"{path} goes with the next question")
    return [picture]


def read_question() -> str | None:
    """The next non-empty line; None at the end of input."""
    while True:
        line = standard_line()
        if line is None:
            return None
        if line.strip():
            return line


def print_answer(
    llm: LLM, asked: UserPrompt | ChatRequest, args: Namespace, *, goes_on: bool = False
) -> tuple[Handle[Completion], Completion]:
    """Print an answer as it comes, or as JSON at the end. Ctrl+C ends the answer; if the chat goes on, only the answer."""
    chat = asked if isinstance(asked, ChatRequest) else ChatRequest(asked, {}, PlainReader)
    handle = llm.submit(chat.prompt, **{**submit_options(args), **chat.options})
    printer = AnswerPrinter(reasons=not args.quiet)
    try:
        for piece in chat.pieces(handle):
            if not args.json:
                printer.print(piece)
    except KeyboardInterrupt:
        if not goes_on:
            raise
    finally:
        handle.cancel()
        printer.end_reasoning()
    completion = chat.told_apart(handle.result())
    if args.json:
        say_json(as_dict(completion))
    else:
        sys.stdout.write("\n")
        sys.stdout.flush()  # before the line on standard error
        if not args.quiet:
            note(timing_text(completion.timings, completion.finish_reason))
    return handle, completion


def submit_options(args: Namespace) -> dict[str, Any]:
    """The options that were given, for `submit`."""
    given = {name: getattr(args, name) for name in (*SAMPLING, "max_tokens", "num_keep", "response_format")}
    own = {"stop": args.stop, "adapter": adapter_scales(args)}
    return {**{name: value for name, value in given.items() if value is not None}, **own}


def as_dict(completion: Completion) -> dict[str, Any]:
    timings, fields = completion.timings, ("text", "reasoning", "tokens", "finish_reason", "stop")
    rates = {"prompt_rate": timings.prompt_rate, "rate": timings.rate}
    return {**{name: getattr(completion, name) for name in fields}, "timings": asdict(timings) | rates}


def timing_text(timings: Timings, reason: str) -> str:
    """The timings as a line of text."""
    reused = f", {timings.reused_tokens} reused" if timings.reused_tokens else ""
    parts = [f"pictures {timings.pictures:.2f} s"] if timings.pictures else []
    parts.append(f"prompt {timings.prompt_tokens} tokens{reused}, {timings.prompt_rate:.1f} a second")
    parts.append(f"answer {timings.tokens} tokens, {timings.rate:.1f} a second")
    if timings.guessed_tokens:
        parts.append(f"{timings.accepted_tokens} of {timings.guessed_tokens} guesses right")
    return f"[{'; '.join(parts)}; ended by {reason}]"
