//! From Jinja text to instructions of minijinja, with every operation that can make a value grow replaced by a
//! call of one that is metered.
//!
//! minijinja bounds how many instructions a rendering takes, but not what one instruction makes: forty of
//! `x = x ~ x` are a terabyte. Its filters, methods and functions can be replaced in the environment; operators
//! cannot, so they are replaced here. The names that stand for them cannot be written in a template.

use std::collections::BTreeMap;

use minijinja::{
    Error, ErrorKind,
    machinery::{CodeGenerator, Instruction, Instructions, Token, parse, tokenize},
    syntax::SyntaxConfig,
    value::Value,
};

/// Name of the one template, as it appears in messages.
const NAME: &str = "chat";

/// Bytes of what the compiler may make of constants.
const MAX_CONSTANT: u128 = 1 << 20;

/// A template that can be run.
pub(super) struct Compiled<'a> {
    pub main: Instructions<'a>,
    pub blocks: BTreeMap<&'a str, Instructions<'a>>,
}

pub(super) fn compile(source: &str) -> Result<Compiled<'_>, Error> {
    // Blocks leave no lines behind, as transformers sets Jinja up.
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    refuse_large_constants(source, syntax.clone())?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&parse(source, NAME, syntax)?);
    let (main, blocks) = generator.finish();
    let blocks = blocks.iter().map(|(&name, block)| Ok((name, metered(block)?)));
    Ok(Compiled { main: metered(&main)?, blocks: blocks.collect::<Result<_, Error>>()? })
}

/// The compiler multiplies constants itself, where nothing meters. What comes of it is at most the literals of a block
/// times all its numbers.
fn refuse_large_constants(source: &str, syntax: SyntaxConfig) -> Result<(), Error> {
    let (mut bytes, mut product, mut multiplies) = (0usize, 1u128, false);
    for token in tokenize(source, false, syntax) {
        bytes += size_of::<Value>();
        let number = match token?.0 {
            Token::VariableStart | Token::BlockStart => {
                (bytes, product, multiplies) = (0, 1, false);
                1
            }
            Token::VariableEnd | Token::BlockEnd => {
                if multiplies && product.saturating_mul(bytes as u128) > MAX_CONSTANT {
                    return Err(Error::new(ErrorKind::SyntaxError, "a constant is too large"));
                }
                1
            }
            Token::Mul => {
                multiplies = true;
                1
            }
            Token::Str(text) => {
                bytes += text.len();
                1
            }
            Token::String(text) => {
                bytes += text.len();
                1
            }
            // A sum of parts of two or more is at most their product.
            Token::Int(n) => u128::from(n).max(2),
            Token::Int128(n) => (*n).max(2),
            // They make large numbers of small ones.
            Token::Float(_) | Token::Pow => MAX_CONSTANT,
            _ => 1,
        };
        product = product.saturating_mul(number);
    }
    Ok(())
}

/// The instructions with calls in place of operators, and literal text emitted as a value: only values pass the
/// environment's formatter, which meters. Text takes two instructions in place of one, so all jumps move.
fn metered<'a>(old: &Instructions<'a>) -> Result<Instructions<'a>, Error> {
    let all = || (0..).map_while(|index| old.get(index));
    let mut places = vec![0];
    for instruction in all() {
        let width = if matches!(instruction, Instruction::EmitRaw(_)) { 2 } else { 1 };
        places.push(places[places.len() - 1] + width);
    }
    let mut new = Instructions::new(old.name(), old.source());
    for (index, instruction) in (0..).zip(all()) {
        let span = old.get_span(index);
        let mut add = |instruction| match span {
            Some(span) => new.add_with_span(instruction, span),
            None => new.add_with_line(instruction, old.get_line(index).unwrap_or(0) as u16),
        };
        let place = |target: &u32| places[*target as usize];
        let moved = match instruction {
            Instruction::EmitRaw(text) => {
                add(Instruction::LoadConst(Value::from(*text)));
                Instruction::Emit
            }
            Instruction::Iterate(to) => Instruction::Iterate(place(to)),
            Instruction::Jump(to) => Instruction::Jump(place(to)),
            Instruction::JumpIfFalse(to) => Instruction::JumpIfFalse(place(to)),
            Instruction::JumpIfFalseOrPop(to) => Instruction::JumpIfFalseOrPop(place(to)),
            Instruction::JumpIfTrueOrPop(to) => Instruction::JumpIfTrueOrPop(place(to)),
            Instruction::BuildMacro(name, to, flags) => Instruction::BuildMacro(name, place(to), *flags),
            other => call(other)?.unwrap_or_else(|| other.clone()),
        };
        add(moved);
    }
    Ok(new)
}

/// The call that stands for an operator; `None` for an instruction that makes nothing.
fn call(operator: &Instruction<'_>) -> Result<Option<Instruction<'static>>, Error> {
    let refused = |what: &str| Error::new(ErrorKind::SyntaxError, format!("{what} are not supported"));
    let (name, count) = match operator {
        Instruction::StringConcat => ("~", 2),
        Instruction::Add => ("+", 2),
        Instruction::Mul => ("*", 2),
        Instruction::Slice => ("[:]", 4),
        Instruction::In => ("in", 2),
        Instruction::Eq => ("==", 2),
        Instruction::Ne => ("!=", 2),
        Instruction::Lt => ("<", 2),
        Instruction::Lte => ("<=", 2),
        Instruction::Gt => (">", 2),
        Instruction::Gte => (">=", 2),
        Instruction::BuildList(Some(n)) => ("[]", *n),
        Instruction::BuildTuple(Some(n)) => ("()", *n),
        Instruction::BuildMap(n) => ("{}", 2 * n),
        // Nobody writes these in a chat template, and they have no place for a call.
        Instruction::UnpackLists(_) => return Err(refused("arguments from a list (*)")),
        Instruction::CompareAndPreserve(_) => return Err(refused("chained comparisons")),
        _ => return Ok(None),
    };
    let count = u16::try_from(count).map_err(|_| refused("literals of more than 65535 values"))?;
    Ok(Some(Instruction::CallFunction(name, Some(count))))
}
