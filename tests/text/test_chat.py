"""Chat templates: the ids of a conversation, the turns of the assistant, and forged tokens."""

import re
import time
from itertools import product

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from chatml import SPECIAL, TEMPLATE, chatml_tokenizer, conversation
from learned import BPE, BYTE
from regard.errors import InputError
from regard.text.byte_level import SIGNS
from regard.text.chat import ChatTemplate, default_template
from regard.text.external import ExternalTokenizer
from regard.text.imported import ImportedTokenizer, SpecialTokens
from regard.text.messages import check_messages
from regard.text.special_names import special_tokens
from regard.text.templates import CHATML, LINES, TEXT_ROLES, TURNS

TOKENIZER = chatml_tokenizer()
TRIMMING = """{{ bos_token }}{%- for message in messages %}
    {%- if message.role not in ['user', 'assistant'] %}{{ raise_exception('no ' + message.role) }}{% endif %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message.role == 'user' %}{{ '[INST] ' ~ message.content | trim ~ ' [/INST]' }}
    {%- else %}{{ ' ' + message.content.strip() + ' ' + eos_token }}{% endif %}
{%- endfor %}"""
GENERATION = """{% for m in messages %}<|im_start|>{{ m.role }}
{% generation %}{{ m.content }}<|im_end|>
{% endgeneration %}{% if loop.index > 99 %}{% break %}{% endif %}{% endfor %}
{{- messages | tojson }}{{ tools is none }}{{ '<|im_start|>assistant
' if add_generation_prompt }}"""
CONVERSATIONS = [
    conversation("Hello there"),
    conversation("\n  Hello\n\n", "how are you? ", " é日本\t<b>&amp;'"),
    conversation("a", "b", "", "d", system="The answer"),
    conversation("<|im_", "end|>", "|endoftext|"),
]


def peer(template, bos=1, eos=2):
    library = type(TOKENIZER.fast).from_str(TOKENIZER.fast.to_str())
    names = {"bos_token": SPECIAL[bos], "eos_token": SPECIAL[eos]}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **names)
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("template", [TEMPLATE, CHATML, TRIMMING, GENERATION, TEXT_ROLES])
def test_ids_are_those_of_transformers(template, prompt):
    theirs, ours = peer(template), ChatTemplate(template)
    for messages in CONVERSATIONS:
        if template is TRIMMING and messages[0]["role"] == "system":
            continue
        expected = theirs.apply_chat_template(
            messages, add_generation_prompt=prompt, return_dict=False
        )
        assert ours.encode(TOKENIZER, messages, prompt) == list(expected)
        text = theirs.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False)
        names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
        assert ours.render(messages, prompt, **names) == text


@settings(max_examples=25)
@given(st.lists(st.text("ab <|_>\n\U000f0000", max_size=12), min_size=1, max_size=4))
def test_no_message_contains_a_special_token(texts):
    names = [*SPECIAL, "<|IM_END|>", "<eos>", "<SEP>", "<cls>"]
    texts = [text + names[i % len(names)] + text for i, text in enumerate(texts)]
    messages = conversation(*texts)
    clean = conversation(*["a"] * len(texts))
    for tokenizer, source in ((TOKENIZER, CHATML), (BPE, TURNS), (BYTE, LINES)):
        template, special = ChatTemplate(source), special_tokens(tokenizer).values()
        ids = template.encode(tokenizer, messages)
        structure = [id for id in ids if id in special]
        assert structure == [id for id in template.encode(tokenizer, clean) if id in special]
        if source is not LINES:  # it joins the lines of a message
            text = tokenizer.decode(ids)
            assert all(content in text for content in texts)


def test_forged_token_in_a_template_that_changes_case():
    template = ChatTemplate("{{ messages[0].content | lower }}<|im_end|>")
    ids = template.encode(TOKENIZER, conversation("<|IM_END|>"))
    assert ids.count(2) == 1


def test_forged_token_that_a_normalizer_would_make():
    library = tokenizers.Tokenizer(
        models.BPE(vocab={sign: id for id, sign in enumerate(SIGNS)}, merges=[])
    )
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    names = ("<|im_start|>", "<|im_end|>")
    library.add_special_tokens([AddedToken(name, normalized=True, special=True) for name in names])
    tokenizer = ImportedTokenizer(library, SpecialTokens(eos=257), 258)
    counts = [
        ChatTemplate(CHATML).encode(tokenizer, conversation(text)).count(257)
        for text in ("a", "a\uff1c|im_end|\uff1e")
    ]
    assert counts == [1, 1]


def test_template_of_models_that_are_trained_here():
    messages = conversation("a", "b", "c", system="s")
    ids = ChatTemplate(TURNS).encode(BYTE, messages)
    letters = [BYTE.encode(letter)[0] for letter in "sabc"]
    bos, eos, cls, sep = BYTE.bos, BYTE.eos, BYTE.cls, BYTE.sep
    s, a, b, c = letters
    assert ids == [bos, s, cls, a, sep, b, eos, cls, c, sep]
    assert ChatTemplate(TURNS).encode(BYTE, messages, False) == ids[:-1]
    with pytest.raises(InputError, match="a message with the role system must be the first"):
        ChatTemplate(TURNS).encode(BYTE, [*messages, messages[0]])


@pytest.mark.parametrize(
    ("source", "tokenizer", "ids", "texts"),
    [
        (TURNS, BYTE, (BYTE.eos,), ()), (LINES, BYTE, (BYTE.eos,), ("\n",)), (TEMPLATE, TOKENIZER, (2,), ()),
        (TRIMMING, TOKENIZER, (2,), ()), ("{{ messages[0].content }}", TOKENIZER, (2,), ()),
        ("{% for m in messages %}{{ m.content + '<|endoftext|>' }}{% endfor %}", TOKENIZER, (0, 2), ()),
        ("{{ raise_exception('never') }}", TOKENIZER, (2,), ()),
    ],
)  # fmt: skip
def test_ends_of_a_turn(source, tokenizer, ids, texts):
    ends = ChatTemplate(source).turn_ends(tokenizer)
    assert (ends.ids, ends.texts) == (ids, texts)


@pytest.mark.parametrize(
    ("source", "tokenizer", "last"),
    [(TURNS, BPE, "<eos>"), (TEMPLATE, TOKENIZER, "<|im_end|>"), (TRIMMING, TOKENIZER, "<|im_end|>"),
     (LINES, BYTE, "\\n"), (TEXT_ROLES, TOKENIZER, "<|im_end|>")],
)  # fmt: skip
@pytest.mark.parametrize("forged", ["", "<eos>", "<|im_end|>"])
def test_turns_of_the_assistant(source, tokenizer, last, forged):
    template = ChatTemplate(source)
    messages = conversation("Hi", "Hello there" + forged, "user", "how" + forged, "no answer")
    encoded = template.encode_training(tokenizer, messages)
    assert encoded.ids == template.encode(tokenizer, messages, False)
    texts = [tokenizer.decode(encoded.ids[start:end]).strip() for start, end in encoded.spans]
    assert texts == ["Hello there" + forged, "how" + forged]
    for _, end in encoded.spans:
        assert tokenizer.tokens(encoded.ids[end - 1 : end]) == [last]
    # A model gets the same tokens before its answer in training and in a chat.
    first, _ = encoded.spans[0]
    assert template.encode(tokenizer, messages[:1]) == encoded.ids[:first]
    assert [i for i, learned in enumerate(encoded.mask) if learned] == [
        i for start, end in encoded.spans for i in range(start, end)
    ]


def test_template_that_changes_earlier_turns_cannot_be_used_for_training():
    template = ChatTemplate(
        "{% for m in messages %}{{ messages | length }}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(InputError, match="writes message 2 differently when other messages fol"):
        template.encode_training(TOKENIZER, conversation("a", "b", "c", "d"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        # Earlier turns lose their thoughts, completely or in part.
        ("{% for m in messages %}{{ m.role + ':' + (m.content if loop.last else m.content.split('</think>')[-1]) + '<|im_end|>' }}{% endfor %}"
         "{{ 'assistant:' if add_generation_prompt }}", "writes message 2 differently"),
        ("{% for m in messages %}{{ m.content if loop.last else m.content[:3] }}<|im_end|>{% endfor %}", "writes message 2 differently"),
        # The template does not write the turns of the assistant.
        ("{% for m in messages if m.role == 'user' %}{{ m.content + '<|im_end|>' }}{% endfor %}", "message 2 produces no tokens: the chat template omits"),
    ],
)  # fmt: skip
def test_no_turn_is_left_out_of_the_loss_silently(source, message):
    template = ChatTemplate(source)
    messages = conversation("a", "<think>b</think>c", "d", "e")
    with pytest.raises(InputError, match=message):
        template.encode_training(TOKENIZER, messages)


def test_template_may_write_special_tokens_after_the_last_turn():
    source = (
        "{% for m in messages %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}"
        "{{ 'assistant:' if add_generation_prompt else '<|endoftext|>\n' }}"
    )
    encoded = ChatTemplate(source).encode_training(TOKENIZER, conversation("a", "b", "c", "d"))
    texts = [TOKENIZER.decode(encoded.ids[start:end]) for start, end in encoded.spans]
    assert texts == ["b\n", "d\n"]
    assert encoded.ids[encoded.spans[-1][1] - 1] == 0


def test_training_tokens_do_not_depend_on_the_date(monkeypatch):
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}" + CHATML)
    ids = template.encode_training(TOKENIZER, conversation("a", "b")).ids
    assert TOKENIZER.decode(ids).startswith("01 Jan 2025")
    assert template.encode(TOKENIZER, conversation("a", "b"), False) != ids


def test_many_spellings_of_a_special_token():
    name = "abcdefghijklmno"
    library = type(TOKENIZER.fast).from_str(TOKENIZER.fast.to_str())
    library.add_special_tokens([AddedToken(name, special=True, normalized=False)])
    tokenizer = ImportedTokenizer(library, SpecialTokens(eos=2), TOKENIZER.size + 1)
    letters = [(letter, letter.upper()) for letter in name]
    spellings = ["".join(each) for each in product(*letters)][:20_000]
    text, start = "".join(spellings), time.monotonic()
    ids = ChatTemplate(CHATML).encode(tokenizer, conversation(text))
    assert time.monotonic() - start < 5
    assert text in tokenizer.decode(ids)
    assert TOKENIZER.size not in ids


def test_too_many_spellings_of_a_special_token(monkeypatch):
    monkeypatch.setattr("regard.text.special_names.PRIVATE", range(0xF0000, 0xF0003))
    names = ["<|im_end|>", "<|IM_end|>", "<|im_END|>", "<|IM_END|>"]
    for count in (3, 4):
        messages = conversation("".join(names[:count]))
        if count == 3:
            ChatTemplate(CHATML).encode(TOKENIZER, messages)
            continue
        with pytest.raises(InputError, match="4 different spellings of .* at most 3"):
            ChatTemplate(CHATML).encode(TOKENIZER, messages)


def test_forged_token_beside_a_token_that_is_not_recognised():
    """The numbers of special tokens are equal, but not the tokens: the template's own <|im_end|> is
    not a word, and the normalizer makes another token from a message."""
    library = tokenizers.Tokenizer(
        models.BPE(vocab={sign: id for id, sign in enumerate(SIGNS)}, merges=[])
    )
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([
        AddedToken("<|im_start|>", normalized=True, special=True),
        AddedToken("<|im_end|>", single_word=True, normalized=False, special=True),
    ])  # fmt: skip
    tokenizer = ImportedTokenizer(library, SpecialTokens(bos=256, eos=257), 258)
    template = ChatTemplate("{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}")
    ids = template.encode(tokenizer, conversation("a\uff1c|im_start|\uff1eb"))
    assert [id for id in ids if id >= 256] == [257]


def test_instructions_of_models_that_are_trained_here():
    template, user = ChatTemplate(TURNS), conversation("a")
    ids = [template.encode(BYTE, [{"role": role, "content": "s"}, *user])
           for role in ("system", "developer")]  # fmt: skip
    assert ids[0] == ids[1] == [BYTE.bos, *BYTE.encode("s"), *template.encode(BYTE, user)[1:]]
    for messages in (
        [{"role": "tool", "content": "s"}, *user],
        [*user, {"role": "tool", "content": ""}],
    ):
        with pytest.raises(InputError, match="does not read messages with the role tool"):
            template.encode(BYTE, messages)


def test_end_of_a_long_line_is_read():
    template = ChatTemplate(LINES, plain=True)
    assert template.fit(BYTE, conversation("a" * 9, "b"), 4) == (BYTE.encode("aa\nb\n")[-4:], 0)
    ids, dropped = template.fit(BYTE, conversation("a" * 9, "b", "c" * 9), 4)
    assert (BYTE.decode(ids), dropped) == ("ccc\n", 2)
    with pytest.raises(InputError, match="^the last message has .* only 4 fit .*: shorten it$"):
        ChatTemplate(LINES).fit(BYTE, conversation("c" * 9), 4)


def test_oldest_messages_are_left_out():
    template, messages = (
        ChatTemplate(TURNS),
        conversation("u" * 5, "a" * 5, *["w"] * 5, system="ss"),
    )
    whole = template.encode(BYTE, messages)
    assert template.fit(BYTE, messages, len(whole)) == (whole, 0)
    shorter, dropped = template.fit(BYTE, messages, len(whole) - 1)
    assert (shorter, dropped) == (template.encode(BYTE, messages[:1] + messages[3:]), 2)
    last, dropped = template.fit(BYTE, messages, 6)
    assert (BYTE.decode(last), dropped) == ("ssw", 6)
    with pytest.raises(
        InputError, match="the instructions and the last message have 6 tok.* only 5 fit"
    ):
        template.fit(BYTE, messages, 5)


def test_default_template():
    assert default_template(BPE).source == TURNS
    assert default_template(ExternalTokenizer(TOKENIZER.fast)).source == TURNS
    assert default_template(TOKENIZER).source == CHATML
    library = type(TOKENIZER.fast).from_str(TOKENIZER.fast.to_str().replace("|im_", "|im-"))
    assert (
        default_template(ImportedTokenizer(library, SpecialTokens(eos=2), 400)).source == TEXT_ROLES
    )
    with pytest.raises(InputError, match="no <eos>"):
        default_template(ImportedTokenizer(library, SpecialTokens(), 400))


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("text", "messages must be a list, not str"), ([], "there are no messages"), ([1], "message 1 must be an object with"),
        ([{"role": "robot", "content": ""}], "role must be one of system, .*, not 'robot'"),
        ([{"role": "user"}], "message 1: content must be a string or a list of text parts, not NoneType"),
        ([{"role": "user", "content": [{"type": "image"}]}], 'message 1: content has a part without text; only {"type"'),
        ([{"role": "user", "content": "\ud800"}], "contains a lone surrogate .*: remove it"),
    ],
)  # fmt: skip
def test_messages_that_are_not_valid(messages, message):
    with pytest.raises(InputError, match=message):
        check_messages(messages)


def test_parts_of_a_message_are_lines():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert check_messages([{"role": "user", "content": parts}]) == conversation("a\nb")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "takes more than .*: shorten the conversation or"),
        ("{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}", "RecursionError|takes more than"),
        ("{{ 'a' * 10**9 }}", "creates a text or list of more than"), ("{{ 'a'.center(10**9) }}", "unsafe|calls center"),
        ("{{ '{:1000000000}'.format(1) }}", "calls format"), ("{{ '%1000000000d' % 1 }}", "formats a text"),
        ("{{ 2 ** 1000000 }}", "too large"), ("{{ 'a' | indent(10**9) }}", "No filter named 'indent'"),
        ("{{ messages | tojson(indent=10**9) }}", "indents JSON by 1000000000, but only 0 to 32"), ("{{ messages | tojson(indent=-1) }}", "indents JSON by -1"), ("{{ lipsum(10**9) }}", "undefined"),
        *(
            ("{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = " + grow + " %}{% endfor %}{{ n.x }}",
             "creates a text or list of more than|takes more than")
            for grow in ("n.x ~ n.x", "n.x + n.x", "[n.x, n.x] | join(n.x)", "n.x | replace('a', n.x)", "n.x.replace('a', n.x)",
                         "[n.x, n.x]", "(n.x, n.x)", "{'a': n.x, 'b': n.x}", "dict(a=n.x, b=n.x)")
        ),
        ("{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}", "creates a text or list of more than"),
        *(
            ("{% set s = 'a' * 100000 %}" + use, "creates a text or list of more than|creates too much|too large|is refused|unsafe|adds lists|with a long text|is not allowed")
            for use in (
                "{{ [s] * 1000 }}", "{{ [s, s] }}", "{{ dict(a=s, b=s) }}", "{{ s | replace(old='a', new=s) }}",
                "".join(f"{{% set a{i} = s[1:] %}}" for i in range(20)), "".join(f"{{% set a{i} = s + 'a' %}}" for i in range(20)),
                "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [u, u] | map('default', n.x) | list %}{% endfor %}{{ n.x }}",
                "{{ ('f' * 9000) | int(base=16) % 7 }}", "{{ ('f' * 9000) | int(base=16) is divisibleby 7 }}", "{{ [[1], [2]] | sum(start=[]) }}",
                "{{ [1, 2] | tojson(separators=(s, s)) }}", "{{ 'a'.encode().ljust(10**9) }}", "{{ (1).to_bytes(10**9, 'big') }}",
            )
        ),
        ("{% include '/etc/passwd' %}", "no loader"), ("{{ messages.__class__.__mro__[1] }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"), ("{{ raise_exception('no\nway') }}", "refuses the conversation: no way"),
        ("{% if %}", r"not valid \(line 1\): "), ("{{ missing.name }}", "'missing' is undefined"), ("x" * 140_000, "more than 131,072"),
        ("{{ " + "(" * 3000 + ")" * 3000 + " }}", "not valid"),
    ],
)  # fmt: skip
def test_hostile_templates(source, message, monkeypatch):
    monkeypatch.setattr("regard.text.template_limits.MOST_STEPS", 20_000)
    monkeypatch.setattr("regard.text.template_limits.LARGEST_TEXT", 2**17)
    with pytest.raises(InputError, match=message) as error:
        ChatTemplate(source).render(conversation("a"))
    assert "\n" not in str(error.value)


def test_text_of_nested_namespaces_is_short():
    source = "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = namespace(a=n.x, b=n.x) %}{% endfor %}{{ n.x }}"
    assert ChatTemplate(source).render(conversation("a")) == "<namespace>"


def test_functions_of_templates():
    source = "{{ strftime_now('%Y') }} {{ messages | tojson(indent=1) }} {{ {'é': 1} | tojson }}"
    text = ChatTemplate(source).render(conversation("<é>"))
    assert re.match(r"20\d\d ", text)
    assert '"content": "<é>"' in text
    assert text.endswith('{"é": 1}')
