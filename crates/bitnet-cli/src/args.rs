//! The command line: commands, flags and their help texts.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    time::Duration,
};

use bitnet::{
    Device, Draft, Error, KvType, Memory, OpenDraft,
    model::{Checkpoint, Target},
};
use clap::{
    Args, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};

use crate::{thinking::ThinkingFlags, token_ids::TokenIds};

/// Runs ternary (BitNet b1.58) language models on any CPU, and on NVIDIA GPUs.
///
/// MODEL is a .gguf file; a folder with config.json, *.safetensors and tokenizer.json; `org/name` on Hugging Face,
/// optionally with `@revision` or `:file`; `demo`, a small trained model inside this program; or `synthetic:NAME`,
/// random weights without a tokenizer (tiny, 125m, 700m, 2b4t, bonsai-tiny, bonsai-1.7b, bonsai-4b, bonsai-8b,
/// bonsai-27b, bonsai-2-27b, hybrid-tiny, hybrid-tiny-rotated, embedding-tiny, embedding-0.6b).
#[derive(Debug, Parser)]
#[command(name = "bitnet", version, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// Flags of every command.
    #[command(flatten)]
    pub common: Common,
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Machine")]
pub struct Common {
    /// Where to compute: cpu; cuda or cuda:N for an NVIDIA GPU; auto for a GPU if there is a usable one, else the CPU
    #[arg(
        long,
        global = true,
        default_value = "auto",
        value_name = "DEVICE",
        env = "BITNET_DEVICE",
        hide_env_values = true
    )]
    pub device: Device,
    /// Number of threads, 1 to 1024; `bench` also compares several, like 1,2,4 [default: one on each physical core that
    /// this process may use]
    #[arg(long, global = true, value_name = "N", env = "BITNET_THREADS", hide_env_values = true, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<Vec<u16>>,
    /// CPU instruction set: auto (the best) or, for tests, another one; `bitnet doctor` lists them
    #[arg(long, global = true, default_value = "auto", value_name = "ISA")]
    pub isa: String,
    /// Type of cached keys and values: a smaller type holds longer texts and is faster but less exact; a GPU has bf16 and
    /// int8 [default: f32 on the CPU, bf16 on a GPU]
    #[arg(long, global = true, value_name = "TYPE", value_parser = kv_type())]
    pub kv: Option<KvType>,
    /// Memory for weights, activations and cache: bytes (or K, M, G, KiB, MiB, GiB) or N% of what is available; it
    /// determines the size of the cache and the maximum length of texts. The bodies of requests come on top: see
    /// `serve --bodies-limit` [default: what is needed, up to 50%]
    #[arg(long, global = true, value_name = "SIZE", env = "BITNET_MEMORY", hide_env_values = true)]
    pub memory: Option<Memory>,
    /// Print only results and errors: no statistics, notes or progress
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

fn kv_type() -> impl TypedValueParser<Value = KvType> {
    PossibleValuesParser::new(KvType::ALL.map(KvType::name)).try_map(|name| name.parse::<KvType>())
}

/// The commands; the arguments of each hold its help text, unless they are few.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(RunArgs),
    Chat(ChatArgs),
    Logits(LogitsArgs),
    Tokenize(TokenizeArgs),
    Detokenize(DetokenizeArgs),
    Inspect(InspectArgs),
    Batch(BatchArgs),
    Serve(ServeArgs),
    Convert(ConvertArgs),
    Perplexity(PerplexityArgs),
    Bench(BenchArgs),
    Doctor(DoctorArgs),
    /// Download a model from Hugging Face into its cache, without running it.
    Pull {
        /// The model: org/name, with `@revision` or `:file` if wanted
        model: String,
    },
    /// List the models in the Hugging Face cache.
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Remove a model, with all its revisions and files, from the Hugging Face cache.
    Rm {
        /// The model: org/name
        model: String,
    },
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Ask a running server whether it accepts requests; the exit code is 0 if it does.
    Health {
        /// The server's address
        #[arg(default_value = "http://127.0.0.1:8080")]
        url: String,
    },
    /// Print a script that completes commands and flags in a shell.
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, in roff.
    Man,
}

/// Complete a prompt and stream the text.
///
/// Prints only the continuation, without the prompt, and ends its last line. A model without a tokenizer takes its
/// prompt from --ids and prints ids.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The model
    #[arg(env = "BITNET_MODEL", hide_env_values = true)]
    pub model: String,
    /// The text to continue or to answer; if missing or -, it is read from stdin, without the last line end
    pub prompt: Option<String>,
    /// Read the prompt from a file; - is stdin
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,
    /// A prompt of token ids instead of a text, like 1,2,3; the model gets exactly these
    #[arg(long, value_name = "IDS", conflicts_with_all = ["prompt", "file", "system", "thinking", "no_thinking"])]
    pub ids: Option<TokenIds>,
    /// Continue the prompt unchanged, even if the model has a chat template
    #[arg(long, conflicts_with_all = ["thinking", "no_thinking"])]
    pub raw: bool,
    /// The system message of the chat
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Flags for thoughts.
    #[command(flatten)]
    pub thinking: ThinkingFlags,
    /// Print one JSON object at the end: the text, the thought, their tokens and the statistics
    #[arg(long)]
    pub json: bool,
    /// Sampling flags.
    #[command(flatten)]
    pub sampling: Sampling,
    /// Speculation flags.
    #[command(flatten)]
    pub speculation: Speculation,
    /// Cache flags.
    #[command(flatten)]
    pub cache: FolderFlags,
}

/// Flags for how to draw tokens.
#[derive(Debug, Args)]
pub struct Sampling {
    /// Maximum number of tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256)]
    pub max_tokens: usize,
    /// Divides the logits; 0 always takes the most likely token [default: the model's, else 0.7]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Draw from this many most likely tokens, 0 for all [default: the model's, else 0]
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Draw from the smallest set of most likely tokens with this total probability [default: the model's, else 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Draw from tokens that have at least this fraction of the most likely token's probability [default: the model's,
    /// else 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Penalty for tokens that have occurred: divides their logits if positive, multiplies them if negative; 1 is none
    /// [default: the model's, else 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers; the same seed gives the same text [default: chosen at random, and printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
}

/// Flags for drafting tokens ahead.
#[derive(Debug, Args)]
pub struct Speculation {
    /// What drafts tokens that the model then checks together; the output is the same, but comes sooner: `head`, the
    /// model's own; `ngram`, earlier text; `none`; a smaller model with the same vocabulary; or `auto`, the head if
    /// there is one, else earlier text
    #[arg(long, value_name = "HOW", default_value_t = Draft::Auto)]
    pub draft: Draft,
    /// Maximum number of tokens drafted for a sequence in a step; 0 drafts none
    #[arg(long, alias = "draft-max", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(..=16))]
    pub speculate: u8,
}

impl Speculation {
    /// Opens what drafts for a model. Tells how the flags are wrong, if they are.
    pub fn open(&self, checkpoint: &Checkpoint) -> Result<OpenDraft, Error> {
        let draft = if self.speculate == 0 { &Draft::None } else { &self.draft };
        draft.open(checkpoint, &mut |_, _, _| {})
    }
}

/// Flags for where the cache is kept besides the model's own memory.
#[derive(Debug, Clone, Args)]
pub struct CacheFlags {
    /// Flags for a folder.
    #[command(flatten)]
    pub folder: FolderFlags,
    /// Keep what leaves the cache in a GPU's memory in this much host memory, above --cache-dir if that is given: bytes,
    /// or like 8G; only with a GPU
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub cache_host: Option<u64>,
}

/// Flags for a cache that outlives the process.
#[derive(Debug, Clone, Args)]
pub struct FolderFlags {
    /// Keep the cache in this folder: a prompt that begins as an earlier one, of this or an earlier process, is then read
    /// instead of computed, with the same tokens. Processes can share a folder; it holds prompts and answers, and only
    /// its owner may be able to write to it
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Maximum size of that folder, in bytes or like 20G; what was not used for longest goes first
    #[arg(long, value_name = "SIZE", default_value = "20G", value_parser = size)]
    pub cache_size: u64,
}

fn size(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(Memory::Bytes(bytes)) if bytes > 0 => Ok(bytes),
        _ => Err("give bytes like 20000000000, 20G or 20GiB".into()),
    }
}

/// List or clear the folder of a cache.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// List what is kept, by model and salt.
    List {
        /// The folder of the cache
        #[arg(long, value_name = "DIR")]
        cache_dir: PathBuf,
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Remove what is kept: everything, or what requests with one salt have left.
    Clear {
        /// The folder of the cache
        #[arg(long, value_name = "DIR")]
        cache_dir: PathBuf,
        /// Remove only what requests with this `cache_salt` or `user` have left
        #[arg(long, value_name = "TEXT")]
        salt: Option<String>,
    },
}

/// Talk to a model.
///
/// Each line is a turn, and the model sees the whole conversation. Ctrl-C stops an answer, Ctrl-D ends the chat, /help
/// lists the commands. A model without a chat template gets the turns joined by blank lines.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// The model
    #[arg(env = "BITNET_MODEL", hide_env_values = true)]
    pub model: String,
    /// The system message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Flags for thoughts.
    #[command(flatten)]
    pub thinking: ThinkingFlags,
    /// Sampling flags.
    #[command(flatten)]
    pub sampling: Sampling,
    /// Speculation flags.
    #[command(flatten)]
    pub speculation: Speculation,
    /// Go on with the conversation of this name, or begin one, and keep it in the folder of --cache-dir
    #[arg(long, value_name = "NAME", requires = "cache_dir")]
    pub session: Option<String>,
    /// Cache flags.
    #[command(flatten)]
    pub cache: CacheFlags,
}

/// Write the logits of a sequence of tokens to a file.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    /// The model
    pub model: String,
    /// Token ids, like 509,1,2
    #[arg(long, value_name = "IDS")]
    pub ids: TokenIds,
    /// The safetensors file to write, with an f32 tensor `logits` of shape tokens x vocabulary
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Print the token ids of a text.
///
/// Prints a JSON array, including the special tokens that the model adds.
#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// The model
    pub model: String,
    /// The text; if missing, all of stdin is read
    pub text: Option<String>,
    /// Accepted for scripts; the output is always a JSON array
    #[arg(long)]
    pub json: bool,
}

/// Print the text of token ids.
#[derive(Debug, Args)]
pub struct DetokenizeArgs {
    /// The model
    pub model: String,
    /// Token ids: a JSON array, or ids separated by commas or spaces
    pub ids: TokenIds,
    /// Show control tokens, such as the one that begins a text
    #[arg(long)]
    pub special: bool,
}

/// Describe a model and its tensors.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The model
    #[arg(env = "BITNET_MODEL", hide_env_values = true)]
    pub model: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Add the SHA-256 (of -1, 0, 1 as signed bytes, row by row) and the scale of each ternary tensor
    #[arg(long)]
    pub hash: bool,
}

/// Answer a file of requests, one per line.
///
/// Lines have the form of OpenAI's batch API: custom_id, method, url (/v1/completions, /v1/chat/completions,
/// /v1/responses or /v1/embeddings) and body; prompts may be token ids. Answers are in the same order, and an invalid line is answered with an error.
/// Answers are kept in OUT.partial until all are done, so that the same command resumes after an interruption.
#[derive(Debug, Args)]
pub struct BatchArgs {
    /// The model
    pub model: String,
    /// The requests, JSON lines; - is stdin
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The answers, JSON lines; - is stdout. In a terminal, you are asked before an existing file is replaced
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// Maximum number of sequences computed together
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = limit)]
    pub max_batch_size: usize,
    /// Add token_ids to every choice
    #[arg(long)]
    pub return_tokens: bool,
    /// Speculation flags.
    #[command(flatten)]
    pub speculation: Speculation,
    /// Cache flags.
    #[command(flatten)]
    pub cache: CacheFlags,
}

/// Serve a model to OpenAI clients over HTTP.
///
/// POST /v1/completions, /v1/chat/completions and /v1/responses, and Ollama's /api/chat and Anthropic's /v1/messages,
/// streamed or not; GET / is a chat page. The first SIGTERM or Ctrl-C finishes accepted requests, the second ends
/// immediately. If the GPU is lost, the server ends with exit code 75, so that a supervisor restarts it. For TLS, put a
/// proxy in front.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The model
    #[arg(env = "BITNET_MODEL", hide_env_values = true)]
    pub model: String,
    /// Address to listen on, or localhost; other machines can reach only a network address
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", value_parser = host)]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one and prints it
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// Key that clients must send as `Authorization: Bearer KEY` [default: BITNET_API_KEY, else none]
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Name of the model for clients [default: MODEL without its path]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Maximum number of sequences computed together
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = limit)]
    pub max_batch_size: usize,
    /// Speculation flags.
    #[command(flatten)]
    pub speculation: Speculation,
    /// Cache flags.
    #[command(flatten)]
    pub cache: CacheFlags,
    /// Maximum number of queued requests, half of it for those of priority `batch`; further ones get 429
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_queued_requests: usize,
    /// Maximum number of queued prompt tokens; further requests get 429
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    pub max_queued_tokens: usize,
    /// Goal for the time to the first token, like 500ms or 2s; requests that would miss it get 429
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub ttft_goal: Option<Duration>,
    /// Goal for the time between tokens; batches are kept small enough to meet it
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub itl_goal: Option<Duration>,
    /// Maximum time per request, including reading it and queueing
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    pub request_timeout: Duration,
    /// Maximum time of one forward pass; a longer one makes /live fail and is logged with what it computes
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = time)]
    pub step_limit: Duration,
    /// Maximum time for requests to finish when the server is told to end
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub drain_timeout: Duration,
    /// Minimum time for which the server still answers after SIGTERM, new requests with 503, so that a proxy notices
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    pub linger: Duration,
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = limit)]
    pub max_connections: usize,
    /// Maximum size of a request body in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20)]
    pub body_limit: usize,
    /// Maximum total size in bytes of the bodies being received and parsed; further ones over 16 KiB get 429. Not part of
    /// --memory, nor is the memory for tokenising; of bodies over 64 KiB only one at a time is tokenised
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub bodies_limit: usize,
    /// Also answer requests for this host name; may be given several times. On a loopback address, names other than
    /// localhost get 421, so that no other web site can send requests through a browser
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Let pages of this origin use the server from a browser, like https://app.example, or * for all; may be given
    /// several times
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub allow_origin: Vec<String>,
    /// Maximum number of tokens of a thought, for requests that do not set one
    #[arg(long, value_name = "N")]
    pub thinking_budget: Option<usize>,
    /// Text that ends a thought whose budget is used up, before the end marker, instead of the sentence with which Qwen's
    /// models were trained
    #[arg(long, value_name = "TEXT")]
    pub thinking_last_words: Option<String>,
    /// Also refuse fields that change no token, such as `store`; unknown fields are always refused
    #[arg(long)]
    pub strict: bool,
    /// What to log to stderr: off, requests, or requests with prompts
    #[arg(long, value_name = "WHAT", default_value = "requests", value_parser = ["off", "requests", "prompts"])]
    pub log: String,
}

fn limit(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=1 << 16).contains(n)).ok_or_else(|| "give 1 to 65536".into())
}

/// Parses an origin as browsers send it.
fn origin(text: &str) -> Result<String, String> {
    let sound =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_graphic() && !"/?#@,*".contains(c));
    match text.split_once("://") {
        Some((scheme, host)) if sound(scheme) && sound(host) => Ok(text.to_ascii_lowercase()),
        _ if text == "*" => Ok(text.to_owned()),
        _ => Err("give a scheme and a host, like https://app.example:8443, or *".into()),
    }
}

fn host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        _ => text.parse().map_err(|_| "give an address of this machine, like 127.0.0.1 or 0.0.0.0".into()),
    }
}

/// Parses a time: seconds, or a number with ms, s, m or h.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("give a time like 500ms, 2s or 10m".into()),
    };
    let seconds = number.parse::<f64>().ok().map(|n| n * factor).filter(|&s| s > 0.0 && s <= 1e6);
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "give a time above 0, like 500ms, 2s or 10m".into())
}

/// Write a model in another format.
///
/// The trits do not change. i2_s, tq1_0 and tq2_0 are GGUF files for bitnet.cpp and llama.cpp, packed is a folder for
/// transformers, all with tokenizer and metadata. The TQ types round scales to 16 bits; the others keep them.
///
/// Models with a scale for every group of weights, like Bonsai, convert to q2_0 (groups of 64, for llama.cpp) or pq2_0
/// (groups of 128, for PrismML's fork).
///
/// panels is a GGUF file for bitnet only, in the layout of its CPU kernels: it loads immediately, and all processes
/// that run it share its pages. It holds matrices of any shape and converts back to any format.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// The model
    pub model: String,
    /// The file to write; for packed, the folder, which must not exist
    #[arg(value_name = "DST")]
    pub destination: PathBuf,
    /// The format: i2_s, tq1_0, tq2_0, q2_0, pq2_0, panels or packed
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub to: Target,
}

fn format(text: &str) -> Result<Target, String> {
    text.parse().map_err(|_| "choose i2_s, tq1_0, tq2_0, q2_0, pq2_0, panels or packed".into())
}

/// Measure how well a model predicts a text.
///
/// The text is tokenised once, with the special tokens that the model adds. The ids are split into consecutive windows
/// of N that do not overlap; a rest at the end is dropped. Each window is run alone, and its tokens 2..N are predicted
/// from those before them in the window. Perplexity is the exponential of the mean loss in nats. The loss is also
/// reported in bits per character of the scored tokens' text.
#[derive(Debug, Args)]
pub struct PerplexityArgs {
    /// The model
    pub model: String,
    /// A UTF-8 text file
    pub file: PathBuf,
    /// Tokens per window [default: 512, or the model's context if that is shorter]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Default length of the prompt whose prefill is measured.
pub const DEFAULT_PROMPT: usize = 512;
/// Default number of tokens before the first decoded one.
pub const DEFAULT_DEPTH: usize = 16;

/// Measure the speed of prefill and decode, or of a running server.
///
/// Before anything is timed, sequences are generated greedily, alone and in a batch; if their tokens differ, the
/// command fails and prints no speed. Prefill computes one prompt; decode extends sequences from prompts of --depth
/// tokens.
///
/// With --url, clients request streams from a server, with prompts of token ids. What they see is measured: the times
/// to the first token and between tokens, tokens per second, and the number of refused requests.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The model
    #[arg(required_unless_present = "url")]
    pub model: Option<String>,
    /// Measure a running server instead of a model, like http://127.0.0.1:8080
    #[arg(long, value_name = "URL", conflicts_with_all = ["model", "batch"])]
    pub url: Option<String>,
    /// Number of concurrent clients
    #[arg(long, value_name = "N", default_value_t = 8, requires = "url", value_parser = clap::value_parser!(u16).range(1..))]
    pub clients: u16,
    /// Total number of requests
    #[arg(long, value_name = "N", default_value_t = 64, requires = "url")]
    pub requests: usize,
    /// Requests per second, sent at regular times by free clients, even if earlier ones are not answered yet
    /// [default: each client sends a request when its previous one is answered]
    #[arg(long, value_name = "N", requires = "url")]
    pub rate: Option<f64>,
    /// The server's key [default: BITNET_API_KEY]
    #[arg(long, value_name = "KEY", requires = "url")]
    pub api_key: Option<String>,
    /// Also write an SVG picture of the distributions of the times
    #[arg(long, value_name = "FILE", requires = "url")]
    pub svg: Option<PathBuf>,
    /// Prompt lengths for prefill in tokens, like 128,512; with --url, one length
    /// [default: 512, or half the server's maximum if that is less]
    #[arg(short = 'p', long, value_name = "N", value_delimiter = ',')]
    pub prefill: Option<Vec<usize>>,
    /// Tokens that each sequence decodes
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    pub decode: usize,
    /// Tokens before the first decoded one, like 16,1000; speeds are recorded only for the default
    #[arg(short = 'd', long, value_name = "N", value_delimiter = ',', conflicts_with = "url", default_values_t = [DEFAULT_DEPTH])]
    pub depth: Vec<usize>,
    /// Sequences decoded together, like 1,4,16
    #[arg(short = 'b', long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8,16,32")]
    pub batch: Vec<usize>,
    /// Also decode one sequence as common requests draw their tokens, each in turns with the most likely tokens
    #[arg(long, conflicts_with = "url")]
    pub sampling: bool,
    /// Also decode one sequence with up to this many draft tokens, for repetitive and for varying text
    #[arg(long, value_name = "N", conflicts_with = "url", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub speculate: Option<u8>,
    /// Also decode one sequence with drafts that are right with this chance, like 0.7,0.85, made by a drafter that knows
    /// the text; up to --speculate tokens in a step, or 4
    #[arg(long, value_name = "P", value_delimiter = ',', conflicts_with = "url", value_parser = chance)]
    pub draft_acceptance: Vec<f64>,
    /// Maximum number of prompt tokens in one step
    #[arg(long, value_name = "N", default_value_t = 512, conflicts_with = "url")]
    pub step: usize,
    /// Number of runs per speed; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, conflicts_with = "url", value_parser = clap::value_parser!(u8).range(1..))]
    pub runs: u8,
    /// Also measure single kernels at the model's shapes, and compare them with the limits of memory and arithmetic
    #[arg(long, conflicts_with = "url")]
    pub kernels: bool,
    /// First measure how each product is best launched on this GPU, and write that to a file, which may have lines for
    /// other models and GPUs; as bitnet.tiles beside the program, it is used from then on
    #[arg(long, value_name = "FILE", requires = "kernels")]
    pub tune: Option<PathBuf>,
    /// Measure instead how long a prompt of N tokens takes to its first token when it is computed, and when it is read
    /// after a restart from a folder for the cache
    #[arg(long, value_name = "N", conflicts_with = "url", group = "kept", value_parser = clap::value_parser!(u32).range(65..).map(|n| n as usize))]
    pub restart: Option<usize>,
    /// Measure instead what a folder for the cache costs: prompts of N tokens that are in no cache are computed with and
    /// without a folder, --runs times in turns, and then 8 sequences decode --decode tokens each while such a prompt is
    /// written
    #[arg(long, value_name = "N", conflicts_with = "url", group = "kept", value_parser = clap::value_parser!(u32).range(65..).map(|n| n as usize))]
    pub keep: Option<usize>,
    /// Where to make that folder, which is removed again [default: where the system has temporary files]
    #[arg(long, value_name = "DIR", requires = "kept")]
    pub restart_in: Option<PathBuf>,
    /// Also write the JSON object to a file; it is updated after every row, so that an interrupted run keeps its
    /// results
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    pub save: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Reads a probability.
fn chance(text: &str) -> Result<f64, String> {
    let chance = text.parse().ok().filter(|chance| (0.0..=1.0).contains(chance));
    chance.ok_or_else(|| "give a number from 0 to 1".into())
}

/// Report what this machine has, and check every kernel on it against the reference.
///
/// Also generates from the demo model in a batch and alone, and compares the tokens.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Also compare the models in the folders of this folder with the golden.safetensors next to each
    #[arg(long, value_name = "FOLDER")]
    pub fixtures: Option<PathBuf>,
    /// Also write the JSON object to a file; it is updated after every part, so that an interrupted run keeps its
    /// results
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        for (text, ms) in [("2", 2000), ("500ms", 500), ("1.5s", 1500), ("10m", 600_000), ("1h", 3_600_000)] {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "0", "-1s", "s", "1d", "1e3", "1..2s", "1e30h"] {
            assert!(time(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_origin_is_what_browsers_send() {
        for text in ["*", "https://app.example", "http://localhost:3000", "tauri://localhost"] {
            assert_eq!(origin(text), Ok(text.to_owned()));
        }
        assert_eq!(origin("https://App.Example"), Ok("https://app.example".to_owned()));
        for text in [
            "",
            "app.example",
            "https://",
            "https://app.example/",
            "https://a, https://b",
            "https://*.example",
        ] {
            assert!(origin(text).is_err(), "{text:?}");
        }
    }
}
