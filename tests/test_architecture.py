"""The shape of the package, read from its source: which module may know which, and what a pure one may do."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "buffer"

# A module may import from its own component and from lower floors. The top of the list is the ground floor.
FLOORS = (
    {"errors", "model", "clock", "metrics", "suggestion", "workers"},
    {"config", "naming", "format"},
    {"store"},
    {"queue"},
    {"producer", "gc", "ingest"},
    {"consumer"},
    {"pipeline"},
    {"__init__"},
    {"spark"},
    {"testing"},
    {"cli"},
    {"__main__"},
)

MAX_LINES = 400

# What reaches outside of the process, waits, or gives another answer to the same question.
TASKS = {"anyio", "asyncio", "concurrent", "multiprocessing", "signal", "threading", "trio"}
FILES = {"fcntl", "io", "mmap", "os", "pathlib", "shutil", "sys", "tempfile"}
NETWORK = {"http", "httpcore", "httpx", "select", "selectors", "socket", "ssl", "subprocess"}
CHANCE_AND_TIME = {"random", "secrets", "time", "uuid"}
REPORTS = {"logging", "opentelemetry", "warnings"}
IMPURE = TASKS | FILES | NETWORK | CHANCE_AND_TIME | REPORTS
IMPURE_CALLS = {"input", "now", "open", "print", "today", "utcnow"}

# Types of components that are passed in; naming one in a signature makes nothing impure.
COMPONENTS = {("buffer.clock", "Clock"), ("random", "Random")}


@dataclass(frozen=True)
class Import:
    """One imported name: `module` is the package's own module if there is one, else what the statement says."""

    module: str
    name: str | None
    line: int


@dataclass(frozen=True)
class Module:
    """One parsed source file."""

    name: str
    path: Path
    tree: ast.Module
    imports: tuple[Import, ...] = field(repr=False)

    @property
    def component(self) -> str:
        """The part of the package it belongs to."""
        return self.name.split(".")[1] if "." in self.name else "__init__"

    @property
    def is_pure(self) -> bool:
        """Whether it says of itself that it is."""
        return (ast.get_docstring(self.tree) or "").startswith("Pure.")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_imports(name: str, tree: ast.Module, names: set[str]) -> Iterator[Import]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    yield Import(alias.name, None, node.lineno)
            case ast.ImportFrom(module=source, level=0, names=aliases) if source:
                for alias in aliases:
                    submodule = f"{source}.{alias.name}"
                    if submodule in names:
                        yield Import(submodule, None, node.lineno)
                    else:
                        yield Import(source, alias.name, node.lineno)
            case ast.ImportFrom():
                pytest.fail(f"{name}:{node.lineno} imports relatively, which this test does not follow")


@cache
def package() -> Mapping[str, Module]:
    paths = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
    modules = {}
    for name, path in paths.items():
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        modules[name] = Module(name, path, tree, tuple(read_imports(name, tree, set(paths))))
    return modules


def own_imports(module: Module) -> Iterator[tuple[Import, Module]]:
    modules = package()
    for found in module.imports:
        if found.module.split(".")[0] == "buffer":
            assert found.module in modules, f"{module.name}:{found.line} imports {found.module}: no such file"
            yield found, modules[found.module]


def floor_of(module: Module) -> int:
    for number, components in enumerate(FLOORS):
        if module.component in components:
            return number
    pytest.fail(f"{module.name} is on no floor: give {module.component!r} its place in FLOORS")


def impurities(module: Module) -> Iterator[str]:
    """Tell what a module does itself that a pure one must not."""
    called = {ast.unparse(node.func) for node in ast.walk(module.tree) if isinstance(node, ast.Call)}
    for found in module.imports:
        top = found.module.split(".")[0]
        if top not in IMPURE or (found.module, found.name) in COMPONENTS:
            continue
        if (found.module, found.name) == ("random", None) and random_is_a_type(module.tree):
            continue
        yield f"line {found.line} imports {found.module}"
    for call in sorted(called):
        if call.rpartition(".")[2] in IMPURE_CALLS or call in {"Random", "random.Random"}:
            yield f"calls {call}"
    for node in ast.walk(module.tree):
        asynchronous = isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) or (
            isinstance(node, ast.comprehension) and node.is_async
        )
        if asynchronous:
            yield f"line {getattr(node, 'lineno', '?')} awaits"


def random_is_a_type(tree: ast.Module) -> bool:
    attributes = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
    }
    return attributes <= {"Random"}


def definition(module: Module, name: str) -> tuple[Module, ast.stmt, ast.stmt | None]:
    """Find the statement that gives a name its value, and the one after it, through re-exports."""
    for statement, following in zip(module.tree.body, [*module.tree.body[1:], None], strict=True):
        match statement:
            case ast.ClassDef(name=found) | ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found):
                names = {found}
            case ast.Assign(targets=targets):
                names = {node.id for node in targets if isinstance(node, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=found)):
                names = {found}
            case _:
                names = set()
        if name in names:
            return module, statement, following
    for imported, source in own_imports(module):
        if imported.name == name:
            return definition(source, name)
    pytest.fail(f"{module.name} does not define {name!r}")


def is_documented(statement: ast.stmt, following: ast.stmt | None) -> bool:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return bool(ast.get_docstring(statement))
    match following:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return bool(text.strip())
        case _:
            return False


def test_imports_point_downwards() -> None:
    """No module knows anything of the floors above it, or of a neighbour on its own."""
    wrong = [
        f"{module.name}:{found.line} imports {target.name}"
        for module in package().values()
        for found, target in own_imports(module)
        if target.component != module.component and floor_of(target) >= floor_of(module)
    ]
    assert wrong == []


def test_imports_have_no_cycles() -> None:
    """Every module can be understood after those it imports."""
    graph = {
        module.name: {target.name for _, target in own_imports(module) if target is not module}
        for module in package().values()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        pytest.fail(" <- ".join(exc.args[1]))


def test_only_the_test_tools_know_which_event_loop_runs() -> None:
    """The library stays on anyio, so that it works on asyncio and on trio."""
    wrong = [
        f"{module.name}:{found.line} imports {found.module}"
        for module in package().values()
        for found in module.imports
        if found.module.split(".")[0] in {"asyncio", "trio", "sniffio"} and module.component != "testing"
    ]
    assert wrong == []


@pytest.mark.parametrize("library", [{"httpx", "httpcore"}, {"h11"}], ids=["client", "wire"])
def test_one_module_at_most_speaks_http(library: set[str]) -> None:
    """The HTTP client is one module's affair, and so are the bytes on the wire; each can be replaced there."""
    users = {
        module.name
        for module in package().values()
        for found in module.imports
        if found.module.split(".")[0] in library and module.component != "testing"
    }
    assert len(users) <= 1, users


def test_pure_modules_are() -> None:
    """A module that calls itself pure reaches no I/O, clock, randomness or event loop, nor do those it imports."""
    pure = [module for module in package().values() if module.is_pure]
    assert pure
    wrong = []
    for module in pure:
        reached, pending = set(), [module]
        while pending:
            current = pending.pop()
            if current.name in reached:
                continue
            reached.add(current.name)
            wrong += [f"{module.name} reaches {current.name}: {what}" for what in impurities(current)]
            pending += [
                target
                for found, target in own_imports(current)
                if (found.module, found.name) not in COMPONENTS
            ]
    assert wrong == []


def test_every_public_name_is_documented() -> None:
    """What `buffer` exports has a docstring where it is defined, and `__all__` lists it."""
    front = package()["buffer"]
    exported = {found.name for found, _ in own_imports(front) if found.name}
    assert exported
    for statement in front.tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                assert exported <= set(ast.literal_eval(value))
    wrong = []
    for name in sorted(exported):
        home, statement, following = definition(front, name)
        if not is_documented(statement, following):
            wrong.append(f"{home.name}:{statement.lineno} {name}")
    assert wrong == []


def test_files_stay_small() -> None:
    """A file has one idea, and one idea has at most this many lines."""
    lengths = {module.name: len(module.path.read_text("utf-8").splitlines()) for module in package().values()}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}
