//! Expressions.

use std::{cmp::Ordering, sync::Arc};

use indexmap::IndexMap;

use super::{
    access,
    args::Args,
    ast::{Arguments, Comparison, Expression},
    error::{Error, Result},
    filters, functions,
    machine::Machine,
    meter::Text,
    methods, number, repr, tests,
    value::Value,
    value::key::{Key, contains, equal, order, pay},
};

impl<'p> Machine<'p> {
    /// The value of an expression.
    pub(super) fn evaluate(&mut self, expression: &'p Expression) -> Result<Value> {
        self.meter.step()?;
        // The common ones without a level of nesting of their own.
        match expression {
            Expression::Constant(constant) => Ok(constant.value()),
            Expression::Name(name) => Ok(self.lookup(*name)),
            other => {
                let meter = self.meter;
                meter.nested(|| self.compound(other))
            }
        }
    }

    fn compound(&mut self, expression: &'p Expression) -> Result<Value> {
        match expression {
            Expression::Constant(_) | Expression::Name(_) => self.evaluate(expression),
            Expression::List(items) => Value::list(self.all(items)?),
            Expression::Tuple(items) => Value::tuple(self.all(items)?),
            Expression::Dict(items) => self.dict(items),
            Expression::Not(value) => Ok((!self.evaluate(value)?.is_true()).into()),
            Expression::Negative(value) => number::signed(&self.evaluate(value)?, true),
            Expression::Positive(value) => number::signed(&self.evaluate(value)?, false),
            Expression::And(left, right) => {
                let left = self.evaluate(left)?;
                if left.is_true() { self.evaluate(right) } else { Ok(left) }
            }
            Expression::Or(left, right) => {
                let left = self.evaluate(left)?;
                if left.is_true() { Ok(left) } else { self.evaluate(right) }
            }
            Expression::Compare(first, rest) => self.compare(first, rest),
            Expression::Binary(operator, left, right) => {
                let (left, right) = (self.evaluate(left)?, self.evaluate(right)?);
                number::binary(*operator, &left, &right, self.meter)
            }
            Expression::Concatenate(parts) => {
                let mut out = Text::new(self.meter);
                for part in self.all(parts)? {
                    repr::write(&mut out, &part)?;
                }
                Ok(out.finish().into())
            }
            Expression::If(test, value, otherwise) => match (self.evaluate(test)?.is_true(), otherwise) {
                (true, _) => self.evaluate(value),
                (false, Some(otherwise)) => self.evaluate(otherwise),
                (false, None) => Ok(Value::undefined(
                    "the inline if-expression evaluated to false and no else section was defined.",
                )),
            },
            Expression::Attribute(value, name) => access::attribute(&self.evaluate(value)?, name),
            Expression::Item(value, key) => {
                let (value, key) = (self.evaluate(value)?, self.evaluate(key)?);
                access::item(&value, &key, self.meter)
            }
            Expression::Slice(value, parts) => self.slice(value, parts),
            Expression::Call(..) => self.call_with(expression, None),
            Expression::Filter(subject, name, arguments) => {
                let subject = match subject {
                    Some(subject) => self.evaluate(subject)?,
                    None => return Err(Error::value("a filter needs a value")),
                };
                self.filter(name, &subject, arguments)
            }
            Expression::Test(value, name, arguments) => {
                let value = self.evaluate(value)?;
                let args = self.arguments(arguments)?;
                if &**name == "filter" {
                    let known = |name: &Arc<str>| filters::is_known(name).unwrap_or(false);
                    return Ok(value.text().is_some_and(known).into());
                }
                tests::test(name, &value, &args, self.meter).map(Value::from)
            }
        }
    }

    fn all(&mut self, items: &'p [Expression]) -> Result<Vec<Value>> {
        self.meter.spend_items(items.len())?;
        items.iter().map(|item| self.evaluate(item)).collect()
    }

    fn dict(&mut self, items: &'p [(Expression, Expression)]) -> Result<Value> {
        self.meter.spend_items(2 * items.len())?;
        let mut map = IndexMap::new();
        for (key, value) in items {
            let key = Key::new(self.evaluate(key)?)?;
            map.insert(key, self.evaluate(value)?);
        }
        Value::dict(map)
    }

    fn slice(&mut self, value: &'p Expression, parts: &'p [Option<Expression>; 3]) -> Result<Value> {
        let value = self.evaluate(value)?;
        let mut bounds = [const { Value::None }; 3];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            if let Some(part) = part {
                *bound = self.evaluate(part)?;
            }
        }
        access::slice(&value, bounds.each_ref(), self.meter)
    }

    /// A chain of comparisons: `a < b < c` is `a < b and b < c`, with `b` computed once.
    fn compare(&mut self, first: &'p Expression, rest: &'p [(Comparison, Expression)]) -> Result<Value> {
        let mut left = self.evaluate(first)?;
        for (comparison, right) in rest {
            let right = self.evaluate(right)?;
            pay(&left, &right, self.meter)?;
            let ordered = |operator: &str, wanted: &[Ordering]| -> Result<bool> {
                Ok(order(&left, &right, operator)?.is_some_and(|order| wanted.contains(&order)))
            };
            let holds = match comparison {
                Comparison::Equal => equal(&left, &right),
                Comparison::NotEqual => !equal(&left, &right),
                Comparison::Less => ordered("<", &[Ordering::Less])?,
                Comparison::LessOrEqual => ordered("<=", &[Ordering::Less, Ordering::Equal])?,
                Comparison::Greater => ordered(">", &[Ordering::Greater])?,
                Comparison::GreaterOrEqual => ordered(">=", &[Ordering::Greater, Ordering::Equal])?,
                Comparison::In => contains(&right, &left, self.meter)?,
                Comparison::NotIn => !contains(&right, &left, self.meter)?,
            };
            if !holds {
                return Ok(false.into());
            }
            left = right;
        }
        Ok(true.into())
    }

    fn arguments(&mut self, arguments: &'p Arguments) -> Result<Args> {
        let mut args = Args { positional: self.all(&arguments.positional)?, named: Vec::new() };
        if let Some(star) = &arguments.star {
            let more = self.evaluate(star)?;
            args.positional.extend(more.defined()?.iterate(self.meter)?);
        }
        for (name, value) in &arguments.named {
            args.named.push((name.clone(), self.evaluate(value)?));
        }
        if let Some(stars) = &arguments.stars {
            let more = self.evaluate(stars)?;
            let Value::Dict(dict) = more.defined()? else {
                return Err(Error::of_type(format!(
                    "argument after ** must be a mapping, not {}",
                    more.class()
                )));
            };
            self.meter.spend_items(dict.map.len())?;
            for (name, value) in &dict.map {
                let Some(name) = name.get().text() else {
                    return Err(Error::of_type("keywords must be strings"));
                };
                args.named.push((name.clone(), value.clone()));
            }
        }
        Ok(args)
    }

    fn filter(&mut self, name: &str, subject: &Value, arguments: &'p Arguments) -> Result<Value> {
        let args = self.arguments(arguments)?;
        filters::apply(name, subject, &args, self.meter)
    }

    /// A chain of filters without a subject, applied to a value.
    pub(super) fn filtered(&mut self, filter: &'p Expression, value: Value) -> Result<Value> {
        let Expression::Filter(subject, name, arguments) = filter else { return self.evaluate(filter) };
        let value = match subject {
            Some(inner) => self.filtered(inner, value)?,
            None => value,
        };
        self.filter(name, &value, arguments)
    }

    /// The value of a call, which gets `caller` as one more argument.
    pub(super) fn call_with(&mut self, call: &'p Expression, caller: Option<Value>) -> Result<Value> {
        let Expression::Call(called, arguments) = call else { return self.evaluate(call) };
        let function = self.evaluate(called)?;
        let mut args = self.arguments(arguments)?;
        args.named.extend(caller.map(|caller| ("caller".into(), caller)));
        self.call(&function, &args)
    }

    fn call(&mut self, function: &Value, args: &Args) -> Result<Value> {
        match function.defined()? {
            Value::Method(method) => methods::call(&method.0, &method.1, args, self.meter),
            Value::Function(function) => {
                let value = functions::call(*function, args, self.meter, self.now)?;
                self.namespaces.keep(&value);
                Ok(value)
            }
            Value::Macro(called) => self.call_macro(called, args),
            Value::Joiner(joiner) => {
                let separator = joiner.separator.items.first().cloned().unwrap_or(Value::None);
                Ok(if joiner.used.replace(true) { separator } else { "".into() })
            }
            Value::Loop(of) => {
                let Some((index, around)) = of.recursive else {
                    return Err(Error::of_type(
                        "The loop must have the 'recursive' marker to be called recursively.",
                    ));
                };
                let [over] = args.plain("loop", 1)?;
                let mut text = Text::new(self.meter);
                let meter = self.meter;
                let depth = of.depth + 1;
                meter
                    .nested(|| self.run_loop(index, over.unwrap_or(Value::None), around, depth, &mut text))?;
                Ok(text.finish().into())
            }
            other => Err(Error::of_type(format!("'{}' object is not callable", other.class()))),
        }
    }
}
