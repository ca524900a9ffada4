"""All tasks by name.

Nothing else in the package lists the tasks. To add one, write its file and add one line to
BUILT_IN; another package calls `register_task`.
"""

from __future__ import annotations

from importlib import import_module

from regard.errors import unknown
from regard.tasks.task import Task

BUILT_IN = (
    "regard.tasks.translate:Translate",
    "regard.tasks.answer:Questions",
    "regard.tasks.generate:Generate",
    "regard.tasks.classify:Classify",
    "regard.tasks.fill:Fill",
    "regard.tasks.embed:Embed",
)
_TASKS: dict[str, type[Task]] = {}


def register_task(task: type[Task]) -> type[Task]:
    """Make a task known to the configuration, the command line and `regard.load`.

    Args:
        task: the class of the task.

    Returns:
        The same class, so that this is also a class decorator.
    """
    _TASKS[task.name] = task
    return task


def find_task(name: str) -> type[Task]:
    """The task of this name; an InputError if there is none."""
    if name not in _TASKS:
        raise unknown("task", name, _TASKS)
    return _TASKS[name]


def task_names() -> tuple[str, ...]:
    """The names of all tasks, in the order of registration."""
    return tuple(_TASKS)


for _built_in in BUILT_IN:
    _module, _, _class = _built_in.partition(":")
    register_task(getattr(import_module(_module), _class))
