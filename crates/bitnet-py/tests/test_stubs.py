"""The type stubs say what the library does."""

import ast
import inspect
from pathlib import Path

import bitnet
from bitnet import _bitnet

STUBS = Path(bitnet.__file__).with_name("_bitnet.pyi")


def described():
    """The documentation of each class and method in the stubs, by name."""
    for node in ast.parse(STUBS.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, ast.get_docstring(node)
            methods = [inner for inner in node.body if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)]
            # The last of several overloads has the documentation.
            yield from {f"{node.name}.{method.name}": ast.get_docstring(method) for method in methods}.items()


def test_stubs_have_the_names_and_the_documentation_of_the_library():
    stubs = dict(described())
    for name, stub in stubs.items():
        thing = _bitnet
        for part in name.split("."):
            thing = getattr(thing, part)
        if stub is not None:
            assert " ".join((inspect.getdoc(thing) or "").split()) == " ".join(stub.split()), name
    for kind in (_bitnet.Answer, _bitnet.Model, _bitnet.Stream):
        public = {f"{kind.__name__}.{name}" for name in vars(kind) if not name.startswith("_")}
        assert public <= stubs.keys(), public - stubs.keys()
    assert (Path(bitnet.__file__).parent / "py.typed").exists()


def test_arguments_have_the_names_in_the_stubs():
    tree = ast.parse(STUBS.read_text())
    model = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model")
    for method in model.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
            arguments = method.args
            names = [a.arg for a in arguments.args if a.arg != "self"] + [a.arg for a in arguments.kwonlyargs]
            names += [arguments.kwarg.arg] if arguments.kwarg else []
            real = getattr(_bitnet.Model, method.name)
            if callable(real):
                assert names == [n for n in inspect.signature(real).parameters if n != "self"], method.name
