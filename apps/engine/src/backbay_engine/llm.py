"""A model ready to answer: its text side, over the port that runs its steps."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, Unpack, final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, BackendMemory, Choice
from backbay.internals import naming_limits

from .arguments import AdapterChoice, adapter_files, adapter_mix, token_ids, whole_number
from .cache.contract import Cache
from .encoders.contract import Modality
from .errors import RequestError, ToolsError
from .local.port import LocalPort
from .media.encoder import MediaEncoder
from .media.prompts import PromptParts
from .models.contract import Model
from .port import questions
from .port.chats import CHAT_OPTIONS, ChatRequest, chat_request, checked_variables
from .port.contract import ModelFacts, Port
from .port.remote import RemotePort
from .port.request_maker import RequestMaker, StoreView
from .port.request_maker import UserPrompt as Prompt
from .port.saving import require_no_pictures, save_snapshot
from .port.transcription import TranscriptFields, Transcription, transcript_options
from .runner.loop import Runner
from .runner.requests.answer import Completion
from .runner.requests.handle import AnswerPieces, Handle, OnStep, wait_for
from .runner.requests.request import Score, ScoreTokens
from .runner.state import State
from .runner.traced_steps import StepCache
from .snapshots import Snapshot
from .steps.step import Step
from .text.answers import Piece, ToolChoice, Tools, tools_of
from .text.chat import ChatTemplate, chat_template_from_gguf
from .text.sampling import Sampled
from .text.tokenizers import Tokenizer


@final
class LLM:
    """A model file on a backend. Made by `load`; a context manager."""

    def __init__(self, port: Port, choice: Choice | None = None) -> None:
        self._port, self._requests, self._choice = port, RequestMaker(port), choice
        self._template: ChatTemplate | None = None
        self._close = weakref.finalize(self, port.close)

    def __repr__(self) -> str:
        facts = self._port.facts
        return f"LLM({facts.architecture}, {facts.purpose}, context {facts.context})"

    @property
    def context(self) -> int:
        """Tokens of each sequence."""
        return self._port.facts.context

    @property
    def batch(self) -> int:
        """Tokens of one step."""
        return self._port.facts.batch

    @property
    def vocabulary_size(self) -> int:
        return self._port.facts.vocabulary_size

    # -- text --------------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; RequestError if the file has no vocabulary."""
        return self._requests.tokenizer()

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Continue a prompt: a text, token ids, or parts: also pictures, sounds and Rows. `submit` documents the options."""
        return wait_for(self.submit(prompt, **options))

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[str]:
        """Continue a prompt; gives the text piece by piece. Leaving the loop cancels the request."""
        handle = self.submit(prompt, **options)
        return AnswerPieces(handle, iter(handle), self)

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer; none if the file has no vocabulary."""
        tokenizer = self._port.tokenizer
        return frozenset() if tokenizer is None else frozenset(tokenizer.end_ids)

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Answer a conversation: messages with a role and content, formatted by the model's chat template.

        Content is a text, or parts such as {"type": "text", "text": ...}, {"type": "image", "image": ...}, {"type": "audio",
        "audio": ...}, {"type": "rows", "rows": ...}, and OpenAI's "image_url" and "input_audio". The options are those of
        `prepare_chat` (tools ...) and `submit`. Reasoning and calls of tools are apart from the text; `message` goes on.
        """
        chat, given = self._prepared(messages, options)
        return chat.told_apart(self.generate(chat.prompt, **given))

    def stream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Iterator[Piece]:
        """Answer a conversation piece by piece: text, reasoning, and calls with their arguments as they grow.

        Takes what `chat` takes. Leaving the loop cancels the request.
        """
        chat, given = self._prepared(messages, options)
        handle = self.submit(chat.prompt, **given)
        return AnswerPieces(handle, chat.pieces(handle), self)

    def _prepared(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> tuple[ChatRequest, dict[str, Any]]:
        """A conversation and the options of `submit`."""
        chat = self.prepare_chat(messages, **{name: options[name] for name in CHAT_OPTIONS & options.keys()})
        return chat, {**chat.options, **{name: options[name] for name in options.keys() - CHAT_OPTIONS}}

    def prepare_chat(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Tools | Sequence[Mapping[str, Any]] | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        response_format: Any = None,
        variables: Mapping[str, Any] | None = None,
    ) -> ChatRequest:
        """A conversation as `submit` takes it, with the reader of its answer.

        tools                what the answer may call, as OpenAI has it: {"type": "function", "function": {"name": ...}}
        tool_choice          auto; none; required: the answer is a call; or {"type": "function", "function": {"name": ...}}
        parallel_tool_calls  whether the answer may have several calls
        response_format      what an answer without calls must be; reasoning that the template has begun ends in the prompt
        variables            variables of the chat template, such as enable_thinking
        """
        if not isinstance(tools, Tools):
            tools = tools_of(tools, tool_choice, parallel=parallel_tool_calls)
        given = checked_variables(variables)
        if tools.definitions:
            if "tools" not in self.template.source:
                raise ToolsError("the model's chat template takes no tools")
            given["tools"] = tools.definitions
        prompt = self.chat_prompt(messages, **given)
        return chat_request(prompt, self.template.source, self.tokenizer, tools, response_format)

    @naming_limits("a chat template")
    def chat_prompt(
        self, /, messages: Sequence[Mapping[str, Any]], **variables: Any
    ) -> list[int] | PromptParts:
        """The prompt of a conversation, ending where the model's answer begins: token ids; parts if it has more."""
        return self._requests.chat(messages, lambda said: self.template.render(said, **variables))

    @property
    def template(self) -> ChatTemplate:
        """The chat template; RequestError if the file has none."""
        self._facts().require_chat()
        if self._template is None:
            self._template = chat_template_from_gguf(self.tokenizer)
        if self._template is None:
            raise RequestError("the file has no chat template; write the prompt out, and use generate")
        return self._template

    @naming_limits("a request")
    def submit(
        self, prompt: Prompt, *, on_step: OnStep | None = None, deadline: float | None = None, **options: Any
    ) -> Handle[Completion]:
        """Queue a request; requests that run at the same time share their steps.

        on_step     called with each TokenStep as soon as it is there, then once with the Completion or the error. It
                    runs in the engine's thread: it hands on what it gets, and never waits. What would wait for this
                    model there, such as `generate`, is a RequestError
        deadline    seconds within which the request must begin; if it still waits then, it ends with DeadlineError

        The other options are the fields of GenerationOptions (max_tokens, stop, num_keep, reuse, adapter) and of
        SamplingParams (temperature, top_k, top_p, min_p, seed, logprobs ...).
        """
        if on_step is not None and not callable(on_step):
            raise RequestError(f"on_step must be a function of one argument, got {on_step!r}")
        self._facts().require_text()
        return self._port.submit(self._requests.generation(prompt, deadline, options), on_step)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt, a placeholder for each row of a picture or a sound; RequestError if the model cannot serve it."""
        return self._requests.encoded(prompt)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self.tokenizer.decode(token_ids(ids, "decode takes token ids"))

    # -- snapshots ---------------------------------------------------------------------------------------

    @naming_limits("a snapshot")
    def save(self, source: Handle[Completion] | Prompt, *, adapter: AdapterChoice = None) -> Snapshot:
        """The snapshot of a request, which goes on undisturbed, or of a prompt, to be restored here or elsewhere.

        `adapter` is that of a prompt, as `submit` takes it; a request has its own.
        """
        self._facts().require_text()
        if isinstance(source, Handle):
            return save_snapshot(self._port, source)
        prompt = require_no_pictures(self._requests.checked(source))
        return save_snapshot(self._port, prompt, adapter_mix(adapter))

    @naming_limits("a snapshot")
    def restore(self, source: Snapshot | str | os.PathLike[str], *, shared: bool = False) -> Snapshot:
        """Let the cache hold what a snapshot has, or its file; gives the snapshot.

        Then `submit(snapshot.prompt, **snapshot.options)` goes on, and computes no token again. Whoever wrote the file decides
        the answers to prompts that begin with all of its tokens, and with `shared` to all that begin like it: take trusted ones.
        """
        self._facts().require_text()
        snapshot = source if isinstance(source, Snapshot) else Snapshot.read(source)
        self._port.ask(
            questions.RestoreSnapshot(replace(snapshot, prompt=(), options={}, notes={}), shared)
        )  # the cache needs none of these
        return snapshot

    # -- adapters ----------------------------------------------------------------------------------------

    @property
    def adapters(self) -> Mapping[str, str]:
        """The files and folders of the adapters, by name."""
        return self._port.ask(questions.GetAdapters())

    @naming_limits("an adapter")
    def add_adapter(self, name: str, path: str | os.PathLike[str]) -> None:
        """Load an adapter while requests run: a file in GGUF, or a folder of PEFT. If that fails, nothing has changed."""
        self._port.ask(questions.AddAdapter(name, adapter_files({name: path})[name]))

    def remove_adapter(self, name: str) -> None:
        """Unload an adapter; RequestError if a request runs or waits that uses it."""
        self._port.ask(questions.RemoveAdapter(name))

    # -- pictures and sounds ----------------------------------------------------------------------------------------

    @property
    def modalities(self) -> frozenset[str]:
        """What a prompt may hold: "text", and "image" if the model sees pictures, "audio" if it hears sound."""
        return frozenset({"text", *(media.modality for media in self._port.facts.media)})

    @property
    def transcribes(self) -> bool:
        """Whether it writes transcripts of sounds, and nothing else."""
        return self._port.facts.transcribes

    def prepare(self, given: Any) -> Any:
        """A picture or a sound as the model's encoder takes it, Prepared or PreparedAudio; it may stand for it in any prompt."""
        return self._port.ask(questions.PrepareMedia(self._requests.media(given)))

    @naming_limits("a request")
    def embed_image(self, picture: Any) -> NDArray[np.float32]:
        """The rows of a picture that enter the text, or that cross attention sees, (rows, width)."""
        return self._port.ask(questions.EmbedMedia(self._requests.media(picture, "image")))

    @naming_limits("a request")
    def embed_audio(self, audio: Any) -> NDArray[np.float32]:
        """The rows of a sound that enter the text, (rows, width)."""
        return self._port.ask(questions.EmbedMedia(self._requests.media(audio, "audio")))

    @naming_limits("a request")
    def transcribe(self, audio: Any, *, stream: bool = False, **options: Unpack[TranscriptFields]) -> Any:
        """The Transcript of a sound of any length, by a Whisper; with `stream`, the Transcription, whose segments come one by one.

        The options are the fields of TranscriptOptions: language, timestamps, task, temperature, prompt.
        """
        self._facts().require_transcripts()
        made = Transcription(self._port, transcript_options(options), self.prepare(audio))
        return made if stream else made.transcript()

    @property
    def store(self) -> StoreView:
        """The store of the rows of pictures or sounds; RequestError if the model takes none."""
        self._requests.require_media()
        return StoreView(self._port)

    # -- numbers -----------------------------------------------------------------------------------------

    @naming_limits("a request")
    def logits(
        self, prompt: Prompt, *, audio: Any = None, adapter: AdapterChoice = None
    ) -> NDArray[np.float32]:
        """The logits after each token of a prompt, (tokens, vocabulary), those of pictures and sounds included.

        audio   for Whisper: the sound, of 30 seconds at most, that the decoder attends to; the prompt is the decoder's
        """
        return wait_for(self._port.submit(Score(self._requests.scored(prompt, audio), adapter_mix(adapter))))

    @naming_limits("a request")
    def score_tokens(
        self, prompt: Prompt, *, top: int = 0, adapter: AdapterChoice = None
    ) -> Iterator[Sampled]:
        """The log-probability of each token of a prompt, and the `top` most likely tokens in its place, as they come.

        The first token has none. The logits of all tokens are never in memory at once. Leaving the loop cancels.
        """
        self._facts().require_text()
        most, mix = whole_number("top", top, 0), adapter_mix(adapter)
        handle = self._port.submit(ScoreTokens(self._requests.tokens(prompt), most, mix))
        return AnswerPieces(handle, (each for step in handle.steps() for each in step.logprobs or ()), self)

    @naming_limits("a request")
    def embed(
        self, texts: str | Sequence[Prompt], *, normalize: bool = True, adapter: AdapterChoice = None
    ) -> NDArray[np.float32]:
        """A vector for each text, (texts, width), of length 1 unless `normalize` is False."""
        self._facts().require_numbers("embeddings")
        found = self._port.ask(questions.Embed(self._requests.several(texts), adapter_mix(adapter)))
        return found / np.linalg.norm(found, axis=1, keepdims=True) if normalize else found

    @naming_limits("a request")
    def rerank(
        self, query: str, texts: Sequence[str], *, adapter: AdapterChoice = None
    ) -> NDArray[np.float32]:
        """A score for each text, (texts,), by how well it answers the query: higher is better."""
        self._facts().require_numbers("scores")
        return self._port.ask(questions.Embed(self._requests.pairs(query, texts), adapter_mix(adapter)))[:, 0]

    def state(self) -> State:
        """The requests and the sequences at this moment, and the tokens so far. Waits for no request."""
        return self._port.state()

    def memory(self) -> BackendMemory:
        """The memory of the weights, the cache, the largest graph, and the host's share."""
        return self._port.ask(questions.GetMemory())

    def forget(self) -> None:
        """Wait until no request runs, then empty the cache, which keeps old prompts for reuse."""
        self._port.ask(questions.ClearCaches())

    # -- closing -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cancel all requests and free everything. Closing again does nothing."""
        if self._template is not None:
            self._template.close()
        self._close()

    def __enter__(self) -> Self:
        self._port.check_open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- where it runs -----------------------------------------------------------------------------------

    @property
    def choice(self) -> Choice | None:
        """The backend that was chosen, with the reasons; None if `load` was given one, or the engine is elsewhere."""
        return self._choice

    @property
    def worker_pid(self) -> int | None:
        """The id of the worker's process; None if none runs now, or if the model runs in this process."""
        return self._port.pid if isinstance(self._port, RemotePort) else None

    @property
    def backend(self) -> Backend:
        """The backend. This and what follows are only to be had if the model runs in this process."""
        return self._local("backend").backend

    @property
    def model(self) -> Model:
        return self._local("model").model

    @property
    def cache(self) -> Cache | None:
        return self._local("cache").cache

    @property
    def step_cache(self) -> StepCache:
        return self._local("step_cache").step_cache

    @property
    def runner(self) -> Runner | None:
        return self._local("runner").runner

    @property
    def encoders(self) -> Mapping[Modality, MediaEncoder]:
        """The encoders of pictures and of sound, as far as the model has them."""
        return {} if (media := self._local("encoders").media) is None else media.encoders

    def step(self, prompt: Prompt) -> Step:
        """The step of a whole prompt, to look into with `step_cache`; each look needs a step of its own."""
        return self._local("step").prompt_step(self._requests.checked(prompt))

    def _local(self, wanted: str) -> LocalPort:
        if not isinstance(self._port, LocalPort):
            raise RequestError(f"{wanted} is in the model's worker; load the model without worker=True")
        return self._port

    def _facts(self) -> ModelFacts:
        """The facts of a model that is open."""
        self._port.check_open()
        return self._port.facts
