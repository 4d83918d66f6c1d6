"""The stub of the Rust core names what the module has, no less and no more."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import flowerbed
from flowerbed import _core

STUB = Path(flowerbed.__file__).with_name("_core.pyi")


def public(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_classes_and_functions_are_those_of_the_module() -> None:
    described: dict[str, set[str]] = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            described[node.name] = set(inspect.signature(getattr(_core, node.name)).parameters)
            assert described[node.name] == {argument.arg for argument in node.args.args}
        elif isinstance(node, ast.ClassDef) and "final" in map(ast.unparse, node.decorator_list):
            members = {m.name: m for m in node.body if isinstance(m, ast.FunctionDef)}
            built = getattr(_core, node.name)
            assert public(set(members)) == public(set(vars(built))), node.name
            for name in public(set(members)):
                member, found = members[name], getattr(built, name)
                is_property = "property" in map(ast.unparse, member.decorator_list)
                assert is_property == inspect.isgetsetdescriptor(found), name
                if not is_property:
                    arguments = [a.arg for a in (*member.args.args, *member.args.kwonlyargs)]
                    assert list(inspect.signature(found).parameters) == arguments, name
            described[node.name] = set(members)
    assert set(described) == public(set(vars(_core)))
