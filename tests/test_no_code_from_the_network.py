"""Nothing that comes over a network or from a file may run code: no pickle, no eval, no yaml.load.

Ray's own ports do run code; docs/operations.md says to keep them closed.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "cp_ray"
MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "yaml.load",
    "yaml.unsafe_load",
    "torch.load",
    "numpy.load",
    "np.load",
    "os.system",
}


def name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def faults(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0], *(alias.name for alias in node.names)}
            found += sorted(names & MODULES)
        elif isinstance(node, ast.Call) and name_of(node.func) in CALLS:
            allowed = any(k.arg == "allow_pickle" for k in node.keywords)
            if not (name_of(node.func).endswith(".load") and allowed):
                found.append(name_of(node.func))
    return found


def test_no_module_of_ours_can_run_what_it_reads() -> None:
    found = {
        str(path.relative_to(PACKAGE)): faults(path.read_text()) for path in PACKAGE.rglob("*.py")
    }
    assert len(found) > 50
    assert {path: what for path, what in found.items() if what} == {}


def test_the_search_finds_what_it_looks_for() -> None:
    bad = "import pickle\nfrom ray import cloudpickle\nimport yaml\nyaml.load(x)\neval('1')\n"
    assert faults(bad) == ["pickle", "cloudpickle", "yaml.load", "eval"]
