"""Chat templates that need much memory or time fail with an error, in little of both."""

import re
import subprocess
import sys
import time

import pytest

MEMORY = 2**30  # bytes of address space
SECONDS = 4.0  # with the start of the process; the template has half a second
RENDER = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY},) * 2)
from regard.text import template_limits
from regard.text.sandbox import Sandbox
template_limits.MOST_SECONDS = 0.5
try:
    print("text:", len(Sandbox(sys.stdin.read()).render({{}})))
except template_limits.TemplateError as error:
    print(error)
"""
BIG = "{% set b = 'a' * 8000000 %}"
LARGE, SLOW = "a text or list of more than 16,777,216 characters", "steps or 0.5 seconds"
TEMPLATES = {
    "join of a text": (BIG + "{{ b.join('b' * 600) }}", LARGE),
    "join of a generator": (BIG + "{{ b.join(('b' * 600) | map('upper')) }}", LARGE),
    "join of an object": (BIG + "{{ b.join(dict(a=1, b=2, c=3, d=4)) }}", LARGE),
    "join of many parts": ("{{ ''.join('b' * 9000000) }}", LARGE),
    "items": (BIG + "{% set d = dict(a=b) %}{{ [d.items()] * 1000 }}", LARGE),
    "values": (BIG + "{% set d = dict(a=b) %}{{ ['a', d.values()] * 1000 ~ 'a' }}", LARGE),
    "name of a macro": (
        "{% macro m() %}{% endmacro %}{{ [m] * 1000000 }}".replace("m()", "m" * 60_000 + "()")
        .replace("[m]", f"[{'m' * 60_000}]"), LARGE,
    ),
    "method": (BIG + "{{ [(b | safe).join] * 1000 }}", LARGE),
    "split": ("{{ ('ab ' * 5500000).split() }}", LARGE),
    "many lists": ("".join(f"{{% set a{i} = ('ab' * 800000).split('a') %}}" for i in range(90)), "takes more than|creates too much text and too many lists"),
    "indented JSON": (
        "{% set n = namespace(x=[1] * 900) %}{% for i in range(60) %}{% set n.x = [n.x] %}"
        "{% endfor %}{{ ([n.x] * 200) | tojson(indent=32) }}", LARGE,
    ),
    "comparison": (BIG + "{% for i in range(99999) if 'b' in b %}{% endfor %}", SLOW),
    "chain": (BIG + "{% set c = b + 'a' %}{% set d = 'a' + b %}{{ c == d" + " == c == d" * 2_000 + " }}", SLOW),
    "test": (BIG + "{% for i in range(99999) if 'b' is in(b) %}{% endfor %}", SLOW),
    "select": (BIG + "{{ range(99999) | map('string') | select('in', 'c' + b) | list }}", SLOW),
    "reject": (
        BIG + "{% for i in range(99999) | map('string') | reject('in', b + '0123456789') %}"
        "{% endfor %}", SLOW,
    ),
    "key": ("{% set t = (1,) * 900000 %}{% for i in range(99999) if {}[t] %}{% endfor %}", SLOW),
    "round up": ("{{ 1 | round(100000000, 'ceil') }}", "numbers that are too large"),
    "round": ("{{ 1 | round(precision=-100000000) }}", "numbers that are too large"),
    "striptags": ("{{ (('<!---->' * 2000000) | safe).striptags() }}", "calls striptags"),
    "error": ("{{ raise_exception('ab ' * 5500000) }}", "refuses the conversation: ab ab"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_work_is_bounded(name):
    source, message = TEMPLATES[name]
    start = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", RENDER], input=source, capture_output=True, text=True
    )
    assert re.search(message, result.stdout), (result.stdout, result.stderr)
    assert time.monotonic() - start < SECONDS
