"""Chat templates: common ones work, and none can hang, exhaust memory or leave its sandbox."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from text_vocabularies import byte_pairs, trained, with_keys

from backbay_engine.errors import TemplateError
from backbay_engine.text import bounded_process
from backbay_engine.text.chat import ChatTemplate, TemplateLimits, chat_template_from_gguf
from backbay_engine.text.tokenizers import tokenizer_from_gguf

CHATML = """\
{%- if messages[0].role != 'system' %}{{ bos_token }}<|im_start|>system
Be kind.<|im_end|>
{% endif %}
{% for message in messages %}
    {% if message.content is not string %}{{ raise_exception('only text') }}{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message.content | trim + '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
HELLO = [{"role": "user", "content": " Hi <b> & 'you' \u4f60\U0001f600 "}]


def rendered(source: str, **variables: object) -> str:
    with ChatTemplate(source, bos_token="<s>", eos_token="</s>") as template:
        return template.render(HELLO, **variables)


def test_a_conversation_becomes_the_prompt_that_the_template_says() -> None:
    assert rendered(CHATML) == (
        "<s><|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\nHi <b> & 'you' \u4f60\U0001f600<|im_end|>\n<|im_start|>assistant\n"
    )
    assert not rendered(CHATML, add_generation_prompt=False).endswith("assistant\n")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ tools is none }}{{ documents is none }}", "TrueTrue"),
        ("{{ {'b': '<\u00e9>', 'a': 1} | tojson }}", '{"b": "<\u00e9>", "a": 1}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ [{'f': 1}, {'f': 2}] | map(attribute='f') | tojson }}", "[1, 2]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% generation %}said{% endgeneration %}{{ eos_token }}", "said</s>"),
        (
            "{% set n = namespace(x=1) %}{% for i in range(3) %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}",
            "4",
        ),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(1) }}{{ messages | length }}", "[1]1"),
        ("{{ extra }}{{ messages[0]['role'].upper() }}", "moreUSER"),
    ],
)
def test_what_common_templates_use_is_there(source: str, text: str) -> None:
    assert rendered(source, extra="more") == text


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_goes_by_the_names_that_templates_read(name: str) -> None:
    source = "{% for m in messages %}[{{ m.thinking }}|{{ m.reasoning_content }}]{% endfor %}"
    with ChatTemplate(source) as template:
        messages = [{"role": "assistant", "content": "x", name: "hm"}, {"role": "user", "content": "y"}]
        assert template.render(messages) == "[hm|hm][|]"


def test_reasoning_under_two_names_stays_apart() -> None:
    with ChatTemplate("{{ messages[0].thinking }}|{{ messages[0].reasoning_content }}") as template:
        assert template.render([{"role": "assistant", "thinking": "a", "reasoning_content": "b"}]) == "a|b"


def test_the_day_is_the_users_own() -> None:
    before = time.strftime("%Y-%m-%d")
    assert rendered("{{ strftime_now('%Y-%m-%d') }}") in {before, time.strftime("%Y-%m-%d")}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'f: ' + functions }}", 'f: [\n    {\n        "name": "f"\n    }\n]'),
        ("{{ 'It is ' + datetime }}", "It is %b %d %Y"),
        ("{{ date_string }}", "%d %b %Y"),
        (
            "{% if date_string is not defined %}{% set date_string = 'July' %}{% endif %}{{ date_string }}",
            "July",
        ),
        ("{% for each in functions %}{{ each }}{% endfor %}", ""),
    ],
)
def test_what_a_template_reads_without_a_default_is_given(source: str, text: str) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    before = time.strftime(text)
    assert rendered(source, tools=tools) in {before, time.strftime(text)}


def test_a_callers_variable_comes_before_the_days() -> None:
    assert rendered("{{ datetime }}{{ functions }}", datetime="Monday") == "Monday"


def test_a_template_may_refuse_and_go_on() -> None:
    with ChatTemplate("{% if not messages %}{{ raise_exception('say something') }}{% endif %}ok") as template:
        with pytest.raises(TemplateError, match="refuses the messages: say something"):
            template.render([])
        assert template.render(HELLO) == "ok"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("a\n{% if %}", "SyntaxError: line 2"),
        ("a\n\n{{ nothing.at.all }}", "line 3: UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include 'other' %}", "TypeError"),
    ],
)
def test_a_wrong_template_says_where(source: str, said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        rendered(source)


HOSTILE = [
    "{% for i in range(10**12) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{{ 'x' * 1000000 }}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    "{% for i in [[[[1]]]] recursive %}{{ loop([[1], [1]]) }}{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{{ [0] * 10**10 }}",
    "{{ 10 ** (10 ** 9) }}",
    "{{ messages[0].content * 10**10 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000d}'.format(1) }}",
    "{{ '%9999999999d' % 1 }}",
    "{{ 'a' | center(10**10) }}",
    "{{ 'a'.ljust(10**10) }}",
    "{{ ('a' ~ '\\n') * 1000 | indent(10**8) }}",
    "{{ 'a b' | indent(10**10, true) }}",
    "{{ range(99999) | join('a' * 99999) }}",
    "{{ range(9) | batch(10**10, 'x') | list }}",
    "{{ [1] | slice(10**10) | list }}",
    "{{ [1] | tojson(indent=10**10) }}",
    "{{ ('a ' * 10**6) | wordwrap(1, wrapstring='b' * 10**6) }}",
    "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "{{ strftime_now('%1000000000d') | length }}{{ 'a' * 10**10 }}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x > 1 }}",
    "{{ lipsum(n=10**7) }}",
    "{{ (('a' * 40) ~ '!') | urlize }}{{ range(99999) | sum(start=10**(10**8)) }}",
    "{{ 'a' * 17000000 }}",
]
TIGHT = TemplateLimits(seconds=0.5, memory=256 << 20)


@pytest.mark.fault(
    "a chat template loops, recurses, or takes endless memory", "TemplateError within its limits"
)
@pytest.mark.parametrize("source", HOSTILE)
@pytest.mark.few(6)
def test_a_hostile_template_is_an_error(source: str) -> None:
    with (
        ChatTemplate(source, limits=TIGHT) as template,
        pytest.raises(TemplateError, match="chat template: "),
    ):
        template.render(HELLO)


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.getcwd() }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ strftime_now.__globals__['sys'].modules }}",
    "{{ self._TemplateReference__context.environment.loader.x }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ (messages | attr('__class__')).mro() }}",
    "{{ namespace.__init__.__globals__.os.system('x') }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'a': 1}) }}",
]


@pytest.mark.fault("a chat template reaches for files, modules or the process", "TemplateError")
@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_reaches_nothing_but_what_it_is_given(source: str) -> None:
    with (
        ChatTemplate(source, limits=TIGHT) as template,
        pytest.raises(TemplateError, match=r"Security|Undefined"),
    ):
        template.render(HELLO)


@pytest.mark.fault(
    "the process that renders templates was killed", "the next template is rendered by a new one"
)
def test_after_a_hostile_render_the_next_one_is_served() -> None:
    source = "{% if tools %}{{ 'a' * 10**10 }}{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}{% endif %}ok"
    with ChatTemplate(source, limits=TIGHT) as template:
        assert template.render(HELLO) == "ok"
        with pytest.raises(TemplateError, match="256 MiB"):
            template.render(HELLO, tools=[{}])
        assert template.render(HELLO) == "ok"


@pytest.mark.skipif(not hasattr(signal, "SIGPROF"), reason="time is bounded by the clock here")
def test_time_is_bounded_where_the_signal_for_it_is_ignored() -> None:
    before = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    try:
        with (
            ChatTemplate(HOSTILE[1], limits=TIGHT) as template,
            pytest.raises(TemplateError, match=r"0\.5 s"),
        ):
            template.render(HELLO)
    finally:
        signal.signal(signal.SIGPROF, before)


def test_time_is_bounded_by_the_clock_where_nothing_else_bounds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "setitimer", raising=False)
    limits = TemplateLimits(seconds=0.5)
    with ChatTemplate(HOSTILE[1], limits=limits) as template, pytest.raises(TemplateError, match=r"0\.5 s"):
        template.render(HELLO)


def test_a_template_that_takes_too_long_says_so() -> None:
    with (
        ChatTemplate(HOSTILE[1], limits=TIGHT) as template,
        pytest.raises(TemplateError, match=r"more than 0\.5 s"),
    ):
        template.render(HELLO)


@pytest.mark.parametrize("given", [object(), {1, 2}, b"bytes", [{"role": len}]])
def test_only_json_may_be_given(given: object) -> None:
    with ChatTemplate("x") as template, pytest.raises(TemplateError, match="must be JSON"):
        template.render(HELLO, extra=given)


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with ChatTemplate("x") as template, pytest.raises(TemplateError, match="must be JSON"):
        template.render(HELLO, extra=endless)


def test_threads_share_one_template() -> None:
    with ChatTemplate("{{ messages[0].content }}") as template, ThreadPoolExecutor(8) as pool:
        asked = [[{"role": "user", "content": str(n)}] for n in range(100)]
        assert list(pool.map(template.render, asked)) == [str(n) for n in range(100)]


def test_closing_ends_the_process_and_rendering_starts_another() -> None:
    template = ChatTemplate("x")
    assert template.render(HELLO) == "x"
    worker = template._process._worker
    assert worker is not None
    template.close()
    assert worker._process.returncode is not None
    assert template.render(HELLO) == "x"
    template.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_starts_a_worker_of_its_own() -> None:
    with ChatTemplate("x") as template:
        template.render(HELLO)
        worker = template._process._worker
        assert worker is not None
        worker._owner -= 1  # as it looks in a child
        assert template.render(HELLO) == "x"
        assert template._process._worker is not worker
        worker.end()


INTERRUPTED = """
import sys
from backbay_engine.text.chat import ChatTemplate

template = ChatTemplate("{{ messages[0].content }}{% for n in range(messages[0].times) %}{{ n }}{% endfor %}")
try:
    print(template.render([{"content": "begun", "times": 0}]), flush=True)
    while True:
        template.render([{"content": "old", "times": 90000}])
except KeyboardInterrupt:
    print(template.render([{"content": "new", "times": 0}]))
"""


@pytest.mark.fault("a chat template is rendered just after Ctrl-C", "the prompt")
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
@pytest.mark.parametrize("after", [0.05, 0.2, 0.4])
@pytest.mark.few(1)
def test_a_template_works_after_ctrl_c(after: float) -> None:
    program = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(after)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        output, _ = process.communicate(timeout=300)
    assert (process.returncode, output) == (0, "new\n")


@pytest.mark.fault("a chat template is rendered with less memory than its process may have", "the prompt")
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the address space")
def test_a_template_works_where_memory_is_limited() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))\n"
        "from backbay_engine.text.chat import ChatTemplate\n"
        "with ChatTemplate('{{ messages[0].content }}') as template:\n"
        "    print(template.render([{'role': 'user', 'content': 'new'}]))\n"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "new\n"), done.stderr


@pytest.mark.fault("there is no Python at sys.executable", "TemplateError with the path")
@pytest.mark.parametrize("path", ["/nowhere/python", "", None, "/dev/null", "/dev/null/python"])
def test_a_template_needs_a_python(path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", path)
    with pytest.raises(TemplateError, match=r"sys\.executable, .* cannot be run"):
        rendered("{{ bos_token }}")


@pytest.mark.fault("the process of a chat template is killed", "TemplateError; the next rendering works")
def test_a_killed_worker_fails_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = bounded_process._Worker._receive

    def killed(worker: bounded_process._Worker) -> dict[str, str] | None:
        worker._process.terminate()  # it has the request
        return receive(worker)

    source = "{% if messages %}{% for n in range(10**5) %}{% for m in range(10**5) %}{% endfor %}{% endfor %}{% endif %}ok"
    with ChatTemplate(source) as template:
        monkeypatch.setattr(bounded_process._Worker, "_receive", killed)
        with pytest.raises(TemplateError, match="its process was ended by SIGTERM"):
            template.render(HELLO)
        monkeypatch.undo()
        assert template.render([]) == "ok"


def test_a_model_files_template_knows_its_tokens() -> None:
    keys = {
        "tokenizer__chat_template": "{{ bos_token }}{{ eos_token }}",
        "tokenizer__chat_template__tool": "tool",
    }
    tokenizer = tokenizer_from_gguf(with_keys(byte_pairs(trained()), **keys))
    template = chat_template_from_gguf(tokenizer)
    assert template is not None
    with template:
        assert template.render(HELLO) == "<s></s>"
    named = chat_template_from_gguf(tokenizer, "tool")
    assert named is not None
    assert named.source == "tool"
    with pytest.raises(TemplateError, match="no chat template 'other'; by name it has: 'tool'"):
        chat_template_from_gguf(tokenizer, "other")
    assert chat_template_from_gguf(tokenizer_from_gguf(byte_pairs(trained()))) is None
