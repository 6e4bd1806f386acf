//! The sections `train_input` and `eval_input` of the params.
//!
//! Lists the keys that Millrace uses, keys that only configure the real machine (`ignored`), and keys that are rejected
//! with a remedy (`unsupported`). `section!` generates the type, the schema and the reader.

use super::{MicroBatchSetting, OneOrMany};
use crate::keywords::{MICRO_BATCH_RULES, PROCESSORS, SPLIT_NAMES, TOKENIZERS};
use crate::reference::facts::{default, default_from, otherwise, required, required_if};
use crate::yaml::section;

section! {
    /// The source of samples, and the number of samples in a batch.
    pub struct InputParams {
        /// Kind of source: UTF-8 text files, token files (`.bin` of little-endian u16), or generated samples.
        data_processor: String = required()
            .one_of(&PROCESSORS)
            .in_eval_input(otherwise("that of `train_input`")),
        /// Files, directories or globs to read, in order. A directory stands for its `*.txt` files (text) or `*.bin`
        /// files (tokens). A relative path starts at the folder of the params file if it exists there, else at the
        /// working directory; on an appliance, where the appliance looks for inputs.
        data_dir: OneOrMany = required_if("`data_files` is omitted and the source reads files")
            .in_eval_input(otherwise("the files of `train_input`, if `data_processor` is omitted too")),
        /// Further files, directories or globs, which are read after those of `data_dir`.
        data_files: OneOrMany = required_if("`data_dir` is omitted and the source reads files")
            .in_eval_input(otherwise("the files of `train_input`, if `data_processor` is omitted too")),
        /// Number of samples in a batch, of all systems together.
        batch_size: u64 = required().in_eval_input(default_from("train_input.batch_size")),
        /// Maximum number of samples in a leaf, the part of a batch that one system computes at a time. A number is
        /// used up to 16,384 tokens, `auto` stands for at most 1,024 tokens and at least 8 leaves of a batch that has 8
        /// samples, and `none` makes the batch one leaf. A job can use at most as many systems as a batch has leaves.
        micro_batch_size: MicroBatchSetting = default("auto").one_of(&MICRO_BATCH_RULES),
        /// Number of tokens in a sample.
        max_sequence_length: u64 = default_from("model.max_position_embeddings")
            .in_eval_input(default_from("train_input.max_sequence_length")),
        /// Conversion of text to tokens: GPT-2's byte-pair encoding with 50,257 tokens, or one token for each byte.
        tokenizer: String = default("gpt2").one_of(&TOKENIZERS).in_eval_input(default_from("train_input.tokenizer")),
        /// Share of the tokens, at the end of the data, that is kept for evaluation if both inputs read the same files.
        validation_fraction: f64 = default("0")
            .in_eval_input(otherwise("that of `train_input` if both read the same files, else 0")),
        /// Part of the data that is read: all of it, all but the validation fraction, or the validation fraction.
        split: String = otherwise(
            "`all`; if a validation fraction is set, `train` in `train_input` and `validation` in `eval_input`",
        ).one_of(&SPLIT_NAMES),
        /// Whether samples are read in a random order, a different one in each epoch.
        shuffle: bool = default("false"),
        /// Seed of the random order.
        shuffle_seed: u64 = default_from("runconfig.seed"),
        /// Size of the vocabulary, which older files repeat here; must equal that of the model.
        vocab_size: u64 = default_from("model.vocab_size"),
        /// Whether the data starts again at its end: always for training, never for evaluation.
        repeat: bool = default("true").fixed().in_eval_input(default("false")),
    }
    ignored {
        /// Number of input worker processes.
        num_workers: u64,
        /// Number of batches that each worker prepares ahead.
        prefetch_factor: u64,
        /// Whether workers live longer than an epoch.
        persistent_workers: bool,
        /// Whether there may be several workers.
        use_multiple_workers: bool,
        /// Whether workers copy their data to a local disk.
        use_worker_cache: bool,
        /// Number of samples that are shuffled at a time; Millrace shuffles all samples.
        shuffle_buffer: u64,
        /// Whether an incomplete last batch is left out; Millrace always leaves it out.
        drop_last: bool,
        /// Whether input features are 16-bit numbers; token ids are integers.
        mixed_precision: bool,
        /// Whether the 16-bit type of input features is bfloat16; token ids are integers.
        use_bfloat16: bool,
    }
    unsupported {
        "mixture" => "concatenate the sources in data_files",
        "data_subset" => "name the files to read in data_files",
        "num_samples" => "bound the run by max_steps or eval_steps",
        "num_examples" => "bound the run by max_steps or eval_steps",
        "use_vsl" => "leave it out; samples are cut at max_sequence_length",
        "pad_last" => "leave it out; an incomplete last batch is not used",
        "dataset_map_fn" => "leave it out",
        "features" => "leave it out; samples have input_ids and labels",
        "grad_accum_steps" => "set micro_batch_size instead",
    }
}
