//! Compiles Jinja text to minijinja instructions, replacing every operation that can make a value grow by a call of a
//! metered one.
//!
//! minijinja limits how many instructions a rendering takes, but not how much memory one instruction takes: forty of
//! `x = x ~ x` take a terabyte. Its filters, methods and functions can be replaced in the environment, but operators
//! cannot, so they are replaced here. The names of the replacements cannot be written in a template.

use std::collections::BTreeMap;

use minijinja::{
    Error, ErrorKind,
    machinery::{CodeGenerator, Instruction, Instructions, Token, parse, tokenize},
    syntax::SyntaxConfig,
    value::Value,
};

/// Name of the template in messages.
const NAME: &str = "chat";

/// Maximum size in bytes of a constant that the compiler folds.
const MAX_CONSTANT: u128 = 1 << 20;

pub(super) struct Compiled<'a> {
    pub main: Instructions<'a>,
    pub blocks: BTreeMap<&'a str, Instructions<'a>>,
}

pub(super) fn compile(source: &str) -> Result<Compiled<'_>, Error> {
    // Blocks leave no empty lines behind, as in transformers.
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    refuse_large_constants(source, syntax.clone())?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&parse(source, NAME, syntax)?);
    let (main, blocks) = generator.finish();
    let blocks = blocks.iter().map(|(&name, block)| Ok((name, metered(block)?)));
    Ok(Compiled { main: metered(&main)?, blocks: blocks.collect::<Result<_, Error>>()? })
}

/// Refuses constants that could become large: the compiler multiplies constants itself, without a meter. The result
/// is at most the size of a block's literals times all its numbers.
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
            // A sum of numbers of at least two is at most their product.
            Token::Int(n) => u128::from(n).max(2),
            Token::Int128(n) => (*n).max(2),
            // These turn small numbers into large ones.
            Token::Float(_) | Token::Pow => MAX_CONSTANT,
            _ => 1,
        };
        product = product.saturating_mul(number);
    }
    Ok(())
}

/// Replaces operators by calls and emits literal text as values, because only values pass through the environment's
/// metering formatter. Literal text then takes two instructions instead of one, so all jump targets move.
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

/// The call that replaces an operator, or `None` for an instruction that allocates nothing.
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
        // Chat templates do not use these, and they cannot be replaced by a call.
        Instruction::UnpackLists(_) => return Err(refused("arguments from a list (*)")),
        Instruction::CompareAndPreserve(_) => return Err(refused("chained comparisons")),
        _ => return Ok(None),
    };
    let count = u16::try_from(count).map_err(|_| refused("literals of more than 65535 values"))?;
    Ok(Some(Instruction::CallFunction(name, Some(count))))
}
