"""What docs/performance.md says beside its tables. A figure in it names its command and its day."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """\
# Speed

Made by `python -m benchmarks performance` from `benchmarks/ratios.json`, in which the benchmarks
keep their last ratios (`--keep`). Each figure is from a run beside peers that do the same work:
same sizes, same sentences, same real tokens counted, random weights; a benchmark refuses to compare
anything else. In parentheses: the fraction of what the machine could do, measured in the same run.
The last columns set regard's best precision beside the best peer, each as fast as it gets; what
was not reached is said. `pip install -e '.[bench]'` has the peers.
"""


@dataclass(frozen=True)
class Part:
    title: str
    text: str
    rows: tuple[tuple[str, str], ...] = ()  # benchmark and device
    goals: str = ""  # of goals.py
    command: str = ""  # what measures it


PARTS = [
    Part(
        "Training on a GPU",
        """\
The trainer's own step beside the peers' forward, loss, backward, clipping and Adam. `base`:
sentences of log-normal length, 26 tokens on average, at most 100, real target tokens a second,
dropout 0.1, label smoothing 0.1, shared vocabulary of 37,000; peers are padded in batches of
similar lengths, as their users make them. `gpt2`: the shape of GPT-2 small. Memory: the most that
the allocator took of the GPU. Before there were kernels of our own, `base` was 0.76x eager
`torch.nn.Transformer` (at commit f38cebe on one H200: `python -m benchmarks step --presets small
base --dtype bfloat16 --tokens 25000 --vocabulary 37000 --batches 4 --repeats 3`).
""",
        (("train", "cuda"), ("startup", "cuda")),
        "training-gpu",
        "python -m benchmarks train --compile-peers --keep",
    ),
    Part(
        "Training on a CPU",
        """\
Forward, loss, backward and Adam of one step on such sentences; vocabulary 10,000, `base` 37,000.
The peers have the memory setting that `regard train` makes for itself (freed memory is kept), which
is worth more to them than to us. JoeyNMT and eole are not run beside: their layers are PyTorch's as
well, and where they were measured, they were slower than `torch.nn.Transformer` with that setting.
""",
        (("step", "cpu"),),
        "training-cpu",
        "python -m benchmarks step --keep",
    ),
    Part(
        "Decoding on a CPU",
        """\
Sources of 28 tokens, exactly 28 target tokens, the end token forbidden, target tokens a second of
the best hypothesis, encoder included. Vocabulary 10,000, `base` 37,000. Each program has a process
of its own, and they take turns; "two workers" are CTranslate2's, a core and half of the batch each.
"regard by PyTorch" is the same search without native code (`REGARD_NATIVE=off`): the native step is
worth its place where it is at least 1.5x as fast. The limit is the time to read all weights of the
decoder, or to multiply with them, in the precision of the program.
""",
        (("decode", "cpu"),),
        "decoding-cpu",
        "python -m benchmarks decode --keep",
    ),
    Part(
        "Encoders on a CPU",
        """\
BERT's shapes (base: 12 layers, 768, 12 heads, 3,072; mini: 4, 256, 4, 1,024; vocabulary 30,522), 32
sentences of at most 64 tokens that fill 39% of that rectangle; real tokens a second. ONNX Runtime
has the operators that it fuses a BERT to, and its own dynamic quantisation.
""",
        (("encoders", "cpu"),),
        "encoders",
        "python -m benchmarks encoders --keep",
    ),
    Part(
        "Language models on a CPU",
        """\
The shape of GPT-2 small, prompts of 32 tokens, exactly 128 new ones, greedy; new tokens a second,
reading the prompt included.
""",
        (("generators", "cpu"),),
        "generators",
        "python -m benchmarks generators --keep",
    ),
    Part(
        "What a lower precision costs",
        """\
A `tiny` model trained on Multi30k, English to German, and its test set of 2016, translated in each
precision with the usual beam; beside: the same in float32.
""",
        (("precision", "cpu"),),
        "",
        "python -m benchmarks precision -m runs/multi30k --data "
        "$REGARD_DATA/multi30k/test_2016_flickr.en.xz $REGARD_DATA/multi30k/test_2016_flickr.de.xz "
        "--keep",
    ),
    Part(
        "Decoding on a GPU",
        """\
The same work as on a CPU, beside Hugging Face's Marian. The first call of a shape compiles kernels
and captures them, which takes seconds and is not counted. At commit 455f2e7 (2026-11-15, one H200,
the same command) it was 17.6x Hugging Face at batch 1 greedy, 17.1x with beam 4, 12.2x and 14.2x at
batch 32, 7.0x and 6.7x at 256.
""",
        (("decode", "cuda"),),
        "decoding-gpu",
        "python -m benchmarks decode --device cuda --presets base --batches 1 32 256 --dtype "
        "bfloat16 --keep",
    ),
    Part(
        "How the cost grows",
        """\
Exponents fitted to the longer half of the measured sizes, beside those that theory allows at most.
Length: one layer of self-attention, 256 to 65,536 tokens or as far as the budget reaches. Blocks:
an encoder's, on sequences of 128 tokens. Memory is what a pass needs at most beside its input. A
late step of decoding may cost what an early one does, and reading what the cache has grown by.
""",
        (("scaling", "cpu"), ("scaling", "cuda")),
        "",
        "python -m benchmarks scaling --keep",
    ),
    Part(
        "To the first step",
        """\
From the command `regard train` to the end of the first optimiser step, on the built-in corpus, cold
(no cache at all) and warm; importing PyTorch is the part that nobody can avoid.
""",
        (("startup", "cpu"),),
        "",
        "python -m benchmarks startup --keep",
    ),
    Part(
        "To the first answer",
        """\
From the command to its end, for one text and the model in the box (docs/box.md), cold (no cache at
all: nothing native was built yet) and warm. A process that imports PyTorch spends some time in
looking for garbage and in ending, which the verbs do without.
""",
        (("answers", "cpu"),),
        "answers",
        "python -m benchmarks answers --keep",
    ),
    Part(
        "Few rows times a matrix",
        """\
`python -m benchmarks product` shows what PyTorch leaves at few rows: it multiplies one row with a
37,000 x 512 matrix in 7.4 ms, and in 2.9 ms when asked for W xᵀ in two halves (2026-11-15).
""",
    ),
    Part(
        "Memory",
        """\
Translating does not take more memory for more lines: 1,000, 10,000 and 100,000 lines of Multi30k
through a `tiny` model took at most 478, 498 and 520 MiB, PyTorch included, at 229, 551 and 626
lines/s (`python -m benchmarks memory -m run --input train.en --lines 1000 10000 100000 -- --beam
1`, 2026-11-15).

Europarl, 600,000 pairs: learning a vocabulary of 16,000, tokenising and three steps of `tiny`
(`regard train --task translate --train train.en.xz train.de.xz --preset tiny --out run --set
training.steps=3 --set data.vocabulary_size=16000`) took 86 s and at most 1,021 MiB (`ru_maxrss` of
the process), model, optimiser and PyTorch included (2026-11-15). From the second run on the
tokenised corpus is reused.
""",
    ),
    Part(
        "Independence of the batch",
        """\
The same model, test2016 in batches of another size and in another order (`python -m benchmarks
independence -m run --input test.en`, 2026-11-15): 0 of 1,000 texts differ for greedy and for beam
search, scores by at most 6.2e-06; of samples at temperature 1, one of 1,000 differs: a random
number fell between two roundings of a cumulated probability.
""",
    ),
    Part(
        "Search",
        """\
`python -m benchmarks search --lines 1000000 --size 128 256 --top 5`: the index behind `regard
search`, a million lines of random unit vectors, exact. The floor is the time to read all vectors
once, measured in turn with the queries. Ranges over three runs on two cores that others kept busy
(2026-11-15):

| | size 128 | size 256 |
|---|---|---|
| index on disk | 556 MB | 1,068 MB |
| making it, besides the embedding | 2.0 to 4.7 s, peak 46 MiB | 4.3 to 4.5 s, peak 50 MiB |
| one query, warm | 24 to 41 ms, 74 to 82% of the floor | 37 to 58 ms, 87 to 93% |
| the same by numpy's `@` and argpartition | 2.8 to 3.4 times as long | 3.1 to 3.8 times as long |
| first query, nothing in memory | 284 to 345 ms | 462 to 544 ms |
| 32 queries together | 0.52 to 1.05 s | 0.80 to 0.85 s |
""",
    ),
]
