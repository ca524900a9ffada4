"""The names of the files in a run folder; with `WEIGHTS` the run is a finished model."""

CONFIG, METRICS, CARD = "config.yaml", "metrics.jsonl", "README.md"
WEIGHTS = "model.safetensors"  # the final weights; in a checkpoint, those of its step
BEST = "best.safetensors"  # the weights with the best validation score so far
TOKENIZER, SOURCE_TOKENIZER = "tokenizer.json", "source-tokenizer.json"
LABELS = "labels.json"  # classify
CHAT_TEMPLATE = "chat_template.jinja"  # task generate: the chat template
DATA = "data"  # folder: rows that were passed to `regard.train` in memory
EVENTS = "events"  # folder: for TensorBoard
CHECKPOINTS = "checkpoints"  # folder: step-N/ with WEIGHTS and the two files below
OPTIMISER, STATE = "optimiser.safetensors", "state.json"
