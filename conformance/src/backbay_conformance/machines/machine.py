"""A stateful machine: a set of actions with conditions, driven by recorded choices or by Hypothesis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from backbay import BackbayError, Backend, UnsupportedOpError

from ..numbers.comparison import Fault
from ..suite.lab import Lab, lab_for


class Choose(Protocol):
    """The source of an action's choices; the suite's `Draw` is one."""

    def below(self, n: int, /) -> int: ...


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

    def __init__(self, lab: Lab, choose: Choose) -> None:
        self.lab = lab
        self.log: list[str] = []

    def applicable(self) -> list[str]:
        """The names of the actions that apply now, each repeated by its weight."""
        names = [name for name, when in self.actions.items() if when(self)]
        return [name for name in names for _ in range(getattr(type(self), name).weight)]

    def do(self, name: str, choose: Choose) -> None:
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
        """End the life, and make the last checks."""


def walk(kind: type[Machine], lab: Lab, choose: Choose, steps: int) -> None:
    """Run a life of `steps` actions picked by `choose`; raise Fault if backend and model differ."""
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
    """A failure of a machine: the check, the message, and the shortest life that leads to it."""

    machine: str
    check: str
    message: str
    story: tuple[str, ...]
    reproduction: str

    def __str__(self) -> str:
        return f"{self.machine}: {self.check}: {self.message}\n{self.reproduction}"


def state_machine(kind: type[Machine], lab: Lab) -> type[Any]:
    """A RuleBasedStateMachine with a rule for each action, for use with Hypothesis or pytest."""
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

    class Chosen:
        """Choices that Hypothesis draws and shrinks."""

        def __init__(self, data: Any) -> None:
            self.data = data

        def below(self, n: int, /) -> int:
            return int(self.data.draw(st.integers(0, n - 1)))

    namespace: dict[str, Any] = {"latest": []}

    def begin(self: Any, data: Any) -> None:
        self.machine = kind(lab, Chosen(data))
        namespace["latest"][:] = [self.machine]

    namespace["begin"] = initialize(data=st.data())(begin)
    for name, when in kind.actions.items():
        for copy in range(getattr(kind, name).weight):  # Hypothesis chooses each rule equally often
            own = f"{name}_{copy + 1}" if copy else name
            namespace[own] = _rule(own, name, when, rule, precondition, st, Chosen)

    def teardown(self: Any) -> None:
        if hasattr(self, "machine"):
            (abandon if getattr(self.machine, "failed", False) else type(self.machine).close)(self.machine)

    namespace["teardown"] = teardown
    return type(kind.__name__, (RuleBasedStateMachine,), namespace)


def _rule(own: str, name: str, when: Condition, rule: Any, precondition: Any, st: Any, chosen: Any) -> Any:
    def act(self: Any, data: Any) -> None:
        try:
            self.machine.do(name, chosen(data))
        except BaseException:
            self.machine.failed = True
            raise

    act.__name__ = own
    ready = precondition(lambda self: hasattr(self, "machine") and when(self.machine))
    return ready(rule(data=st.data())(act))


def run_machine(
    machine: type[Machine],
    backend: str | type[Backend] | Lab,
    seed: int = 0,
    steps: int = 20,
    examples: int = 10,
    *,
    shrink: bool = True,
) -> list[Failure]:
    """Run lives that Hypothesis draws from a seed; return the failures, as short as Hypothesis can make them."""
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis import seed as with_seed
    from hypothesis.stateful import run_state_machine_as_test

    lab = backend if isinstance(backend, Lab) else lab_for(backend)
    made = with_seed(seed)(state_machine(machine, lab))
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        report_multiple_bugs=False,
        print_blob=False,
    )
    try:
        run_state_machine_as_test(made, settings=how)
    except Fault as fault:
        story = tuple(made.latest[0].log) if made.latest else ()
        notes = "\n".join(getattr(fault, "__notes__", ()))
        given = f"{machine.__name__}, {lab.name!r}, seed={seed}, steps={steps}, examples={examples}"
        return [
            Failure(machine.__name__, fault.check, fault.message, story, f"run_machine({given})\n{notes}")
        ]
    finally:
        lab.discard()
    return []
