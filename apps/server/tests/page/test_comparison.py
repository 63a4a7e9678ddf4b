"""One prompt to two backends, or to two models: side by side, with their rates and the first difference."""

from __future__ import annotations

import json
from typing import Any

import pytest
from browser import Page
from chat_page import WHOLE, answered, ask, choose, reload_when_kept

COLUMNS = "[...document.querySelectorAll('article:last-of-type .pair .answer')]"


def compare_with(page: Page, model: str) -> None:
    page.until("document.querySelector('#rival').length > 1")
    choose(page, "rival", model)


def texts(page: Page, selector: str) -> Any:
    return page.value(f"{COLUMNS}.map(each => each.querySelector({selector!r}).innerText)")


def test_two_backends_of_one_file_answer_side_by_side(page: Page) -> None:
    compare_with(page, "scripted@onnx")
    answered(page, "Count [count]")
    assert texts(page, "h3.model") == ["scripted (cpu_ref)", "scripted@onnx"]
    left, right = texts(page, ".text")
    assert left == right == " ".join(map(str, range(1, 41)))
    for figures in texts(page, ".under"):
        assert "41 tokens" in figures
        assert "a second" in figures
    assert page.text(".comparison") == "Both answers are the same: 40 tokens."
    edges = page.value(
        f"{COLUMNS}.map(each => each.getBoundingClientRect()).map(each => [each.left, each.top])"
    )
    assert edges[0][0] < edges[1][0]
    assert edges[0][1] == edges[1][1]
    page.size(360, 740)
    edges = page.value(
        f"{COLUMNS}.map(each => each.getBoundingClientRect()).map(each => [each.left, each.top])"
    )
    assert edges[0][0] == edges[1][0]
    assert edges[0][1] < edges[1][1]
    assert page.value("document.documentElement.scrollWidth") == 360


def test_the_first_token_that_differs_is_shown_with_its_chances(page: Page) -> None:
    compare_with(page, "other")
    answered(page, "Say it [hello]")
    assert texts(page, ".text") == ["Hello, world!", "Hello, moon!"]
    line = page.text(".comparison").replace("\xa0", " ")
    assert "The same for 2 tokens; they differ at token 3, after Hello,:" in line
    assert "other (cpu_ref): \u2423moon 60.0 %, \u2423world 40.0 %" in line
    assert "scripted (cpu_ref): \u2423world 100.0 %" in line


def test_an_answer_that_ends_earlier_differs_there(page: Page) -> None:
    compare_with(page, "other")
    answered(page, "Count [count]")
    assert "differ at token 3" in page.text(".comparison")
    assert "other (cpu_ref): ends here" in page.text(".comparison")


def test_a_comparison_survives_a_reload_and_the_chat_goes_on_with_the_first(page: Page) -> None:
    compare_with(page, "other")
    answered(page, "Say it [hello]")
    line = page.text(".comparison")
    reload_when_kept(page)
    page.until("document.querySelector('.comparison')")
    assert page.text(".comparison") == line
    assert texts(page, "h3.model") == ["scripted (cpu_ref)", "other (cpu_ref)"]
    assert (
        page.value(
            "import('/page/chat.js').then(async ({ messagesOf }) => {"
            " const { Conversations } = await import('/page/conversations.js'), store = new Conversations();"
            " return messagesOf((await store.get((await store.list())[0].id)).turns).at(-1).content })"
        )
        == "Hello, world!"
    )


def test_stop_ends_both(page: Page) -> None:
    compare_with(page, "scripted@onnx")
    ask(page, "On and on [endless]")
    page.until("document.querySelector('article.assistant .text')?.innerText.length > 20")
    page.press("Escape")
    page.until(WHOLE)
    assert page.value("document.querySelectorAll('article.assistant .answer').length") == 1
    page.until("document.querySelector('#running').textContent === '0'")


def test_a_fault_of_one_is_shown_in_its_column(page: Page) -> None:
    compare_with(page, "scripted@onnx")
    answered(page, "Break [faulty]")
    assert page.value(f"{COLUMNS}.map(each => Boolean(each.querySelector('.fault')))") == [True, True]
    assert page.text(".comparison") == "The same for 2 tokens, as far as both go."


TOKENS = """(lists, ended) => import('/page/comparison.js').then(({ compare }) => compare(
    lists.map(list => list.map(([token, byte]) => ({ token, bytes: [byte], logprob: 0, top_logprobs: [] }))), ended))"""


@pytest.mark.parametrize(
    ("lists", "ended", "same", "sides"),
    [
        ([[], []], [True, True], 0, 0),
        ([[["a", 1]], [["a", 1]]], [True, True], 1, 0),
        ([[["\ufffd", 1]], [["\ufffd", 2]]], [True, True], 0, 2),  # halves of different characters
        ([[["a", 1]], []], [True, True], 0, 2),
        ([[["a", 1]], []], [True, False], 0, 0),  # the shorter one was stopped
        ([[["a", 1]], []], [False, True], 0, 2),
    ],
)
def test_the_first_difference(lists: Any, ended: Any, same: int, sides: int, page: Page) -> None:
    found = page.value(f"({TOKENS})({json.dumps(lists)}, {json.dumps(ended)})")
    assert found["same"] == same
    assert len(found.get("sides", [])) == sides
