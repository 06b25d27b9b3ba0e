"""Faults in Python, by rule: the tree says where, the text is changed."""

from __future__ import annotations

import ast
from itertools import pairwise

from tests.mutation.mutant import Change

SIGNS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
TELLING = {"log", "logger", "logging", "failpoint"}  # for people, and for tests


class Rules(ast.NodeVisitor):
    """Collects the faults of one module in `found`. Types, decorators, class bodies' defaults and docstrings stay as they are."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Change] = []
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.lines = text.splitlines()

    def at(self, line: int, column: int) -> int:
        """The position in the text; the tree counts columns in bytes."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno or 0, node.end_col_offset or 0)

    def change(self, rule: str, start: int, end: int, new: str) -> None:
        self.found.append(Change(rule, start, end, new))

    def between(self, left: ast.expr, right: ast.expr, sign: ast.AST) -> None:
        """Another sign between two expressions; not where a comment or a bracket makes it hard to find."""
        old, new = SIGNS.get(type(sign), ("", ""))
        start, end = self.span(left)[1], self.span(right)[0]
        if old and self.text[start:end].strip("() \n") == old:
            begin = self.text.index(old, start)
            self.change(f"{old} to {new}", begin, begin + len(old), new)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                self.visit(part)

    def visit_Module(self, node: ast.Module) -> None:
        self.visit_ClassDef(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, sign, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self.between(left, right, sign)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in pairwise(node.values):
            self.between(left, right, node.op)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not isinstance(node.left, ast.Constant) or not isinstance(node.left.value, str):
            self.between(node.left, node.right, node.op)
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        if not isinstance(node.test, ast.Compare):
            start, end = self.span(node.test)
            self.change("negated", start, end, f"(not ({self.text[start:end]}))")
        self.generic_visit(node)

    visit_IfExp = visit_If

    def visit_Expr(self, node: ast.Expr) -> None:
        """Removes a call whose result is unused."""
        if isinstance(node.value, ast.Constant):
            return
        name = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
        if name.split(".")[0] in TELLING:
            return
        if name and "(" not in name:
            self.change(f"without {name}", *self.span(node), "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        if not isinstance(node.value, ast.Constant):
            self.change("returns None", *self.span(node.value), "None")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """The texts of exceptions stay unchanged."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Log texts stay unchanged, too."""

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in NAMES:
            self.change(f"{node.func.id} to {NAMES[node.func.id]}", *self.span(node.func), NAMES[node.func.id])
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        """`strict` of zip says only what the code around it sees to."""
        if node.arg != "strict":
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.change(f"{node.value} to {not node.value}", *self.span(node), str(not node.value))
        elif isinstance(node.value, int):
            self.change("one more", *self.span(node), str(node.value + 1))
            if node.value > 9:  # as in lua.py
                self.change("one less", *self.span(node), str(node.value - 1))


def changes(text: str) -> list[Change]:
    """Every fault that the rules make in that module."""
    rules = Rules(text)
    rules.visit(ast.parse(text))
    return rules.found
