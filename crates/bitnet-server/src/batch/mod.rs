//! A file of requests, answered in order through one engine.
//!
//! Lines are those of OpenAI's batch API. As many are under way as the engine takes, and as many answers are held as
//! were read ahead, whatever the length of the file. What is answered is in a file beside the output, a line for each
//! line of the input; started again after whatever ended it, a run goes on behind the last whole line. A line without
//! a seed takes one from its `custom_id`, so that the answers are the same however often that happened.

mod line;
mod output;

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufReader},
    path::{Path, PathBuf},
};

use axum::http::HeaderMap;

use crate::{
    http::{error::ApiError, reading::Reading},
    openai::{answers::Answers, generate, job::Job},
    service::Service,
};
use line::{Line, Lines, Outcome};
use output::Output;

/// What a batch run does beside answering.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchOptions {
    /// Whether every choice carries its token ids.
    pub return_tokens: bool,
}

/// How far a batch run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchProgress {
    /// Lines answered, those of earlier runs included.
    pub lines: u64,
    /// Lines that an earlier run answered.
    pub resumed: u64,
    /// Answers of this run that are errors.
    pub failed: u64,
    /// Tokens that this run generated.
    pub tokens: u64,
    /// Bytes of the input whose lines are answered.
    pub bytes: u64,
    /// Bytes of the input.
    pub of_bytes: u64,
}

/// Why a batch run ended early. What was answered is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchRunError {
    /// A file cannot be read or written.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The output would overwrite the input.
    #[error("{} is both input and output", path.display())]
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// Another run is writing the same output.
    #[error("{} is being written by another run", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// What is there is not what an earlier run of this would have left.
    #[error("line {line} of {} does not answer line {line} of this input with these options", path.display())]
    OtherRun {
        /// The file beside the output.
        path: PathBuf,
        /// Counted from 1, blank lines aside.
        line: u64,
    },
    /// An earlier run answered with something else, which may answer the same line differently.
    #[error("line {line} of {} was answered with {difference}", path.display())]
    OtherIdentity {
        /// The file beside the output.
        path: PathBuf,
        /// Counted from 1, blank lines aside.
        line: u64,
        /// What it was answered with and what this run has, by name.
        difference: String,
    },
    /// The engine takes no more requests.
    #[error("the engine has stopped")]
    Stopped,
}

impl BatchRunError {
    fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| BatchRunError::File { what, path, source }
    }

    /// What the user can do.
    pub fn cure(&self) -> &'static str {
        match self {
            BatchRunError::File { what: "write", .. } => {
                "make room for it and start again: whole lines are kept"
            }
            BatchRunError::File { .. } => "check the path",
            BatchRunError::SameFile { .. } => "choose another output",
            BatchRunError::Locked { .. } => "wait for it, or choose another output",
            BatchRunError::OtherRun { .. } => {
                "remove that file to start anew, or repeat the command it belongs to"
            }
            BatchRunError::OtherIdentity { .. } => {
                "run it with the same model, version, --kv and device as before, or remove the file"
            }
            BatchRunError::Stopped => "start again: whole lines are kept",
        }
    }
}

/// A line that was read and not yet answered.
enum Pending {
    /// It needs no model.
    Answered(String),
    /// Its job is under way.
    Running { id: String, custom_id: String, job: Box<Job>, answers: Box<Answers> },
}

/// Answers the lines of `input` in order; the file `output` appears when all are answered.
///
/// # Errors
/// If a file fails or the engine stops; a bad line is no error but has one as its answer.
pub fn run_batch(
    service: &Service,
    input: &Path,
    output: &Path,
    options: BatchOptions,
    on_progress: &mut dyn FnMut(&BatchProgress),
) -> Result<BatchProgress, BatchRunError> {
    let file = File::open(input).map_err(BatchRunError::file("read", input))?;
    let of_bytes = file.metadata().map_err(BatchRunError::file("read", input))?.len();
    let mut lines = Lines::new(BufReader::new(file), service.config.body_limit);
    let mut next = || lines.next().map_err(BatchRunError::file("read", input));
    let mut out = Output::open(output, input)?;
    let mut progress = BatchProgress { of_bytes, ..BatchProgress::default() };
    let id = |line: &Line| line.id(&service.identity, options);
    progress.bytes = out.resume(&service.identity, id, &mut next)?;
    (progress.lines, progress.resumed) = (out.lines(), out.lines());
    on_progress(&progress);

    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(BatchRunError::file("read", input))?;
    // Enough that the batch is full while the first of them still runs.
    let ahead = 4 * service.engine.max_batch_size();
    let mut pending: VecDeque<(Pending, u64)> = VecDeque::with_capacity(ahead);
    let mut over = false;
    while !over || !pending.is_empty() {
        while !over && pending.len() < ahead {
            match next()? {
                Some(line) => pending.push_back((begin(service, &line, id(&line), options), line.end)),
                None => over = true,
            }
        }
        let Some((first, end)) = pending.pop_front() else { break };
        let (answer, tokens, failed) = match first {
            Pending::Answered(answer) => (answer, 0, true),
            Pending::Running { id, custom_id, job, answers } => {
                runtime.block_on(finish(service, &id, &custom_id, *job, *answers))
            }
        };
        if !service.engine.is_open() {
            return Err(BatchRunError::Stopped);
        }
        out.write(&answer)?;
        progress.lines += 1;
        progress.failed += u64::from(failed);
        progress.tokens += tokens as u64;
        progress.bytes = end;
        on_progress(&progress);
    }
    out.commit()?;
    Ok(progress)
}

/// Reads a line and hands its job to the engine, waiting for room in the queue.
fn begin(service: &Service, line: &Line, id: String, options: BatchOptions) -> Pending {
    let request = match line::read(line) {
        Ok(request) => request,
        Err(bad) => return Pending::Answered(Outcome::Unread(bad).line(&id, line.custom_id().as_deref())),
    };
    let custom_id = request.custom_id;
    let reading = Reading::within(service.config.request_timeout);
    let job = Job::read(request.endpoint, service, &request.headers, &request.body, &reading);
    let job = job.and_then(|job| {
        if job.stream {
            return Err(ApiError::unsupported("stream", "a stream in a file"));
        }
        // Named by its line, so that the answer is the same whenever it is computed.
        let name = id.rsplit('_').next().unwrap_or_default();
        let (id, token_ids) = (job.endpoint.id(name), job.token_ids || options.return_tokens);
        Ok(Job { id, token_ids, ..job })
    });
    let started = job.and_then(|job| Ok((Answers::submit_waiting(service, &job)?, job)));
    match started {
        Ok((answers, job)) => {
            Pending::Running { id, custom_id, job: Box::new(job), answers: Box::new(answers) }
        }
        Err(error) => Pending::Answered(Outcome::Refused(&error).line(&id, Some(&custom_id))),
    }
}

/// The line that answers a job, its tokens, and whether it failed.
async fn finish(
    service: &Service,
    id: &str,
    custom_id: &str,
    job: Job,
    mut answers: Answers,
) -> (String, usize, bool) {
    let (wholes, usage) = match generate::gather(&job, &mut answers).await {
        Ok(gathered) => gathered,
        Err(error) => return (Outcome::Refused(&error).line(id, Some(custom_id)), answers.tokens(), true),
    };
    // The time of the model's files: the same whenever the line is answered.
    let body = generate::shape(service, &job, service.model.created).whole(wholes, usage);
    let done = Outcome::Done { request_id: &job.id, body: &body };
    (done.line(id, Some(custom_id)), answers.tokens(), false)
}

/// The header that carries a seed where the body has none.
fn seed_header(seed: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("x-seed", seed.into());
    headers
}
