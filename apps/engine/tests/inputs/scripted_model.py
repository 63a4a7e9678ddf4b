"""A scripted model: a real GGUF file whose next token is a table, so that exact answers come out on demand.

The model is a Llama of one block that adds nothing. A token's embedding is one-hot by *state*, and the head has the
table: row by row the logits of the next token in a state. A prompt chooses a script by its name in brackets: the last
[name] of a chat's last message, or the [name] that ends a plain prompt. All other prompts get the script "ok".
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
from numpy.typing import NDArray

Piece: TypeAlias = str | bytes  # the text of a token; bytes where it is no whole character
Step: TypeAlias = Piece | Mapping[Piece, float]  # one token, or several with their probabilities

CONTEXT = 1 << 15  # tokens, after which an endless answer ends by itself
HEAD = 8
ABSENT = -50.0  # the logit of a token that a script does not have next
FAULT = 3e38  # a weight whose products exceed float32
ROLES = ("system", "developer", "user", "assistant", "tool")
BOS, EOS, END = "<s>", "</s>", "<|end|>"


@dataclass(frozen=True)
class Script:
    """What the model answers: one token after the other.

    loops   after the last step comes the first one again, so that the answer never ends
    faulty  after the last step, the model gives no numbers
    """

    steps: tuple[Step, ...]
    loops: bool = False
    faulty: bool = False

    @property
    def text(self) -> str:
        """The whole answer, of each step the first token; half characters are replaced."""
        pieces = (step if isinstance(step, (str, bytes)) else next(iter(step)) for step in self.steps)
        return b"".join(map(_bytes, pieces)).decode("utf-8", "replace")


def says(*steps: Step, loops: bool = False, faulty: bool = False) -> Script:
    return Script(steps, loops, faulty)


def calls(name: str, **arguments: Any) -> tuple[str, ...]:
    """The steps of a tool's call, as Hermes and Qwen write it; tokens end inside of names and values."""
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return ("<tool_call>", "\n", *(text[at : at + 5] for at in range(0, len(text), 5)), "\n", "</tool_call>")


SCRIPTS: Mapping[str, Script] = {
    "ok": says("ok"),
    "hello": says("Hello", ",", " world", "!"),
    "quiet": says(),
    "count": says(*(f" {number}" for number in range(1, 41))),
    "endless": says("la", " la", loops=True),
    "faulty": says("so", " far", faulty=True),
    "euro": says("10 ", b"\xe2", b"\x82", b"\xac", " to ", b"\xf0\x9f", b"\x98", b"\x80"),
    "half": says("cut ", b"\xf0\x9f\x98"),
    "stops": says("one", " ST", "O", "P", " two", " EN", "D three", " ENDING"),
    "almost": says("a ST", "O", "RY"),  # begins like a stop string, and is none
    "coin": says({"heads": 0.75, "tails": 0.25}),
    "dice": says({str(side): 1 / 6 for side in range(1, 7)}, " ", loops=True),
    "json": says("{", '"answer"', ": ", "42", "}"),
    "think": says("<think>", "\nHm", ".\n", "</think>", "\n\n", "Yes", "."),
    "weather": says(*calls("get_weather", city="K\u00f6ln", days=2)),
    "both": says(*calls("get_weather", city="Paris", days=1), "\n", *calls("get_time", zone="CET")),
    "talk_and_call": says("I will", " look", ".\n", *calls("get_time", zone="UTC")),
    "result": says("It is", " sunny", "."),  # the answer to a tool's result
}

HERMES = "<tool_call>{{ call.function | tojson }}</tool_call>"
_TEXT = (
    "{%- macro text(content) -%}{%- if content is string -%}{{ content }}{%- elif content -%}"
    "{%- for part in content -%}{{ part.text or '' }}{%- endfor -%}{%- endif -%}{%- endmacro -%}"
)
_TEMPLATE = (
    _TEXT
    + "{{ bos_token }}"
    + "{%- if tools -%}<|system|>{%- for tool in tools -%}{{ tool | tojson }}{%- endfor -%}<|end|>{%- endif -%}"
    + "{%- for message in messages -%}"
    + "{%- if message.role not in ROLES -%}{{ raise_exception('unknown role ' ~ message.role) }}{%- endif -%}"
    + "<|{{ message.role }}|>"
    + "{%- if message.reasoning_content -%}<think>{{ message.reasoning_content }}</think>{%- endif -%}"
    + "{{ text(message.content) }}"
    + "{%- for call in message.tool_calls or [] -%}CALL{%- endfor -%}"
    + "<|end|>"
    + "{%- endfor -%}"
    + "{%- if add_generation_prompt -%}"
    + "{%- set last = text(messages[-1].content) -%}"
    + "{%- set found = namespace(at=-1, name='result' if messages[-1].role == 'tool' else 'ok') -%}"
    + "{%- for name in NAMES -%}{%- set at = last.rfind('[' ~ name ~ ']') -%}"
    + "{%- if at > found.at -%}{%- set found.at = at -%}{%- set found.name = name -%}{%- endif -%}{%- endfor -%}"
    + "<|assistant|>[{{ found.name }}]"
    + "{%- endif -%}"
)


def write_scripted_model(
    path: Path,
    scripts: Mapping[str, Script] = SCRIPTS,
    *,
    context: int = CONTEXT,
    template: bool = True,
    call: str = HERMES,
    control: Collection[str] = (),
) -> Path:
    """Write the model. Its first script answers prompts that name none.

    call     how the template writes a call
    control  steps whose tokens are control tokens, which have no text unless a request asks for it
    """
    vocabulary = _Vocabulary(control)
    states = _states(scripts, vocabulary)
    scale = math.sqrt(len(states))  # embeddings of a mean square of 1 stay as they are in norms
    place = {id(state): column for column, state in enumerate(states)}
    embedding = np.zeros((len(vocabulary.texts), len(states)), np.float32)
    for token, state in enumerate(vocabulary.states):
        embedding[token, place[id(state or states[0])]] = scale
    head = np.full((len(vocabulary.texts), len(states)), ABSENT / scale, np.float32)
    for column, state in enumerate(states):
        for token, chance in state.chances.items():
            head[token, column] = math.log(chance) / scale
        if state.faulty:
            head[:, column] = FAULT
    names = {"ROLES": list(ROLES), "NAMES": list(scripts)}
    chat = "".join(f"{{%- set {name} = {json.dumps(value)} -%}}" for name, value in names.items())
    chat += _TEMPLATE.replace("CALL", call)
    _write(path, vocabulary, embedding, head, context, chat if template else None)
    return path


def _states(scripts: Mapping[str, Script], vocabulary: _Vocabulary) -> list[_State]:
    """The states of all scripts, the one in which the first script begins first; adds their tokens."""
    states = []
    for name, script in scripts.items():
        first = here = _State()
        states.append(first)
        vocabulary.add(f"[{name}]", first, gguf.TokenType.USER_DEFINED)
        for index, step in enumerate(script.steps):
            again = script.loops and index == len(script.steps) - 1
            then = first if again else _State()
            chances = step if isinstance(step, Mapping) else {step: 1.0}
            here.chances = {vocabulary.add(piece, then): chance for piece, chance in chances.items()}
            here = then
            if not again:
                states.append(then)
        here.faulty = script.faulty
        if not (script.loops or script.faulty):
            here.chances = {vocabulary.end: 1.0}
    return states


def write_embedder(path: Path, vectors: Mapping[str, NDArray[np.float32]]) -> Path:
    """A model that embeds texts: the mean of its tokens' vectors, of length 1. [name] has the vector of that name."""
    width = len(next(iter(vectors.values())))
    vocabulary = _Vocabulary()
    for name in vectors:
        vocabulary.add(f"[{name}]", None, gguf.TokenType.USER_DEFINED)
    embedding = np.zeros((len(vocabulary.texts), width), np.float32)
    embedding[:, -1] = 1.0
    for name, vector in vectors.items():
        embedding[vocabulary.texts.index(f"[{name}]")] = vector
    _write(path, vocabulary, embedding, None, 512, None, pooling=1)
    return path


def write_reranker(path: Path, scores: Mapping[str, float]) -> Path:
    """A model that ranks texts: a text that ends with [name] has the score of that name, any other has 0."""
    vocabulary = _Vocabulary()
    for name in scores:
        vocabulary.add(f"[{name}]", None, gguf.TokenType.USER_DEFINED)
    embedding = np.zeros((len(vocabulary.texts), HEAD), np.float32)
    embedding[:, 0] = math.sqrt(HEAD)
    labels = np.zeros((1, HEAD), np.float32)
    for column, (name, score) in enumerate(scores.items(), start=1):
        embedding[vocabulary.texts.index(f"[{name}]")] = math.sqrt(HEAD) * np.eye(HEAD)[column]
        labels[0, column] = score / math.sqrt(HEAD)
    _write(path, vocabulary, embedding, None, 512, None, pooling=3, labels=labels)
    return path


class _State:
    """What may come next, by token."""

    def __init__(self) -> None:
        self.chances: dict[int, float] = {}
        self.faulty = False


class _Vocabulary:
    """The tokens: bytes, special tokens, and a token of its own for each step of a script."""

    def __init__(self, control: Collection[str] = ()) -> None:
        self._control = control
        self.texts = [_spelled(bytes((byte,))) for byte in range(256)] + [_spelled(bytes(2))]
        self.states: list[_State | None] = [None] * 257
        self.kinds = [gguf.TokenType.NORMAL] * 257
        self.beginning = self.add(BOS, None, gguf.TokenType.CONTROL)
        self.end = self.add(EOS, None, gguf.TokenType.CONTROL)
        for text in (END, *(f"<|{role}|>" for role in ROLES)):
            self.add(text, None, gguf.TokenType.CONTROL)

    def add(self, piece: Piece, state: _State | None, kind: gguf.TokenType = gguf.TokenType.NORMAL) -> int:
        """The id of a new token, after which the model is in this state; None: in that of unknown prompts."""
        kind = gguf.TokenType.CONTROL if piece in self._control else kind
        spelled = _spelled(_bytes(piece)) if kind == gguf.TokenType.NORMAL else str(piece)
        self.texts.append(spelled)
        self.states.append(state)
        self.kinds.append(kind)
        return len(self.texts) - 1


def _write(
    path: Path,
    vocabulary: _Vocabulary,
    embedding: NDArray[np.float32],
    head: NDArray[np.float32] | None,
    context: int,
    template: str | None,
    *,
    pooling: int | None = None,
    labels: NDArray[np.float32] | None = None,
) -> None:
    width = embedding.shape[1]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_block_count(1)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(HEAD)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-12)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))
    if labels is not None:
        writer.add_uint32("llama.classifier.pooling_type", 3)  # the last token
        writer.add_tensor("cls.output.weight", labels)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.texts)
    writer.add_token_types(vocabulary.kinds)
    writer.add_token_merges([" ".join(vocabulary.texts[256])])  # a vocabulary needs one
    writer.add_bos_token_id(vocabulary.beginning)
    writer.add_eos_token_id(vocabulary.end)
    writer.add_add_bos_token(template is not None)
    if template is not None:
        writer.add_chat_template(template)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    writer.add_tensor("output.weight", embedding if head is None else head)
    block = "blk.0."
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"{block}{name}.weight", np.ones(width, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"):
        writer.add_tensor(f"{block}{name}.weight", np.zeros((HEAD, width), np.float32))
    for name in ("attn_output", "ffn_down"):
        writer.add_tensor(f"{block}{name}.weight", np.zeros((width, HEAD), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _bytes(piece: Piece) -> bytes:
    return piece if isinstance(piece, bytes) else piece.encode()


_SEEN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _SEEN]
_ALPHABET = [chr(byte) if byte in _SEEN else chr(256 + _HIDDEN.index(byte)) for byte in range(256)]


def _spelled(data: bytes) -> str:
    """Bytes as GPT-2's vocabulary spells them."""
    return "".join(_ALPHABET[byte] for byte in data)
