//! The command-line arguments and their types. This module reads no files.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ErrorKind};
use clap::{Args, Parser, Subcommand, ValueEnum};
use millrace_emulator::numerics::Isa;
use millrace_params::FlagOverrides;
use millrace_protocol::launch::{FETCH_SUBCOMMAND, FetchCommand};

/// Trains large models by weight streaming.
#[derive(Debug, Parser)]
#[command(name = "millrace-agent", version, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub task: CliCommand,
}

/// The command to run.
#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
pub enum CliCommand {
    /// Train; also evaluate if the params have `mode: train_and_eval`
    Train(RunArgs),
    /// Evaluate a checkpoint
    Eval(RunArgs),
    /// Train, and evaluate every eval_frequency steps
    #[command(alias = "train-and-eval")]
    TrainAndEval(RunArgs),
    /// Evaluate every checkpoint of model_dir
    #[command(alias = "eval-all")]
    EvalAll(RunArgs),
    /// Run in the mode of the params, or of --mode
    Run {
        /// train, eval, train_and_eval or eval_all
        #[arg(short, long)]
        mode: Option<String>,
        #[command(flatten)]
        flags: RunArgs,
    },
    /// Print the stream plan: layers, chunks, leaves, bytes of every role, projected times
    Plan {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        flags: JobArgs,
    },
    /// Write the training samples that the model will see as safetensors
    Samples {
        /// Phase of params with several, counted from 1
        #[arg(long, value_name = "N", default_value_t = 1)]
        phase: u32,
        /// Number of steps whose samples are written
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        steps: u64,
        /// File to write
        #[arg(short, long)]
        out: PathBuf,
        #[command(flatten)]
        flags: JobArgs,
    },
    /// Describe, check and convert the data of a job
    Data {
        #[command(subcommand)]
        task: DataCommand,
    },
    /// Continue a text with the model of a checkpoint
    Generate(GenerateArgs),
    /// Describe a key or a section of the params; without KEY, list them
    Explain {
        /// Key or section, such as model.nonlinearity or model
        #[arg(value_name = "KEY")]
        key: Option<String>,
    },
    /// Describe, verify, export and import checkpoints
    Checkpoint {
        #[command(subcommand)]
        task: CheckpointCommand,
    },
    /// Fetch the uploads of a job; used by its pods
    #[command(hide = true, name = FETCH_SUBCOMMAND)]
    FetchUploads(FetchCommand),
    /// Run one role of a job; used by launchers
    #[command(hide = true, disable_help_flag = true)]
    Role {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _arguments: Vec<OsString>,
    },
}

/// The text to generate.
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case")]
pub struct GenerateArgs {
    /// Directory of the checkpoint, or of a run: its newest checkpoint; also s3://BUCKET/RUN
    #[arg(short, long, value_name = "DIR")]
    pub checkpoint: PathBuf,
    /// Text to continue; by default an empty document
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub prompt: String,
    /// Token ids to continue, separated by commas; the output is then token ids, too
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "prompt")]
    pub prompt_tokens: Vec<u32>,
    /// Tokenizer, if not that of the training data: gpt2, bytes or a file tokenizer.json
    #[arg(long, value_name = "NAME")]
    pub tokenizer: Option<String>,
    /// Maximum number of tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    pub max_tokens: u64,
    /// Divisor of the logits; 0 always chooses the most probable token
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f64,
    /// Choose from the K most probable tokens only
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Choose from the most probable tokens that have the probability P together
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f64,
    /// Seed of random choices
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Continue after the end of the document
    #[arg(long)]
    pub ignore_end: bool,
    /// Pin the instruction set: avx512, avx2, neon or portable
    #[arg(long)]
    pub isa: Option<Isa>,
    /// Number of compute threads; by default the machine's cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
}

/// Commands for data.
#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
pub enum DataCommand {
    /// Print what the data contain, and the first samples as the model will see them
    Inspect {
        /// Number of samples to print
        #[arg(long, value_name = "N", default_value_t = 1)]
        samples: u64,
        #[command(flatten)]
        data: DataArgs,
    },
    /// Read every sample of an epoch; exit code 1 if one can't be used
    Verify {
        #[command(flatten)]
        data: DataArgs,
    },
    /// Write the samples of an epoch as HDF5 files, in the order of the data
    Convert {
        /// Directory to write, which must be new or empty
        out: PathBuf,
        /// Number of samples in each file; by default 64 MiB before compression
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        samples_per_file: Option<u64>,
        #[command(flatten)]
        data: DataArgs,
    },
}

/// The input of a job.
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case")]
pub struct DataArgs {
    /// Params file
    #[arg(short, long, value_name = "FILE")]
    pub params: PathBuf,
    /// Family of the model, for params that do not name it, such as gptj
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Phase of params with several, counted from 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub phase: u32,
    /// The input to read: that of training or of evaluation
    #[arg(long, value_name = "INPUT", value_parser = ["train", "eval"], default_value = "train")]
    pub input: String,
}

/// Commands for checkpoints.
#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
pub enum CheckpointCommand {
    /// Describe a checkpoint
    Info {
        /// Directory of the checkpoint
        dir: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Read every byte and compare it with the manifest; exit code 1 on damage
    Verify {
        /// Directory of the checkpoint
        dir: PathBuf,
    },
    /// Write the model in a format of other programs
    Export {
        /// Directory of the checkpoint
        dir: PathBuf,
        /// Format to write
        #[arg(long)]
        to: WeightFormat,
        /// Directory or file to write
        out: PathBuf,
        /// Tokenizer, if not that of the training data: gpt2, bytes or a file tokenizer.json
        #[arg(long, value_name = "NAME")]
        tokenizer: Option<String>,
    },
    /// Read a model into model_dir as its checkpoint_0, to train it further
    Import {
        /// Directory or file to read
        path: PathBuf,
        /// Format to read
        #[arg(long, default_value = "hf")]
        from: WeightFormat,
        /// model_dir to write to; by default that of the params, or ./model_dir with --write_params
        #[arg(short = 'o', long = "model_dir", value_name = "DIR")]
        model_dir: Option<String>,
        #[command(flatten)]
        params: ImportParams,
        #[command(flatten)]
        machine: MachineFlags,
    },
}

/// A format of weights that other programs read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WeightFormat {
    /// A directory that `transformers` loads
    Hf,
    /// A safetensors file with the names and shapes of the model's own tensors
    Safetensors,
}

/// The params of an imported model: an existing file, or one that the import writes.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
#[command(rename_all = "snake_case")]
pub struct ImportParams {
    /// Params file, whose model must match the directory
    #[arg(short, long, value_name = "FILE")]
    pub params: Option<PathBuf>,
    /// Write params for the model to FILE, which must not exist, and import with them
    #[arg(long, value_name = "FILE")]
    pub write_params: Option<PathBuf>,
}

/// The job and the machine.
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case")]
pub struct JobArgs {
    /// Params file
    #[arg(short, long, value_name = "FILE")]
    pub params: PathBuf,
    /// Family of the model, for params that do not name it, such as gptj
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    #[command(flatten)]
    pub machine: MachineFlags,
}

/// The machine, and the part of it to use.
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case")]
pub struct MachineFlags {
    /// Appliance to plan for: the spec of an Appliance document
    #[arg(long, value_name = "FILE")]
    pub appliance: Option<PathBuf>,
    /// Number of systems to use
    #[arg(long, value_name = "N")]
    pub num_csx: Option<u64>,
    /// Number of MemoryX shards to use; 0 for the appliance's number
    #[arg(long, value_name = "N")]
    pub num_wgt_servers: Option<u64>,
    /// Maximum number of activation servers for each system; 0 for the appliance's maximum
    #[arg(long, value_name = "N")]
    pub num_act_servers: Option<u64>,
}

/// The flags of a run. A flag that is given overrides the params.
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case")]
pub struct RunArgs {
    /// Device; only CSX, which scripts for the real appliance give
    #[arg(value_name = "CSX", hide = true, value_parser = ["CSX"], ignore_case = true)]
    pub target: Option<String>,
    #[command(flatten)]
    pub job: JobArgs,
    /// Directory of checkpoints, metrics and logs, or s3://BUCKET/RUN; ./model_dir by default
    #[arg(short = 'o', long, value_name = "DIR")]
    pub model_dir: Option<String>,
    /// Step to train to, counted from step 0
    #[arg(long, value_name = "N")]
    pub max_steps: Option<u64>,
    /// Number of batches of an evaluation
    #[arg(long, value_name = "N")]
    pub eval_steps: Option<u64>,
    /// Checkpoint to start from, also in a bucket; by default the newest of model_dir
    #[arg(long, value_name = "DIR")]
    pub checkpoint_path: Option<String>,
    /// States of the checkpoint to load: all, or a list of model, optimizer, dataloader, lr_scheduler, global_step
    #[arg(long, value_name = "STATES")]
    pub load_checkpoint_states: Option<String>,
    /// Start from a checkpoint that lacks some of the model's tensors
    #[arg(long)]
    pub disable_strict_checkpoint_loading: bool,
    /// Resume from a checkpoint with a different numerics profile; the next checkpoint records the change
    #[arg(long, alias = "accept_other_profile")]
    pub allow_profile_change: bool,
    /// Stop after compiling, and print the plan
    #[arg(long)]
    pub compile_only: bool,
    /// Stop after checking what a start would refuse: params, memory, model_dir, checkpoint, data files
    #[arg(long, conflicts_with = "compile_only")]
    pub validate_only: bool,
    /// Level of the logs: DEBUG, VERBOSE, INFO, WARNING or ERROR
    #[arg(long, value_name = "LEVEL")]
    pub logging: Option<String>,
    /// Pin the instruction set: avx512, avx2, neon or portable
    #[arg(long)]
    pub isa: Option<Isa>,
    /// Number of compute threads of each system; by default its share of the machine's cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Interpreter that reads Python datasets; by default the one that packed them
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
    /// First port to listen on; each process uses the next three; by default free ports
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub base_port: Option<u16>,
}

impl MachineFlags {
    /// Returns the values of the flags that override the params.
    pub fn overrides(&self) -> FlagOverrides {
        FlagOverrides {
            num_csx: self.num_csx,
            num_wgt_servers: self.num_wgt_servers,
            num_act_servers: self.num_act_servers,
            ..FlagOverrides::default()
        }
    }
}

impl JobArgs {
    /// Returns the values of the flags that override the params.
    pub fn overrides(&self) -> FlagOverrides {
        FlagOverrides { model: self.model.clone(), ..self.machine.overrides() }
    }
}

impl DataArgs {
    /// Returns the values of the flags that override the params.
    pub fn overrides(&self) -> FlagOverrides {
        FlagOverrides { model: self.model.clone(), ..FlagOverrides::default() }
    }
}

impl RunArgs {
    /// Returns the values of the flags that override the params.
    pub fn overrides(&self, mode: Option<String>) -> FlagOverrides {
        let set_if = |flag: bool| flag.then_some(true);
        FlagOverrides {
            mode,
            model_dir: self.model_dir.clone(),
            max_steps: self.max_steps,
            eval_steps: self.eval_steps,
            checkpoint_path: self.checkpoint_path.clone(),
            load_checkpoint_states: self.load_checkpoint_states.clone(),
            disable_strict_checkpoint_loading: set_if(self.disable_strict_checkpoint_loading),
            // Either flag replaces the one of the two that the params have.
            compile_only: set_if(self.compile_only).or(self.validate_only.then_some(false)),
            validate_only: set_if(self.validate_only).or(self.compile_only.then_some(false)),
            logging: self.logging.clone(),
            ..self.job.overrides()
        }
    }
}

/// Replaces dashes in the names of flags by underscores, as in the params, so that `--num-csx` and `--num_csx` are both
/// valid.
pub fn normalize_flag_spelling(arguments: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut flags = true;
    arguments.into_iter().map(move |argument| {
        flags &= argument != "--";
        match argument.to_str().and_then(|text| text.strip_prefix("--")) {
            Some(flag) if flags => {
                let (name, value) = flag.split_at(flag.find('=').unwrap_or(flag.len()));
                format!("--{}{value}", name.replace('-', "_")).into()
            }
            _ => argument,
        }
    })
}

/// Returns what is wrong with the arguments, in one sentence.
pub fn error_sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    // The first paragraph is the message. It has several lines if it lists arguments.
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<_> = paragraph.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

/// Returns a remedy: the most similar argument, or how to list all of them.
pub fn error_hint(error: &clap::Error) -> String {
    let text = error.to_string();
    let unknown = error.get(ContextKind::InvalidArg).map(ToString::to_string);
    if error.kind() == ErrorKind::UnknownArgument && unknown.as_deref() == Some("--mode") {
        return "the mode is the command: train, eval, train_and_eval or eval_all; `run` takes it from --mode or the \
                params"
            .to_owned();
    }
    if let (Some("[CSX]"), Some(file)) = (unknown.as_deref(), error.get(ContextKind::InvalidValue)) {
        return format!("name the params file with -p: -p {file}");
    }
    // A tip on how to pass an unknown flag as a value is of no use: no command takes such a value.
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: ")).filter(|tip| !tip.contains("as a value"));
    let help = "see millrace-agent --help, or millrace-agent COMMAND --help for a command's flags";
    tip.unwrap_or(help).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<CliCommand, clap::Error> {
        let words = std::iter::once("millrace-agent").chain(line.split_whitespace()).map(OsString::from);
        Cli::try_parse_from(normalize_flag_spelling(words)).map(|line| line.task)
    }

    fn overrides(line: &str) -> FlagOverrides {
        match parse(line) {
            Ok(CliCommand::Train(flags)) => flags.overrides(None),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn both_spellings_of_a_flag_are_the_same() {
        let underscores =
            overrides("train -p a.yaml --num_csx 2 --max_steps=7 --load_checkpoint_states model,optimizer");
        let dashes = overrides("train -p a.yaml --num-csx 2 --max-steps=7 --load-checkpoint-states model,optimizer");
        assert_eq!(underscores, dashes);
        assert_eq!((underscores.num_csx, underscores.max_steps), (Some(2), Some(7)));
        assert!(parse("train-and-eval --params a-b.yaml -o some-dir --disable-strict-checkpoint-loading").is_ok());
    }

    #[test]
    fn dash_in_value_is_kept() {
        let words = ["--model-dir=a-b", "--out", "c-d", "--", "--e-f"].map(OsString::from);
        let words: Vec<_> = normalize_flag_spelling(words).collect();
        assert_eq!(words, ["--model_dir=a-b", "--out", "c-d", "--", "--e-f"]);
    }

    #[test]
    fn absent_flag_overrides_nothing() {
        assert_eq!(overrides("train -p a.yaml"), FlagOverrides::default());
    }

    #[test]
    fn compile_only_and_validate_only_override_each_other() {
        let flags = |line| (overrides(line).compile_only, overrides(line).validate_only);
        assert_eq!(flags("train -p a.yaml --compile_only"), (Some(true), Some(false)));
        assert_eq!(flags("train -p a.yaml --validate_only"), (Some(false), Some(true)));
        assert!(parse("train -p a.yaml --validate_only --compile_only").is_err());
    }

    #[test]
    fn every_documented_shape_is_understood() {
        for line in [
            "eval -p a.yaml --checkpoint_path m/checkpoint_5 --eval_steps 3",
            "eval_all -p a.yaml -o m",
            "train CSX -p a.yaml",
            "run -p a.yaml -m train --isa avx2 --threads 2 --base_port 7000 --appliance b.yaml --logging DEBUG",
            "plan -p a.yaml --json --num_csx 4 --model gpt3",
            "samples -p a.yaml --steps 3 -o samples.safetensors",
            "generate -c m/checkpoint_5 --prompt text --temperature 0.8 --top-k 40 --top_p 0.9 --seed 3 -n 20",
            "generate --checkpoint m --prompt_tokens 1,2,3 --tokenizer bytes --ignore_end --threads 2 --isa avx2",
            "checkpoint info m/checkpoint_5 --json",
            "checkpoint verify m/checkpoint_5",
            "checkpoint export m/checkpoint_5 --to hf out",
            "checkpoint import hf_dir -p a.yaml -o m",
            "checkpoint import hf_dir --write_params a.yaml --num_csx 2",
        ] {
            assert!(parse(line).is_ok(), "{line}: {}", parse(line).unwrap_err());
        }
    }

    #[test]
    fn mistakes_are_one_sentence_with_a_hint() {
        for (line, message, hints) in [
            ("train -p a.yaml --num_csy 2", "unexpected argument '--num_csy' found", "--num_csx"),
            ("eval -p a.yaml --mode eval", "unexpected argument '--mode' found", "the mode is the command"),
            ("train", "required arguments were not provided: --params <FILE>", "--help"),
            ("train -p a.yaml --num_csx two", "invalid value 'two' for '--num_csx <N>'", "--help"),
            ("checkpoint import hf", "required arguments were not provided", "--help"),
            ("checkpoint import hf -p a --write_params b", "cannot be used with '--write_params <FILE>'", "--help"),
            ("trian -p a.yaml", "unrecognized subcommand 'trian'", "train"),
            ("train tiny.yaml", "invalid value 'tiny.yaml'", "name the params file with -p: -p tiny.yaml"),
            ("train -p a.yaml --frob", "unexpected argument '--frob' found", "see millrace-agent --help"),
            ("samples -p a.yaml --steps 0 -o b", "invalid value '0' for '--steps <STEPS>'", "--help"),
            ("train -p a.yaml --isa sse", "choose one of avx512, avx2, neon or portable", "--help"),
        ] {
            let error = parse(line).unwrap_err();
            let sentence = error_sentence(&error);
            assert!(sentence.contains(message) && !sentence.contains('\n'), "{line}: {sentence}");
            assert!(error_hint(&error).contains(hints), "{line}: {}", error_hint(&error));
        }
    }
}
