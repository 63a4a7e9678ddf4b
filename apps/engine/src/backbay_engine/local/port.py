"""A model in this process: a backend, a cache and a runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast, final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from backbay import BackendMemory, ClosedError
from backbay.internals import without_forks
from backbay.plugin import Cancel, Entry, Progress

from ..arguments import (
    LARGEST_BATCH,
    MOST_SEQUENCES,
    AdapterMix,
    require_cache_room,
    whole_number,
)
from ..cache.contract import Cache, CacheSizes
from ..errors import ContextOverflowError, RequestError
from ..media.content_parts import Encoded
from ..media.prompt_tokenizer import PromptTokenizer
from ..media.prompts import PromptParts
from ..media.rows import Rows, values_by_content
from ..models import load_model
from ..models.contract import Model
from ..port.admissions import Admissions
from ..port.contract import Port
from ..port.options import BackendName, LoadOptions, Path
from ..port.questions import Question
from ..runner.key_sample import let_cache_learn
from ..runner.loop import Runner
from ..runner.requests.handle import Handle, OnStep, Receiver, require_elsewhere
from ..runner.requests.job import MediaRowMap, MediaRowSource
from ..runner.requests.prompt_jobs import LogitsJob
from ..runner.requests.request import NUMBERS, AnyRequest, Generate, Prompt, Request
from ..runner.scheduler import StepShare
from ..runner.slots import Slots
from ..runner.speculation import LONGEST, DraftModel, GuessSource, Speculation
from ..runner.state import State
from ..runner.step_maker import MediaCacheWriter, make_step
from ..runner.traced_steps import StepCache
from ..snapshots import Snapshot
from ..steps.step import Step, full_of_rows, largest_steps, prompt_step
from ..steps.tokens import Token, encoder_length, ids_of
from ..text.formats import ConstraintMaker
from .adapters import LoadedAdapters
from .guess_source import open_guess_source
from .job_maker import JobMaker
from .media_intake import MediaIntake
from .opening.encoder_opening import open_encoder, open_text_backend, own_projector
from .opening.load_checks import context_of, dtype_of, facts_of, tokenizer_of
from .opening.weight_loading import load_weights
from .prefix_folder import PrefixFolder
from .snapshot_saver import SlotSnapshotter, SnapshotSaver
from .text_embedder import TextEmbedder

R = TypeVar("R", bound=Receiver[Any])
T = TypeVar("T")


@final
class LocalPort(Port):
    """A model file on a backend. It is reserved when it is made, and answers once it is loaded."""

    @without_forks()
    def __init__(self, path: Path, backend: BackendName | None, options: LoadOptions) -> None:
        parallel = whole_number("parallel", options.parallel, 1, MOST_SEQUENCES)
        batch = max(whole_number("batch", options.batch, 1, LARGEST_BATCH), parallel)
        self.places = Admissions(parallel, options.queue)
        self._receivers = WeakValueDictionary[int, Receiver[Any]]()
        self.media: MediaIntake | None = None
        self.source: GuessSource | None = None
        self._opened = ExitStack()
        self._saver: SnapshotSaver | None = None
        options = own_projector(path, options)
        self.backend, holds_encoder = open_text_backend(path, backend, options.params)
        self._opened.callback(self.backend.close)
        try:
            context = context_of(options.context, self.backend)
            require_cache_room(parallel, context)
            self.model: Model = load_model(self.backend, context)
            self.tokenizer = tokenizer_of(self.backend.config, self.model)
            self._prompts = PromptTokenizer(self.tokenizer, ())
            self._row_width = max(self.model.row_widths, default=0)
            if holds_encoder or options.projector is not None:
                batch = max(batch, self._open_encoder(path, backend, options))
            self.cache: Cache | None = self.model.new_cache()
            if self.cache is not None:
                self._opened.callback(self.cache.close)
            self.step_cache = StepCache(self.model, self.cache)
            self._opened.callback(self.step_cache.close)
            self.adapters = LoadedAdapters(self.backend, self.step_cache)
            self.adapters.read(options.adapters)
            self.constraint_maker = ConstraintMaker(self.tokenizer, self.model.vocabulary_size)
            if self.cache is not None:
                batch = min(batch, parallel * context)
                dtype = dtype_of(options.kv_dtype, self.backend)
                self.cache.open(self.backend, CacheSizes(parallel, context, batch, dtype))
            self.facts = facts_of(
                self.model,
                self.backend.config,
                self.tokenizer,
                context=context,
                batch=batch,
                generates=self.cache is not None,
                media=() if self.media is None else self.media.facts,
            )
            self._embedder = TextEmbedder(self.step_cache, self.adapters, batch)
            if options.guesses:
                self.source = open_guess_source(options, self.facts, self.model, self.cache, parallel)
                self._opened.callback(self.source.close)
            self._reserve(parallel, options)
        except MemoryError as error:
            with self._opened:
                self.backend.refuse_memory(error)
        except BaseException:
            self._opened.close()
            raise

    def _open_encoder(self, path: Path, backend: BackendName | None, options: LoadOptions) -> int:
        """Open the encoder, if there is one; gives the longest run of its tokens that one step must hold."""
        self.media = media = open_encoder(path, self.backend, backend, options, self.tokenizer)
        if media is None:
            return 0
        self._opened.callback(media.close)
        self._prompts, self._row_width = media.prompts, media.width
        return media.span

    def _reserve(self, parallel: int, options: LoadOptions) -> None:
        """Allocate all now, so that no later step runs out of memory, and make the runner."""
        guessed = 0 if self.source is None else LONGEST  # tokens of a step with guesses
        rows = max(parallel, guessed)  # of logits, of a step with answers alone
        self._book_host(rows)
        self.step_cache.lends = rows if self.facts.generates else 0
        showing = self._showing()  # before the steps, which read what it writes
        uniform = self.cache is not None and self.cache.is_uniform
        batch, context, generates = self.facts.batch, self.facts.context, self.facts.generates
        steps = largest_steps(batch, parallel, context, decoding=generates, uniform=uniform, guessed=guessed)
        steps = [*self.model.worst_steps(steps)]
        spans = self.media is not None and self.media.span > 0
        with_rows = [full_of_rows(steps[0], self._row_width, spans=spans)] if self.model.row_widths else []
        if self.media is None or self.media.crosses:
            self.step_cache.reserve_later(with_rows)
        else:
            steps += with_rows
        self.step_cache.reserve(steps)
        self.adapters.reserve()
        room = 0 if showing is None else showing.room
        self._jobs = JobMaker(self.facts, self.tokenizer, self.constraint_maker, room, self.adapters)
        self.runner: Runner | None = None
        if self.cache is not None:
            snapshots = SlotSnapshotter(self.backend, self.cache, self.adapters.has)
            keeping = None if options.cache_dir is None else PrefixFolder(options, snapshots)
            if keeping is not None:
                self._opened.callback(keeping.close)
            self.runner = Runner(
                self.step_cache,
                Slots(self.cache, parallel),
                batch=batch,
                context=context,
                turns=None if self.media is None else self.media.turns,
                showing=showing,
                speculation=None if self.source is None else Speculation(self.source),
                shelf=keeping,
            )
            self._saver = SnapshotSaver(snapshots, self.runner, self._laid_out, self.facts.vocabulary_size)

    def load(self, progress: Progress | None = None, cancel: Cancel | None = None) -> None:
        """Load the weights; if that fails, close."""
        encoders = [] if self.media is None else [each.backend for each in self.media.encoders.values()]
        draft = [self.source.backend] if isinstance(self.source, DraftModel) else []
        try:
            load_weights([self.backend, *encoders, *draft], progress, cancel)
            let_cache_learn(self.step_cache, min(self.facts.batch, self.facts.context) - 1, cancel)
        except BaseException:
            self.close()
            raise

    def check_open(self) -> None:
        if self.backend.closed:
            raise ClosedError(f"the model is closed{self.backend.closed_because}")

    def submit(self, request: Request[T], on_step: OnStep | None = None) -> Handle[T]:
        number = next(NUMBERS)
        with self.places.taken() as place:
            receiver = partial(
                Handle[T], on_step=on_step, place=place, request=request, number=number, server=self.runner
            )
            return self.begin(cast("AnyRequest", request), receiver, number)

    def ask(self, question: Question[T], cancel: Cancel | None = None) -> T:
        self.check_open()
        return question.answer(self, cancel)

    def saver(self) -> SnapshotSaver:
        """What takes snapshots; RequestError if the model generates no text."""
        self.check_open()
        if self._saver is None:
            raise RequestError(f"{self.facts.architecture} generates no text, so that it has nothing to save")
        return self._saver

    def save_running(self, number: int, request: Generate) -> Snapshot | None:
        """The snapshot of the request of a number; None if it is over."""
        receiver = self._receivers.get(number)
        return None if receiver is None else self.saver().save_running(request, receiver)

    def begin(self, request: AnyRequest, receiver: Callable[[Callable[[], None]], R], number: int) -> R:
        """Queue a request for a receiver, which is made of the function that cancels the request."""
        self.check_open()
        if self.runner is None:
            raise RequestError(f"{self.facts.architecture} generates no text")
        request = self._jobs.compile(request)
        prompt = request.prompt
        if isinstance(prompt, PromptParts) and prompt.needs_encoding:
            self._jobs.check(request)
            return self.require_media().begin(request, prompt, self._jobs, self.runner, receiver)
        job = self._jobs.make(request, *self._laid_out(prompt))
        handle = receiver(partial(self.runner.cancel, job))
        self._receivers[number] = handle
        self.runner.submit(job, handle)
        return handle

    def _laid_out(self, prompt: Prompt) -> tuple[Sequence[Token], MediaRowSource | None]:
        """The tokens of a prompt, and its rows, all of which are given; RequestError if a text is too long for the encoder."""
        if isinstance(prompt, PromptParts):
            placed = self._prompts.tokens(prompt, prompt.own_rows)
            self._jobs.check_pictures(placed)
            return placed, MediaRowMap(values_by_content(prompt.own_rows, self._row_width))
        ids, tokens = prompt, self.model.prompt(prompt)
        room = min(self.facts.batch, self.facts.context)
        if encoder_length(tokens) and len(tokens) > room:
            told = f"the prompt has {len(ids)} tokens, and the encoder takes {room - 1} at once: load the model with a "
            raise ContextOverflowError(f"{told}larger batch and context", len(ids), room - 1)
        return tokens, None

    def embed(
        self, prompts: Sequence[Prompt], cancel: Cancel | None = None, adapter: AdapterMix = ()
    ) -> NDArray[np.float32]:
        return self._embedder.embed([self._laid_out(prompt) for prompt in prompts], cancel, adapter)

    def add_adapter(self, name: str, path: Path) -> None:
        """Load an adapter between two steps; if it fails, nothing has changed."""
        self.check_open()
        self.adapters.add(name, path, self._between)

    def remove_adapter(self, name: str) -> None:
        """Unload an adapter between two steps; RequestError if a request uses it."""
        self.check_open()
        in_use = (lambda _: False) if self.runner is None else self.runner.uses
        self.adapters.remove(name, self._between, in_use)

    def _between(self, task: Callable[[], None]) -> None:
        """Run a task while no step runs."""
        if self.runner is not None:
            self.runner.between(task).result()
        else:
            self._embedder.between(task)

    def encode(self, parts: PromptParts) -> list[int]:
        tokens = self._prompts.tokens(parts, self._encoded(parts))
        self._jobs.check_pictures(tokens)
        return ids_of(tokens)

    def _encoded(self, parts: PromptParts) -> list[Encoded]:
        """What stands between the texts of a prompt, its pictures and sounds prepared."""
        return [
            item if isinstance(item, Rows) else self.require_media().prepare(item) for item in parts.media
        ]

    def state(self) -> State:
        self.check_open()
        if self.runner is None:
            return State()
        state = self.runner.state()
        coming = 0 if self.media is None else self.media.coming
        return replace(state, waiting=state.waiting + coming)

    def prompt_step(self, prompt: Prompt) -> Step:
        """The step of a whole prompt, whose tokens are all outputs, to look into; for one step at a time."""
        if not isinstance(prompt, PromptParts):
            return prompt_step(np.array(prompt, np.int32))
        self.forget()
        encoded = self._prompts.beside(self._encoded(prompt))
        rows = values_by_content(prompt.own_rows, self._row_width)
        rows |= {
            each.content: self.require_media().embed(each) for each in encoded if not isinstance(each, Rows)
        }
        job = LogitsJob(self._prompts.tokens(prompt, encoded), MediaRowMap(rows))
        self._jobs.check_pictures(job.prompt)
        if self.runner is not None and self.runner.showing is not None:
            job.slot = self.runner.slots.all[0]
            self.runner.showing.show(job, self.runner.slots)
        return make_step([StepShare(job, job.pending)])[0]

    def memory(self) -> BackendMemory:
        self.check_open()
        encoder, ear = (None, None) if self.media is None else self.media.memory()
        return replace(
            self.backend.memory(),
            encoder=encoder,
            ear=ear,
            draft=self.source.backend.memory() if isinstance(self.source, DraftModel) else None,
        )

    def forget(self) -> None:
        require_elsewhere(self.runner)
        if self.media is not None:
            self.media.wait_until_idle()
        if self.runner is not None:
            self.runner.forget()
        if self.media is not None:
            self.media.store.clear()

    def close(self) -> None:
        # The rest stays open while the runner runs, even if Ctrl-C interrupts the waiting.
        if self.runner is None:
            self._opened.close()
        else:
            self.runner.close(self._opened.close)

    def require_media(self) -> MediaIntake:
        """What brings pictures to the runner; RequestError if the model sees none."""
        self.check_open()
        self.facts.require_media()
        assert self.media is not None  # as the facts say
        return self.media

    def _showing(self) -> MediaCacheWriter | None:
        """What writes pictures for cross attention; None if the model has no use for it."""
        pictures = None if self.cache is None else self.cache.pictures
        if pictures is None or self.media is None:
            return None
        showing = MediaCacheWriter(self.model, pictures, self.media.width)
        self._opened.callback(showing.close)
        return showing

    def _book_host(self, parallel: int) -> None:
        """Book the host's share: tokenizer, cache records and masks, and the logits of a step, which are copied twice."""
        records = self.cache.host_nbytes if self.cache is not None else 0
        vocabulary = self.tokenizer.nbytes if self.tokenizer is not None else 0
        logits = 2 * 4 * parallel * self.model.vocabulary_size
        pictures = self.media.store.budget if self.media is not None else 0
        ledger = self.backend.ledger
        ledger.take(
            Entry(ledger.devices[0][0], "host"), records + vocabulary + logits + pictures, lambda: None
        )
