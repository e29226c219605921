//! The class `Model`: open, complete, chat, stream, batch, logits and embeddings.

use std::{
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::PathBuf,
    str::FromStr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bitnet::{
    Builder, CacheDir, Error, Memory, Request,
    inference::metrics::{Counter, Measure},
};
use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyDict, PyList, PyString, PyTuple},
};

use crate::{
    answer::Answer,
    bridge::Bridge,
    embeddings,
    errors::{OrRaise, raised, refused, unusable},
    logits, options,
    process::Mine,
    prompts::tokenizer,
    stream::Stream,
    wait::wait,
};

/// Reads an argument that is also a flag of the command line.
fn parsed<T: FromStr<Err: Display>>(py: Python<'_>, argument: &str, text: &str) -> PyResult<T> {
    text.parse().map_err(|cure: T::Err| {
        refused(py, format_args!("{argument} cannot be {text:.40?}"), argument, &cure.to_string())
    })
}

/// Reads a number of bytes for a cache.
fn bytes_of(py: Python<'_>, argument: &str, size: &Bound<'_, PyAny>) -> PyResult<u64> {
    match parsed(py, argument, &size.str()?.to_string()) {
        Ok(Memory::Bytes(bytes)) if bytes > 0 => Ok(bytes),
        _ => {
            let cure = "give bytes like 20000000000, 20G or 20GiB";
            Err(refused(py, format_args!("{argument} cannot be {:.40}", size.repr()?), argument, cure))
        }
    }
}

/// Opens a model while other Python threads run. Ctrl-C, or an exception of `progress`, ends this by unwinding, because
/// the code that reports progress cannot be told to stop.
fn open(
    py: Python<'_>,
    model: &str,
    settings: impl FnOnce(Builder) -> Builder + Send,
    progress: Option<Py<PyAny>>,
) -> PyResult<bitnet::Model> {
    let report = move |what: &str, done: u64, all: u64| {
        let told = Python::attach(|py| {
            py.check_signals()?;
            progress.as_ref().map_or(Ok(()), |progress| progress.call1(py, (what, done, all)).map(drop))
        });
        if let Err(error) = told {
            resume_unwind(Box::new(error));
        }
    };
    let opened = py.detach(|| {
        let builder = settings(bitnet::Model::builder());
        catch_unwind(AssertUnwindSafe(|| builder.progress(report).open(model)))
    });
    match opened {
        Ok(opened) => opened.or_raise(py),
        Err(panic) => Err(*panic.downcast::<PyErr>().unwrap_or_else(|panic| resume_unwind(panic))),
    }
}

/// A running model. All calls, from all threads, share one engine, which computes them together; no call changes the
/// answer of another.
///
/// A model belongs to the process that loaded it: load it after a fork, not before.
#[pyclass(frozen, module = "bitnet")]
pub(crate) struct Model {
    open: Mine<Mutex<Option<bitnet::Model>>>,
    bridge: Bridge,
}

impl Model {
    fn get(&self, py: Python<'_>) -> PyResult<bitnet::Model> {
        let open = self.open.get(py)?.lock().unwrap_or_else(PoisonError::into_inner);
        open.clone().ok_or_else(|| unusable(py, "the model is closed (model)", "load it again"))
    }

    fn complete(&self, py: Python<'_>, request: Request) -> PyResult<Answer> {
        wait(py, self.get(py)?.complete_async(request))?.map(Answer::from).or_raise(py)
    }
}

#[pymethods]
impl Model {
    /// Opens a model and starts its engine. Only `device` and `kv` can change a token.
    ///
    /// :param model: a name on Hugging Face (`org/name`, `org/name@revision`, `org/name:file.gguf`), a `.gguf` file, a
    ///     folder, `demo`, or `synthetic:NAME`.
    /// :param device: `auto`, `cpu`, `cuda` or `cuda:N`. `auto` takes a GPU if it can; if not, `notes` says why.
    /// :param threads: CPU threads; one on each physical core that the process may use by default.
    /// :param memory: limit for weights, activations and cache, such as `8G`, `50%` or a number of bytes.
    /// :param kv: type of cached keys and values. A smaller type holds longer texts but rounds more.
    /// :param batch_size: maximum number of requests computed together, 8 by default. Others wait.
    /// :param context: maximum number of tokens in a request; the model's context by default.
    /// :param speculate: maximum number of drafted tokens for a sequence in a step; 0 by default.
    /// :param draft: what drafts them: `auto`, `head`, `ngram`, `none`, or a smaller model with the same vocabulary.
    /// :param cache_dir: a folder that keeps the cache of prompts and answers: one that begins as an earlier one, of this
    ///     or an earlier process, is then read instead of computed, with the same tokens.
    /// :param cache_size: maximum size of that folder, such as `20G` (the default) or a number of bytes.
    /// :param host_cache: host memory, such as `8G`, for what leaves the cache in a GPU's memory; only with a GPU.
    /// :param progress: called with the file being downloaded, `loading` or `hashing`, the amount done, and the total.
    #[staticmethod]
    #[pyo3(signature = (
        model, *, device="auto", threads=None, memory=None, kv=None, batch_size=None, context=None, speculate=None,
        draft="auto", cache_dir=None, cache_size=None, host_cache=None, progress=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
    fn load(
        py: Python<'_>,
        model: &Bound<'_, PyAny>,
        device: &str,
        threads: Option<usize>,
        memory: Option<&Bound<'_, PyAny>>,
        kv: Option<&str>,
        batch_size: Option<usize>,
        context: Option<usize>,
        speculate: Option<usize>,
        draft: &str,
        cache_dir: Option<PathBuf>,
        cache_size: Option<&Bound<'_, PyAny>>,
        host_cache: Option<&Bound<'_, PyAny>>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Model> {
        let model: String = py.import("os")?.call_method1("fspath", (model,))?.extract()?;
        let bytes = cache_size.map(|size| bytes_of(py, "cache_size", size)).transpose()?;
        if bytes.is_some() && cache_dir.is_none() {
            return Err(refused(py, "there is no folder that it limits", "cache_size", "give cache_dir too"));
        }
        let host_cache = host_cache.map(|size| bytes_of(py, "host_cache", size)).transpose()?;
        let dir = cache_dir.map(|path| CacheDir { path, bytes: bytes.unwrap_or(CacheDir::BYTES) });
        let device = parsed(py, "device", device)?;
        let memory = memory.map(|memory| parsed(py, "memory", &memory.str()?.to_string())).transpose()?;
        let kv = kv.map(|kv| parsed(py, "kv", kv)).transpose()?;
        let draft = parsed(py, "draft", draft)?;
        let settings = move |mut builder: Builder| {
            builder = builder.device(device);
            if let Some(threads) = threads {
                builder = builder.threads(threads);
            }
            if let Some(memory) = memory {
                builder = builder.memory(memory);
            }
            if let Some(kv) = kv {
                builder = builder.cache(kv);
            }
            if let Some(requests) = batch_size {
                builder = builder.batch_size(requests);
            }
            if let Some(tokens) = context {
                builder = builder.context(tokens);
            }
            if let Some(bytes) = host_cache {
                builder = builder.host_cache(bytes);
            }
            if let Some(dir) = dir {
                builder = builder.cache_dir(dir);
            }
            builder.drafts(speculate.unwrap_or(0)).draft(draft)
        };
        let opened = open(py, &model, settings, progress)?;
        Ok(Model { open: Mine::new(Mutex::new(Some(opened))), bridge: Bridge::default() })
    }

    /// Continues a text or token ids, or answers a conversation, and waits for the end.
    #[pyo3(signature = (prompt, **options))]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Answer> {
        self.complete(py, options::request(prompt, options)?)
    }

    /// Answers a conversation: dicts with `role` and `content`, formatted by the model's chat template; without a
    /// template, their contents are joined by blank lines.
    #[pyo3(signature = (messages, **options))]
    fn chat(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Answer> {
        self.complete(py, options::conversation(messages, options)?)
    }

    /// Returns the pieces of an answer as they are generated. With `thoughts`, those of thoughts come too, as texts of the
    /// class `Thought`.
    #[pyo3(signature = (prompt, *, thoughts=false, **options))]
    fn stream(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        thoughts: bool,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Stream> {
        let request = options::request(prompt, options)?;
        Stream::start(py, self.get(py)?, request, self.bridge.clone(), thoughts)
    }

    /// Answers many prompts in the same steps. Each gets the same tokens as alone.
    ///
    /// A prompt may also be a dict of `prompt` and options of its own, which go before the common ones. The first error
    /// is raised, or with `return_errors` each is returned in its place.
    #[pyo3(signature = (prompts, *, return_errors=false, **options))]
    fn batch<'py>(
        &self,
        py: Python<'py>,
        prompts: &Bound<'py, PyAny>,
        return_errors: bool,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyList>> {
        if prompts.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err("prompts: it must be a list of prompts"));
        }
        let requests = prompts.try_iter()?.map(|prompt| options::one_of_many(&prompt?, options));
        let requests: Vec<Request> = requests.collect::<PyResult<_>>()?;
        let answers = wait(py, self.get(py)?.batch_async(requests))?;
        let answers = answers.into_iter().map(|answer| match answer {
            Ok(answer) => Ok(Bound::new(py, Answer::from(answer))?.into_any()),
            Err(error) if return_errors => Ok(raised(py, &error).into_value(py).into_bound(py).into_any()),
            Err(error) => Err(raised(py, &error)),
        });
        PyList::new(py, answers.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns the logits that follow a prompt, with shape `(vocab,)`, or each of several prompts, with shape
    /// `(prompts, vocab)`. Several prompts are computed together and share their common beginnings.
    fn logits<'py>(&self, py: Python<'py>, prompt: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        logits::after(py, &self.get(py)?, prompt)
    }

    /// Returns the log-probability (natural logarithm) of every token of a prompt except the first, with shape
    /// `(tokens - 1,)`.
    fn score<'py>(&self, py: Python<'py>, prompt: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        logits::within(py, &self.get(py)?, prompt)
    }

    /// Returns the embedding of a text, with shape `(hidden,)`, or each of several texts, with shape `(texts, hidden)`.
    /// An embedding has length 1, also if `dimensions` keeps only its first values. Several texts are computed together,
    /// and each has the same embedding as alone.
    #[pyo3(signature = (texts, *, dimensions=None))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        dimensions: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        embeddings::of(py, &self.get(py)?, texts, dimensions)
    }

    /// Converts a text to token ids, with the model's special tokens around it unless `special` is false.
    #[pyo3(signature = (text, *, special=true))]
    fn tokenize(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<Vec<u32>> {
        let model = self.get(py)?;
        py.detach(|| -> Result<_, Error> { Ok(tokenizer(&model)?.encode(text, special)?) }).or_raise(py)
    }

    /// Converts token ids to text, with special tokens if `special` is true.
    #[pyo3(signature = (ids, *, special=false))]
    fn detokenize(&self, py: Python<'_>, ids: Vec<u32>, special: bool) -> PyResult<String> {
        let model = self.get(py)?;
        tokenizer(&model).or_raise(py)?.decode(&ids, !special).or_raise(py)
    }

    /// Ends the engine and frees its memory. Requests that still run fail.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open.get(py)?.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| {
            if let Some(model) = open {
                model.engine().shutdown(Duration::ZERO);
            }
        });
        Ok(())
    }

    /// Name of the model.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.get(py)?.checkpoint().name.clone())
    }

    /// Maximum number of tokens in a request, including its answer.
    #[getter]
    fn context(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.get(py)?.engine().context())
    }

    /// Number of tokens in the vocabulary.
    #[getter]
    fn vocab_size(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.get(py)?.engine().vocab())
    }

    /// Notes for the user: warnings about the files, or why no GPU is used.
    #[getter]
    fn notes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.get(py)?.notes().to_vec())
    }

    /// Where the model computes.
    #[getter]
    fn backend<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let model = self.get(py)?;
        let info = model.engine().backend();
        let dict = PyDict::new(py);
        dict.set_item("device", &info.device)?;
        dict.set_item("isa", info.isa)?;
        dict.set_item("threads", info.threads)?;
        dict.set_item("kv", info.kv)?;
        Ok(dict)
    }

    /// What the engine has counted so far: `requests`, `steps`, `prompt_tokens`, `generated_tokens`, `cancelled`,
    /// `failed`, `cached_tokens` and `folder_tokens` of prompts that were in the cache and that came from the folder, and
    /// in `largest_batch` the maximum number of requests computed together.
    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let model = self.get(py)?;
        let (metrics, dict) = (model.engine().metrics().snapshot(), PyDict::new(py));
        for (name, counter) in [
            ("requests", Counter::Requests),
            ("steps", Counter::Steps),
            ("prompt_tokens", Counter::PromptTokens),
            ("generated_tokens", Counter::GeneratedTokens),
            ("cancelled", Counter::Cancelled),
            ("failed", Counter::Failed),
        ] {
            dict.set_item(name, metrics.get(counter))?;
        }
        let status = model.engine().status();
        dict.set_item("cached_tokens", status.scheduler.prefix_hits)?;
        dict.set_item("folder_tokens", status.tier.map_or(0, |tier| tier.hit_tokens - tier.host_tokens))?;
        dict.set_item("largest_batch", metrics.measure(Measure::BatchSize).max as u64)?;
        Ok(dict)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        self.get(py).map_or_else(
            |_| "Model(closed)".into(),
            |model| format!("Model('{}', {})", model.checkpoint().name, model.plan()),
        )
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}
