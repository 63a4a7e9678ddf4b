"""Conversations that the browser keeps: over a reload, by name, in two tabs, until they are deleted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from browser import Page
from chat_page import (
    ANSWER,
    NAMES,
    OVER,
    WHOLE,
    answered,
    ask,
    choose,
    press,
    reload,
    reload_when_kept,
    wait_until_kept,
)
from patience import wait_until
from scripted_model import SCRIPTS

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
RESULT = """import('/page/conversations.js').then(async ({ Conversations }) => {
    const store = new Conversations(), [first] = await store.list();
    return (await store.get(first.id)).turns.at(-1).answers[0].calls[0].result;
})"""
SENT = "window.sent ??= [], window.real ??= fetch, window.fetch = (path, rest) => { if (rest.body) sent.push(JSON.parse(rest.body)); return real(path, rest) }, 0"


def test_a_conversation_survives_a_reload_and_goes_on(page: Page) -> None:
    answered(page, "Say it [hello]")
    figures = page.text(".answer .under span")
    reload_when_kept(page)
    page.until(f"document.querySelector('{ANSWER}')?.innerText === {SCRIPTS['hello'].text!r}")
    assert page.text("article.user .text") == "Say it [hello]"
    assert page.text(".answer .under span") == figures
    page.value(SENT)
    answered(page, "And now [think]")
    assert page.value("sent[0].messages") == [
        {"role": "user", "content": "Say it [hello]"},
        {"role": "assistant", "content": SCRIPTS["hello"].text},
        {"role": "user", "content": "And now [think]"},
    ]
    page.until(f"{NAMES}.length === 1")


@pytest.mark.fault("the page is left in mid-answer", "the chat keeps what came, and goes on")
def test_an_answer_that_a_reload_interrupts_keeps_what_came(page: Page) -> None:
    ask(page, "On and on [endless]")
    page.until(f"document.querySelector('{ANSWER}')?.innerText.length > 20")
    page.value("new Promise(done => setTimeout(done, 2500))")
    reload(page)
    page.until("document.querySelector('.answer .under span')?.innerText === 'interrupted'")
    assert page.text(ANSWER).startswith("la lala la")
    page.until("document.querySelector('#running').textContent === '0'")
    answered(page, "Say it [hello]")
    assert page.text(ANSWER) == SCRIPTS["hello"].text


def test_conversations_are_listed_renamed_opened_and_deleted(page: Page) -> None:
    answered(page, "The first [hello]")
    wait_until_kept(page)
    page.click("#new")
    answered(page, "The second [ok]")
    wait_until_kept(page)
    page.click("#show-chats")
    page.until(f"{NAMES}.length === 2")
    assert page.value(NAMES) == ["The second [ok]", "The first [hello]"]
    press(page, "Rename", 2)
    page.write("Greetings <b>", enter=True)
    page.until(f"{NAMES}[1] === 'Greetings <b>'")
    page.click("#conversations > li:nth-child(2) > button")
    page.until(f"document.querySelector('{ANSWER}')?.innerText === {SCRIPTS['hello'].text!r}")
    page.until("document.querySelector('#conversations [aria-current]').textContent === 'Greetings <b>'")
    press(page, "Delete", 2)
    assert page.value(f"{NAMES}.length") == 2  # it asks once more
    press(page, "Delete?", 2)
    page.until(f"{NAMES}.length === 1")
    page.until("document.querySelectorAll('article').length === 0")
    reload(page)
    page.until(f"{NAMES}.length === 1")
    assert page.value(NAMES) == ["The second [ok]"]
    answered(page, "A third [ok]")
    page.until(f"{NAMES}.join() === 'A third [ok],The second [ok]'")


def test_a_conversation_is_exported_as_messages(page: Page) -> None:
    answered(page, "Say it [hello]")
    wait_until_kept(page)
    page.click("#show-chats")
    page.value(
        "window.exported = new Promise(done => { URL.createObjectURL = blob => { blob.text().then(done); return '#' } });"
        "HTMLAnchorElement.prototype.click = function () { window.file = this.download }"
    )
    page.until(f"{NAMES}.length === 1")
    press(page, "Export")
    found = json.loads(page.value("exported"))
    assert found["name"] == "Say it [hello]"
    assert [each["role"] for each in found["messages"]] == ["user", "assistant"]
    assert page.value("file") == "Say it hello.json"


@pytest.mark.fault("two tabs go on with one chat", "it becomes two chats")
def test_two_tabs_lose_nothing_of_each_other(page: Page) -> None:
    answered(page, "Say it [hello]")
    wait_until_kept(page)
    page.value("""import('/page/conversations.js').then(async ({ Conversations }) => {
        const store = new Conversations(), [{ id }] = await store.list(), found = await store.get(id);
        found.turns.push({ role: 'user', text: 'from another tab', pictures: [] });
        await store.save(found);
    })""")
    answered(page, "And more [ok]")
    wait_until_kept(page)
    kept = page.value("""import('/page/conversations.js').then(async ({ Conversations }) => {
        const store = new Conversations(), found = [];
        for (const { id } of await store.list()) found.push((await store.get(id)).turns.map(turn => turn.text ?? 'answer'));
        return found;
    })""")
    assert kept == [
        ["Say it [hello]", "answer", "And more [ok]", "answer"],
        ["Say it [hello]", "answer", "from another tab"],
    ]


def test_a_conversation_deleted_while_it_is_answered_stays_deleted(page: Page) -> None:
    ask(page, "On and on [endless]")
    page.click("#show-chats")
    page.until(f"{NAMES}.length === 1")
    press(page, "Delete")
    press(page, "Delete?")
    page.until(f"{NAMES}.length === 0 && {OVER}")
    page.value("new Promise(done => setTimeout(done, 1500))")
    assert page.value("import('/page/conversations.js').then(m => new m.Conversations().list())") == []


def test_thoughts_are_a_fold_that_closes_when_the_answer_begins(page: Page) -> None:
    answered(page, "Think [think]")
    assert page.text("details.thoughts summary") == "Thinking"
    assert page.value("document.querySelector('details.thoughts').open") is False
    assert page.value("document.querySelector('details.thoughts > div').textContent") == "Hm."
    assert page.text(ANSWER) == "Yes."


def test_a_call_is_a_fold_whose_result_the_user_gives(page: Page) -> None:
    choose(page, "tools", json.dumps(TOOLS))
    answered(page, "Look [weather]")
    assert page.value("document.querySelector('details.call summary').textContent") == "Call of get_weather"
    arguments: Any = json.loads(page.value("document.querySelector('details.call code').textContent"))
    assert arguments == {"city": "K\u00f6ln", "days": 2}
    page.value(f"{SENT}; document.querySelector('details.call').open = true")
    page.value("document.querySelector('details.call textarea').focus()")
    page.write("sunny")
    page.value(
        "[...document.querySelectorAll('.again button')].find(e => e.textContent === 'Send results').click()"
    )
    page.until(f"document.querySelectorAll('article.assistant').length === 2 && {WHOLE}")
    assert page.text(ANSWER) == SCRIPTS["result"].text
    _, called, result = page.value("sent[0].messages")
    assert result == {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "sunny"}


@pytest.mark.fault("the page is left before a tool's result is sent", "the result is there again")
def test_a_result_that_is_typed_survives_a_reload(page: Page) -> None:
    choose(page, "tools", json.dumps(TOOLS))
    answered(page, "Look [weather]")
    page.value("document.querySelector('details.call').open = true")
    page.value("document.querySelector('details.call textarea').focus()")
    page.write("sunny")
    wait_until(lambda: page.value(RESULT) == "sunny")
    reload(page)
    page.until("document.querySelector('details.call textarea')?.value === 'sunny'")


def test_tools_that_are_no_list_are_refused_here(page: Page) -> None:
    choose(page, "tools", "{")
    page.until("document.querySelector('#model').value")
    page.value("document.querySelector('#prompt').focus()")
    page.write("Say it [hello]", enter=True)
    page.until("document.querySelector('#status').innerText.includes('no JSON list')")
    page.value("new Promise(done => setTimeout(done, 1500))")
    assert "no JSON list" in page.text("#status")  # the next look at the server does not take it away
    assert page.value("document.querySelectorAll('article').length") == 0
    assert page.value("document.querySelector('#prompt').value") == "Say it [hello]"


def test_messages_are_a_log_that_is_busy_while_an_answer_grows(page: Page) -> None:
    ask(page, "On and on [endless]")
    page.until("document.querySelector('[role=log]').getAttribute('aria-busy') === 'true'")
    page.press("Escape")
    page.until(WHOLE)
    assert page.value("document.querySelector('[role=log]').getAttribute('aria-busy')") == "false"
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    [log] = [each for each in tree if each["role"]["value"] == "log"]
    properties = {each["name"]: each["value"]["value"] for each in log["properties"]}
    assert properties["live"] == "polite"
    answered(page, "Say it [hello]")
    page.until("document.querySelector('[role=log]').getAttribute('aria-busy') === 'false'")
