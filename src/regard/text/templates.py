"""The built-in chat templates for models that regard trains; see chat.py."""

# The template of a model with the special tokens of `Tokenizer`: <cls> begins a user turn, <sep>
# begins an assistant turn, and <eos> ends it. The system message is at the beginning.
TURNS = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '<cls>' + message['content'] }}
    {%- elif message['role'] == 'assistant' %}
        {{- '<sep>' + message['content'] + eos_token }}
    {%- elif message['role'] == 'tool' %}
        {{- raise_exception('this model does not read messages with the role tool') }}
    {%- elif loop.first %}
        {{- message['content'] }}
    {%- else %}
        {{- raise_exception('a message with the role ' + message['role'] + ' must be the first') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<sep>' }}{% endif %}
"""
CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
# For imported vocabularies without tokens for turns: roles are text, and <eos> ends each turn.
TEXT_ROLES = """\
{{- bos_token }}
{%- for message in messages %}
    {{- message['role'] + ':\\n' + message['content'] + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}
"""
# data.dialogue=true: each turn is one line, without roles.
LINES = """\
{{- bos_token }}
{%- for message in messages %}
    {%- set line = message['content'].splitlines() | map('trim') | join(' ') | trim %}
    {%- if line %}{{ line + '\\n' }}{% endif %}
{%- endfor %}
"""
