//! A budget in bytes for every value that a template computes.
//!
//! Each operation pays *before* it runs, so that a template cannot make memory or time grow without limit. Values are
//! shared, and a list may hold the same text a million times. So where a value is turned into text, the price is the
//! length of that text, and counting it stops at the budget.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fmt::{self, Write},
    sync::LazyLock,
};

use minijinja::{
    Environment, Error, ErrorKind, Expression, State, context, filters, functions, tests,
    value::{Kwargs, Rest, Tuple, Value, ValueKind, ValueOrKwargs},
};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Price in bytes of a value in a container.
const ITEM: usize = 64;
/// Price in bytes of a container in a container. Nested values are dropped and written recursively, and this price
/// bounds their depth.
const NEST: usize = 4 << 10;
/// Bytes of JSON for each byte of text: `\u0000`, and intermediate copies.
pub(super) const JSON: usize = 8;

thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

/// Sets the budget of this thread's rendering.
pub(super) fn allow(bytes: usize) {
    LEFT.set(bytes);
}

/// Subtracts from the budget, or fails if not enough is left.
pub(super) fn spend(bytes: usize) -> Result<(), Error> {
    match LEFT.get().checked_sub(bytes) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => Err(Error::new(ErrorKind::InvalidOperation, "the template handles too much text")),
    }
}

/// Length in bytes of a value as text, or `usize::MAX` if it exceeds the remaining budget.
pub(super) fn shown(value: &Value) -> usize {
    struct Count(usize);
    impl Write for Count {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 += text.len();
            if self.0 > LEFT.get() { Err(fmt::Error) } else { Ok(()) }
        }
    }
    if let Some(text) = value.as_str() {
        return text.len();
    }
    let mut count = Count(0);
    match write!(count, "{value}") {
        Ok(()) => count.0,
        Err(_) => usize::MAX,
    }
}

/// Number of values in a container; 0 for anything else.
fn items(value: &Value) -> usize {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            value.len().unwrap_or_else(|| value.try_iter().map_or(0, |i| i.take(1 << 20).count()))
        }
        _ => 0,
    }
}

fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Plain)
}

/// Price of a container of these values.
fn container(values: &[Value]) -> usize {
    ITEM * values.len() + if values.iter().any(is_container) { NEST } else { 0 }
}

fn sum(values: impl IntoIterator<Item = usize>) -> usize {
    values.into_iter().fold(0, usize::saturating_add)
}

/// The largest number among the arguments: a width or a count.
fn largest(arguments: &[Value]) -> usize {
    let named = arguments.iter().filter(|v| v.is_kwargs());
    let named =
        named.flat_map(|v| v.try_iter().into_iter().flatten().filter_map(|key| v.get_item(&key).ok()));
    arguments.iter().cloned().chain(named).filter_map(|v| v.as_usize()).max().unwrap_or(0)
}

/// An upper bound, in bytes, on what the filter or method of this name produces from its arguments.
fn price(name: &str, arguments: &[Value]) -> usize {
    let Some((subject, rest)) = arguments.split_first() else { return 0 };
    let text = |value: Option<&Value>| value.map_or(0, shown);
    let pieces = |pieces: usize| ITEM.saturating_mul(pieces + 1).saturating_add(shown(subject));
    let source = subject.as_str().unwrap_or_default();
    match name {
        "join" => {
            // The subject of a filter is the list, that of a method the separator.
            let (list, between) =
                if subject.as_str().is_some() && !rest.is_empty() && rest[0].as_str().is_none() {
                    (&rest[0], Some(subject))
                } else {
                    (subject, rest.first())
                };
            let count = if list.as_str().is_some() { source.len() } else { items(list) };
            text(between).saturating_mul(count).saturating_add(shown(list).saturating_mul(2))
        }
        "replace" => {
            let found = match rest.first().and_then(Value::as_str) {
                Some("") => source.len() + 1,
                Some(from) if subject.as_str().is_some() => source.matches(from).count(),
                _ => shown(subject),
            };
            text(rest.get(1)).saturating_mul(found).saturating_add(shown(subject))
        }
        "split" => pieces(match rest.first().and_then(Value::as_str) {
            Some(separator) if !separator.is_empty() => source.matches(separator).count(),
            _ => source.split_whitespace().count(),
        }),
        "lines" | "splitlines" => pieces(source.lines().count()),
        "list" if subject.as_str().is_some() => pieces(source.len()),
        "indent" => {
            let width = largest(rest).max(4);
            width.saturating_mul(source.lines().count() + 1).saturating_add(shown(subject).saturating_mul(2))
        }
        "batch" | "slice" => sum([largest(rest), items(subject)]).saturating_mul(ITEM),
        "format" => {
            // Each place may be as wide as the largest number in the format or among the arguments.
            let written = source.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
            let widest = written.max().unwrap_or(0).max(largest(rest));
            let places = source.matches(['%', '{']).count();
            sum([widest, sum(rest.iter().map(shown))]).saturating_mul(places).saturating_add(source.len())
        }
        "sort" | "unique" | "groupby" | "dictsort" | "min" | "max" | "sum" => {
            shown(subject).saturating_mul(4)
        }
        "items" | "keys" | "values" | "list" | "reverse" | "zip" | "chain" | "map" | "select" | "reject"
        | "selectattr" | "rejectattr" => {
            let copied = subject.as_str().map_or(0, str::len);
            sum([ITEM.saturating_mul(sum(arguments.iter().map(items))), copied])
        }
        "get" | "count" => text(subject.as_str().map(|_| subject)),
        _ => shown(subject).saturating_mul(2),
    }
}

/// Compiles an expression with an operator, which minijinja then evaluates.
fn operator(expression: &'static str) -> Expression<'static, 'static> {
    static PLAIN: LazyLock<Environment<'static>> = LazyLock::new(Environment::new);
    PLAIN.compile_expression(expression).expect("a constant that a test evaluates")
}

/// Price of comparing two values.
fn compared(a: &Value, b: &Value) -> usize {
    match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) => a.len().min(b.len()),
        _ => sum([a, b].map(|v| if is_container(v) { shown(v) } else { 0 })),
    }
}

fn nested(value: &Value) -> usize {
    if is_container(value) { NEST } else { 0 }
}

fn concatenate(a: &Value, b: &Value) -> Result<String, Error> {
    spend(sum([shown(a), shown(b)]))?;
    Ok(format!("{a}{b}"))
}

fn add(a: Value, b: Value) -> Result<Value, Error> {
    static ADD: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| operator("a + b"));
    let length = |v: &Value| v.as_str().map_or_else(|| items(v).saturating_mul(ITEM), str::len);
    spend(sum([length(&a), length(&b)]))?;
    ADD.eval(context! { a, b })
}

fn multiply(a: Value, b: Value) -> Result<Value, Error> {
    static MULTIPLY: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| operator("a * b"));
    let length = |v: &Value| v.as_str().map_or_else(|| items(v).saturating_mul(ITEM), str::len);
    for (many, times) in [(&a, &b), (&b, &a)] {
        spend(length(many).saturating_mul(times.as_usize().unwrap_or(0)))?;
    }
    MULTIPLY.eval(context! { a, b })
}

fn slice(value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    static SLICE: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| operator("a[b:c:d]"));
    let length = value.as_str().map_or_else(|| items(&value).saturating_mul(ITEM), str::len);
    spend(sum([length, nested(&value)]))?;
    SLICE.eval(context! { a => value, b => start, c => stop, d => step })
}

fn is_in(state: &mut State<'_, '_>, value: &Value, within: &Value) -> Result<bool, Error> {
    let searched = match within.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Iterable => shown(within),
        _ => 0,
    };
    spend(sum([searched, compared(value, within)]))?;
    tests::is_in(state, value, within)
}

/// Replaces the operators, filters, methods and functions of an environment by metered ones.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_formatter(|output, state, value| {
        spend(shown(value))?;
        minijinja::escape_formatter(output, state, value)
    });
    environment.add_function("~", concatenate);
    environment.add_function("+", add);
    environment.add_function("*", multiply);
    environment.add_function("[:]", slice);
    environment.add_function("in", is_in);
    macro_rules! comparisons {
        ($($name:literal $test:ident,)*) => {$(
            environment.add_function($name, |a: &Value, b: &Value| {
                spend(compared(a, b)).map(|()| tests::$test(a, b))
            });
        )*};
    }
    comparisons!("==" is_eq, "!=" is_ne, "<" is_lt, "<=" is_le, ">" is_gt, ">=" is_ge,);
    environment
        .add_function("[]", |values: Rest<Value>| spend(container(&values)).map(|()| Value::from(values.0)));
    environment.add_function("()", |values: Rest<Value>| {
        spend(container(&values)).map(|()| Value::from(Tuple::from(values.0)))
    });
    environment.add_function("{}", |values: Rest<Value>| {
        let pairs = values.chunks_exact(2);
        spend(sum([container(&values), sum(pairs.clone().map(|pair| shown(&pair[0])))]))?;
        let map: BTreeMap<Value, Value> = pairs.map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        Ok::<_, Error>(Value::from(map))
    });

    environment.remove_global("debug");
    environment.remove_filter("pprint");
    environment.add_function("range", |from: isize, to: Option<isize>, step: Option<isize>| {
        let range = functions::range(from, to, step)?;
        spend(items(&range)).map(|()| range)
    });
    environment.add_function("dict", |value: Option<Value>, more: Kwargs| {
        spend(sum([NEST, value.as_ref().map_or(0, items).saturating_mul(ITEM)]))?;
        functions::dict(value, more)
    });
    environment.add_function("namespace", |values: Option<ValueOrKwargs>| {
        spend(NEST)?;
        functions::namespace(values)
    });
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        let all: Vec<Value> = std::iter::once(value).chain(arguments).cloned().collect();
        spend(price(method, &all))?;
        let result = unknown_method_callback(state, value, method, arguments)?;
        spend(nested(&result)).map(|()| result)
    });
    macro_rules! filters {
        ($($name:ident)*) => {$(
            filter(environment, stringify!($name), Value::from_function(filters::$name));
        )*};
    }
    filters!(safe escape upper lower title capitalize replace dictsort items reverse trim join split lines sum);
    filters!(last min max sort list string slice batch indent select selectattr reject rejectattr map groupby);
    filters!(unique chain zip format length);
    filter(environment, "e", Value::from_function(filters::escape));
    filter(environment, "count", Value::from_function(filters::length));
}

fn filter(environment: &mut Environment<'static>, name: &'static str, inner: Value) {
    environment.add_filter(name, move |state: &mut State<'_, '_>, arguments: Rest<Value>| {
        if !matches!(name, "length" | "count") {
            spend(price(name, &arguments))?;
        }
        let result = inner.call(state, &arguments)?;
        spend(nested(&result)).map(|()| result)
    });
}
