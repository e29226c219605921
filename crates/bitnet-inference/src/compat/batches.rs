//! Runs many prompts at once on an engine.

use futures_util::future::join_all;

use crate::engine::{Completion, Engine, GenerationError, RequestHandle, Submitter, block_on};
use crate::request::{GenerationConfig, InvalidConfig, InvalidRequest, Output, Request, SubmitError};

/// A request of a batch failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("request {index}: {source}")]
pub struct BatchError<T = Vec<u32>> {
    /// Index of the first request that failed.
    pub index: usize,
    /// Why it failed.
    pub source: GenerationError,
    /// The result of every request, in order. Empty if a request was invalid, because then nothing is computed.
    pub results: Vec<Result<T, GenerationError>>,
}

/// Continues every prompt with its own configuration, all in the same steps. The results are in order: the new tokens
/// of each prompt, or its error.
pub fn process_batch(
    engine: &Engine,
    batch: &[(Vec<u32>, GenerationConfig)],
) -> Vec<Result<Vec<u32>, GenerationError>> {
    let requests = batch.iter().map(|(prompt, config)| Request::new(prompt.clone(), config.clone()));
    block_on(new_tokens_of(engine, requests.collect()))
}

/// Continues every prompt with the same configuration. An empty prompt is an error that names it, before any work; an
/// empty list of prompts gives an empty list.
pub fn batch_generate(
    engine: &Engine,
    prompts: &[Vec<u32>],
    config: &GenerationConfig,
) -> Result<Vec<Vec<u32>>, BatchError> {
    let requests: Vec<Request> = prompts.iter().map(|p| Request::new(p.clone(), config.clone())).collect();
    validate(engine, &requests)?;
    whole(block_on(new_tokens_of(engine, requests)))
}

/// Returns the logits that follow each prompt, from one causal pass over all of them. Only the logits of the last
/// position are computed.
pub fn forward_batch(engine: &Engine, prompts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, BatchError<Vec<f32>>> {
    let requests: Vec<Request> = prompts.iter().map(|p| logits_of(p.clone())).collect();
    validate(engine, &requests)?;
    let logits = |done: Completion| done.logits.expect("logits were asked for");
    whole(block_on(completions(engine, requests)).into_iter().map(|done| done.map(logits)).collect())
}

/// Like [`forward_batch`]. The results stay in the prefix cache, so a generation that begins with one of the prompts does
/// not compute it again.
pub fn prefill_batch(engine: &Engine, prompts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, BatchError<Vec<f32>>> {
    forward_batch(engine, prompts)
}

fn logits_of(prompt: Vec<u32>) -> Request {
    Request { output: Output::Logits, ..Request::new(prompt, GenerationConfig::default()) }
}

/// Checks all requests; the error names the first invalid one.
pub(super) fn validate<T>(engine: &Engine, requests: &[Request]) -> Result<(), BatchError<T>> {
    for (index, request) in requests.iter().enumerate() {
        let refused = |error: InvalidRequest| BatchError { index, source: error.into(), results: Vec::new() };
        check(engine.submitter(), request).map_err(refused)?;
    }
    Ok(())
}

/// Checks a request and turns `echo` off.
pub(super) fn new_tokens(submitter: &Submitter, mut request: Request) -> Result<Request, InvalidRequest> {
    check(submitter, &request)?;
    request.config.echo = false;
    Ok(request)
}

/// Checks a request, which must have a single choice: a batch has one result for each request.
fn check(submitter: &Submitter, request: &Request) -> Result<(), InvalidRequest> {
    submitter.validate(request)?;
    let n = request.config.n;
    let one = || InvalidConfig { field: "n", value: n.to_string(), allowed: "1 in a batch".into() };
    if n == 1 { Ok(()) } else { Err(one().into()) }
}

/// Splits requests into the valid ones, with `echo` off, and the result of the check of each.
fn valid(engine: &Engine, requests: Vec<Request>) -> (Vec<Request>, Vec<Result<(), GenerationError>>) {
    let mut valid = Vec::new();
    let checked = requests.into_iter().map(|request| {
        valid.push(new_tokens(engine.submitter(), request)?);
        Ok(())
    });
    let checked = checked.collect();
    (valid, checked)
}

/// Puts the handles of the valid requests back in place.
fn placed(
    checked: Vec<Result<(), GenerationError>>,
    handles: Result<Vec<RequestHandle>, SubmitError>,
) -> Vec<Result<RequestHandle, GenerationError>> {
    match handles {
        Ok(handles) => {
            let mut handles = handles.into_iter();
            let mut next = || handles.next().expect("one handle for each request");
            checked.into_iter().map(|checked| checked.map(|()| next())).collect()
        }
        Err(error) => checked.into_iter().map(|checked| checked.and(Err(error.clone().into()))).collect(),
    }
}

/// Computes requests, waiting for room in the queue without blocking a thread; each invalid one only fails itself.
/// Requests that fit into the queue are submitted before this returns. All are read as their tokens come, so none
/// pauses.
pub(super) fn completions(
    engine: &Engine,
    requests: Vec<Request>,
) -> impl Future<Output = Vec<Result<Completion, GenerationError>>> + Send + use<> {
    let (valid, checked) = valid(engine, requests);
    let handles = engine.submit_all_async(valid);
    async move {
        let handles = placed(checked, handles.await).into_iter();
        join_all(handles.map(|handle| async move { Ok(handle?.wait_async().await?) })).await
    }
}

/// Like [`completions`], with only the new tokens of each request.
pub(super) fn new_tokens_of(
    engine: &Engine,
    requests: Vec<Request>,
) -> impl Future<Output = Vec<Result<Vec<u32>, GenerationError>>> + Send + use<> {
    let completions = completions(engine, requests);
    async move { completions.await.into_iter().map(|done| done.map(only_choice)).collect() }
}

/// The new tokens of a request with one choice.
pub(super) fn only_choice(mut done: Completion) -> Vec<u32> {
    std::mem::take(&mut done.choices[0].tokens)
}

/// All results, or the first failure together with the results of the others.
pub(super) fn whole<T>(results: Vec<Result<T, GenerationError>>) -> Result<Vec<T>, BatchError<T>> {
    let failed = results.iter().enumerate().find_map(|(i, r)| Some((i, r.as_ref().err()?.clone())));
    match failed {
        None => Ok(results.into_iter().flatten().collect()),
        Some((index, source)) => Err(BatchError { index, source, results }),
    }
}
