"""What tests of the page do with it: open it, ask, wait for the answer."""

from __future__ import annotations

from browser import Page
from patience import wait_until

ANSWER = "article.assistant:last-of-type .text"
OVER = "document.querySelector('#stop').hidden"
NAMES = "[...document.querySelectorAll('#conversations > li > button')].map(each => each.textContent)"
WHOLE = f"document.querySelector('article:last-of-type .again') && {OVER}"

MARKDOWN = """# Plan

3. Boil *water*
   - one cup
   - [ ] or [two](https://example.com/cups?n=2)
   - [x] a pot
4. Wait

| minutes | tea |
|---:|---|
| 3 | green |

> calm

```python
def brew(cup: str) -> None:
    return None  # soon
```
"""


def opened(page: Page, url: str) -> None:
    """Open the page as in a new tab of a new browser."""
    page.go(url)
    page.value("sessionStorage.clear()")
    page.go("about:blank")  # so that nothing holds the browser's database
    page.call("Storage.clearDataForOrigin", origin=url, storageTypes="all")
    page.faults.clear()
    page.size(1280, 800)
    page.go(url)


def ask(page: Page, text: str) -> None:
    page.until("document.querySelector('#model').value")
    page.value("document.querySelector('#prompt').focus()")
    page.write(text, enter=True)
    page.until("document.querySelectorAll('article.user').length")


def answered(page: Page, text: str) -> None:
    """Ask, and wait until the answer is whole."""
    count = page.value("document.querySelectorAll('article.user').length")
    ask(page, text)
    page.until(f"document.querySelectorAll('article.user').length > {count} && {WHOLE}")


LAST = """import('/page/conversations.js').then(async ({ Conversations }) => {
    const store = new Conversations(), [first] = await store.list();
    const answers = first ? (await store.get(first.id)).turns.at(-1).answers ?? [] : [];
    return answers.length > 0 && answers.every(each => !each.unfinished && (answers.length === 1 || each.backend));
})"""


def reload(page: Page) -> None:
    """Load the page again, in the same tab."""
    page.value("window.old = true")
    page.call("Page.reload")
    page.until("document.readyState === 'complete' && !window.old && document.querySelector('#model').value")


def wait_until_kept(page: Page) -> None:
    """Wait until the browser has the last answer as a whole."""
    wait_until(lambda: page.value(LAST))


def reload_when_kept(page: Page) -> None:
    """Load the page again when the last answer is kept whole."""
    wait_until_kept(page)
    reload(page)


def choose(page: Page, field: str, value: str) -> None:
    """Set a field of the page, as a user would."""
    page.until(f"document.querySelector('#{field}')")
    page.value(
        f"(() => {{ const e = document.querySelector('#{field}'); e.value = {value!r};"
        " e.dispatchEvent(new Event('input')); e.dispatchEvent(new Event('change')) })()"
    )


def press(page: Page, name: str, number: int = 1) -> None:
    """Press a button of a conversation in the list."""
    buttons = f"document.querySelectorAll('#conversations > li:nth-child({number}) .under button')"
    page.value(
        f"(e => {{ e.focus(); e.click() }})([...{buttons}].find(each => each.textContent === {name!r}))"
    )
