# mypy: implicit-reexport
# ruff: noqa: F401
"""The names that tasks use from modules that import numpy or torch: see lazy.py."""

from __future__ import annotations

from regard.decoding.engines.cuda_graph import release_graphs
from regard.decoding.predictions import (
    STOPS,
    Prediction,
    drop_duplicates,
    scored_prediction,
    spell,
)
from regard.decoding.requests import SCORED_TOKENS, Request, by_size
from regard.decoding.score import score
from regard.decoding.search import NO_DETAILS, DecodingPlan, Details, Search, decode
from regard.model.head import pool
from regard.model.transformer import Transformer
from regard.tasks import metrics
from regard.tasks.batches import EVALUATED_TOKENS, bounds, forward, packed
from regard.tasks.bootstrap import BiasedMetric, Comparison, Metric, intervals, paired, scores_of
from regard.tasks.custom_metrics import registered_metrics
from regard.text.batching import Packed
from regard.text.dropout import Dropout
from regard.text.store import Chunk, Store, build, build_pairs, token_type
from regard.text.stream import TextStream
from regard.text.tokenizer import Tokenizer
from regard.text.vectors import VectorFile
from regard.training import losses
from regard.training.losses import Batch, Loss, Pairs
from regard.training.model_folder import load_tokenizers
