//! Runs a parsed template: statements and scopes; `evaluate.rs` has the expressions.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
};

use super::{
    args::Args,
    ast::{For, Kind, MacroBody, Name, Program, Statement, Target},
    error::{Error, Result},
    functions::{self, Namespaces},
    meter::{Meter, Text},
    repr,
    value::{Items, Loop, Macro, Value},
};

/// Runs a program.
pub(super) struct Machine<'p> {
    pub(super) program: &'p Program,
    pub(super) meter: &'p Meter,
    pub(super) now: fn(&str) -> String,
    scopes: Vec<Scope>,
    scope: usize,
    pub(super) namespaces: Namespaces,
    special: Special,
}

/// The numbers of names with a meaning of their own, if the program has them.
#[derive(Default)]
struct Special {
    of_loop: Option<Name>,
    caller: Option<Name>,
    varargs: Option<Name>,
    kwargs: Option<Name>,
}

/// Variables of a loop, a macro or the template, and the scope around it.
#[derive(Default)]
struct Scope {
    around: Option<usize>,
    variables: BTreeMap<Name, Value>,
    /// A macro was defined in it, so that it must outlive its block.
    kept: bool,
}

/// How a statement ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
}

impl<'p> Machine<'p> {
    pub fn new(program: &'p Program, meter: &'p Meter, now: fn(&str) -> String) -> Machine<'p> {
        let number =
            |wanted: &str| program.names.iter().position(|name| **name == *wanted).map(|n| n as Name);
        let special = Special {
            of_loop: number("loop"),
            caller: number("caller"),
            varargs: number("varargs"),
            kwargs: number("kwargs"),
        };
        let (scopes, namespaces) = (vec![Scope::default()], Namespaces::default());
        Machine { program, meter, now, scopes, scope: 0, namespaces, special }
    }

    /// Gives a variable to the template.
    pub fn define(&mut self, name: &str, value: Value) {
        if let Some(number) = self.program.names.iter().position(|known| **known == *name) {
            self.scopes[0].variables.insert(number as Name, value);
        }
    }

    /// The text of the template.
    pub fn run(&mut self) -> Result<String> {
        let mut out = Text::new(self.meter);
        let program = self.program;
        self.body(&program.body, &mut out)?;
        Ok(out.finish())
    }

    pub(super) fn lookup(&self, name: Name) -> Value {
        let mut at = Some(self.scope);
        while let Some(scope) = at.map(|at| &self.scopes[at]) {
            if let Some(value) = scope.variables.get(&name) {
                return value.clone();
            }
            at = scope.around;
        }
        let text = &self.program.names[name as usize];
        functions::named(text).unwrap_or_else(|| Value::undefined(format!("'{text}' is undefined")))
    }

    fn set(&mut self, name: Name, value: Value) {
        self.scopes[self.scope].variables.insert(name, value);
    }

    /// Runs `work` in a new scope inside `around`.
    fn scoped<T>(&mut self, around: usize, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let (outer, index) = (self.scope, self.scopes.len());
        self.scopes.push(Scope { around: Some(around), ..Scope::default() });
        self.scope = index;
        let result = work(self);
        self.scope = outer;
        if self.scopes[index..].iter().all(|scope| !scope.kept) {
            self.scopes.truncate(index);
        }
        result
    }

    fn body(&mut self, statements: &'p [Statement], out: &mut Text<'_>) -> Result<Flow> {
        for statement in statements {
            self.meter.step()?;
            let flow = self.statement(&statement.kind, out).map_err(|error| error.at(statement.line))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn nested(&mut self, statements: &'p [Statement], out: &mut Text<'_>) -> Result<Flow> {
        let meter = self.meter;
        meter.nested(|| self.body(statements, out))
    }

    fn captured(&mut self, statements: &'p [Statement]) -> Result<Arc<str>> {
        let mut text = Text::new(self.meter);
        self.nested(statements, &mut text)?;
        Ok(text.finish().into())
    }

    fn statement(&mut self, kind: &'p Kind, out: &mut Text<'_>) -> Result<Flow> {
        match kind {
            Kind::Text(text) => out.push(text)?,
            Kind::Print(value) => {
                let value = self.evaluate(value)?;
                repr::write(out, &value)?;
            }
            Kind::For(index) => {
                let program = self.program;
                let over = self.evaluate(&program.loops[*index].over)?;
                self.run_loop(*index, over, self.scope, 0, out)?;
            }
            Kind::If { branches, otherwise } => {
                for (test, body) in branches {
                    if self.evaluate(test)?.is_true() {
                        return self.nested(body, out);
                    }
                }
                return self.nested(otherwise, out);
            }
            Kind::Set(target, value) => {
                let value = self.evaluate(value)?;
                self.assign(target, value)?;
            }
            Kind::SetBlock(target, filter, body) => {
                let scope = self.scope;
                let text = self.scoped(scope, |machine| machine.captured(body))?;
                let value = match filter {
                    Some(filter) => self.filtered(filter, Value::Str(text))?,
                    None => Value::Str(text),
                };
                self.assign(target, value)?;
            }
            Kind::With(values, body) => {
                // The values are computed outside the new scope.
                let computed: Vec<Value> =
                    values.iter().map(|(_, value)| self.evaluate(value)).collect::<Result<_>>()?;
                let scope = self.scope;
                return self.scoped(scope, |machine| {
                    for ((target, _), value) in values.iter().zip(computed) {
                        machine.assign(target, value)?;
                    }
                    machine.nested(body, out)
                });
            }
            Kind::Macro(name, index) => {
                let value = self.make_macro(*index)?;
                self.set(*name, value);
            }
            Kind::Call { body, call } => {
                let caller = self.make_macro(*body)?;
                let value = self.call_with(call, Some(caller))?;
                repr::write(out, &value)?;
            }
            Kind::Filter(filter, body) => {
                let scope = self.scope;
                let text = self.scoped(scope, |machine| machine.captured(body))?;
                let value = self.filtered(filter, Value::Str(text))?;
                repr::write(out, &value)?;
            }
            Kind::Scope(body) => {
                let scope = self.scope;
                return self.scoped(scope, |machine| machine.nested(body, out));
            }
            Kind::Break => return Ok(Flow::Break),
            Kind::Continue => return Ok(Flow::Continue),
            Kind::Load(of) => {
                let name = self.evaluate(of)?;
                let name = repr::string(&name, self.meter)?;
                return Err(Error::value(format!("a chat template cannot load another template: '{name}'")));
            }
        }
        Ok(Flow::Next)
    }

    fn make_macro(&mut self, index: usize) -> Result<Value> {
        // The macro can be called as long as a value refers to it.
        let mut at = Some(self.scope);
        while let Some(scope) = at.map(|at| &mut self.scopes[at]).filter(|scope| !scope.kept) {
            scope.kept = true;
            self.meter.spend_items(scope.variables.len())?;
            at = scope.around;
        }
        let name = self.program.macros[index].name.clone();
        Ok(Value::Macro(Rc::new(Macro { index, name, scope: self.scope })))
    }

    /// Runs a loop over the items of `over`.
    pub(super) fn run_loop(
        &mut self,
        index: usize,
        over: Value,
        around: usize,
        depth: usize,
        out: &mut Text<'_>,
    ) -> Result<()> {
        let program = self.program;
        let node: &'p For = &program.loops[index];
        let mut items = over.iterate(self.meter)?;
        if let Some(only) = &node.only {
            let mut kept = Vec::new();
            for item in items {
                let passes = self.scoped(around, |machine| {
                    machine.assign(&node.target, item.clone())?;
                    Ok(machine.evaluate(only)?.is_true())
                })?;
                if passes {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            return self.scoped(around, |machine| machine.nested(&node.otherwise, out)).map(drop);
        }
        let items = Items::new(items)?;
        let state = Rc::new(Loop {
            items: items.clone(),
            index: Cell::new(0),
            depth,
            recursive: node.recursive.then_some((index, around)),
            changed: RefCell::new(None),
        });
        let result = self.iterations(node, &state, around, out);
        // What it remembers may hold the loop itself.
        state.changed.take();
        result
    }

    fn iterations(
        &mut self,
        node: &'p For,
        state: &Rc<Loop>,
        around: usize,
        out: &mut Text<'_>,
    ) -> Result<()> {
        for (at, item) in state.items.items.iter().enumerate() {
            self.meter.step()?;
            state.index.set(at);
            let flow = self.scoped(around, |machine| {
                if let Some(name) = machine.special.of_loop {
                    machine.set(name, Value::Loop(state.clone()));
                }
                machine.assign(&node.target, item.clone())?;
                machine.nested(&node.body, out)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    fn assign(&mut self, target: &'p Target, value: Value) -> Result<()> {
        match target {
            Target::Name(name) => {
                self.set(*name, value);
                Ok(())
            }
            Target::Attribute(name, attribute) => match self.lookup(*name) {
                Value::Namespace(namespace) => {
                    functions::checked(attribute)?;
                    self.meter.spend_items(1)?;
                    namespace.set(attribute, value)
                }
                _ => Err(Error::value("cannot assign attribute on non-namespace object")),
            },
            Target::Tuple(targets) => {
                let values = value.defined()?.iterate(self.meter).map_err(|error| {
                    if error.is_of_operands() {
                        Error::of_type(format!("cannot unpack non-iterable {} object", value.class()))
                    } else {
                        error
                    }
                })?;
                let (wanted, got) = (targets.len(), values.len());
                if got > wanted {
                    return Err(Error::value(format!("too many values to unpack (expected {wanted})")));
                }
                if got < wanted {
                    return Err(Error::value(format!(
                        "not enough values to unpack (expected {wanted}, got {got})"
                    )));
                }
                targets.iter().zip(values).try_for_each(|(target, value)| self.assign(target, value))
            }
        }
    }

    /// Calls a macro.
    pub(super) fn call_macro(&mut self, called: &Macro, args: &Args) -> Result<Value> {
        let program = self.program;
        let of: &'p MacroBody = &program.macros[called.index];
        let (name, count) = (&called.name, of.parameters.len());
        self.meter.spend(count.saturating_mul(args.named.len()))?;
        let mut bound: Vec<Option<Value>> = args.positional.iter().take(count).cloned().map(Some).collect();
        bound.resize(count, None);
        let extra: Vec<Value> = args.positional.iter().skip(count).cloned().collect();
        if !extra.is_empty() && !of.reads_varargs {
            return Err(Error::of_type(format!("macro '{name}' takes not more than {count} argument(s)")));
        }
        let mut caller = None;
        let mut more = Vec::new();
        for (given, value) in &args.named {
            let place = of.parameters.iter().position(|p| self.program.names[*p as usize] == *given);
            match place {
                Some(at) if bound[at].is_some() => {
                    return Err(Error::of_type(format!(
                        "macro '{name}' got multiple values for argument '{given}'"
                    )));
                }
                Some(at) => bound[at] = Some(value.clone()),
                None if &**given == "caller" && of.reads_caller => caller = Some(value.clone()),
                None if of.reads_kwargs => more.push((given.clone(), value.clone())),
                None if &**given == "caller" => {
                    return Err(Error::of_type(format!(
                        "macro '{name}' was invoked with two values for the special caller argument. This is \
                         most likely a bug."
                    )));
                }
                None => {
                    return Err(Error::of_type(format!(
                        "macro '{name}' takes no keyword argument '{given}'"
                    )));
                }
            }
        }
        let meter = self.meter;
        let text = meter.nested(|| {
            self.scoped(called.scope, |machine| {
                let first_default = count - of.defaults.len();
                for (at, (parameter, value)) in of.parameters.iter().zip(bound).enumerate() {
                    let value = match value {
                        Some(value) => value,
                        None if at >= first_default => machine.evaluate(&of.defaults[at - first_default])?,
                        None => {
                            let parameter = &machine.program.names[*parameter as usize];
                            Value::undefined(format!("parameter '{parameter}' was not provided"))
                        }
                    };
                    machine.set(*parameter, value);
                }
                if let (true, Some(number)) = (of.reads_caller, machine.special.caller) {
                    machine.set(number, caller.unwrap_or_else(|| Value::undefined("No caller defined")));
                }
                if let (true, Some(number)) = (of.reads_varargs, machine.special.varargs) {
                    machine.set(number, Value::tuple(extra)?);
                }
                if let (true, Some(number)) = (of.reads_kwargs, machine.special.kwargs) {
                    let entries = more.iter().map(|(k, v)| (super::value::key::Key::text(k), v.clone()));
                    machine.set(number, Value::dict(entries.collect())?);
                }
                machine.captured(&of.body)
            })
        });
        Ok(Value::Str(text?))
    }
}
