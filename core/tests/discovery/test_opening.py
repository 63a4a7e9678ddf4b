"""Opening takes a name or a class, or chooses and says why; what fails leaves no file open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from environment import GOOD, Environment, with_gpu
from gguf_build import write_model

import backbay
from backbay import BackendParams, BackendUnavailableError, KernelBackend, ModelFileError, OptionError
from backbay.discovery import opening

CHOOSE = "import backbay; print(backbay.choose())"


class Plain(KernelBackend):
    contract_version = 1


def with_priority(number: int, source: str = GOOD) -> str:
    """The same plugin, which says how early it is taken."""
    return source.replace("kernels = kernel\n", f"kernels = kernel; priority = {number}\n")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    write_model(path)
    return path


def test_a_class_serves_as_a_backend(file: Path) -> None:
    with backbay.open(file, Plain, BackendParams(num_threads=1)) as backend:
        assert type(backend) is Plain
        assert backend.name == "Plain"
        assert backend.config.int("block_count") == 2
        assert backend.get("blk.0.w") is not None
        assert backend.params.num_threads == 1


def test_a_class_that_is_no_whole_backend_is_refused() -> None:
    class Old(Plain):
        contract_version = 0

    with pytest.raises(BackendUnavailableError, match="Old was written for contract version 0"):
        backbay.open(None, Old)


@pytest.mark.parametrize("given", [5, ["ggml"], b"ggml", object()])
def test_what_is_neither_a_name_nor_a_class_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="a backend is a name or a subclass of Backend, not "):
        backbay.open(None, given)


@pytest.mark.fault(
    "a model file is damaged, and no backend was named", "ModelFileError, before backends are tried"
)
def test_the_file_is_looked_at_before_backends_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "choose", lambda name: pytest.fail("a backend was chosen"))
    (tmp_path / "wrong.gguf").write_bytes(b"wrong")
    with pytest.raises(ModelFileError):
        backbay.open(tmp_path / "wrong.gguf")


def test_without_a_file_there_is_no_model() -> None:
    with backbay.open(backend=Plain) as backend:
        assert backend.model is None


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError("libfast.so: cannot open shared object file"), BackendUnavailableError),
        (ImportError("no module"), BackendUnavailableError),
        (RuntimeError("a fault of the plugin"), RuntimeError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_backend_that_fails_to_start_leaves_no_file_open(
    file: Path, raised: BaseException, expected: type[BaseException]
) -> None:
    models = []

    class Failing(Plain):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            models.append(self.model)
            raise raised

    with pytest.raises(expected) as caught:
        backbay.open(file, Failing)
    assert caught.value is raised or caught.value.__cause__ is raised
    assert models[0].closed


def test_wrong_options_close_the_file(file: Path) -> None:
    models = []

    class Seen(Plain):
        def __init__(self, *args: Any) -> None:
            models.append(args[0])
            super().__init__(*args)

    with pytest.raises(OptionError, match="unknown option 'speed'"):
        backbay.open(file, Seen, BackendParams(options={"speed": 1}))
    assert models[0].closed


def test_a_file_that_is_no_model_is_refused_before_the_backend_starts(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"not a model")
    with pytest.raises(ModelFileError):
        backbay.open(tmp_path / "model.gguf", Plain)


def test_auto_prefers_a_gpu_then_priority_and_skips_what_does_not_work(environment: Environment) -> None:
    environment.install_backend("broken", with_gpu(GOOD).replace("return Good", "raise RuntimeError('no')"))
    environment.install_backend("first", with_priority(5))
    environment.install_backend("gpu", with_priority(0, with_gpu(GOOD)))
    environment.install_backend("late", with_priority(0))
    done = environment.python(CHOOSE)
    assert done.stdout == (
        "gpu: it works, on FAST:0 (not first: it has no GPU; not late: it has no GPU; not broken: backend 'broken' "
        "of backbay-broken 1.0: RuntimeError: no)\n"
    ), done.stderr


def test_auto_goes_by_priority_then_by_name(environment: Environment) -> None:
    environment.install_backend("a", with_priority(0))
    environment.install_backend("b", with_priority(5))
    environment.install_backend("c", with_priority(5))
    done = environment.python(CHOOSE)
    assert done.stdout == "b: it works (not c: its name comes later; not a: its priority is lower)\n", (
        done.stderr
    )


def test_auto_takes_what_states_no_priority_only_if_nothing_else_works(environment: Environment) -> None:
    environment.install_backend("newcomer", with_gpu(GOOD))
    assert environment.python(CHOOSE).stdout == "newcomer: it works, on FAST:0\n"
    environment.install_backend("old", with_priority(-100))
    done = environment.python(CHOOSE)
    assert done.stdout == "old: it works (not newcomer: it states no priority)\n", done.stderr


def test_those_of_backbay_state_their_priorities() -> None:
    stated = {
        name: entry.load().priority
        for name, entry in backbay.backends().items()
        if name in ("cpu_ref", "ggml", "onnx")
    }
    assert stated
    assert all(priority == (-100 if name == "cpu_ref" else 0) for name, priority in stated.items())
    assert Plain.priority is None


def test_the_environment_variable_names_the_backend_without_trying_any(environment: Environment) -> None:
    environment.install_backend("a", GOOD)
    environment.install_backend("b", "import os; os._exit(1)")
    assert environment.python(CHOOSE, BACKBAY_BACKEND="a").stdout == "a: BACKBAY_BACKEND asks for it\n"
    opened = "import backbay; print(backbay.open().name)"
    assert environment.python(opened, BACKBAY_BACKEND="a").stdout == "a\n"


@pytest.mark.parametrize("value", ["", "auto"])
def test_an_environment_variable_that_is_empty_or_auto_chooses(environment: Environment, value: str) -> None:
    environment.install_backend("a", GOOD)
    assert environment.python(CHOOSE, BACKBAY_BACKEND=value).stdout == "a: it works\n"


def test_a_name_goes_before_the_environment_variable(environment: Environment) -> None:
    environment.install_backend("a", GOOD)
    environment.install_backend("b", GOOD)
    code = "import backbay; print(backbay.open(backend='a').name, backbay.choose('auto').reason)"
    assert environment.python(code, BACKBAY_BACKEND="b").stdout == "a it works\n"


def test_auto_says_of_every_backend_why_it_does_not_work(environment: Environment) -> None:
    environment.install_backend("a", "import os; os._exit(3)")
    environment.install_backend("b", "import nothing_like_it")
    done = environment.python("import backbay; backbay.open()")
    assert (
        "no installed backend works: a: it ended the process with status 3 while it was imported; b: "
        in done.stderr
    )


def test_auto_with_nothing_installed_says_what_to_do(environment: Environment) -> None:
    assert (
        "no backend is installed; install one" in environment.python("import backbay; backbay.open()").stderr
    )
