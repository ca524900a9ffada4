"""Valid requests of all endpoints, and values that are not valid, for the fuzzer."""

GENERATE = {
    "model": "generate",
    "prompt": "Once upon",
    "max_tokens": 20,
    "temperature": 0.8,
    "seed": 3,
    "n": 1,
}
EXAMPLES = [
    ("/health", None),
    ("/", None),
    ("/api/models", None),
    ("/openapi.json", None),
    ("/v1/models", None),
    ("/v1/models/generate", None),
    ("/languages", None),
    ("/frontend/settings", None),
    ("/v2/languages?type=target", None),
    ("/api/classify", {"texts": ["I like it.", "I do not."], "model": "classify"}),
    ("/api/fill", {"texts": ["The man is <mask> a book."], "top": 3}),
    ("/api/embed", {"texts": ["A dog runs."], "model": "embed"}),
    ("/api/search", {"queries": ["dog"], "documents": ["A dog runs.", "A cat sleeps."], "top": 1}),
    ("/api/tokenize", {"text": "Two words", "model": "translate", "side": "source"}),
    ("/api/translate", {"text": "A dog runs.", "alternatives": 2, "attention": True, "history": True, "beam": 2}),
    ("/api/alternatives", {"text": "A dog runs.", "prefix": "Ein", "count": 3}),
    ("/api/attention", {"text": "A dog runs.", "model": "translate", "target": "Ein Hund rennt."}),
    ("/api/walk", {"text": "a dog", "style": "decoder"}),
    ("/api/answer", {"question": "Who runs?", "context": "A dog runs.", "n_best": 2}),
    ("/v1/completions", GENERATE),
    ("/v1/completions", GENERATE | {"stream": True, "stop": ["."], "stream_options": {"include_usage": True}}),
    ("/v1/completions", GENERATE | {"prompt": ["a", "b"], "echo": True, "logprobs": 2, "n": 2, "top_p": 0.9}),
    ("/v1/chat/completions", {"model": "generate", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}),
    ("/v1/embeddings", {"model": "embed", "input": ["A dog."], "encoding_format": "base64", "dimensions": 8}),
    ("/translate", {"q": "A dog runs.", "source": "en", "target": "de", "format": "text", "alternatives": 1, "api_key": ""}),
    ("/translate", {"q": ["<b>A dog</b> runs &amp; %s.", "Two"], "source": "auto", "target": "de", "format": "html"}),
    ("/detect", {"q": "A dog runs."}),
    ("/v2/translate", {"text": ["A dog runs."], "target_lang": "DE", "source_lang": "EN", "tag_handling": "html", "split_sentences": "1"}),
]  # fmt: skip

NUMBERS = (
    0,
    -1,
    1,
    2,
    3.5,
    -0.0,
    1e-300,
    1e300,
    2**31,
    2**63,
    2**64,
    -(2**63),
    10**400,
    10**4_000,
    4_294_967_296,
    0.1,
    999,
    100_000,
)
TEXTS = (
    "", " ", "\n\n\n", "\x00", "a\x00b", "\ud800", "\udfff\ud800", "\U0001f600" * 50, "e" + "\u0301" * 500, "\u202e\u2066", "\ufeff",
    "x" * 30_000, "word " * 3_000, "." * 5_000, "A. " * 2_000, "<" * 5_000, "<b>" * 3_000, "</p>" * 500, "&" * 2_000, "&#x110000;", "%s" * 1_000,
    "{{" * 500, "http://" + "a" * 5_000, "</s><s><pad>[MASK]<mask>", "___" * 200, "1" * 5_000, "A dog runs.", "Ein Hund.", "日本語のテキスト",
    "null", "true", "../../etc/passwd", "box:translate", "no-such-model", "en", "de", "xx", "EN-US", "auto", "html", "text", "base64", "float", "<!--",
    "<a href='x' onclick=\"y\">A dog</a> runs. <br/><script>x</script>", "\r\n\t", "a" * 255 + " b" * 300,
)  # fmt: skip
DEEP = []
for _ in range(200):
    DEEP = [DEEP]
HOSTILE = (
    *NUMBERS, *TEXTS, None, True, False, [], {}, [[]], [None], [""], [1, "a"], {"a": {"b": []}}, DEEP, ["x"] * 1_000, [["x"]] * 300,
    list(range(2_000)), [-1], [10**9], [2**63], {str(i): i for i in range(500)}, ["\ud800"], [{"role": "user"}], [{}] * 50, ["A dog."] * 256,
)  # fmt: skip
