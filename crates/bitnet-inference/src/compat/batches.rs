//! Runs many prompts at once on an engine.

use crate::engine::{Completion, Engine, RequestHandle};
use crate::request::{
    GenerationConfig, GenerationError, InvalidConfig, InvalidRequest, Output, Request, SubmitError,
};

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
    submit_valid(engine, requests).into_iter().map(|handle| handle.and_then(tokens)).collect()
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
    whole(submit_valid(engine, requests).into_iter().map(|handle| handle.and_then(tokens)))
}

/// Returns the logits that follow each prompt, from one causal pass over all of them. Only the logits of the last
/// position are computed.
pub fn forward_batch(engine: &Engine, prompts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, BatchError<Vec<f32>>> {
    let requests: Vec<Request> = prompts.iter().map(|p| logits_of(p.clone())).collect();
    validate(engine, &requests)?;
    whole(submit_valid(engine, requests).into_iter().map(|handle| {
        let done = handle?.wait()?;
        Ok(done.logits.expect("logits were asked for"))
    }))
}

/// As [`forward_batch`]. The results stay in the prefix cache, so a generation that begins with one of the prompts does
/// not compute it again.
pub fn prefill_batch(engine: &Engine, prompts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, BatchError<Vec<f32>>> {
    forward_batch(engine, prompts)
}

fn logits_of(prompt: Vec<u32>) -> Request {
    Request { output: Output::Logits, ..Request::new(prompt, GenerationConfig::default()) }
}

/// Checks all requests; the error names the first invalid one.
pub(crate) fn validate<T>(engine: &Engine, requests: &[Request]) -> Result<(), BatchError<T>> {
    for (index, request) in requests.iter().enumerate() {
        let refused = |error: InvalidRequest| BatchError { index, source: error.into(), results: Vec::new() };
        check(engine, request).map_err(refused)?;
    }
    Ok(())
}

/// Checks a request and turns `echo` off.
pub(crate) fn new_tokens(engine: &Engine, mut request: Request) -> Result<Request, InvalidRequest> {
    check(engine, &request)?;
    request.config.echo = false;
    Ok(request)
}

/// Checks a request, which must have a single choice: a batch has one result for each request.
fn check(engine: &Engine, request: &Request) -> Result<(), InvalidRequest> {
    engine.validate(request)?;
    let n = request.config.n;
    let one = || InvalidConfig { field: "n", value: n.to_string(), allowed: "1 in a batch".into() };
    if n == 1 { Ok(()) } else { Err(one().into()) }
}

/// Splits requests into the valid ones, with `echo` off, and the result of the check of each.
fn valid(
    engine: &Engine,
    requests: impl IntoIterator<Item = Request>,
) -> (Vec<Request>, Vec<Result<(), GenerationError>>) {
    let mut valid = Vec::new();
    let checked = requests.into_iter().map(|request| {
        valid.push(new_tokens(engine, request)?);
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

/// Submits the valid requests, waiting for room in the queue; each invalid one only fails itself.
pub(crate) fn submit_valid(
    engine: &Engine,
    requests: impl IntoIterator<Item = Request>,
) -> Vec<Result<RequestHandle, GenerationError>> {
    let (valid, checked) = valid(engine, requests);
    placed(checked, engine.submit_all(valid))
}

/// As [`submit_valid`], without blocking the thread.
pub(crate) fn submit_valid_async(
    engine: &Engine,
    requests: Vec<Request>,
) -> impl Future<Output = Vec<Result<RequestHandle, GenerationError>>> + Send + use<> {
    let (valid, checked) = valid(engine, requests);
    let handles = engine.submit_all_async(valid);
    async move { placed(checked, handles.await) }
}

/// The new tokens of a request with one choice.
pub(crate) fn tokens(handle: RequestHandle) -> Result<Vec<u32>, GenerationError> {
    Ok(only_choice(handle.wait()?))
}

pub(crate) fn only_choice(mut done: Completion) -> Vec<u32> {
    std::mem::take(&mut done.choices[0].tokens)
}

/// All results, or the first failure together with the results of the others.
pub(crate) fn whole<T>(
    results: impl Iterator<Item = Result<T, GenerationError>>,
) -> Result<Vec<T>, BatchError<T>> {
    let results: Vec<_> = results.collect();
    let failed = results.iter().enumerate().find_map(|(i, r)| Some((i, r.as_ref().err()?.clone())));
    match failed {
        None => Ok(results.into_iter().flatten().collect()),
        Some((index, source)) => Err(BatchError { index, source, results }),
    }
}
