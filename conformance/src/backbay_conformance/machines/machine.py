"""A stateful machine: a set of actions with conditions, driven by choices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from backbay import BackbayError, Backend, UnsupportedOpError

from ..draw.choices import Source
from ..draw.draw import Draw
from ..draw.hypothesis_search import find_failure
from ..fault import Fault
from ..suite.lab import Lab, lab_for


class ChoiceSource(Protocol):
    """The source of an action's choices; the suite's `Draw` is one."""

    def below(self, n: int, /) -> int: ...


SHORTENING = 20.0  # seconds

A = TypeVar("A", bound=Callable[..., None])
Condition = Callable[[Any], bool]


def action(when: Condition = lambda machine: True, weight: int = 1) -> Callable[[A], A]:
    """Declare a method as an action: it applies while `when` holds, and is chosen `weight` times as often."""

    def mark(method: A) -> A:
        method.__dict__.update(when=when, weight=weight)
        return method

    return mark


class Machine(ABC):
    """An object on a backend, and the model in NumPy that it is compared with.

    An action changes both, and raises Fault if they differ. `log` has a line for each action.
    """

    actions: ClassVar[dict[str, Condition]] = {}

    def __init_subclass__(cls) -> None:
        own = {name: method.when for name, method in vars(cls).items() if hasattr(method, "when")}
        cls.actions = {**cls.actions, **own}

    def __init__(self, lab: Lab, choose: ChoiceSource) -> None:
        self.lab = lab
        self.log: list[str] = []

    def applicable(self) -> list[str]:
        """The names of the actions that apply now, each repeated by its weight."""
        names = [name for name, when in self.actions.items() if when(self)]
        return [name for name in names for _ in range(getattr(type(self), name).weight)]

    def do(self, name: str, choose: ChoiceSource) -> None:
        """Run one action; an error's message includes all actions so far."""
        try:
            getattr(self, name)(choose)
        except Fault as fault:
            raise Fault(fault.check, f"{fault.message}\n{self.story()}") from None
        except UnsupportedOpError:
            raise  # a declared gap is no fault
        except Exception as error:
            raise Fault("life", f"{name}: {type(error).__name__}: {error}\n{self.story()}") from error

    def tell(self, text: str) -> None:
        self.log.append(text)

    def story(self) -> str:
        return "\n".join(f"{number:3}  {line}" for number, line in enumerate(self.log, 1))

    def expect(self, kind: type[BackbayError], use: Callable[[], Any], why: str) -> None:
        """Raise Fault unless `use` raises this error."""
        self.tell(f"{kind.__name__}? {why}")
        try:
            use()
        except kind:
            return
        raise Fault("life", f"no {kind.__name__}, though {why}")

    @abstractmethod
    def close(self) -> None:
        """End the sequence of actions, and make the last checks."""


def walk(kind: type[Machine], lab: Lab, choose: ChoiceSource, steps: int) -> None:
    """Run `steps` actions picked by `choose`; raise Fault if backend and model differ."""
    machine = kind(lab, choose)
    try:
        for _ in range(steps):
            names = machine.applicable()
            machine.do(names[choose.below(len(names))], choose)
    except BaseException:
        abandon(machine)
        raise
    machine.close()


def abandon(machine: Machine) -> None:
    """Close the machine after a fault, and ignore errors of closing."""
    try:
        machine.close()
    except Exception:  # noqa: BLE001 - the first fault matters more
        machine.lab.discard()


# -- under Hypothesis ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """A failure of a machine: the check, the message, and the shortest sequence of actions found that leads to it."""

    machine: str
    check: str
    message: str
    story: tuple[str, ...]
    reproduction: str

    def __str__(self) -> str:
        return f"{self.machine}: {self.check}: {self.message}\n{self.reproduction}"


def run_machine(
    machine: type[Machine],
    backend: str | type[Backend] | Lab,
    seed: int = 0,
    steps: int = 20,
    examples: int = 10,
    *,
    shrink: bool = True,
) -> list[Failure]:
    """Run sequences of actions that Hypothesis draws from a seed; return the first failure, as short as it becomes in some seconds."""
    lab = backend if isinstance(backend, Lab) else lab_for(backend)
    called = f"run_machine({machine.__name__}, {lab.name!r}, seed={seed}, steps={steps}, examples={examples})"
    failures: list[Failure] = []

    def example(source: Source, new: bool) -> bool:
        try:
            walk(machine, lab, Draw(source), steps)
        except Fault as fault:
            message, _, story = fault.message.partition("\n")
            found = Failure(machine.__name__, fault.check, message, tuple(story.splitlines()), called)
            failures[:] = [min((found, *failures), key=lambda failure: len(failure.story))]
            return True
        return False

    try:
        find_failure(example, examples, f"{seed}/{machine.__name__}", seconds=SHORTENING if shrink else 0)
    finally:
        lab.discard()
    return failures
