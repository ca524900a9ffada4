"""Own task: whether one sentence follows from another, a classification of pairs of sentences."""

import regard
from regard.tasks.classify import Classify
from regard.text.corpus import Classified, RowFormat
from regard.text.records import Field


def parse(record):
    """A row of the data -> its line, text and label."""
    text = f"{record.text('premise')} => {record.text('hypothesis')}"
    return Classified(record.line, text, record.text("label"))


class Entailment(Classify):
    name = "entail"
    help = "Whether a sentence follows from another. A text is PREMISE => HYPOTHESIS."
    row_format = RowFormat((Field("premise"), Field("hypothesis"), Field("label")), parse)


regard.register_task(Entailment)
rows = [("A dog sleeps.", "An animal sleeps.", "yes"), ("A dog sleeps.", "A dog runs.", "no")]
model = regard.train(
    "entail", rows, preset="tiny", steps=30, warmup=10, learning_rate=0.003, quiet=True,
    settings={"model": {"encoder_layers": 1, "d_model": 32, "d_ff": 64}},
)  # fmt: skip
print(model.predict("A dog sleeps. => An animal sleeps.").label)
