//! The command line, as people type it.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    time::Duration,
};

use bitnet::{Device, KvType, Memory, model::Target};
use clap::{
    Args, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};

use crate::token_ids::TokenIds;

/// Runs ternary (BitNet b1.58) language models on any CPU, and on NVIDIA GPUs.
///
/// MODEL is a .gguf file; a folder with config.json, *.safetensors and tokenizer.json; `org/name`, fetched from
/// Hugging Face, with `@revision` and `:file` if wanted; `demo`, the small trained model inside this program; or
/// `synthetic:NAME`, random weights without a tokenizer (tiny, 125m, 700m, 2b4t).
#[derive(Debug, Parser)]
#[command(name = "bitnet", version, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// On what machine.
    #[command(flatten)]
    pub common: Common,
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Machine")]
pub struct Common {
    /// Where to compute: cpu; cuda, or cuda:N, an NVIDIA GPU; auto, the GPU if it can and else the CPU, saying why
    #[arg(long, global = true, default_value = "auto", value_name = "DEVICE")]
    pub device: Device,
    /// Threads, 1 to 1024 [default: as many as this machine runs at once]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Level of CPU instructions: auto (the best), or a lower one, for tests; `bitnet doctor` lists them
    #[arg(long, global = true, default_value = "auto", value_name = "ISA")]
    pub isa: String,
    /// Type of cached keys and values: smaller ones hold longer texts, read faster and round more; a GPU keeps bf16
    /// [default: f32 on the CPU]
    #[arg(long, global = true, value_name = "TYPE", value_parser = kv_type())]
    pub kv: Option<KvType>,
    /// Memory for weights, activations and cache: bytes (K, M, G, KiB, MiB, GiB may follow) or N% of what is
    /// available; the cache and so the longest text follow from it [default: what is needed, up to 50%]
    #[arg(long, global = true, value_name = "SIZE")]
    pub memory: Option<Memory>,
}

fn kv_type() -> impl TypedValueParser<Value = KvType> {
    PossibleValuesParser::new(KvType::ALL.map(KvType::name)).try_map(|name| name.parse::<KvType>())
}

/// The commands; each is described at its arguments.
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
}

/// Complete a prompt and stream the text.
///
/// Only the continuation is printed, without the prompt, and a line end after it if it has none. A model without
/// a tokenizer takes its prompt from --ids and prints ids.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The model
    pub model: String,
    /// The text to continue, or to answer; read from stdin if it is missing (less one line end)
    pub prompt: Option<String>,
    /// A prompt of token ids, like 1,2,3, instead of a text; given to the model as they are
    #[arg(long, value_name = "IDS", conflicts_with_all = ["prompt", "system"])]
    pub ids: Option<TokenIds>,
    /// Continue the prompt as it is, even if the model has a chat template
    #[arg(long)]
    pub raw: bool,
    /// The system message of the chat
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Answer without thinking first, if the model's chat template leaves the choice
    #[arg(long, conflicts_with = "raw")]
    pub no_thinking: bool,
    /// How to draw tokens.
    #[command(flatten)]
    pub sampling: Sampling,
    /// How far to guess ahead.
    #[command(flatten)]
    pub speculation: Speculation,
}

/// How tokens are drawn.
#[derive(Debug, Args)]
pub struct Sampling {
    /// Most tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256)]
    pub max_tokens: usize,
    /// Divides the logits; 0 always takes the most likely token [default: the model's own, else 0.7]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Draw from this many most likely tokens, 0 for all [default: the model's own, else 0]
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Draw from the fewest tokens that together have this probability [default: the model's own, else 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Draw from tokens with at least this part of the most likely one's probability
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Divides the logits of tokens that occurred before; 1 does nothing
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub repetition_penalty: f32,
    /// Seed of the random numbers; the same seed gives the same text [default: drawn, and printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// End before this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
}

/// How far a text is guessed ahead.
#[derive(Debug, Args)]
pub struct Speculation {
    /// Most tokens guessed ahead from what the text has said before, then checked together: the text is the same,
    /// sooner where it repeats itself; 0 guesses none
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(..=16))]
    pub speculate: u8,
}

/// Talk to a model.
///
/// Each line is a turn; the whole conversation goes into the next one. Ctrl-C stops an answer, Ctrl-D ends; /help lists
/// what else there is. A model without a chat template gets the turns joined by blank lines.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// The model
    pub model: String,
    /// The system message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Answer without thinking first, if the model's chat template leaves the choice
    #[arg(long)]
    pub no_thinking: bool,
    /// How to draw tokens.
    #[command(flatten)]
    pub sampling: Sampling,
    /// How far to guess ahead.
    #[command(flatten)]
    pub speculation: Speculation,
}

/// Write the logits of a sequence of tokens to a file.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    /// The model
    pub model: String,
    /// Token ids, like 509,1,2
    #[arg(long, value_name = "IDS")]
    pub ids: TokenIds,
    /// The safetensors file to write: f32 tensor `logits` of shape tokens x vocabulary
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Print the token ids of a text.
///
/// A JSON array, with the special tokens that the model adds.
#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// The model
    pub model: String,
    /// The text; read from stdin, all of it, if it is missing
    pub text: Option<String>,
    /// Accepted for scripts: the output is a JSON array with and without it
    #[arg(long)]
    pub json: bool,
}

/// Print the text of token ids.
#[derive(Debug, Args)]
pub struct DetokenizeArgs {
    /// The model
    pub model: String,
    /// Token ids: a JSON array, or ids with commas or spaces between
    pub ids: TokenIds,
    /// Show control tokens, like the one that begins a text
    #[arg(long)]
    pub special: bool,
}

/// Describe a model and its tensors.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The model
    pub model: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Add SHA-256 and scale of each ternary tensor: -1, 0, 1 as signed bytes, row by row
    #[arg(long)]
    pub hash: bool,
}

/// Answer a file of requests, a line each.
///
/// Lines are those of OpenAI's batch API: custom_id, method, url (/v1/completions or /v1/chat/completions) and body;
/// prompts may be token ids. Answers come in the same order; a bad line gets an error as its answer. What is answered
/// is kept in OUT.partial until all is: interrupted and started again, the command goes on where it was.
#[derive(Debug, Args)]
pub struct BatchArgs {
    /// The model
    pub model: String,
    /// The requests, JSON lines
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The answers, JSON lines
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// Most sequences computed together
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub max_batch_size: usize,
    /// Add token_ids to every choice
    #[arg(long)]
    pub return_tokens: bool,
    /// How far to guess ahead.
    #[command(flatten)]
    pub speculation: Speculation,
}

/// Serve a model to OpenAI clients over HTTP.
///
/// POST /v1/completions and /v1/chat/completions, streamed and not; GET / is a page to talk to the model. The first
/// SIGTERM or Ctrl-C finishes what was taken, the second ends at once. TLS is the work of a proxy in front.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The model
    pub model: String,
    /// Address to listen on, or localhost; others than this machine reach it only at an address of the network
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", value_parser = host)]
    pub host: IpAddr,
    /// Port to listen on; 0 for any free one, which is printed
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// What clients must send as `Authorization: Bearer KEY` [default: BITNET_API_KEY, else nothing]
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// What clients call the model [default: MODEL without its path]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Most sequences computed together
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub max_batch_size: usize,
    /// How far to guess ahead.
    #[command(flatten)]
    pub speculation: Speculation,
    /// Most requests that wait; further ones get 429
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_queued_requests: usize,
    /// Most prompt tokens that wait; further requests get 429
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    pub max_queued_tokens: usize,
    /// Goal for the time to the first token, like 500ms or 2s: requests that would miss it get 429
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub ttft_goal: Option<Duration>,
    /// Goal for the time between two tokens: batches are kept small enough for it
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub itl_goal: Option<Duration>,
    /// Maximum time of a request, reading it and its time in the queue included
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    pub request_timeout: Duration,
    /// Maximum time that requests may take to finish when the server is told to end
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub drain_timeout: Duration,
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub max_connections: usize,
    /// Maximum bytes of a request's body
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20)]
    pub body_limit: usize,
    /// Maximum bytes of all bodies that are being received and read; further ones over 16 KiB get 429
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub bodies_limit: usize,
    /// Also answer requests for this host name; may be given several times. At an address of this machine alone, other
    /// names than localhost get 421, so that no page of another site can ask through a browser
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// What goes to stderr: off, requests, or prompts too
    #[arg(long, value_name = "WHAT", default_value = "requests", value_parser = ["off", "requests", "prompts"])]
    pub log: String,
}

fn host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        _ => text.parse().map_err(|_| "give an address of this machine, like 127.0.0.1 or 0.0.0.0".into()),
    }
}

/// A time: seconds, or a number with ms, s, m or h.
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
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "give a time over 0, like 500ms, 2s or 10m".into())
}

/// Write a model in another format.
///
/// The trits stay what they are. i2_s, tq1_0 and tq2_0 are GGUF files for bitnet.cpp and llama.cpp, packed is a folder
/// for transformers; each with tokenizer and metadata. The TQ types store a scale in 16 bits, the others keep it.
///
/// Models with a scale for every group of weights, like Bonsai, go to q2_0 (groups of 64, for llama.cpp) or pq2_0 (groups
/// of 128, for PrismML's fork of it).
///
/// panels is a GGUF file for bitnet alone that holds what its CPU kernels read: it starts at once, and its weights are
/// the file's own pages, shared by all processes that run it. It takes any shape, and converts back to any format.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// The model
    pub model: String,
    /// The file to write, or for packed the folder, which must not exist
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
/// The text is tokenised once, with the special tokens that the model adds. The ids are cut into consecutive
/// windows of N that do not overlap; what is left over at the end is dropped. Each window is run alone, and in it
/// tokens 2..N are predicted from those before them in the window. Perplexity is the exponential of the mean loss
/// in nats; the loss in bits is also told per character of the scored tokens' text.
#[derive(Debug, Args)]
pub struct PerplexityArgs {
    /// The model
    pub model: String,
    /// A UTF-8 text
    pub file: PathBuf,
    /// Tokens in a window [default: 512, or the model's context if that is shorter]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Tokens before those that are decoded, if nobody says how many.
pub const DEFAULT_DEPTH: usize = 16;

/// Measure the speed of prefill and decode, or of a running server.
///
/// Before anything is timed, sequences are generated greedily alone and in a batch; if their tokens differ, the
/// command fails and prints no speed. Prefill is one prompt, decode is sequences that grow from prompts of --depth
/// tokens.
///
/// With --url, clients ask a server for streams from prompts of token ids, and what they see is measured: times to
/// the first token and between two tokens, tokens a second, and how many were refused.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The model
    #[arg(required_unless_present = "url")]
    pub model: Option<String>,
    /// A running server instead of a model, like http://127.0.0.1:8080
    #[arg(long, value_name = "URL", conflicts_with_all = ["model", "batch"])]
    pub url: Option<String>,
    /// Clients that ask at once
    #[arg(long, value_name = "N", default_value_t = 8, requires = "url", value_parser = clap::value_parser!(u16).range(1..))]
    pub clients: u16,
    /// Requests in all
    #[arg(long, value_name = "N", default_value_t = 64, requires = "url")]
    pub requests: usize,
    /// Requests a second, asked at even times whether or not earlier ones are answered, as far as clients are free
    /// [default: each client asks when its last request is answered]
    #[arg(long, value_name = "N", requires = "url")]
    pub rate: Option<f64>,
    /// The server's key [default: BITNET_API_KEY]
    #[arg(long, value_name = "KEY", requires = "url")]
    pub api_key: Option<String>,
    /// Also draw the distributions of the times
    #[arg(long, value_name = "FILE", requires = "url")]
    pub svg: Option<PathBuf>,
    /// Prompt lengths for prefill, like 128,512
    #[arg(short = 'p', long, value_name = "N", value_delimiter = ',', default_value = "512")]
    pub prefill: Vec<usize>,
    /// Tokens that each sequence decodes
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    pub decode: usize,
    /// Tokens that stand before the first decoded one, like 16,1000; speeds are recorded only with the default
    #[arg(short = 'd', long, value_name = "N", value_delimiter = ',', default_values_t = [DEFAULT_DEPTH])]
    pub depth: Vec<usize>,
    /// Sequences decoded together, like 1,4,16
    #[arg(short = 'b', long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8,16,32")]
    pub batch: Vec<usize>,
    /// Also decode one sequence with up to this many tokens guessed ahead, where the text repeats itself and where it
    /// does not
    #[arg(long, value_name = "N", conflicts_with = "url", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub speculate: Option<u8>,
    /// Most prompt tokens in one step
    #[arg(long, value_name = "N", default_value_t = 512, conflicts_with = "url")]
    pub step: usize,
    /// How often each speed is measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, conflicts_with = "url", value_parser = clap::value_parser!(u8).range(1..))]
    pub runs: u8,
    /// Also measure kernels alone at the model's shapes, beside what memory and arithmetic units give
    #[arg(long, conflicts_with = "url")]
    pub kernels: bool,
    /// Also write the JSON object to a file, anew after every row, so that a run that is ended keeps what it measured
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    pub save: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Say what this machine has, and check every kernel on it against the reference.
///
/// On a GPU its instructions too, one at a time. The demo's tokens in a batch are compared with those alone.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Also compare the models in this folder with the golden.safetensors beside each
    #[arg(long, value_name = "FOLDER")]
    pub fixtures: Option<PathBuf>,
    /// Also write the JSON object to a file, anew after every part, so that a run that is ended keeps what it found
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
}
