//! Answers a file of requests in order, through one engine.
//!
//! The lines are those of OpenAI's batch API. A run reads only a few batches of lines ahead, so its memory does not
//! depend on the length of the file. Answers go to a file next to the output, one line for each line of the input. When
//! an interrupted run is started again, it continues after the last complete line of that file. A line without a seed
//! gets one that follows from its `custom_id`, so that interruptions do not change any answer.

mod error;
mod line;
mod partial_file;

use std::{collections::VecDeque, fs::File, io::BufReader, path::Path, pin::Pin};

use crate::{
    dialects::{
        openai::{Chat, Completions, embeddings},
        responses::Responses,
    },
    generate::{
        answer::About,
        dialect::Dialect,
        endpoint::{self, gather},
        job::Job,
        pieces::Pieces,
        read::read_body,
        turn::Turn,
    },
    http::{caller::Caller, error::ApiError, reading::Reading},
    service::Service,
};
pub use error::BatchRunError;
pub use line::BatchOptions;
use line::{BatchRequest, Endpoint, Line, Lines, Outcome};
use partial_file::PartialFile;

/// Progress of a batch run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchProgress {
    /// Lines answered, including those of earlier runs.
    pub lines: u64,
    /// Lines that earlier runs answered.
    pub resumed: u64,
    /// Answers of this run that are errors.
    pub failed: u64,
    /// Tokens that this run generated.
    pub tokens: u64,
    /// Bytes of the input up to the end of the last answered line.
    pub bytes: u64,
    /// Bytes of the input.
    pub of_bytes: u64,
}

/// A line that was read and whose answer is not yet written.
enum Pending<'s> {
    /// The answer is an error, and is known without the model.
    Answered(String),
    /// The engine is computing the answer.
    Running(Pin<Box<dyn Future<Output = Finished> + 's>>),
}

/// The line that answers another, its number of generated tokens, and whether it is an error.
type Finished = (String, usize, bool);

/// A dialect that writes the answer to a line.
trait Writer {
    /// The id of the answer, and its body.
    fn write(&self, about: &About, turns: &[Turn]) -> (String, String);
}

impl<D: Dialect> Writer for D {
    fn write(&self, about: &About, turns: &[Turn]) -> (String, String) {
        (format!("{}{}", D::ID, about.name), self.whole(about, turns))
    }
}

/// Answers the lines of `input` in order. The file `output` appears when all are answered.
///
/// # Errors
/// If a file cannot be read or written, or the engine stops. A bad line does not end the run: its answer is an error.
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
    let mut out = PartialFile::open(output, input)?;
    let mut progress = BatchProgress { of_bytes, ..BatchProgress::default() };
    let id = |line: &Line| line.id(&service.identity, options);
    progress.bytes = out.resume(&service.identity, id, &mut next)?;
    (progress.lines, progress.resumed) = (out.lines(), out.lines());
    on_progress(&progress);

    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(BatchRunError::file("read", input))?;
    // Enough to keep the batch full while the first of these lines still runs.
    let ahead = 4 * service.engine.max_batch_size();
    let mut pending: VecDeque<(Pending<'_>, u64)> = VecDeque::with_capacity(ahead);
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
            Pending::Running(answer) => runtime.block_on(answer),
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
fn begin<'s>(service: &'s Service, line: &Line, id: String, options: BatchOptions) -> Pending<'s> {
    let request = match line::read(line) {
        Ok(request) => request,
        Err(bad) => return Pending::Answered(Outcome::Unread(bad).line(&id, line.custom_id().as_deref())),
    };
    let job = match request.endpoint {
        Endpoint::Completions => job::<Completions>(service, &request, &id),
        Endpoint::Chat => job::<Chat>(service, &request, &id),
        Endpoint::Responses => job::<Responses>(service, &request, &id),
        Endpoint::Embeddings => return embedding(service, request, id),
    };
    let job = job.and_then(|(job, writer)| {
        if job.stream {
            return Err(ApiError::unsupported("stream", "a stream in a file"));
        }
        // The name follows from the line, so that the answer is the same whenever it is computed.
        let name = id.rsplit('_').next().unwrap_or_default().to_owned();
        let token_ids = job.token_ids || options.return_tokens;
        Ok((Job { name, token_ids, ..job }, writer))
    });
    let started = job.and_then(|(job, writer)| Ok((Pieces::submit_waiting(service, &job)?, job, writer)));
    let custom_id = request.custom_id;
    match started {
        Ok((pieces, job, writer)) => {
            Pending::Running(Box::pin(finish(service, id, custom_id, job, pieces, writer)))
        }
        Err(error) => Pending::Answered(Outcome::Refused(&error).line(&id, Some(&custom_id))),
    }
}

/// Reads the body of a line, in the dialect of its path.
fn job<D: Dialect>(
    service: &Service,
    request: &BatchRequest,
    id: &str,
) -> Result<(Job, Box<dyn Writer>), ApiError> {
    let reading = Reading::within(service.config.request_timeout, Caller::new(id, None));
    let (job, dialect) = endpoint::job::<D>(service, &request.headers, &request.body, &reading)?;
    Ok((job, Box::new(dialect)))
}

/// Waits for a job. Returns the line that answers it, its number of generated tokens, and whether it failed.
async fn finish(
    service: &Service,
    id: String,
    custom_id: String,
    job: Job,
    mut pieces: Pieces,
    writer: Box<dyn Writer>,
) -> Finished {
    // The time of the model's files is the same whenever the line is answered.
    let gathered = gather(service, &job, &mut pieces, service.model.created).await;
    let tokens = pieces.usage().generated;
    let (about, turns) = match gathered {
        Ok((mut about, turns)) => {
            // What is cached depends on the lines before.
            about.usage.cached = None;
            (about, turns)
        }
        Err(error) => return (Outcome::Refused(&error).line(&id, Some(&custom_id)), tokens, true),
    };
    let (request_id, body) = writer.write(&about, &turns);
    let done = Outcome::Done { request_id: &request_id, body: &body };
    (done.line(&id, Some(&custom_id)), tokens, false)
}

/// Reads the body of a line that embeds texts, and hands as many of them to the engine as fit.
fn embedding(service: &Service, request: BatchRequest, id: String) -> Pending<'_> {
    let BatchRequest { custom_id, body, .. } = request;
    let reading = Reading::within(service.config.request_timeout, Caller::new(&id, None));
    let (texts, coded) = match read_body(service, &body, &reading, embeddings::take) {
        Ok(taken) => taken,
        Err(error) => return Pending::Answered(Outcome::Refused(&error).line(&id, Some(&custom_id))),
    };
    let embedded = texts.embed_in_turn(service);
    Pending::Running(Box::pin(async move {
        match embedded.await {
            Ok(all) => {
                let list = embeddings::listed(all, coded, &service.model.name);
                let body = serde_json::to_string(&list).expect("text and numbers make JSON");
                (Outcome::Done { request_id: &id, body: &body }.line(&id, Some(&custom_id)), 0, false)
            }
            Err(error) => (Outcome::Refused(&error).line(&id, Some(&custom_id)), 0, true),
        }
    }))
}
