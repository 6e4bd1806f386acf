//! `train_input` and `eval_input`.

use super::{MicroBatchSetting, OneOrMany};
use crate::yaml::section;

section! {
    /// Where samples come from and how many make a batch.
    pub struct InputParams {
        /// Where samples come from: `GptTextDataProcessor` (UTF-8 text), `GptTokenDataProcessor` (token files, `.bin` of
        /// little-endian u16) or `SyntheticDataProcessor` (generated). An `eval_input` without one takes that of
        /// `train_input`, with its files.
        data_processor: String,
        /// Files, directories or globs to read; a directory means its `*.txt` (text) or `*.bin` (tokens) files. Relative
        /// paths start beside the params file where something is found there, else at the working directory; on an
        /// appliance, where the appliance looks for inputs.
        data_dir: OneOrMany,
        /// Further files, directories or globs, read after those of `data_dir`.
        data_files: OneOrMany,
        /// Samples in a batch, over all systems together.
        batch_size: u64,
        /// Upper bound on the samples of a leaf: a number (of which up to 16,384 tokens are used), `auto` (the default:
        /// at most 1,024 tokens, and at least 8 leaves of a batch that has 8 samples) or `none` (the whole batch is one
        /// leaf). No more systems can be used than a batch has leaves.
        micro_batch_size: MicroBatchSetting,
        /// Tokens of a sample; `model.max_position_embeddings` by default.
        max_sequence_length: u64,
        /// How text becomes tokens: `gpt2` (byte-pair encoding, 50,257 tokens; the default) or `bytes` (256 tokens).
        tokenizer: String,
        /// Share of the tokens, at their end, that is kept for validation when both inputs read the same files.
        validation_fraction: f64,
        /// Which part of the files is read: `all`, `train` or `validation`. By default `all`, or the two parts of the
        /// same files when a validation fraction is set.
        split: String,
        /// Whether samples come in a random order, another one each epoch; false by default.
        shuffle: bool,
        /// Seed of that order; `runconfig.seed` by default.
        shuffle_seed: u64,
        /// Older files say the vocabulary here too; it must be the model's.
        vocab_size: u64,
        /// Whether the data starts over at its end: always true for training, always false for evaluation.
        repeat: bool,
    }
    without_effect {
        /// Input worker processes.
        num_workers: u64,
        /// Batches each worker prepares ahead.
        prefetch_factor: u64,
        /// Whether workers outlive an epoch.
        persistent_workers: bool,
        /// Whether there may be several workers.
        use_multiple_workers: bool,
        /// Whether workers copy their data to a local disk.
        use_worker_cache: bool,
        /// Samples that are shuffled at a time; shuffling is over all samples here.
        shuffle_buffer: u64,
        /// Whether an incomplete last batch is left out; it always is.
        drop_last: bool,
        /// Type of the input features; token ids are integers.
        mixed_precision: bool,
        /// Type of the input features; token ids are integers.
        use_bfloat16: bool,
    }
    not_yet {
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
