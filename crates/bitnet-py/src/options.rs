//! Requests from Python values.

use std::{collections::BTreeMap, time::Duration};

use bitnet::{Effort, Message, Priority, Request, TemplateInput, Thinking, model::ToolCall};
use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyDict, PyString},
};

use crate::errors::{named, refused};

type Options<'a, 'py> = Option<&'a Bound<'py, PyDict>>;

/// A request for a text, token ids or a conversation.
pub(crate) fn request(prompt: &Bound<'_, PyAny>, options: Options<'_, '_>) -> PyResult<Request> {
    if let Ok(text) = prompt.extract::<String>() {
        set(Request::new(text), options)
    } else if let Ok(ids) = prompt.extract::<Vec<u32>>() {
        set(Request::tokens(ids), options)
    } else if prompt.extract::<Vec<Bound<'_, PyDict>>>().is_ok() {
        conversation(prompt, options)
    } else {
        Err(PyTypeError::new_err("prompt: it must be a text, a list of token ids, or a list of messages"))
    }
}

/// A request for a conversation.
pub(crate) fn conversation(messages: &Bound<'_, PyAny>, options: Options<'_, '_>) -> PyResult<Request> {
    let dicts: Vec<Bound<'_, PyDict>> = messages.extract().map_err(|_| {
        PyTypeError::new_err("messages: it must be a list of dicts with `role` and `content`")
    })?;
    let messages = dicts.iter().map(message).collect::<PyResult<Vec<Message>>>()?;
    set(Request::chat(messages), options)
}

/// A request of a batch: a prompt, or a dict of `prompt` and options of its own.
pub(crate) fn one_of_many(prompt: &Bound<'_, PyAny>, options: Options<'_, '_>) -> PyResult<Request> {
    let Ok(own) = prompt.cast::<PyDict>() else { return request(prompt, options) };
    let all = options.map_or_else(|| Ok(PyDict::new(prompt.py())), |options| options.copy())?;
    all.update(own.as_mapping())?;
    let prompt = all.get_item("prompt")?;
    let prompt = prompt.ok_or_else(|| PyTypeError::new_err("prompts: a dict needs a `prompt`"))?;
    all.del_item("prompt")?;
    request(&prompt, Some(&all))
}

/// Sets options by name; `None` leaves one as it is.
fn set(mut request: Request, options: Options<'_, '_>) -> PyResult<Request> {
    let (mut input, mut wanted) = (TemplateInput::default(), Thinking::default());
    for (name, value) in options.into_iter().flatten() {
        let name: String = name.extract()?;
        if value.is_none() {
            continue;
        }
        let named = |error| named(value.py(), &name, &value, error);
        match name.as_str() {
            "tools" => input.tools = tools(&value).map_err(named)?,
            "thinking" => wanted.on = Some(value.extract().map_err(named)?),
            "thinking_budget" => wanted.budget = Some(value.extract().map_err(named)?),
            "reasoning_effort" => wanted.effort = Some(effort(&value).map_err(named)?),
            "keep_thoughts" => wanted.keep = Some(value.extract().map_err(named)?),
            "chat_template_kwargs" => input.variables = variables(&value).map_err(named)?,
            _ => request = option(request, &name, &value).map_err(named)?,
        }
    }
    Ok(request.template_input(input).thinking(wanted))
}

fn option(request: Request, name: &str, value: &Bound<'_, PyAny>) -> PyResult<Request> {
    Ok(match name {
        "max_tokens" => request.max_tokens(value.extract()?),
        "temperature" => request.temperature(value.extract()?),
        "top_k" => request.top_k(value.extract()?),
        "top_p" => request.top_p(value.extract()?),
        "seed" => request.seed(value.extract()?),
        "stop" => strings(value)?.into_iter().fold(request, Request::stop),
        "json_schema" => request.json_schema(json(value)?),
        "regex" => request.regex(value.extract::<String>()?),
        "choice" => request.choice(value.extract::<Vec<String>>()?),
        "timeout" => request.timeout(seconds(value)?),
        "priority" => request.priority(priority(value)?),
        "cache_salt" => request.cache_salt(&value.extract::<String>()?),
        "min_tokens" => request.min_tokens(value.extract()?),
        "min_p" => request.min_p(value.extract()?),
        "repetition_penalty" => request.repetition_penalty(value.extract()?),
        "presence_penalty" => request.presence_penalty(value.extract()?),
        "frequency_penalty" => request.frequency_penalty(value.extract()?),
        "logit_bias" => request.logit_bias(value.extract::<BTreeMap<u32, f32>>()?),
        "stop_token_ids" => request.stop_tokens(value.extract::<Vec<u32>>()?),
        "ignore_eos" => request.ignore_eos(value.extract()?),
        _ => return Err(unknown(value.py(), name)?),
    })
}

/// The error of an option that does not exist, with the name that was probably meant.
fn unknown(py: Python<'_>, name: &str) -> PyResult<PyErr> {
    let options = py.import("bitnet")?.getattr("Options")?.getattr("__annotations__")?;
    let near = py.import("difflib")?.call_method1("get_close_matches", (name, options, 1))?;
    let meant = near.extract::<Vec<String>>()?.pop().map(|near| format!(": did you mean {near}?"));
    Ok(PyTypeError::new_err(format!("there is no such option{}", meant.unwrap_or_default())))
}

fn strings(value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    value.extract().map(|one| vec![one]).or_else(|_| value.extract())
}

/// A text as it is, anything else as JSON.
fn json(value: &Bound<'_, PyAny>) -> PyResult<String> {
    match value.cast::<PyString>() {
        Ok(text) => text.extract(),
        Err(_) => as_json(value),
    }
}

/// Anything as JSON.
fn as_json(value: &Bound<'_, PyAny>) -> PyResult<String> {
    value.py().import("json")?.call_method1("dumps", (value,))?.extract()
}

fn seconds(value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let refused = |_| refused(value.py(), "timeout is not a time", "timeout", "give a number of seconds");
    Duration::try_from_secs_f64(value.extract()?).map_err(refused)
}

fn priority(value: &Bound<'_, PyAny>) -> PyResult<Priority> {
    let name: String = value.extract()?;
    Priority::named(&name).ok_or_else(|| {
        let what = format!("there is no priority {name:.40?}");
        refused(value.py(), what, "priority", "choose interactive, normal or batch")
    })
}

fn effort(value: &Bound<'_, PyAny>) -> PyResult<Effort> {
    let name: String = value.extract()?;
    Effort::named(&name).ok_or_else(|| {
        let what = format!("there is no effort {name:.40?}");
        let names = Effort::ALL.map(Effort::name).join(", ");
        refused(value.py(), what, "reasoning_effort", &format!("choose one of {names}"))
    })
}

fn tools(value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    value.extract::<Vec<Bound<'_, PyDict>>>()?.iter().map(|tool| json(tool)).collect()
}

fn variables(value: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    let variables = value.cast::<PyDict>()?.iter();
    variables.map(|(name, value)| Ok((name.extract()?, as_json(&value)?))).collect()
}

/// A message in OpenAI's form.
fn message(dict: &Bound<'_, PyDict>) -> PyResult<Message> {
    let mut message = Message::default();
    for (name, value) in dict {
        let name: String = name.extract()?;
        let read = match name.as_str() {
            "role" => value.extract().map(|role| message.role = role),
            "content" => content(&value).map(|content| message.content = Some(content)),
            "name" => value.extract().map(|name| message.name = name),
            "reasoning_content" | "reasoning" | "thinking" => value.extract().map(|thought: Option<String>| {
                message.reasoning = thought.filter(|thought| !thought.is_empty()).or(message.reasoning.take());
            }),
            "tool_call_id" => value.extract().map(|id| message.tool_call_id = id),
            "tool_calls" => calls(&value).map(|calls| message.tool_calls = calls),
            _ => Err(PyTypeError::new_err("there is no such field of a message")),
        };
        read.map_err(|error| named(value.py(), &name, &value, error))?;
    }
    if message.role.is_empty() { Err(PyTypeError::new_err("messages: each needs a `role`")) } else { Ok(message) }
}

/// A text, `None`, or a list of parts of type `text`.
fn content(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = value.extract::<Option<String>>() {
        return Ok(text.unwrap_or_default());
    }
    let refused = |_| PyTypeError::new_err("it must be a text or a list of text parts");
    let parts: Vec<Bound<'_, PyDict>> = value.extract().map_err(refused)?;
    parts.iter().map(|part| need(part, "text")?.extract::<String>()).collect()
}

fn calls(value: &Bound<'_, PyAny>) -> PyResult<Vec<ToolCall>> {
    let call = |call: &Bound<'_, PyDict>| {
        let function = need(call, "function")?.cast_into::<PyDict>()?;
        let id = need(call, "id")?.extract()?;
        let name = need(&function, "name")?.extract()?;
        let arguments = json(&need(&function, "arguments")?)?;
        Ok(ToolCall { id, name, arguments })
    };
    let calls: Option<Vec<Bound<'_, PyDict>>> = value.extract()?;
    calls.unwrap_or_default().iter().map(call).collect()
}

fn need<'py>(dict: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    dict.get_item(name)?.ok_or_else(|| PyTypeError::new_err(format!("`{name}` is missing")))
}
