"""One browser with the page in two tabs: nothing is lost, and no older state comes over a newer one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Page
from chat_page import ANSWER, NAMES, OVER, answered, ask, press, reload, wait_until_kept
from patience import wait_until
from scripted_model import SCRIPTS

KEPT = """import('/page/conversations.js').then(async ({ Conversations }) => {
    const store = new Conversations(), found = [];
    for (const { id, name } of await store.list())
        found.push([name, ...(await store.get(id)).turns.map(turn => turn.text ?? 'answer')]);
    return found;
})"""


@pytest.fixture
def other(page: Page) -> Iterator[Page]:
    """The page in a further tab, with the chat of the first one, "Say it [hello]"."""
    answered(page, "Say it [hello]")
    wait_until_kept(page)
    with page.another_tab() as tab:
        tab.go(page.value("location.origin"))
        in_front(tab)
        open_first(tab)
        yield tab
        assert not tab.faults
    in_front(page)


def in_front(page: Page) -> None:
    page.call("Page.bringToFront")
    if page.value("document.querySelector('#chats').hidden"):
        page.click("#show-chats")


def open_first(page: Page) -> None:
    page.until(f"{NAMES}.length")
    page.click("#conversations > li > button")
    page.until(f"document.querySelector('{ANSWER}')?.innerText")


def answering(page: Page) -> None:
    """Ask for an answer without an end, of which the browser has kept the beginning."""
    in_front(page)
    ask(page, "On and on [endless]")
    wait_until(lambda: "On and on [endless]" in str(page.value(KEPT)))


@pytest.mark.fault(
    "a chat is renamed in one tab while another writes it", "both the name and the answer are kept"
)
def test_a_name_from_another_tab_stays_while_an_answer_grows(page: Page, other: Page) -> None:
    answering(page)
    in_front(other)
    press(other, "Rename")
    other.write("Greetings", enter=True)
    page.until(f"{NAMES}.join() === 'Greetings'")
    in_front(page)
    page.press("Escape")
    page.until(OVER)
    wait_until_kept(page)
    assert page.value(KEPT) == [["Greetings", "Say it [hello]", "answer", "On and on [endless]", "answer"]]


@pytest.mark.fault("a chat is deleted in one tab while another writes it", "it stays deleted")
def test_a_chat_deleted_in_another_tab_stays_deleted_until_somebody_goes_on(page: Page, other: Page) -> None:
    answering(page)
    in_front(other)
    press(other, "Delete")
    press(other, "Delete?")
    page.until(f"{NAMES}.length === 0")
    in_front(page)
    page.value("new Promise(done => setTimeout(done, 1500))")
    page.press("Escape")
    page.until(OVER)
    page.value("new Promise(done => setTimeout(done, 500))")
    assert page.value(KEPT) == []
    answered(page, "And more [ok]")  # what is seen goes on, and is kept
    wait_until_kept(page)
    said = ["Say it [hello]", "answer", "On and on [endless]", "answer", "And more [ok]", "answer"]
    assert page.value(KEPT) == [["Say it [hello]", *said]]
    other.until(f"{NAMES}.join() === 'Say it [hello]'")
    reload(page)
    page.until(f"document.querySelector('{ANSWER}')?.innerText === {SCRIPTS['ok'].text!r}")


@pytest.mark.fault(
    "a chat is answered in two tabs at once", "it becomes two chats, each with all that its tab shows"
)
def test_two_answers_at_once_are_two_chats(page: Page, other: Page) -> None:
    answering(page)
    in_front(other)
    answered(other, "And more [ok]")
    wait_until_kept(other)
    page.until(f"{NAMES}.length === 2")
    in_front(page)
    page.press("Escape")
    page.until(OVER)
    wait_until_kept(page)
    said = ["Say it [hello]", "Say it [hello]", "answer"]
    assert page.value(KEPT) == [
        [*said, "On and on [endless]", "answer"],
        [*said, "And more [ok]", "answer"],
    ]


def test_to_rename_what_another_tab_deleted_brings_nothing_back(page: Page) -> None:
    late = """import('/page/conversations.js').then(async ({ Conversations }) => {
        const store = new Conversations();
        await store.rename('gone', 'Too late');
        return store.list();
    })"""
    assert page.value(late) == []
