"""Names of options and verbs in other toolkits, and the names that regard uses instead.

An unknown name in `--set`, in a configuration file, on the command line or as a Python keyword
argument is looked up here, so that its error message can suggest the right one. The names are those
of Hugging Face transformers, fairseq, OpenNMT, Marian, Sockeye, JoeyNMT, Keras, scikit-learn and
PyTorch Lightning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import NamedTuple

from regard.errors import InputError, unknown


class Option(NamedTuple):
    """An option of regard: `section.key`, or an argument of a command and of a Python function."""

    name: str
    note: str = ""  # what is different from the option of the other toolkit

    def __str__(self) -> str:
        return self.name


# Each option, and its names in other toolkits. A name may belong to several options: the section in
# which it was used decides, and otherwise the first option.
_OPTIONS: dict[Option, str] = {
    # decoding
    Option("decoding.beam"): "num_beams n_beams beam_size beam_width beams nbeams num_beam",
    Option("decoding.n_best"): "nbest num_return_sequences num_hypotheses n_hypotheses",
    Option("decoding.length_penalty"): "lenpen len_pen length_alpha beam_alpha",
    Option("decoding.length_penalty", "with decoding.length_offset=0"): "normalize normalise",
    Option("decoding.max_length"): (
        "max_new_tokens max_len max_tokens max_gen_len max_decoding_length max_output_length "
        "max_output_len max_len_a max_len_b max_target_length generation_max_length"
    ),
    Option("decoding.min_length"): "min_new_tokens min_len min_decoding_length",
    Option("decoding.no_repeat"): "no_repeat_ngram_size no_repeat_ngrams block_ngram_repeat",
    Option("decoding.no_repeat", "it forbids a repeated sequence of N tokens"): (
        "repetition_penalty repeat_penalty frequency_penalty presence_penalty"
    ),
    Option("decoding.temperature", "a value above 0 samples"): "do_sample sample sampling",
    Option("decoding.temperature"): "temp sampling_temperature random_sampling_temp",
    Option("decoding.top_k"): "topk sampling_topk random_sampling_topk",
    Option("decoding.top_p"): "topp sampling_topp random_sampling_topp nucleus nucleus_p",
    # training
    Option("training.steps"): "max_steps num_steps train_steps max_update max_updates total_steps "
    "max_num_train_steps num_train_steps num_training_steps iterations max_iters n_steps",
    Option("training.epochs"): "num_epochs max_epochs max_epoch n_epochs num_train_epochs epoch",
    Option("training.batch_tokens", "it counts tokens, not examples"): (
        "batch_size batchsize bs per_device_train_batch_size train_batch_size minibatch mini_batch"
    ),
    Option("training.batch_tokens"): "max_tokens_per_batch batch_size_tokens",
    Option("training.accumulate"): (
        "gradient_accumulation_steps accumulate_grad_batches update_freq accum_count "
        "batch_multiplier grad_accum"
    ),
    Option("training.optimiser"): "optimizer optim opt",
    Option("training.weight_decay"): "l2 wd",
    Option("training.beta1"): "adam_beta1 beta_1 betas",
    Option("training.beta2"): "adam_beta2 beta_2",
    Option("training.learning_rate"): "lr learningrate init_lr initial_lr peak_lr max_lr eta",
    Option("training.warmup"): "warmup_steps num_warmup_steps warmup_updates warm_up warmup_iters "
    "learning_rate_warmup lr_warmup",
    Option("training.warmup", "it is a number of steps"): "warmup_ratio warmup_proportion",
    Option("training.schedule"): "lr_scheduler_type lr_scheduler scheduler lr_schedule "
    "decay_method scheduling",
    Option("training.label_smoothing"): "label_smoothing_factor smoothing smooth_eps label_smooth",
    Option("training.r_drop"): "rdrop r_drop_alpha reg_alpha",
    Option("training.balance"): "class_weight class_weights balanced",
    Option("training.clip"): (
        "max_grad_norm gradient_clip_val clip_norm clip_grad_norm grad_clip gradient_clipping "
        "clip_gradients"
    ),
    Option("training.validate_every"): (
        "eval_steps eval_every val_check_interval valid_freq validation_freq validate_interval "
        "valid_steps val_every validate_interval_updates"
    ),
    Option("training.checkpoint_every"): (
        "save_steps save_every save_freq checkpoint_interval save_interval_updates "
        "save_checkpoint_steps"
    ),
    Option("training.keep"): "save_total_limit keep_checkpoints keep_last keep_interval_updates "
    "keep_last_epochs keep_best_ckpts",
    Option("training.average"): "average_checkpoints num_checkpoints_average",
    Option("training.patience"): "early_stopping_patience early_stopping early_stop",
    Option("training.dtype", "auto, float32 or bfloat16"): (
        "fp16 bf16 precision mixed_precision amp half torch_dtype"
    ),
    Option("training.seed"): "random_seed random_state manual_seed rng_seed",
    Option("decoding.seed"): "random_seed random_state manual_seed rng_seed",
    # model
    Option("model.d_model"): (
        "hidden_size hidden_dim embed_dim embedding_dim embedding_size emb_dim n_embd model_dim "
        "dim dmodel dim_model encoder_embed_dim decoder_embed_dim"
    ),
    Option("model.heads"): (
        "num_heads n_head n_heads nhead nheads num_attention_heads attention_heads "
        "encoder_attention_heads decoder_attention_heads"
    ),
    Option("model.head_size"): "head_dim d_k d_v d_kv dim_head size_per_head",
    Option("model.d_ff"): (
        "ffn_dim dim_feedforward feed_forward_size intermediate_size ff_size dff d_inner n_inner "
        "ffn_embed_dim encoder_ffn_dim decoder_ffn_dim feedforward_dim transformer_ff"
    ),
    Option("model.encoder_layers", "an encoder-decoder also has model.decoder_layers"): (
        "num_layers n_layer n_layers layers num_hidden_layers nlayers depth"
    ),
    Option("model.encoder_layers"): "num_encoder_layers enc_layers n_encoder_layers",
    Option("model.decoder_layers"): "num_decoder_layers dec_layers n_decoder_layers",
    Option("model.dropout"): "dropout_rate dropout_prob hidden_dropout_prob hidden_dropout "
    "residual_dropout resid_pdrop embd_pdrop p_dropout",
    Option("model.attention_dropout"): "attention_probs_dropout_prob attn_dropout attn_pdrop",
    Option("model.feed_forward_dropout"): "activation_dropout relu_dropout ffn_dropout ff_dropout",
    Option("model.norm_first"): "pre_norm prenorm pre_ln encoder_normalize_before normalize_before",
    Option("model.key_value_heads"): "num_key_value_heads n_kv_heads num_kv_heads kv_heads",
    Option("model.norm_epsilon"): "layer_norm_eps rms_norm_eps layer_norm_epsilon norm_eps",
    Option("model.activation"): "hidden_act activation_fn activation_function act",
    Option("model.positions"): "position_embedding_type pos_encoding position_encoding "
    "positional_encoding pos_emb",
    Option("model.position_base"): "rope_theta rope_base",
    Option("model.window"): "sliding_window attention_window local_window",
    Option("model.tie_embeddings"): "tie_word_embeddings share_embeddings tied_embeddings "
    "share_all_embeddings tie_weights share_decoder_input_output_embed",
    Option("model.classes"): "num_labels num_classes n_classes nb_classes",
    Option("model.style"): "architecture arch is_encoder_decoder model_type",
    # data
    Option("data.vocabulary_size"): "vocab_size vocab n_vocab nwords src_vocab_size tgt_vocab_size "
    "bpe_size num_merges vocabulary_length",
    Option("data.shared_vocabulary"): "share_vocab joined_dictionary shared_vocab joint_vocab",
    Option("data.vocabulary"): "tokenizer_type tokenizer tokenization subword_type",
    Option("data.max_length"): (
        "max_seq_length max_seq_len seq_len max_source_length max_source_positions block_size "
        "sequence_length context_length max_sent_length src_seq_length n_ctx bptt truncation"
    ),
    Option("data.mask"): "mlm_probability mask_probability mask_prob masked_lm_prob",
    Option("data.whole_words"): "whole_word_masking whole_word_mask wwm",
    Option("data.bpe_dropout"): "subword_dropout bpedropout",
    Option("data.train", "it takes the source and the target file"): (
        "src tgt source target trainpref train_src train_tgt src_train tgt_train train_sets"
    ),
    Option("data.train"): (
        "data dataset corpus train_file train_data training_data train_files trainset train_path"
    ),
    Option("data.valid", "it takes the source and the target file"): (
        "valid_src valid_tgt validpref valid_sets val_src val_tgt dev_src dev_tgt"
    ),
    Option("data.valid"): (
        "validation_file validation validation_data valid_data val_data val valid_file val_file "
        "eval_file eval_data dev dev_file devset eval_dataset valid_files"
    ),
    # arguments that belong to no section
    Option("out"): "output_dir output save_dir model_dir save_model out_dir save_path run_dir",
    Option("from"): "pretrained finetune_from fine_tune finetune init_from model_name_or_path "
    "from_pretrained finetune_from_model restore_file train_from base_model",
    Option("resume"): "resume_from_checkpoint continue restart",
    Option("preset", "it is the size of the model; a trained model is the value of 'from'"): (
        "model model_size size"
    ),
    Option("model", "its folder, or box:NAME"): "checkpoint ckpt model_path",
    Option("device"): "gpu gpus cuda use_cuda no_cuda use_cpu cpu gpu_ids accelerator devices",
    Option("quiet"): "silent no_progress disable_tqdm verbose",
    Option("data"): "test test_file test_data testset test_set",
    Option("force"): "overwrite overwrite_output_dir",
}  # fmt: skip

_FOREIGN: dict[str, list[Option]] = {}
for _option, _names in _OPTIONS.items():
    for _name in _names.split():
        _FOREIGN.setdefault(_name, []).append(_option)

PREDICTING = "the verb is the task: translate, answer, generate, classify, fill or embed"
# Verbs of other tools, and what to use instead.
VERBS = {
    "predict": PREDICTING, "inference": PREDICTING, "infer": PREDICTING, "interactive": PREDICTING,
    "decode": PREDICTING, "run": PREDICTING, "apply": PREDICTING,
    "fit": "did you mean 'train'?", "training": "did you mean 'train'?",
    "finetune": "write: regard train --from MODEL", "fine-tune": "write: regard train --from MODEL",
    "resume": "write: regard train --resume --out RUN",
    "continue": "write: regard train --resume --out RUN",
    "eval": "did you mean 'evaluate'?", "test": "did you mean 'evaluate'?",
    "validate": "did you mean 'evaluate'?", "score": "did you mean 'evaluate'?",
    "bleu": "did you mean 'evaluate'?",
    "complete": "did you mean 'generate'?", "sample": "did you mean 'generate'?",
    "ask": "did you mean 'answer'?", "qa": "did you mean 'answer'?",
    "mask": "did you mean 'fill'?", "unmask": "did you mean 'fill'?",
    "fill-mask": "did you mean 'fill'?", "encode": "did you mean 'embed'?",
    "vectors": "did you mean 'embed'?", "label": "did you mean 'classify'?",
    "visualise": "did you mean 'view'?", "visualize": "did you mean 'view'?",
    "plot": "did you mean 'view'?", "show": "did you mean 'view' or 'info'?",
    "list": "write: regard info, which lists the models in the box",
    "models": "write: regard info, which lists the models in the box",
    "bench": "did you mean 'lab'?", "benchmark": "did you mean 'lab'?",
    "profile": "did you mean 'lab'?",
    "help": "write: regard --help", "version": "write: regard --version",
    "convert": "did you mean 'import' or 'export'?",
}  # fmt: skip


def option_names() -> list[str]:
    """All options of the four sections, as `section.key`."""
    from regard.config.model import ModelConfig
    from regard.config.sections import DataConfig, DecodingConfig, TrainingConfig

    sections = {
        "model": ModelConfig, "data": DataConfig, "training": TrainingConfig,
        "decoding": DecodingConfig,
    }  # fmt: skip
    return [f"{name}.{field.name}" for name, cls in sections.items() for field in fields(cls)]


def equivalents(name: str) -> list[Option]:
    """The options that this name means, the most likely first.

    Args:
        name: a key (`num_beams`, `steps`), a key with its section, or a flag (`--num-beams`).

    Returns:
        Options with this key in any section, and the options of regard that have this name in
        another toolkit; empty if the name is unknown.
    """
    key = name.lstrip("-").replace("-", "_").lower()
    section, dot, rest = key.rpartition(".")
    key = rest if dot else key
    options = [Option(o) for o in option_names() if o.partition(".")[2] == key]
    options += _FOREIGN.get(key, [])
    return sorted(options, key=lambda option: not option.name.startswith(f"{section}."))


def unknown_key(section: str, key: str, known: Iterable[str]) -> InputError:
    """The error for an unknown key of a section; its message suggests the right option.

    Args:
        section: `decoding`.
        key: the unknown key.
        known: the keys of the section.
    """
    keys = list(known)
    name = f"{section}.{key}"
    options = [option for option in equivalents(name) if "." in option.name]
    near = get_close_matches(key, keys, n=1, cutoff=0.6 if not options else 0.85)
    if near:
        hint = suggestion(Option(f"{section}.{near[0]}"))
    elif options:
        hint = suggestion(options[0])
    else:
        hint = f"known: {', '.join(keys)}"
    return InputError(f"unknown configuration key {name!r:.80}; {hint}")


def unknown_section(kind: str, name: str, known: Sequence[str]) -> InputError:
    """The error for an unknown section; a name that is an option gets its section as the hint.

    kind: what the name is, for the message: "section in train.yaml".
    """
    options = [option for option in equivalents(name) if "." in option.name]
    if options and not get_close_matches(name, known, n=1, cutoff=0.7):
        return InputError(f"unknown {kind} {name!r:.40}; {suggestion(options[0])}")
    return unknown(kind, name[:40], known)


def suggestion(option: Option, spelling: str = "") -> str:
    """`did you mean 'training.batch_tokens'? (it counts tokens, not examples)`

    spelling: how to write the option, if not as `section.key`.
    """
    note = f" ({option.note})" if option.note else ""
    return f"did you mean {spelling or repr(option.name)}?{note}"
