"""openai-python over a socket: models, completions, embeddings, and reranking."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

import numpy as np
import openai
import pytest
from openai import OpenAI
from scripted_model import SCRIPTS


def test_models_are_listed_and_found(openai_client: OpenAI) -> None:
    assert {model.id for model in openai_client.models.list()} == {"scripted", "vectors", "scores"}
    model = openai_client.models.retrieve("scripted")
    assert (model.id, model.object) == ("scripted", "model")
    with pytest.raises(openai.NotFoundError) as caught:
        openai_client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found"


def test_a_prompt_is_completed(openai_client: OpenAI) -> None:
    for prompt in ("Say [hello]", ["Say [hello]", "[euro]"]):
        answer = openai_client.completions.create(
            model="scripted", prompt=prompt, temperature=0, max_tokens=50
        )
        assert answer.object == "text_completion"
        assert [choice.text for choice in answer.choices] == ["Hello, world!", SCRIPTS["euro"].text][
            : 1 if isinstance(prompt, str) else 2
        ]
        assert {choice.finish_reason for choice in answer.choices} == {"stop"}
        stream = openai_client.completions.create(
            model="scripted", prompt=prompt, temperature=0, max_tokens=50, stream=True
        )
        texts = [""] * len(answer.choices)
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == [choice.text for choice in answer.choices]


def test_a_completion_can_echo_its_prompt_with_logprobs(openai_client: OpenAI) -> None:
    answer = openai_client.completions.create(
        model="scripted", prompt="Say [coin]", temperature=0, max_tokens=1, echo=True, logprobs=2
    )
    assert answer.choices[0].text == "Say [coin]heads"
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.tokens[-2:] == ["[coin]", "heads"]
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert logprobs.token_logprobs[-1] == pytest.approx(math.log(0.75), abs=1e-3)
    assert logprobs.text_offset is not None
    assert logprobs.text_offset[-1] == len("Say [coin]")


@pytest.mark.parametrize("form", ["float", "base64", "default"])
def test_texts_are_embedded(openai_client: OpenAI, form: str) -> None:
    more: dict[str, Any] = {} if form == "default" else {"encoding_format": form}
    answer = openai_client.embeddings.create(model="vectors", input=["[north]", "[north][east]"], **more)
    assert answer.object == "list"
    assert [each.index for each in answer.data] == [0, 1]
    vectors = [
        struct.unpack("<8f", base64.b64decode(each.embedding))
        if isinstance(each.embedding, str)
        else each.embedding
        for each in answer.data
    ]
    np.testing.assert_allclose(vectors, [[1] + [0] * 7, [0.5**0.5] * 2 + [0] * 6], atol=1e-5)
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.total_tokens == 3


def test_texts_are_ranked(openai_client: OpenAI) -> None:
    body = {"model": "scores", "query": "?", "documents": ["bad", "a [best]", "a [good]"], "top_n": 2}
    found: Any = openai_client.post("/rerank", body=body, cast_to=object)
    assert [(each["index"], round(each["relevance_score"], 2)) for each in found["results"]] == [
        (1, 3.0),
        (2, 1.0),
    ]
