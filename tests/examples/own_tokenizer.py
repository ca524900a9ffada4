"""Own tokenizer: any object with encode, decode and vocab_size."""

from regard.text.external import as_tokenizer


class Letters:
    """Lower-case letters and the space; other characters are left out."""

    alphabet = "abcdefghijklmnopqrstuvwxyz "
    vocab_size = len(alphabet)

    def encode(self, text):
        return [self.alphabet.index(sign) for sign in text.lower() if sign in self.alphabet]

    def decode(self, ids):
        return "".join(self.alphabet[i] for i in ids)


tokenizer = as_tokenizer(Letters())  # what regard.train(..., tokenizer=Letters()) uses
ids = tokenizer.encode("Hello <eos>")
print(ids, tokenizer.decode([tokenizer.bos, *ids, tokenizer.eos]), tokenizer.size)
