//! The sections `train_input` and `eval_input` of the params.
//!
//! Lists the keys that Millrace uses, keys that only configure the real machine (`ignored`), and keys that are rejected
//! with a remedy (`unsupported`). `section!` generates the type, the schema and the reader.

use super::{ImageTransformParams, MicroBatchSetting, OneOrMany};
use crate::keys::SectionReference;
use crate::keys::facts::{alias_of, default, default_from, otherwise, required, required_if};
use crate::keywords::{MICRO_BATCH_RULES, PROCESSORS, SAMPLE_TRANSFORMS, SPLIT_NAMES, TOKEN_TYPES, TOKENIZERS};
use crate::yaml::{FromNode, TreeReader, YamlNode, list_of, section};

section! {
    /// The source of samples, and the number of samples in a batch.
    pub struct InputParams {
        /// Kind of source: text files, token files (`.npy`, or `.bin` of little-endian numbers), HDF5 files (both names
        /// of the zoo mean the same), or generated samples. An HDF5 file has a dataset `data`: samples, int32 of shape
        /// (samples, 3, length) with the rows input_ids, loss mask and labels; or a corpus, uint8, uint16 or uint32 of
        /// shape (tokens), from which samples are cut as from token files. Where the mask is 0, or the label is -100,
        /// the label does not count. `MNISTDataProcessor` reads the files of the MNIST database, `ImageNet1KProcessor`
        /// a directory of PNG and JPEG files for each class. `ArrayDataProcessor` reads a directory with a NumPy array
        /// `NAME.npy` for each input of a model with a graph document, whose first dimension counts samples;
        /// `PythonDataProcessor` a directory that the Python client writes for a dataset in Python.
        /// Encoders read CSV files with the columns of the zoo's processors, or all others but HDF5 samples, which are
        /// then masked when they are read. `BertHDF5DataProcessor` reads HDF5 samples of encoders, with the rows
        /// input_ids, attention mask and labels, which do not count if they are -100. A dataset `labels` may have the
        /// labels instead: one row, or three of labels, their positions, and whether they count. The TFRecord
        /// processors, `NerDataProcessor` and `QuestionAnsweringDataProcessor` read files, plain or compressed by gzip,
        /// with a sample in each record, as the zoo's TensorFlow programs write them. `Sst2DataProcessor` and
        /// `MnliDataProcessor`, which the case distinguishes from those of CSV files, read what the library
        /// `tensorflow_datasets` prepared in the directory `data_dir` (`glue/sst2` or `glue/mnli`; its newest version,
        /// as TFRecord files). `t5` and `transformer` read lines of words that are divided already:
        /// `T5DynamicDataProcessor` replaces spans of them by sentinels when they are read (15% of the tokens, 3 in a
        /// span on average) and predicts these, and `TransformerDynamicDataProcessor` reads translations. Of all other
        /// sources of tokens, spans are replaced likewise. The last tokens of the vocabulary are the sentinels; of
        /// sources without a vocabulary file, the last two are padding, which also begins a target, and before it the
        /// end of a sequence.
        data_processor: String = required()
            .one_of(&PROCESSORS)
            .in_eval_input(otherwise("that of `train_input`")),
        /// Files, directories or globs to read, in order. A text file is one document; files named `*.jsonl` or
        /// `*.json` have one on each line, all these may be compressed (`.gz`, `.zst`), and files `*.parquet` have one
        /// in each row. A directory stands for its `*.txt` files (text), `*.bin` files (tokens), `*.h5` files (HDF5),
        /// or `*.tfrecord*` files, sorted by name. A relative path starts at the folder of the params file if it exists
        /// there, else at the working directory; on an appliance, where the appliance looks for inputs.
        data_dir: OneOrMany = required_if("`data_files` and `mixture` are omitted and the source reads files")
            .in_eval_input(otherwise("the files of `train_input`, if `data_processor` is omitted too")),
        /// Further files, directories or globs, which are read after those of `data_dir`.
        data_files: OneOrMany = required_if("`data_dir` and `mixture` are omitted and the source reads files")
            .in_eval_input(otherwise("the files of `train_input`, if `data_processor` is omitted too")),
        /// Spelling of `data_files` in files for TensorFlow.
        data_file: OneOrMany = alias_of("data_files"),
        /// Sources of HDF5 files that are mixed, instead of `data_dir` and `data_files`. The weights are rounded to
        /// 1/10,000 of their sum; samples of a source are spread evenly, and each source begins again at its own end.
        /// An epoch ends when a source would be read a second time.
        mixture: Vec<MixtureParams> = otherwise("one source"),
        /// Parts of the data that are read, as shares of the samples in the order of the files, for example `0.0-0.5`
        /// or `0-0.25,0.5-0.75`.
        data_subset: String = default("0.0-1.0"),
        /// Number of samples in an epoch. If it is larger than the number of samples in the data, these are repeated
        /// and shuffled together; if it is smaller, the rest is read in other epochs only if shuffling.
        num_samples: u64 = otherwise("the number of samples in the data"),
        /// Number of samples in a batch, of all systems together.
        batch_size: u64 = required().in_eval_input(default_from("train_input.batch_size")),
        /// Maximum number of samples in a leaf, the part of a batch that one system computes at a time. A number is
        /// used up to 16,384 tokens, `auto` stands for at most 1,024 tokens and at least 8 leaves of a batch that has 8
        /// samples, and `none` makes the batch one leaf. A job can use at most as many systems as a batch has leaves.
        micro_batch_size: MicroBatchSetting = default("auto").one_of(&MICRO_BATCH_RULES),
        /// Number of tokens in a sample; must be that of HDF5 samples.
        max_sequence_length: u64 = otherwise(
            "the value of `model.max_position_embeddings`; a run on this machine takes the length of HDF5 samples",
        )
            .in_eval_input(default_from("train_input.max_sequence_length")),
        /// Conversion of text to tokens: GPT-2's byte-pair encoding with 50,257 tokens, or one token for each byte.
        tokenizer: String = default("gpt2").one_of(&TOKENIZERS).in_eval_input(default_from("train_input.tokenizer")),
        /// File `tokenizer.json` of a model, as the Hugging Face libraries write it, with the conversion of text to
        /// tokens. Its token `<|endoftext|>`, `<|end_of_text|>`, `</s>`, `<eos>` or `[SEP]` is between documents; other
        /// tokens that it adds to a text are not.
        tokenizer_file: String = otherwise("the conversion that `tokenizer` names")
            .in_eval_input(otherwise("that of `train_input`")),
        /// Key of the lines of JSON Lines files, or column of Parquet files, that contains the text of a document.
        text_key: String = default("text").in_eval_input(default_from("train_input.text_key")),
        /// Numbers of token files without a header.
        token_dtype: String = default("uint16")
            .one_of(&TOKEN_TYPES)
            .in_eval_input(default_from("train_input.token_dtype")),
        /// Vocabulary of words in CSV files and lines: a text file with one word in a line, whose number is that of the
        /// line. With it, evaluations of an extractive summarization report ROUGE scores.
        vocab_file: String = required_if("the rows of `data_processor` contain words")
            .in_eval_input(otherwise("that of `train_input`")),
        /// Spelling of `data_dir` in files of `t5` and `transformer`.
        src_data_dir: OneOrMany = alias_of("data_dir"),
        /// Files, directories or globs with the translations of those of `data_dir`, line by line.
        tgt_data_dir: OneOrMany = otherwise(
            "what `meta.dat` in the directories of the source names, for `TransformerDynamicDataProcessor`",
        )
            .in_eval_input(otherwise("as in `train_input`")),
        /// Spelling of `vocab_file` in files of `t5` and `transformer`.
        src_vocab_file: String = alias_of("vocab_file"),
        /// Vocabulary of the translations, likewise a word in a line.
        tgt_vocab_file: String = default_from("train_input.vocab_file")
            .in_eval_input(default_from("train_input.tgt_vocab_file")),
        /// Names of the classes of tokens: a JSON file that maps each to its number, from 0.
        label_vocab_file: String = required_if(
            "`data_processor` is `BertTokenClassifierDataProcessor` or `NerDataProcessor`",
        )
            .in_eval_input(otherwise("that of `train_input`")),
        /// Whether words are converted to lower case.
        do_lower: bool = otherwise("false; true for `Sst2DataProcessor` and `MnliDataProcessor`"),
        /// Whether sentences have special tokens before and after them. `Sst2DataProcessor` and `MnliDataProcessor`
        /// accept only true.
        add_special_tokens: bool = default("true"),
        /// Maximum number of predicted tokens in a sample of an encoder.
        max_predictions_per_seq: u64 = otherwise("labels at all positions"),
        /// Share of the tokens that an encoder has to predict. Of these, 80% are masked, 10% are replaced by random
        /// tokens and 10% stay.
        masked_lm_prob: f64 = default("0.15"),
        /// Whether all tokens of a word are masked together.
        mask_whole_word: bool = default("false"),
        /// Older spelling of `mask_whole_word`.
        whole_word_masking: bool = alias_of("mask_whole_word"),
        /// Maximum number of sentences in a sample of an extractive summarization.
        max_cls_tokens: u64 = default("50"),
        /// Share of the tokens, at the end of the data, that is kept for evaluation if both inputs read the same files.
        validation_fraction: f64 = default("0")
            .in_eval_input(otherwise("that of `train_input` if both read the same files, else 0")),
        /// Part of the data that is read: all of it, all but the validation fraction, or the validation fraction. Of
        /// images, those to train on (`train-*` files or the directory `train`) or those to evaluate on (`t10k-*` files
        /// or the directory `val`).
        split: String = otherwise(
            "`all`; if a validation fraction is set or images are read, `train` in `train_input` and `validation` in \
             `eval_input`",
        ).one_of(&SPLIT_NAMES),
        /// What is done with each image, in order.
        transforms: Vec<ImageTransformParams> = otherwise(
            "of `MNISTDataProcessor`, `normalize` with mean 0.1307 and std 0.3081; of `ImageNet1KProcessor`, `resize`, \
             `to_tensor` and `normalize` with mean 0.5 and std 0.5; in `eval_input` not those of `train_input`",
        ),
        /// What is done with each sample of tokens, in order.
        data_transforms: Vec<SampleTransformParams> = otherwise("nothing; in `eval_input` not those of `train_input`"),
        /// Rows and columns of an image, which newer files repeat here; must equal those of the model.
        image_size: Vec<u64> = default_from("model.image_size"),
        /// Number of classes, which newer files repeat here; must equal that of the model.
        num_classes: u64 = default_from("model.num_classes"),
        /// Rows and columns of a patch of an image, which some files repeat here; must equal those of the model.
        patch_size: Vec<u64> = default_from("model.patch_size"),
        /// Number of channels of an image, which some files repeat here; must equal that of the model.
        image_channels: u64 = default_from("model.num_channels"),
        /// Whether samples are read in a random order, a different one in each epoch.
        shuffle: bool = default("false"),
        /// Seed of the random order.
        shuffle_seed: u64 = default_from("runconfig.seed"),
        /// Older spelling of `shuffle_seed`.
        seed: u64 = alias_of("shuffle_seed"),
        /// Size of the vocabulary, which older files repeat here; must equal that of the model.
        vocab_size: u64 = default_from("model.vocab_size"),
        /// Whether the files of a directory are read in the order of their names.
        sort_files: bool = default("true").fixed(),
        /// Number of tokens that the encoder of `t5` or `transformer` reads.
        src_max_sequence_length: u64 = alias_of("max_sequence_length"),
        /// Number of tokens that the decoder of `t5` or `transformer` reads.
        tgt_max_sequence_length: u64 = default_from("model.tgt_max_position_embeddings")
            .in_eval_input(default_from("train_input.tgt_max_sequence_length")),
        /// Whether samples contain several sequences of variable length, which do not see each other. HDF5 samples of
        /// decoders then have five rows, the last two of which are, for each token, the number of later tokens that
        /// attend to it, and its position in its sequence. Those of `BertHDF5DataProcessor` have these two rows, too;
        /// an encoder that is trained on them may be evaluated on samples of one sequence. Not with a sliding window.
        use_vsl: bool = default("false").in_eval_input(otherwise("that of `train_input`")),
        /// Whether the data starts again at its end: must be true in `train_input`. An evaluation of more
        /// `runconfig.eval_steps` than there are batches begins again, too; without them, it must be false.
        repeat: bool = default("true").in_eval_input(otherwise("true if there are `runconfig.eval_steps`")),
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
        /// Older spelling of `shuffle_buffer`.
        shuffle_buffer_size: u64,
        /// Number of tokens that stand for replaced spans; `model.extra_ids` adds them to the vocabulary.
        extra_ids: u64,
        /// Whether an incomplete last batch is left out; Millrace always leaves it out.
        drop_last: bool,
        /// Spelling of `drop_last` in files of images.
        drop_last_batch: bool,
        /// Whether images are 16-bit numbers; Millrace sends them as 32-bit numbers.
        to_float16: bool,
        /// Number of input threads of an older release.
        num_parallel_calls: u64,
        /// Number of files that are read at a time; Millrace reads samples by number.
        n_parallel_reads: u64,
        /// Whether input features are 16-bit numbers; token ids are integers.
        mixed_precision: bool,
        /// Whether the 16-bit type of input features is bfloat16; token ids are integers.
        use_bfloat16: bool,
        /// Lengths by which samples are grouped into batches; Millrace keeps their order.
        buckets: serde_json::Value,
        /// Whether the loss is a mean over the masked tokens of a batch; `model.mlm_loss_weight` scales it instead.
        dynamic_mlm_scale: bool,
        /// Whether the data are those of training; `eval_input` reads those of evaluation.
        is_training: bool,
        /// Older spelling of `dynamic_mlm_scale`.
        scale_mlm_weights: bool,
        /// Whether each batch has the weight of its loss; `model.mlm_loss_scaling` scales the loss.
        dynamic_loss_weight: bool,
        /// Whether the model predicts the next sentence; `model.disable_nsp` decides it.
        disable_nsp: bool,
    }
    unsupported {
        "num_examples" => "bound the run by max_steps or eval_steps",
        "pad_last" => "leave it out; an incomplete last batch is not used",
        "dataset_map_fn" => "leave it out",
        "features" => "leave it out; samples have input_ids and labels",
        "grad_accum_steps" => "set micro_batch_size instead",
    }
}

section! {
    /// A change of each sample of tokens.
    pub struct SampleTransformParams {
        /// What is done: `add_sink_tokens` inserts tokens that are not predicted. They count in `max_sequence_length`,
        /// so samples in files have fewer tokens.
        name: String = required().one_of(&SAMPLE_TRANSFORMS),
        /// The token that is inserted.
        sink_token_id: u64 = default("0"),
        /// How often it is inserted.
        num_sink_tokens: u64 = default("1"),
        /// Number of tokens of the sample before it.
        sink_token_start_pos: u64 = default("0"),
        /// Whether samples keep their length, so that as many tokens at their ends are lost.
        truncate_to_original_length: bool = default("false"),
    }
    ignored {}
    unsupported {}
}

section! {
    /// A source of a mixture.
    pub struct MixtureParams {
        /// Files, directories or globs of the source, as in `data_dir` of the input.
        data_dir: OneOrMany = required(),
        /// Share of the samples that come from this source, relative to the sum of all weights.
        weight: f64 = required(),
    }
    ignored {}
    unsupported {}
}

impl FromNode for Vec<SampleTransformParams> {
    const TYPE: &'static str = "a list of mappings with a name";
    const SECTION: Option<&'static SectionReference> = Some(SampleTransformParams::REFERENCE);

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        list_of(node, reader, Self::TYPE)
    }
}

impl FromNode for Vec<MixtureParams> {
    const TYPE: &'static str = "a list of mappings with data_dir and weight";
    const SECTION: Option<&'static SectionReference> = Some(MixtureParams::REFERENCE);

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        list_of(node, reader, Self::TYPE)
    }
}
