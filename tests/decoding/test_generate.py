"""`regard.generate` on a Transformer without a task."""

import pytest
import torch

import regard
from regard import InputError, ModelConfig, Packed, Transformer


def make(style="encoder-decoder", **options):
    torch.manual_seed(3)
    sizes = {"d_model": 16, "heads": 2, "d_ff": 32, "vocabulary_size": 20, "dropout": 0.1}
    stacks = {"encoder": "encoder_layers", "decoder": "decoder_layers"}
    layers = {stacks[part]: 2 for part in style.split("-")}
    return Transformer(ModelConfig(style=style, **sizes, **layers, **options))


SOURCES = [[5, 3, 8, 4], [7, 6]]


def greedy(model, source, begin, steps, eos):
    """Greedy search by full passes."""
    model.eval()
    tokens = list(begin)
    while len(tokens) < len(begin) + steps:
        memory = None if source is None else Packed.of([source])
        tokens.append(int(model(memory, Packed.of([tokens]))[-1].argmax()))
        if tokens[-1] == eos:
            return tokens[len(begin) : -1]
    return tokens[len(begin) :]


@pytest.mark.parametrize("eos", [2, 11, None])
def test_greedy_search_gives_the_most_probable_next_tokens(eos):
    model = make()
    expected = [greedy(model, source, [4], 6, eos) for source in SOURCES]
    assert regard.generate(model, SOURCES, max_length=6, bos=4, eos=eos) == expected
    prompts = [[9], [9, 3]]
    expected = [greedy(model, s, [1, *p], 6, eos) for s, p in zip(SOURCES, prompts, strict=True)]
    assert regard.generate(model, SOURCES, prompts, max_length=6, eos=eos) == expected


def test_a_decoder_continues_its_prompt_or_bos():
    model = make("decoder")
    expected = [greedy(model, None, tokens, 5, 2) for tokens in SOURCES]
    assert regard.generate(model, prompt=SOURCES, max_length=5) == expected
    assert regard.generate(model, max_length=5) == [greedy(model, None, [1], 5, 2)]


def test_packed_lists_and_padded_tensors_are_the_same_input():
    model = make()
    tokens, mask = Packed.of(SOURCES).to_padded()
    expected = regard.generate(model, SOURCES, beam=3, max_length=7)
    assert regard.generate(model, Packed.of(SOURCES), beam=3, max_length=7) == expected
    padded = regard.generate(model, tokens, source_mask=mask, beam=3, max_length=7)
    assert padded == expected
    assert regard.generate(model, SOURCES[:1], beam=3, max_length=7) == expected[:1]


def test_sampling_depends_on_the_seed_and_restores_the_mode():
    model = make().train()
    options = {"temperature": 1.0, "top_k": 10, "top_p": 0.95, "max_length": 12}
    first, second = (regard.generate(model, SOURCES, seed=seed, **options) for seed in (1, 2))
    assert first == regard.generate(model, SOURCES, seed=1, **options)
    assert first != second
    assert model.training
    assert model.decoder.training


def test_scores_are_those_of_the_search():
    outputs, scores = regard.generate(make(), SOURCES, beam=2, max_length=4, scores=True)
    assert [len(tokens) <= 4 for tokens in outputs] == [True, True]
    assert all(score < 0 for score in scores)


@pytest.mark.parametrize(
    ("style", "arguments", "message"),
    [
        ("encoder-decoder", {}, "the source is missing"),
        ("decoder", {"source": SOURCES}, "has no source: pass the tokens as prompt"),
        ("encoder", {"source": SOURCES}, "cannot generate: it needs a decoder"),
        ("encoder-decoder", {"source": torch.tensor(SOURCES[:1])}, "pass source_lengths or"),
        ("encoder-decoder", {"source": [5, 3]}, "put it into a list of sequences"),
        ("encoder-decoder", {"source": "text"}, "must be Packed, a list of lists of token ids"),
        ("encoder-decoder", {"source": [[5, 30]]}, "30 at position 1 of sequence 0 is outside"),
        ("encoder-decoder", {"source": SOURCES, "prompt": [[1]]}, "must have the same number"),
        ("encoder-decoder", {"source": SOURCES, "eos": 20}, "eos must be a token id from 0 to 19"),
        ("encoder-decoder", {"source": SOURCES, "beam": 0}, "beam must be at least 1"),
    ],
)
def test_invalid_call_raises_one_line_error(style, arguments, message):
    with pytest.raises(InputError, match=message) as error:
        regard.generate(make(style), **arguments)
    assert "\n" not in str(error.value)
