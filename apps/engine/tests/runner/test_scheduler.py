"""The scheduler: no job starves, and no span is cut."""

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backbay_engine.runner.requests.job import AtomicSpan
from backbay_engine.runner.scheduler import Scheduler


@dataclass(eq=False)
class Asked:
    """A prompt, then an answer with one token in each step."""

    prompt: int
    answer: int = 0
    spans: list[AtomicSpan] = field(default_factory=list)
    done: int = 0
    skipped: int = 0
    answering: bool = False
    steps: list[tuple[int, int]] = field(default_factory=list)  # (which step, how many tokens)

    @property
    def pending(self) -> int:
        return (
            self.prompt - self.done
            if self.done < self.prompt
            else min(1, self.prompt + self.answer - self.done)
        )


def run(room: int, asked: list[Asked], limit: int = 100_000, *, uniform: bool = False) -> int:
    """The number of steps until all are done."""
    scheduler = Scheduler(room, uniform)
    for step in range(limit):
        waiting = [one for one in asked if one.pending]
        if not waiting:
            return step
        shares = scheduler.split(waiting)
        assert shares
        assert sum(share.count for share in shares) <= room
        assert not uniform or len({share.count for share in shares}) == 1
        for share in shares:
            share.job.steps.append((step, share.count))
            share.job.done += share.count
    raise AssertionError("never ends")


@given(
    st.integers(1, 64),
    st.lists(st.builds(Asked, prompt=st.integers(1, 100), answer=st.integers(0, 10)), min_size=1, max_size=8),
)
def test_a_full_batch_is_made_whenever_there_is_enough(room: int, asked: list[Asked]) -> None:
    total = sum(one.prompt + one.answer for one in asked)
    steps = run(room, asked)
    assert all(one.done == one.prompt + one.answer for one in asked)
    assert steps <= total


@given(st.integers(8, 64), st.integers(1, 7), st.integers(65, 1000))
def test_answers_go_on_while_a_long_prompt_is_read(room: int, answering: int, prompt: int) -> None:
    asked = [Asked(prompt=1, answer=20) for _ in range(answering)]
    run(room, [*asked, Asked(prompt=prompt)])
    for one in asked:
        gaps = [later - earlier for (earlier, _), (later, _) in zip(one.steps, one.steps[1:], strict=False)]
        assert max(gaps) <= 1


@given(st.integers(8, 64), st.lists(st.integers(100, 400), min_size=2, max_size=6))
def test_prompts_take_scheduler(room: int, prompts: list[int]) -> None:
    asked = [Asked(prompt=n) for n in prompts]
    run(room, asked)
    for one in asked:
        gaps = [later - earlier for (earlier, _), (later, _) in zip(one.steps, one.steps[1:], strict=False)]
        assert max(gaps, default=0) <= len(prompts)


@given(
    st.integers(8, 32),
    st.lists(st.tuples(st.integers(0, 9), st.integers(2, 8)), min_size=1, max_size=5),
    st.integers(0, 4),
)
def test_a_span_is_never_cut_and_never_starves(
    room: int, parts: list[tuple[int, int]], answering: int
) -> None:
    spans, at = [], 0
    for gap, length in parts:
        spans.append(AtomicSpan(at + gap, at + gap + length))
        at += gap + length
    one = Asked(prompt=at + 3, spans=spans)
    run(room, [one, *[Asked(prompt=1, answer=60) for _ in range(answering)]])
    done = 0
    for _, count in one.steps:
        for span in spans:
            assert not span.begin < done + count < span.end
        done += count
    assert one.steps[-1][0] < 4 * len(parts) + at


def test_a_span_as_large_as_the_batch_goes_before_answers() -> None:
    picture = Asked(prompt=8, spans=[AtomicSpan(0, 8)])
    run(8, [*[Asked(prompt=1, answer=1000) for _ in range(4)], picture])
    assert picture.steps[0][1] == 8
    assert picture.steps[0][0] <= 2


@given(
    st.integers(8, 64),
    st.lists(st.builds(Asked, prompt=st.integers(1, 200), answer=st.integers(0, 30)), min_size=1, max_size=8),
)
def test_generating_jobs_and_prompts_take_turns_in_uniform_steps(room: int, asked: list[Asked]) -> None:
    run(room, asked, uniform=True)
    for one in asked:
        waits = [after - before for (before, _), (after, _) in pairwise([(-1, 0), *one.steps])]
        assert max(waits) <= 2 * len(asked) + 1
