"""A sandbox for the Jinja templates of chat models, which come from unknown sources.

Jinja's own sandbox gives a template no access to files, modules and private attributes. It does not
bound the work of a template. This one does: each loop iteration, call, filter, test and operation
is counted, and so is the size of every text and list that they create; the time is limited; and
operations that can create a huge text from a short template (`"a" * n`, `center`, `replace`) are
refused or checked before they run (template_limits.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache, lru_cache
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn

from regard.text.template_limits import (
    Budget,
    TemplateError,
    check_operation,
    check_size,
    checked_arguments,
    counted_filter,
    counted_test,
    to_json,
    weight,
)

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

LARGEST_TEMPLATE = 2**17  # characters
# Methods of texts that create a long text from a short one, or need quadratic time; bytes have such
# methods, too.
REFUSED_METHODS = {
    "center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map", "translate",
    "encode", "striptags",
}  # fmt: skip
# Filters that are not needed in a chat template and whose work is hard to bound.
UNUSED_FILTERS = {
    "batch", "center", "filesizeformat", "forceescape", "format", "groupby", "indent", "pprint",
    "random", "slice", "striptags", "urlize", "wordcount", "wordwrap", "xmlattr",
}  # fmt: skip
STEP = "counted_step"  # a filter that returns its input


class Sandbox:
    """A template with the budget of its work, which all calls of `render` share.

    Args:
        source: the template.
        renewed: whether each call of `render` has the full budget instead.

    Raises:
        TemplateError: the template is not valid.
    """

    def __init__(self, source: str, renewed: bool = False) -> None:
        environment_class = _environment_class()
        import jinja2

        code = _compiled(source)
        environment = environment_class()
        self._template = jinja2.Template.from_code(
            environment, code, environment.make_globals(None)
        )
        self._budget: Budget = environment.budget  # type: ignore[attr-defined]
        self._renewed = renewed

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text that the template writes.

        Args:
            variables: the variables of the template by name.

        Returns:
            The text.

        Raises:
            TemplateError: the template fails, calls `raise_exception`, or needs too much work.
        """
        from jinja2 import TemplateError as JinjaError

        if self._renewed:
            self._budget.renew()
        parts, size = list[str](), 0
        try:
            for part in self._template.generate(**variables):
                parts.append(part)
                size += len(part)
                check_size(size)
        except TemplateError:
            raise
        except JinjaError as error:
            raise TemplateError(f"the chat template: {_one_line(error)}") from None
        except Exception as error:  # noqa: BLE001  a template can cause any error
            kind = type(error).__name__
            raise TemplateError(f"the chat template fails ({kind}: {_one_line(error)})") from None
        return "".join(parts)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error)[:1_000].split())[:200]


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
        where = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
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
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

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

        intercepted_binops = frozenset(("+", "-", "*", "/", "**", "%", "//"))
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
            for name, function in list(self.tests.items()):
                self.tests[name] = counted_test(function, self.budget)
            self.filters[STEP] = self.budget.step
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
            tree.set_environment(self)
            return tree

        def getitem(self, obj: Any, argument: Any) -> Any:
            self.budget.spend()
            return super().getitem(obj, argument)

        def getattr(self, obj: Any, attribute: str) -> Any:
            self.budget.spend()
            return super().getattr(obj, attribute)

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
            name = getattr(value, "__name__", "")
            if name in REFUSED_METHODS and isinstance(value.__self__, str):
                raise TemplateError(f"the chat template calls {name}, which is not allowed")
            return None

        def call(self, context: Any, function: Any, /, *values: Any, **options: Any) -> Any:
            owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
            self.budget.spend()  # before a call that can be recursive
            arguments = checked_arguments(name, owner, values) if isinstance(owner, str) else values
            return self.budget.count(super().call(context, function, *arguments, **options))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            check_operation(operator, left, right)
            return self.budget.count(super().call_binop(context, operator, left, right))

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            if (isinstance(obj, str | bytes) and attr in REFUSED_METHODS) or attr == "to_bytes":
                return False
            return super().is_safe_attribute(obj, attr, value)

    return Environment


def _replace_nodes(tree: Any, nodes: Any) -> None:
    """Replace `a ~ b`, and new lists, objects and slices, by calls of functions that check their
    sizes; count the comparisons, and the iterations that the condition of a loop skips."""

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
        for field in {nodes.Operand: ["expr"], nodes.For: ["test"]}.get(type(parent), []):
            if (value := getattr(parent, field)) is not None:
                step = nodes.Filter(value, STEP, [], [], None, None, lineno=value.lineno)
                setattr(parent, field, step)


def raise_exception(message: object) -> NoReturn:
    """The function `raise_exception` of a template, which refuses a conversation."""
    raise TemplateError(
        f"the chat template refuses the conversation: {_one_line(Exception(message))}"
    )


def strftime_now(form: str) -> str:
    """The function `strftime_now` of a template: the current local time."""
    return datetime.now().astimezone().strftime(str(form)[:100])
