//! Chat templates: the model's own Jinja text, rendered as Hugging Face's `apply_chat_template` does.

use std::io::{self, Write};

use minijinja::{Environment, ErrorKind, Value, context, syntax::SyntaxConfig, value::ValueKind};
use serde::Serialize;

use crate::{ModelError, error::one_line};

/// Bytes of a template; the longest real ones have about 30 KB.
const MAX_TEMPLATE: usize = 64 << 10;
/// Stack for compiling: chains such as `a.b.c.d` or `elif` nest once for each link, about a kilobyte at a time,
/// and the compiler recurses over them. Only what a template really needs is ever touched.
const MIN_STACK: usize = 4 << 20;
const STACK_PER_BYTE: usize = 2 << 10;
/// Instructions that one rendering may take. A hundred messages take some ten thousand.
const FUEL: u64 = 2_000_000;
const RECURSION: usize = 64;
/// Bytes of a rendered conversation.
const MAX_TEXT: usize = 16 << 20;
/// Name of the one template.
const NAME: &str = "chat";

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// How a model wants a conversation to be written.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// Compiles a template. `bos_token` and `eos_token` are the texts that it may insert.
    ///
    /// # Errors
    /// [`ModelError::Template`] if it does not parse.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, ModelError> {
        if source.len() > MAX_TEMPLATE {
            let size = source.len() as u64;
            let limit = MAX_TEMPLATE as u64;
            return Err(ModelError::TooLarge { file: "chat_template".into(), size, limit });
        }
        let cure = "give a template that Jinja accepts, or run with --raw";
        let owned = source.to_string();
        let compiled = std::thread::Builder::new()
            .stack_size(MIN_STACK + STACK_PER_BYTE * source.len())
            .spawn(move || {
                let mut environment = environment();
                environment.add_template_owned(NAME, owned).map(|()| environment)
            })
            .map_err(|e| ModelError::Template { problem: one_line(e), cure })?
            .join();
        let environment = match compiled {
            Ok(environment) => environment.map_err(|e| fail(e, cure))?,
            Err(_) => return Err(ModelError::Template { problem: "its compiler panicked".into(), cure }),
        };
        Ok(ChatTemplate {
            source: source.into(),
            environment,
            bos_token: bos_token.into(),
            eos_token: eos_token.into(),
        })
    }

    /// The text of a conversation; `add_generation_prompt` opens the assistant's turn.
    ///
    /// # Errors
    /// [`ModelError::Template`] with what the template itself raised, or why it could not be rendered.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ModelError> {
        let cure = "check the roles and their order, or run with --raw";
        let messages: Vec<Value> = messages
            .iter()
            .map(|m| context! { role => m.role.as_str(), content => m.content.as_str() })
            .collect();
        let template = self.environment.get_template(NAME).map_err(|e| fail(e, cure))?;
        let context = context! {
            messages,
            add_generation_prompt,
            bos_token => self.bos_token.as_str(),
            eos_token => self.eos_token.as_str(),
        };
        let mut text = Bounded(Vec::new());
        let rendered = template.render_captured_to(context, &mut text).map(drop);
        // The error of a writer arrives without its words.
        rendered.map_err(|e| match text.0.len() {
            MAX_TEXT => {
                let problem = format!("the rendered text is longer than {MAX_TEXT} bytes");
                ModelError::Template { problem, cure }
            }
            _ => fail(e, cure),
        })?;
        String::from_utf8(text.0).map_err(|e| ModelError::Template { problem: one_line(e), cure })
    }

    /// The Jinja text.
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// Text that does not grow without limit.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = MAX_TEXT - self.0.len();
        self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
        // Fewer bytes than given make `write_all` come back, and none make it fail.
        Ok(bytes.len().min(room))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What Hugging Face gives a template: Jinja's own filters, Python's methods, blocks that leave no lines behind,
/// `raise_exception` and `strftime_now`.
fn environment() -> Environment<'static> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let syntax = syntax.expect("Jinja's own delimiters are valid");
    let mut environment = Environment::new();
    environment.set_syntax(syntax);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_filter("tojson", json);
    environment.add_function("strftime_now", |format: String| today(&format));
    environment
}

/// `tojson` as Hugging Face replaces it: Python's `json.dumps(value, ensure_ascii=False)`, without the escapes for
/// HTML that Jinja's own has.
fn json(value: &Value) -> Result<String, minijinja::Error> {
    let items = |value: &Value| value.try_iter()?.map(|v| json(&v)).collect::<Result<Vec<_>, _>>();
    Ok(match value.kind() {
        ValueKind::Undefined | ValueKind::None => "null".into(),
        ValueKind::Bool => value.is_true().to_string(),
        ValueKind::Number => value.to_string(),
        ValueKind::Seq | ValueKind::Iterable => format!("[{}]", items(value)?.join(", ")),
        ValueKind::Map => {
            let entry = |key: Value| Ok(format!("{}: {}", json(&key)?, json(&value.get_item(&key)?)?));
            let entries: Result<Vec<_>, minijinja::Error> = value.try_iter()?.map(entry).collect();
            format!("{{{}}}", entries?.join(", "))
        }
        _ => serde_json::Value::from(value.to_string()).to_string(),
    })
}

fn fail(error: minijinja::Error, cure: &'static str) -> ModelError {
    ModelError::Template { problem: one_line(error), cure }
}

/// The date in UTC by the directives that templates use: `%Y %m %d %b %B %H %M %S`.
fn today(format: &str) -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs(), format)
}

fn date(seconds: u64, format: &str) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let (year, month, day) = civil(seconds / 86_400);
    let clock = seconds % 86_400;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out += &year.to_string(),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('B') => out += MONTHS[month as usize - 1],
            Some('b') => out += &MONTHS[month as usize - 1][..3],
            Some('H') => out += &format!("{:02}", clock / 3600),
            Some('M') => out += &format!("{:02}", clock / 60 % 60),
            Some('S') => out += &format!("{:02}", clock % 60),
            Some('%') | None => out.push('%'),
            Some(other) => out.extend(['%', other]),
        }
    }
    out
}

/// Year, month and day of a day since 1970-01-01 ("days_from_civil" of Howard Hinnant, inverted).
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date(0, "%d %b %Y"), "01 Jan 1970");
        assert_eq!(date(951_782_400, "%Y-%m-%d %H:%M:%S"), "2000-02-29 00:00:00");
        assert_eq!(date(1_735_689_599, "%B %d, %Y %H:%M:%S 100%%"), "December 31, 2024 23:59:59 100%");
    }
}
