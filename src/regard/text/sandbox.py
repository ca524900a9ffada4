"""A sandbox for the Jinja templates of chat models, which come from unknown sources.

Jinja's own sandbox gives a template no access to files, modules and private attributes. It does not
bound the work of a template. This one does: each loop iteration, call, filter and operation is
counted, and so is the size of every text and list that they create; the time is limited; and
operations that can create a huge text from a short template (`"a" * n`, `center`, `replace`) are
refused or checked before they run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache, wraps
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn

from regard.errors import InputError

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

LARGEST_TEMPLATE = 2**17  # characters
LARGEST_TEXT = 2**24  # characters of a rendered conversation, and of each text on the way to it
MOST_CREATED = 8  # times LARGEST_TEXT: characters and elements of all texts and lists together
ELEMENT = 8  # characters for which an element of a list counts
MOST_STEPS = 1_000_000  # loop iterations, calls, filters and operations
MOST_SECONDS = 5.0
MOST_INDENT = 32  # spaces
LARGEST_NUMBER = 1_000_000_000  # in a product or a power
MOST_BITS = 4_096  # of any integer
LONGEST_SEPARATOR = 16  # characters, in JSON
# Methods of strings that create a long text from a short one; bytes have such methods, too.
PADDING = {
    "center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map", "translate",
    "encode",
}  # fmt: skip
# Filters that are not needed in a chat template and whose work is hard to bound.
UNUSED_FILTERS = {
    "batch", "center", "filesizeformat", "forceescape", "format", "groupby", "indent", "pprint",
    "random", "slice", "striptags", "urlize", "wordwrap", "xmlattr",
}  # fmt: skip


TOO_LARGE = "the chat template computes with numbers that are too large"


class TemplateError(InputError):
    """A chat template refuses a conversation, is not valid, or needs too much work."""


class Budget:
    """The work that a template may still do."""

    def __init__(self) -> None:
        self.steps, self.end = MOST_STEPS, time.monotonic() + MOST_SECONDS
        self.created = MOST_CREATED * LARGEST_TEXT

    def spend(self, steps: int = 1) -> None:
        """Count some steps.

        Raises:
            TemplateError: the template needs too many steps or too much time.
        """
        self.steps -= steps
        if self.steps < 0 or time.monotonic() > self.end:
            raise TemplateError(
                f"the chat template needs more than {MOST_STEPS:,} steps or {MOST_SECONDS:g} "
                "seconds for this conversation"
            )

    def count(self, value: Any) -> Any:
        """Count a value that was created, and the step that created it.

        Returns:
            The value.

        Raises:
            TemplateError: the value is too large, or all values together are.
        """
        self.spend()
        if isinstance(value, str | list | tuple | Mapping):
            check_size(weight(value))
            self.created -= len(value)
            if self.created < 0:
                check_size(LARGEST_TEXT + 1)
        elif isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise TemplateError(TOO_LARGE)
        return value


def check_size(size: int) -> None:
    """Raise a TemplateError if a text or list of this length would be too large."""
    if size > LARGEST_TEXT:
        raise TemplateError(f"the chat template writes more than {LARGEST_TEXT:,} characters")


def weight(value: Any) -> int:
    """The number of characters of a text, or about that of nested lists and objects as a text; it
    stops counting above LARGEST_TEXT. Elements that occur several times count several times."""
    if isinstance(value, str):
        return len(value)
    count, waiting = 0, [value]
    while waiting and count <= LARGEST_TEXT:
        item = waiting.pop()
        if isinstance(item, str):
            count += len(item)
        elif isinstance(item, int):
            count += item.bit_length() // 4
        elif isinstance(item, Mapping):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        count += ELEMENT
    return count


def render(source: str, variables: Mapping[str, Any]) -> str:
    """The text that a template writes.

    Args:
        source: the template.
        variables: its variables by name.

    Returns:
        The text.

    Raises:
        TemplateError: the template is not valid, calls `raise_exception`, or needs too much work.
    """
    environment_class = _environment_class()
    import jinja2

    code = _compiled(source)
    environment = environment_class()  # it counts the work of one call
    template = jinja2.Template.from_code(environment, code, environment.make_globals(None))
    parts, size = list[str](), 0
    try:
        for part in template.generate(**variables):
            parts.append(part)
            size += len(part)
            check_size(size)
    except TemplateError:
        raise
    except jinja2.TemplateError as error:
        raise TemplateError(f"the chat template: {_one_line(error)}") from None
    except Exception as error:  # noqa: BLE001  a template can cause any error
        kind = type(error).__name__
        raise TemplateError(f"the chat template fails ({kind}: {_one_line(error)})") from None
    return "".join(parts)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


@lru_cache(maxsize=16)
def _compiled(source: str) -> CodeType:
    """The code of a template."""
    environment_class = _environment_class()
    import jinja2

    if len(source) > LARGEST_TEMPLATE:
        raise TemplateError(f"the chat template has more than {LARGEST_TEMPLATE:,} characters")
    try:
        return environment_class().compile(source)
    except jinja2.TemplateError as error:
        where = f" in line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise TemplateError(f"the chat template is not valid{where}: {_one_line(error)}") from None
    except (RecursionError, MemoryError, ValueError, SyntaxError, OverflowError) as error:
        raise TemplateError(f"the chat template is not valid ({type(error).__name__})") from None


def check_template(source: str) -> None:
    """Check that a template is valid.

    Raises:
        TemplateError: the template is too large, or its syntax is wrong.
    """
    _compiled(source)


@cache
def _environment_class() -> type[ImmutableSandboxedEnvironment]:
    """The class of the environment; jinja2 is imported when a template is used."""
    try:
        from jinja2 import nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from jinja2.utils import Namespace
    except ImportError:
        raise InputError("chat templates need the package jinja2: pip install jinja2") from None

    class Variables(Namespace):
        """`namespace(...)`, whose text is short, whatever it contains."""

        def __repr__(self) -> str:
            return "<namespace>"

    class Generation(Extension):
        """`{% generation %}`, which marks the turns of the assistant and writes nothing."""

        tags = {"generation"}  # noqa: RUF012  the interface of jinja2

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Environment(ImmutableSandboxedEnvironment):
        """The sandbox with the functions and filters that chat templates expect."""

        intercepted_binops = frozenset(("+", "*", "**", "%", "//"))
        budget: Budget

        def __init__(self) -> None:
            super().__init__(
                trim_blocks=True,
                lstrip_blocks=True,
                extensions=[Generation, loopcontrols],
                finalize=self.as_text,
            )
            self.budget = Budget()
            for name in UNUSED_FILTERS:
                self.filters.pop(name, None)
            self.filters["tojson"] = to_json
            for name, function in list(self.filters.items()):
                self.filters[name] = counted_filter(name, function, self.budget)
            self.globals.pop("lipsum", None)
            self.globals |= {
                "raise_exception": raise_exception, "strftime_now": strftime_now,
                "namespace": Variables,
            }  # fmt: skip
            self.spend, self.created = self.budget.spend, self.budget.count

        def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
            tree = super()._parse(source, name, filename)
            for loop in list(tree.find_all(nodes.For)):
                call = nodes.Call(nodes.EnvironmentAttribute("spend"), [], [], None, None)
                loop.body.insert(0, nodes.ExprStmt(call, lineno=loop.lineno))
            _replace_nodes(tree, nodes)
            return tree

        def as_text(self, value: Any) -> Any:
            """The text of a value that the template writes."""
            return value if isinstance(value, str) else self.concatenate(value)

        def concat(self, parts: Any) -> str:
            """Join the parts of a block or a macro."""
            return self.concatenate(*parts)

        def concatenate(self, *parts: Any) -> str:
            """The texts of the parts, joined."""
            check_size(sum(map(weight, parts)))
            text: str = self.budget.count("".join(map(str, parts)))
            return text

        def wrap_str_format(self, value: Any) -> Any:
            if getattr(value, "__name__", "") in PADDING and isinstance(value.__self__, str):
                raise TemplateError(
                    f"the chat template calls {value.__name__}, which is not allowed"
                )
            return None

        def call(self, context: Any, function: Any, /, *values: Any, **options: Any) -> Any:
            owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
            if isinstance(owner, str) and name in ("replace", "join"):
                check_amplified(name, owner, values)
            self.budget.spend()  # before a call that can be recursive
            return self.budget.count(super().call(context, function, *values, **options))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            check_operation(operator, left, right)
            return self.budget.count(super().call_binop(context, operator, left, right))

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            if (isinstance(obj, str | bytes) and attr in PADDING) or attr == "to_bytes":
                return False
            return super().is_safe_attribute(obj, attr, value)

    return Environment


def _replace_nodes(tree: Any, nodes: Any) -> None:
    """Replace `a ~ b`, and new lists, objects and slices, by calls of functions that check their
    sizes."""

    def call(name: str, values: list[Any], line: int) -> Any:
        function = nodes.EnvironmentAttribute(name, lineno=line)
        return nodes.Call(function, values, [], None, None, lineno=line)

    def replaced(value: Any) -> Any:
        if isinstance(value, nodes.Concat):
            return call("concatenate", [replaced(part) for part in value.nodes], value.lineno)
        if isinstance(value, nodes.List | nodes.Dict) or (
            (isinstance(value, nodes.Tuple) and value.ctx == "load")
            or (isinstance(value, nodes.Getitem) and isinstance(value.arg, nodes.Slice))
        ):
            return call("created", [value], value.lineno)
        return value

    for parent in [tree, *tree.find_all(nodes.Node)]:
        for field, value in parent.iter_fields():
            if isinstance(value, list):
                setattr(parent, field, [replaced(item) for item in value])
            elif isinstance(value, nodes.Node):
                setattr(parent, field, replaced(value))


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Raise a TemplateError for an operation whose result would be too large."""
    sized = [value for value in (left, right) if isinstance(value, str | list | tuple | bytes)]
    if operator == "+" and sized:
        check_size(sum(map(len, sized)))
    elif operator == "*" and sized:
        count = right if sized[0] is left else left
        check_size(len(sized[0]) * (count if isinstance(count, int) else 1))
    elif operator == "%" and isinstance(left, str):
        raise TemplateError("the chat template formats a text with %, which is not supported")
    elif operator in ("*", "**", "//", "%"):
        for value in (left, right):
            if isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
                raise TemplateError(TOO_LARGE)
        if operator == "**" and isinstance(right, int | float) and abs(right) > 64:
            raise TemplateError(TOO_LARGE)


def check_amplified(name: str, owner: str, values: Sequence[Any]) -> None:
    """Refuse `replace` and `join` if the result could be too large."""
    if name == "replace" and len(values) > 1:
        check_size((len(owner) + 1) * max(1, weight(values[1])))
    elif name == "join" and values and isinstance(values[0], list | tuple):
        check_size(len(owner) * len(values[0]) + weight(values[0]) - ELEMENT * len(values[0]))


def counted_filter(name: str, function: Any, budget: Budget) -> Any:
    """A filter that counts its result, and checks the size of a result that could be large."""

    @wraps(function)
    def counted(*values: Any, **options: Any) -> Any:
        budget.spend()
        if name == "replace":  # the environment, the text, the old part, the new part
            text, *parts = values[1:]
            parts += [options[key] for key in ("old", "new") if key in options]
            check_amplified(name, str(text), parts)
        elif name == "join":
            environment, items, *parts = values
            items = list(items)
            check_amplified(name, str(parts[0] if parts else options.get("d", "")), [items])
            values = (environment, items, *parts)
        elif name == "sum" and any(isinstance(v, list | tuple) for v in (
            *values[2:], *options.values()
        )):  # fmt: skip
            raise TemplateError("the chat template adds lists with sum, which is not supported")
        return budget.count(function(*values, **options))

    return counted


def to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    """The filter `tojson`: JSON without the escapes of HTML."""
    if indent is not None:
        indent = int(indent)
        if not 0 <= indent <= MOST_INDENT:
            raise TemplateError(f"the chat template indents JSON by more than {MOST_INDENT} spaces")
    if separators is not None and any(len(text) > LONGEST_SEPARATOR for text in separators):
        raise TemplateError("the chat template separates JSON values with a long text")
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    check_size(len(text))
    return text


def raise_exception(message: object) -> NoReturn:
    """The function `raise_exception` of a template, which refuses a conversation."""
    raise TemplateError(
        f"the chat template refuses the conversation: {_one_line(Exception(message))}"
    )


def strftime_now(form: str) -> str:
    """The function `strftime_now` of a template: the current local time."""
    return datetime.now().astimezone().strftime(str(form)[:100])
